"""The program that owns a host's measurement lock while its stdin is open. The lock exists because
two measurements at the same time disturb each other.

One lock file serves all users, in the directory of the register of GPU settings. The kernel
releases the lock when this process ends, and this process ends with the process that started it. A
second file names the holder of the lock and the measurement, for information only. Who measures
beside the holder has such a file too, so that each learns of the others.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

# ruff: noqa: PTH108, PTH123, PTH208
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
from collections.abc import Iterator
from typing import Any, NamedTuple

from workbench.gpu.process_facts import start_ticks_of_process, uids_of_process
from workbench.gpu.settings import register
from workbench.model.untrusted_numbers import integer_or_none, number_for_field, parse_strict_json

LOCK = "workbench-measuring.lock"
PREFIX = "workbench-measuring."
BESIDE_PREFIX = "workbench-measuring-beside."  # of files of those that measure without the lock
MOST_BYTES = 4096
MOST_FILES = 256
COMMAND_BYTES = 160
MOST_PID = 2**31 - 1
EACH_S = 0.5  # between two tries of a process that waits, and two looks for others


def main() -> None:
    """Take the lock and hold it until stdin is closed. argv[1] is JSON: {"what": name of the
    measurement, "machine": machine of the user, "wait": whether to wait for the lock, "beside":
    whether to measure beside its holder}, or {"look": true} to read only who holds the lock. Prints
    lines of JSON: {"held": true} once this process holds the lock; {"by": holder or null} if another
    process holds it; {"problem": text} if this host can have no lock. Then, until stdin is closed,
    {"joined": who} and {"left": who} of others that measure at the same time."""
    orders = json.loads(sys.argv[1])
    try:
        directory = register.find_or_create_register_directory(
            os.environ.get("WORKBENCH_GPU_REGISTER")
        )
        if orders.get("look"):
            _print_answer({"by": find_lock_holder(directory)})
            return
        lock = _open_lock_file(f"{directory}/{LOCK}")
        told: Any = ()
        while not _try_lock(lock):
            by = find_lock_holder(directory)
            who = by and (by["pid"], by["what"])
            if who != told:
                _print_answer({"by": by})
                told = who
            if orders.get("beside"):
                _report_others_without_lock(directory, orders, by)
                return
            if not orders["wait"] or _stdin_closes_within(EACH_S):
                return
        find_lock_holder(directory)  # removes the files of killed processes of this user
        own = _write_holder_file(directory, orders, PREFIX)
    except OSError as error:
        _print_answer({"problem": f"{error.filename or 'the lock'}: {error.strerror}"})
        return
    _print_answer({"held": True})
    _print_others_until_stdin_closes(directory, own, with_holder=False, reported={})
    _remove_file(own)


def _report_others_without_lock(
    directory: str, lock_request: dict[str, Any], holder: dict[str, Any] | None
) -> None:
    """Write a file that names this process as one that measures without the lock. Then print who
    else begins and ends to measure, until stdin is closed. `holder` is who has the lock, and was
    printed before."""
    own_file = _write_holder_file(directory, lock_request, BESIDE_PREFIX)
    reported = {} if holder is None else {_user_and_pid_of(holder): holder}
    _print_others_until_stdin_closes(directory, own_file, with_holder=True, reported=reported)
    _remove_file(own_file)


def _print_others_until_stdin_closes(
    directory: str, own_file: str, *, with_holder: bool, reported: dict[Any, dict[str, Any]]
) -> None:
    """Print who begins and who ends to measure on this host, until stdin is closed. `own_file` is
    the file of this process. With `with_holder`, the holder of the lock counts too. `reported` has
    those that were printed before, by user and process id."""
    own_inode = _device_and_inode(own_file)
    while True:
        now: dict[Any, dict[str, Any]] = {}
        with contextlib.suppress(OSError):
            files = _holder_files(directory, BESIDE_PREFIX)
            others = [one.said for one in files if one.inode != own_inode]
            holder = find_lock_holder(directory) if with_holder else None
            if holder is not None:
                others.append(holder)
            now = {_user_and_pid_of(said): said for said in others}
        for name in now.keys() - reported.keys():
            _print_answer({"joined": now[name]})
        for name in reported.keys() - now.keys():
            _print_answer({"left": reported[name]})
        reported = now
        if _stdin_closes_within(EACH_S):
            return


def _user_and_pid_of(holder: dict[str, Any]) -> Any:
    return holder["user"], holder["pid"]


def _print_answer(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201


def _remove_file(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _stdin_closes_within(timeout_s: float) -> bool:
    """Wait until stdin is closed, but at most `timeout_s` seconds, and return whether it is closed.
    Stdin closes when the process that started this one ends."""
    ready, _, _ = select.select([0], [], [], timeout_s)
    return bool(ready) and not os.read(0, 4096)


def _open_lock_file(path: str) -> int:
    """Open the lock file, and return its file descriptor. The first user creates the file. Other
    users open it for reading, which suffices to lock it."""
    with contextlib.suppress(FileExistsError):
        made = os.open(
            path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
        os.fchmod(made, 0o644)
        return made
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(22, "the file of the measurement lock is not a regular file", path)
    return handle


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder_file(directory: str, orders: dict[str, Any], prefix: str) -> str:
    """Write a file that names this process, and return its path. Its name begins with `prefix`.
    `orders` has under "what" the name of the measurement, and under "machine" the user's machine.
    The file stays locked while this process runs, which distinguishes it from the file of an ended
    process."""
    said = {
        "pid": os.getpid(),
        "since_unix_s": time.time(),
        "what": orders["what"],
        "machine": orders["machine"],
    }
    path = f"{directory}/{prefix}{os.geteuid()}.{secrets.token_hex(8)}.json"
    # stays open with this process
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(handle, json.dumps(said).encode()[:MOST_BYTES])
    os.fchmod(handle, 0o644)
    return path


def find_lock_holder(directory: str) -> dict[str, Any] | None:
    """Return who holds the measurement lock. None if no process holds it.

    The kernel's list of locks decides. A file in which a holder names itself counts only if it
    belongs to the user of the process that holds the lock and names that process. The kernel does
    not list the locks of processes in other containers. Then the file alone counts, if its own lock
    is not in the list either.
    """
    files, locks = list(_holder_files(directory, PREFIX)), read_flock_locks()
    lock = _device_and_inode(f"{directory}/{LOCK}")
    for pid, inode in locks:
        if inode == lock:
            own = (
                one.said
                for one in files
                if one.said["pid"] == pid and one.uid in uids_of_process(pid)
            )
            return next(own, None) or _describe_process_with_lock(pid)
    listed = {one.inode for one in locks}
    return next((one.said for one in files if one.inode not in listed), None)


class FlockLock(NamedTuple):
    """A lock of a file by flock: `pid` is the process that has it, and `inode` the (device, inode)
    of the file."""

    pid: int
    inode: tuple[int, int]


def read_flock_locks() -> list[FlockLock]:
    """Return each lock in /proc/locks that a process has taken with flock. [] if the file cannot be
    read."""
    found = []
    with contextlib.suppress(OSError), open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK":  # "->" in place of it: a process that waits
                major, minor, inode = words[5].split(":")
                device = os.makedev(int(major, 16), int(minor, 16))
                found.append(FlockLock(int(words[4]), (device, int(inode))))
    return found


def _device_and_inode(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None


def _describe_process_with_lock(pid: int) -> dict[str, Any]:
    """Return who holds the lock, from the kernel alone, for a process that is named in no file: the
    process, its user, its start and its command, in the fields of a holder's file."""
    uids = uids_of_process(pid)
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = (
                file.read(COMMAND_BYTES).replace(b"\0", b" ").decode("utf-8", "replace").strip()
            )
    except OSError:
        command = ""
    what = f"the command `{command}`" if command else "a program that has ended, or a child of it"
    user = register.user_name(min(uids)) if uids else "an unknown user"
    return {
        "user": user,
        "pid": pid,
        "since_unix_s": _started_unix_s(pid),
        "what": what,
        "machine": os.uname().nodename,
    }


def _started_unix_s(pid: int) -> float | None:
    ticks = start_ticks_of_process(pid)
    try:
        with open("/proc/uptime") as file:
            up_s = float(file.read().split()[0])
    except OSError:
        return None
    return time.time() - up_s + int(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


class _HolderFile(NamedTuple):
    """A file in which a process that measures names itself. `said` is the content, `uid` the owner,
    and `inode` the (device, inode)."""

    said: dict[str, Any]
    uid: int
    inode: tuple[int, int]


def _holder_files(directory: str, prefix: str) -> Iterator[_HolderFile]:
    names = [name for name in os.listdir(directory) if name.startswith(prefix)]
    for name in sorted(name for name in names if name.endswith(".json"))[:MOST_FILES]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            found = _read_holder_file(f"{directory}/{name}")
            if found is not None:
                yield found


def _read_holder_file(path: str) -> _HolderFile | None:
    """Return the contents of the file in which a process that measures names itself. None if the
    file is invalid, or if no process has it locked. In the second case, remove the file if it
    belongs to this user."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return None
        if found.st_size and _try_lock(handle):
            if found.st_uid == os.geteuid():
                os.unlink(path)
            return None
        said = parse_strict_json(os.read(handle, MOST_BYTES).decode())
    finally:
        os.close(handle)
    pid = integer_or_none(said["pid"], 1, MOST_PID)
    if pid is None:
        return None
    told = {
        "user": register.user_name(found.st_uid),
        "pid": pid,
        "since_unix_s": number_for_field("since_unix_s", said["since_unix_s"]),
        "what": str(said["what"])[:200],
        "machine": str(said["machine"])[:80],
    }
    return _HolderFile(told, found.st_uid, (found.st_dev, found.st_ino))
