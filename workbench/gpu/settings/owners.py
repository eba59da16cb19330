"""Which Workbench made a change: who, on which machine, and whether that process still lives."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

THIS, ALIVE, DEAD, ELSEWHERE = "this", "alive", "dead", "elsewhere"


def owner_facts() -> dict[str, Any]:
    """Of this process, as the journal keeps it."""
    return {
        "machine": platform.node(),
        "boot_id": _own_boot_id(),
        "pid": os.getpid(),
        "start": _start_of(os.getpid()),
    }


def owner_token() -> str:
    """boot id, pid, start time, who: one word without a slash."""
    facts = owner_facts()
    return ":".join(str(part).replace("/", "_") for part in (facts["boot_id"], facts["pid"], facts["start"], who()))


def who() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}"


def state_of(owner: Mapping[str, Any]) -> str:
    """Of a journalled owner: "this" process, another one that is "alive" or "dead", or "elsewhere": on another machine,
    of which nothing can be told from here."""
    if owner.get("machine") != platform.node():
        return ELSEWHERE
    if owner.get("boot_id") != _own_boot_id():
        return DEAD  # this machine was restarted since
    pid = owner.get("pid")
    if not isinstance(pid, int) or _start_of(pid) != owner.get("start"):
        return DEAD
    return THIS if pid == os.getpid() else ALIVE


def lock_is_dead(token: str, age_s: int, lease_s: int, host_up_s: int | None = None) -> bool:
    """Of our own machine we can tell who lives; of any, that it took longer than a plan does; of another machine's,
    that the host was started after the lock was made. A lock from well ahead of the host's clock is as old as one from
    well before."""
    boot_id, pid, start, name, *_ = [*token.split(":", 3), "", "", "", ""]
    if boot_id == _own_boot_id() and pid.isdigit() and name.endswith(f"@{platform.node()}"):
        return _start_of(int(pid)) != start or abs(age_s) > lease_s
    return abs(age_s) > lease_s or (host_up_s is not None and age_s > host_up_s)


def described(token: str) -> str:
    _, pid, _, name, *_ = [*token.split(":", 3), "", "", "", ""]
    return f"{name}, process {pid}" if name else "unknown"


def _own_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Field 22 of /proc/PID/stat; "" when there is no such process, or only its exit status is left."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if len(words) < 20 or words[0] in "ZX" else words[19]
