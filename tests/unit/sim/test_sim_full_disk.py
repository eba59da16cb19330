"""A simulated host whose disk is full."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from workbench.hosts.base import FileError
from workbench.hosts.local import LocalHost
from workbench.sim.simulated_host import SimulatedHost

PROFILE = "rtx-pro-6000"


def test_a_simulated_host_that_was_used_before_is_read_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = str(tmp_path / "state")
    asyncio.run(SimulatedHost(LocalHost(), PROFILE, state).connect())

    async def refuse(host: LocalHost, path: str, data: bytes, *, mode: int = 0o600) -> None:
        raise FileError(f"cannot write {path}: {os.strerror(errno.ENOSPC)}", host="local")

    monkeypatch.setattr(LocalHost, "write_file", refuse)

    async def read() -> str:
        host = SimulatedHost(LocalHost(), PROFILE, state)
        await host.connect()
        return (await host.run(["nvidia-smi", "-L"])).out

    assert "GPU 0" in asyncio.run(read())


def test_a_new_simulated_host_on_a_full_disk_is_refused_with_the_path_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("df", "echo /dev/x 100 100 0 100% /"), ("mkdir", "exit 1")):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    state = str(tmp_path / "state")
    with pytest.raises(FileError, match=f"the disk of {state}/driver is full") as caught:
        asyncio.run(SimulatedHost(LocalHost(), PROFILE, state).connect())
    assert "XDG_STATE_HOME" in (caught.value.next_step or "")
