"""Marks of the processes of a POSIX session on this machine, which show whether one of them has
started or ended since an earlier look. A survey by shell programs takes many times the CPU.
"""

# ruff: noqa: PTH123, PTH208
# (pathlib makes an object of each name)

from __future__ import annotations

import os

Processes = frozenset[tuple[int, int]]


def read_session_processes(sid: int) -> Processes:
    """Return (process id, start time in clock ticks since boot) of each living process of this
    machine that is in the session `sid`, or has an ancestor there."""
    starts: dict[int, int] = {}
    parents: dict[int, int] = {}
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                words = file.read(1024).rpartition(b") ")[2].split()
        except OSError:
            continue  # it has ended
        if len(words) < 20 or words[0] in (b"Z", b"X"):
            continue
        pid, parents[int(name)] = int(name), int(words[1])
        starts[pid] = int(words[19])
        if int(words[3]) == sid:
            found.add(pid)
    outside = parents.keys() - found
    while new := {pid for pid in outside if parents[pid] in found}:
        found |= new
        outside -= new
    return frozenset((pid, starts[pid]) for pid in found)
