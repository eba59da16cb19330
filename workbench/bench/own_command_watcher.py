"""The watcher: a process between Workbench and a command of the user. The watcher ends the command
when Workbench ends, even if Workbench is killed.

Call: `python own_command_watcher.py OUTPUT_FD TERM_WAIT_S COMMAND…`. The watcher's stdin is a pipe
that Workbench keeps open and never writes to. When Workbench closes the pipe or ends, the watcher
ends the command. On stdout it writes a line of JSON when the command has started or failed to
start, and another line when the command has ended.

Every process that the command starts stays a descendant of the watcher, even in another session
(PR_SET_CHILD_SUBREAPER), so all of them can be ended. If the watcher is killed, the kernel ends the
command. Only the standard library is imported, because the watcher starts before each command.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_POLL_INTERVAL_S = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # Linux


def main() -> int:
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # only the pipe decides when to end
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    output, began = int(sys.argv[1]), time.monotonic()
    try:
        child = subprocess.Popen(
            sys.argv[3:],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        _write_message({"error": error.errno})
        return 0
    _write_message({"pid": child.pid, "unix_s": time.time()})
    os.close(output)
    wanted = True
    while wanted and not _has_ended(child.pid):
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        wanted = not (0 in ready and not os.read(0, 4096))
    if _has_ended(child.pid):
        _write_message({"exit": _read_exit_code(child.pid), "seconds": time.monotonic() - began})
        while wanted and os.read(0, 4096):
            pass
    _end_all_descendants(child.pid, float(sys.argv[2]))
    return 0


def die_with_parent() -> None:
    """Make the kernel kill the calling process when its parent is killed. Call this in the child
    process."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _write_message(message: dict[str, float | int | None]) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        os.write(1, json.dumps(message).encode() + b"\n")


def _has_ended(pid: int) -> bool:
    """Return whether the command has ended. The command stays a zombie process, so that the kernel
    cannot give its process id and group id to a new process."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read_exit_code(pid: int) -> int:
    """Return the exit code of the ended process; negative if a signal ended it."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end_all_descendants(leader: int, wait_s: float) -> None:
    """End the command's process group and all other descendants: SIGTERM, then after `wait_s`
    seconds SIGKILL. SIGKILL is repeated, because a process may have forked meanwhile."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until, first = time.monotonic() + wait_s, True
        while (left := _list_living_descendants()) or not _has_ended(leader):
            if first or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, number)
                for pid, start in left:
                    _send_signal_if_same_process(pid, start, number)
            if time.monotonic() > until:
                break
            first = False
            time.sleep(_POLL_INTERVAL_S)


def _send_signal_if_same_process(pid: int, start: bytes, number: int) -> None:
    """Send signal `number` to the process `pid` that started at `start`. Do nothing if a new
    process has this id now."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.pidfd_open(pid)
        try:
            if _read_stat_fields_after_name(pid)[19] == start:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _list_living_descendants() -> list[tuple[int, bytes]]:
    """Return the living descendants of this process as (process id, start time). Empty on a system
    without /proc."""
    table: dict[int, list[bytes]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            table[int(path.name)] = _read_stat_fields_after_name(int(path.name))
    children: dict[int, list[int]] = {}
    for pid, words in table.items():
        children.setdefault(int(words[1]), []).append(pid)
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        found += [(pid, table[pid][19]) for pid in below if table[pid][0] not in b"ZX"]
    return found


def _read_stat_fields_after_name(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the program's name. The first is the state, the
    second the parent's id, the 20th the start time. Raises OSError if the process has ended."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()


if __name__ == "__main__":
    sys.exit(main())
