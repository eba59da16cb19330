"""What a test leaves to the garbage collector fails that test (tests/conftest.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LEAKS = """
import asyncio
import socket
import subprocess

import pytest


class Cycle:
    def __init__(self, held):
        self.held, self.itself = held, self


def test_nothing_left():
    pass


def test_a_socket():
    Cycle(socket.socket())


def test_a_coroutine():
    async def never_awaited():
        pass

    Cycle(never_awaited())


def test_a_pipe():
    async def main():
        process = await asyncio.create_subprocess_exec("sleep", "0", stdin=subprocess.PIPE)
        await process.wait()
        reader, writer = await asyncio.open_connection(sock=socket.socketpair()[0])

    asyncio.run(main())


def test_a_process():
    process = subprocess.Popen(["sleep", "60"])
    process.kill()


def test_behind_a_screen():
    import gc

    cycle = Cycle(socket.socket())
    gc.freeze()
"""


@pytest.mark.slow
def test_a_leak_fails_the_test_that_left_it_and_no_other(tmp_path: Path) -> None:
    made = tmp_path / "test_leaks.py"
    made.write_text(LEAKS)
    options = [
        "-rfE",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        f"{ROOT / 'pyproject.toml'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(made)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    failed = re.findall(r"^(?:ERROR|FAILED) .*::test_(\w+)", done.stdout, re.MULTILINE)
    expected = ["a_socket", "a_coroutine", "a_pipe", "a_process", "behind_a_screen"]
    assert sorted(set(failed)) == sorted(expected), done.stdout
