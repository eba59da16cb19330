"""The memory of the screen."""

from __future__ import annotations

import subprocess
import sys

import pytest

THREADS = """
import ctypes, sys, threading
from workbench.tui import share_one_malloc_arena
if sys.argv[1] == "one":
    share_one_malloc_arena()
def allocate():
    kept.append([bytes(700 + n) for n in range(2000)])
kept = []
for _ in range(4):
    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_threads_share_one_heap() -> None:
    def heaps(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", THREADS, how],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stderr.count("Arena ")

    assert heaps("several") > 1 and heaps("one") == 1
