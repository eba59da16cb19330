"""The boot id of this machine, the number of its GPU driver's kernel module, which is another after
a reload, and start times and user ids of its processes. They identify the process that owns a
change or a lock, and show restarts.

Workbench uses this module itself and sends it to the host, so it uses only the standard library and
Python 3.8.
"""

# ruff: noqa: PTH116, PTH123
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import os


def boot_id() -> str:
    """Return the id of this machine's present boot; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def driver_module_load_id(sysfs: str) -> str | None:
    """Return a number, as text, that identifies this load of the GPU driver's kernel module: after
    a reload it is another one. It is the inode of the module's directory in `sysfs`. None if the
    module is not loaded."""
    try:
        return str(os.stat(sysfs + "/module/nvidia").st_ino)
    except OSError:
        return None


def start_ticks_of_process(pid: int) -> str:
    """Return the start time of a process in clock ticks since the boot (field 22 of
    /proc/PID/stat), as text. "" if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if len(words) < 20 or words[0] in "ZX" else words[19]


def process_of_lock_owner(owner: str) -> tuple[int, str] | None:
    """Return (process id, start time) of the owner of a lock, as its text
    "BOOT_ID:PID:START_TIME:USER@HOST" names them. None for a process of another machine or boot."""
    boot, pid, start, who = [*owner.split(":", 3), "", "", "", ""][:4]
    if boot == boot_id() and pid.isdecimal() and who.endswith("@" + os.uname().nodename):
        return int(pid), start
    return None


def uids_of_process(pid: int) -> set[int]:
    """Return the real, effective, saved and file system user id of a process; an empty set if the
    process has ended."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return {
                int(word) for line in file if line.startswith("Uid:") for word in line.split()[1:]
            }
    except OSError:
        return set()
