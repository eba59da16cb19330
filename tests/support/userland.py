"""Local hosts whose shell and tools are dash's and GNU's, bash's, or only busybox's."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.hosts.local import LocalHost


class UserlandHost(LocalHost):
    """A LocalHost whose commands all run with a PATH of its own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.nap = f"62.{zlib.crc32(path.encode())}"  # seconds that no other test sleeps

    async def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **rest: Any
    ) -> Any:
        return await super().run(argv, env={"PATH": self.path, **(env or {})}, **rest)

    async def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **rest: Any
    ) -> Any:
        return await super().stream(argv, env={"PATH": self.path, **(env or {})}, **rest)


@pytest.fixture(params=["dash", "bash", "busybox"])
def userland(request: pytest.FixtureRequest, tmp_path: Path) -> UserlandHost:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param} here")
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    if request.param == "busybox":
        subprocess.run([program, "--install", "-s", str(bin_dir)], check=True)
        return UserlandHost(str(bin_dir))
    (bin_dir / "sh").symlink_to(program)
    return UserlandHost(f"{bin_dir}:{os.environ['PATH']}")
