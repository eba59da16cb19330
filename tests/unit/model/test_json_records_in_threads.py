"""Threads that read the first records of a type at once."""

from __future__ import annotations

import subprocess
import sys

# in a process of its own, because it crashed
_RACE = """
import sys, threading
from dataclasses import make_dataclass
from workbench.model.json_records import from_json

sys.setswitchinterval(1e-6)
for number in range(30):
    inner = make_dataclass(f"Inner{number}", [(f"f{n}", int) for n in range(30)])
    kind = make_dataclass(f"Record{number}", [(f"f{n}", inner) for n in range(5)])
    data = {f"f{n}": {f"f{m}": m for m in range(30)} for n in range(5)}
    gate = threading.Barrier(4)
    threads = [
        threading.Thread(target=lambda: (gate.wait(), from_json(kind, data))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_read_the_first_record_of_a_type_do_not_crash() -> None:
    """A screen that opened after a kill read the results in two threads, and ended with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _RACE], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
