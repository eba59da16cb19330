"""Earlier versions of Workbench, from the history of the repository, beside the present one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# The journal and the guard of these versions say nothing about their version.
OLD_GUARD, NEW_FIELDS = "1e44948", "16f77671"


class OlderWorkbench:
    """The code of one commit, run as commands in the environment of the test."""

    def __init__(self, commit: str, directory: Path) -> None:
        """Write the code of `commit` to `directory`. Skip the test if this checkout lacks it."""
        if shutil.which("git") is None:
            pytest.skip("needs git (apt-get install git)")
        archive = subprocess.run(
            ["git", "-C", REPOSITORY, "archive", commit, "workbench"],
            capture_output=True,
            check=False,
        )
        if archive.returncode:
            pytest.skip(f"this checkout has no commit {commit}")
        directory.mkdir()
        subprocess.run(["tar", "x", "-C", directory], input=archive.stdout, check=True)
        self.directory = directory

    def __call__(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(self.directory)}
        command = [sys.executable, "-m", "workbench", *argv]
        return subprocess.run(
            command, env=env, cwd=self.directory, capture_output=True, text=True, check=False
        )
