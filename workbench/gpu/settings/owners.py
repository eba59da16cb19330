"""The owner of a change: the Workbench process that made it, its user and machine, and whether it
still runs."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import Any

from workbench.gpu.process_facts import (
    boot_id,
    process_of_lock_owner,
    start_ticks_of_process,
)

THIS, ALIVE, DEAD, ELSEWHERE = "this", "alive", "dead", "elsewhere"


def identity_of_this_process() -> dict[str, Any]:
    """Return what identifies this process in the journal, as {"machine", "boot_id", "pid",
    "start"}."""
    return {
        "machine": os.uname().nodename,
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "start": start_ticks_of_process(os.getpid()),
    }


def owner_token() -> str:
    """Return "BOOT_ID:PID:START_TIME:USER@MACHINE" for this process, with "_" for each slash. The
    journal's lock contains this text."""
    facts = identity_of_this_process()
    return ":".join(
        str(part).replace("/", "_")
        for part in (facts["boot_id"], facts["pid"], facts["start"], current_user_at_machine())
    )


def current_user_at_machine() -> str:
    """Return the user and the machine of this process: "user@machine"."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user}@{os.uname().nodename}"


def owner_process_state(owner: Mapping[str, Any]) -> str:
    """Return the state of the process that owns a journal entry: "this" process, another process
    that is "alive" or "dead", or "elsewhere" for another machine's process, whose state is unknown
    here."""
    if owner.get("machine") != os.uname().nodename:
        return ELSEWHERE
    if owner.get("boot_id") != boot_id():
        return DEAD  # this machine has restarted since
    pid = owner.get("pid")
    if not isinstance(pid, int) or start_ticks_of_process(pid) != owner.get("start"):
        return DEAD
    return THIS if pid == os.getpid() else ALIVE


def has_lock_owner_ended(token: str) -> bool:
    """Return whether the owner of a lock is a process of this machine that has ended. False for a
    process of another machine or boot. `token` names the owner (see `owner_token`)."""
    process = process_of_lock_owner(token)
    if process is None:
        return False
    pid, start = process
    return start_ticks_of_process(pid) != start


def owner_text(token: str) -> str:
    """Return the user and the process of a lock's owner as "USER@MACHINE, process PID", or
    "unknown" if `token`, the lock's text, names none."""
    _, pid, _, name, *_ = [*token.split(":", 3), "", "", "", ""]
    return f"{name}, process {pid}" if name else "unknown"
