"""Facts about processes and the boot of this machine, from /proc. They identify the owner of a change or a lock.

Used by Workbench, and sent to the host with the guard and the register: standard library only, Python 3.8.
"""

# ruff: noqa: PTH123
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations


def boot_id() -> str:
    """Return the id of this machine's present boot; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """Return the start time of a process, field 22 of /proc/PID/stat, as text; "" if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if len(words) < 20 or words[0] in "ZX" else words[19]


def uids_of(pid: int) -> set[int]:
    """Return the real, effective, saved and file system user id of a process; an empty set if the process has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return {int(word) for line in file if line.startswith("Uid:") for word in line.split()[1:]}
    except OSError:
        return set()
