"""Local hosts whose shell and tools are dash's and GNU's, bash's, or only busybox's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.userland import UserlandHost


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
