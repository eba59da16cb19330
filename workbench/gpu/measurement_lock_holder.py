"""The program that owns a host's measurement lock while its stdin is open. The lock exists because two measurements at
once disturb each other.

One lock file serves all users, in the directory of the register of GPU settings. The kernel releases the lock when this
process ends, and this process ends with the one that started it. A file beside the lock names the owner and the
measurement, for information only.

Sent to the host: standard library only, Python 3.8.
"""

# ruff: noqa: PTH108, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import stat
import sys
import time
from typing import Any

from workbench.gpu.settings import register

LOCK = "workbench-measuring.lock"
PREFIX = "workbench-measuring."
MOST_BYTES = 4096
MOST_FILES = 256
EACH_S = 0.5  # between two tries of a process that waits


def main() -> None:
    """Take the lock and keep it until stdin ends. argv[1] is the JSON {"what", "machine", "wait"}, or {"look": true} to
    read only who has the lock. Prints lines of JSON: {"held": true} once the lock is taken; {"by": owner or null} if
    another process has it; {"problem": text} if this host can have no lock."""
    orders = json.loads(sys.argv[1])
    try:
        directory = register.place(os.environ.get("WORKBENCH_GPU_REGISTER"))
        if orders.get("look"):
            _say({"by": _holder(directory)})
            return
        lock = _opened(f"{directory}/{LOCK}")
        told: Any = ()
        while not _taken(lock):
            by = _holder(directory)
            if by != told:
                _say({"by": by})
                told = by
            if not orders["wait"] or _left(EACH_S):
                return
        _holder(directory)  # removes the files of killed processes of this user
        path = _written(directory, orders)
    except OSError as error:
        _say({"problem": f"{error.filename or 'the lock'}: {error.strerror}"})
        return
    _say({"held": True})
    while not _left(None):
        pass
    with contextlib.suppress(OSError):
        os.unlink(path)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201


def _left(timeout_s: float | None) -> bool:
    """Wait until stdin is closed, which means that the process that started this one has ended, but at most `timeout_s`
    seconds (None: without a limit). Return whether stdin is closed."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return bool(ready) and not os.read(0, 4096)


def _opened(path: str) -> int:
    """Open the lock file, and return its file descriptor. The first user creates the file. Other users open it for
    reading, which suffices to lock it."""
    with contextlib.suppress(FileExistsError):
        made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        os.fchmod(made, 0o644)
        return made
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(22, "the lock file is not a regular file", path)
    return handle


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(directory: str, orders: dict[str, Any]) -> str:
    """Write the file that names this owner and return its path. The file stays locked as long as this process runs, so
    that the file of an ended process does not count."""
    said = {"pid": os.getpid(), "since_unix_s": time.time(), "what": orders["what"], "machine": orders["machine"]}
    path = f"{directory}/{PREFIX}{os.geteuid()}.{secrets.token_hex(8)}.json"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)  # stays open with this process
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(handle, json.dumps(said).encode()[:MOST_BYTES])
    os.fchmod(handle, 0o644)
    return path


def _holder(directory: str) -> dict[str, Any] | None:
    """Return the owner of the lock from the owners' files in `directory`; None if no process owns the lock."""
    names = [name for name in os.listdir(directory) if name.startswith(PREFIX) and name.endswith(".json")]
    for name in sorted(names)[:MOST_FILES]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found = _read(f"{directory}/{name}")
            if found is not None:
                return found
    return None


def _read(path: str) -> dict[str, Any] | None:
    """Return the contents of an owner's file; None if it is invalid or no process has it locked. In the latter case,
    remove the file if it is this user's."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return None
        if found.st_size and _taken(handle):
            if found.st_uid == os.geteuid():
                os.unlink(path)
            return None
        said = json.loads(os.read(handle, MOST_BYTES).decode())
    finally:
        os.close(handle)
    return {
        "user": register.user_name(found.st_uid),
        "pid": int(said["pid"]),
        "since_unix_s": float(said["since_unix_s"]),
        "what": str(said["what"])[:200],
        "machine": str(said["machine"])[:80],
    }
