"""A start is told before it begins that Workbench cannot keep its run and its log."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.hosts.local import LocalHost
from workbench.server.state_disk import check_state_directory, state_directory_findings


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small file system with the state directory."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    monkeypatch.setenv("XDG_STATE_HOME", str(mounted))
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def said() -> list[tuple[str, str, str]]:
    found = asyncio.run(check_state_directory(LocalHost()))
    return [(str(one.level), one.code, one.text) for one in found]


def test_a_small_a_full_and_a_read_only_disk_are_named(disk: Path) -> None:
    state = disk / "workbench"
    small = f"{state} has 0 MiB free: logs of servers may fill it"
    assert said() == [("warn", "host.disk", small)]
    (disk / "filler").write_bytes(bytes(64 << 10))
    ((level, code, text),) = said()
    assert (level, code) == ("error", "host.state-dir")
    assert text == f"nothing can be written to the state directory {state}: No space left on device"
    assert os.listdir(state) == []
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert said()[0][2].endswith("Read-only file system")


def test_a_large_or_unknown_disk_gives_no_finding() -> None:
    assert (
        state_directory_findings("/state", "yes", 2 << 20)
        == state_directory_findings("/state", "yes", None)
        == []
    )
    assert state_directory_findings("/state", "", None) == []
