"""Real processes, as tests look at them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path


def state_of(pid: int) -> str | None:
    """Return the state letter of a process, or None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z", "X")


def with_argument(text: str) -> list[int]:
    """Return the living processes with an argument that is exactly `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if text.encode() in arguments and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    """Wait for `condition()`; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.01)


class Watched:
    """A record of the command line and environment of every process that starts while the record is
    open."""

    def __init__(self, every_s: float = 0.01) -> None:
        self.every_s = every_s
        self.seen: set[bytes] = set()
        self._before = set(filter(str.isdecimal, os.listdir("/proc")))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(self.every_s):
            for pid in set(filter(str.isdecimal, os.listdir("/proc"))) - self._before:
                for name in ("cmdline", "environ"):
                    try:
                        self.seen.add(Path("/proc", pid, name).read_bytes())
                    except OSError:
                        continue

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def of(self, text: str) -> list[bytes]:
        return [one for one in self.seen if text.encode() in one]
