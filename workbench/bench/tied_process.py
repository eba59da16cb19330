"""A process between Workbench and a command, which ends the command when Workbench ends: `python tied_process.py
OUTPUT_FD TERM_WAIT_S COMMAND…`

stdin is a pipe that the parent keeps open and never writes to. Its end means that the parent wants the command ended,
or has ended itself, by whatever signal. The command leads a session and process group of its own. Everything that it
starts stays below this process, even in another session and without its parent (PR_SET_CHILD_SUBREAPER), so this
process can end all of it; and the kernel ends the command if this process is killed. stdout gets one line of JSON when
the command has started or could not be started, and one when it has ended.

Imports the standard library only, since it starts before each command.
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

_LOOK_S = 0.05
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
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        _tell({"error": error.errno})
        return 0
    _tell({"pid": child.pid, "unix_s": time.time()})
    os.close(output)
    wanted = True
    while wanted and not _ended(child.pid):
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        wanted = not (0 in ready and not os.read(0, 4096))
    if _ended(child.pid):
        _tell({"exit": _exit_code(child.pid), "seconds": time.monotonic() - began})
        while wanted and os.read(0, 4096):
            pass
    _end_all(child.pid, float(sys.argv[2]))
    return 0


def _die_with_parent() -> None:
    """Let the kernel kill the command if this process is killed. Called in the child before it becomes the command."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _tell(message: dict[str, float | int | None]) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        os.write(1, json.dumps(message).encode() + b"\n")


def _ended(pid: int) -> bool:
    """Return whether the command has ended. It is not reaped: until then, its number, which is also its group's, is not
    reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _exit_code(pid: int) -> int:
    """Return the exit code, negative for a signal."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _end_all(leader: int, wait_s: float) -> None:
    """End the command's group and everything else that it started. KILL is repeated, since a process may just have
    forked."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until, first = time.monotonic() + wait_s, True
        while (left := _below()) or not _ended(leader):
            if first or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, number)
                for pid, start in left:
                    _send(pid, start, number)
            if time.monotonic() > until:
                break
            first = False
            time.sleep(_LOOK_S)


def _send(pid: int, start: bytes, number: int) -> None:
    """Signal a process, unless its number has been reused."""
    with contextlib.suppress(OSError, AttributeError):
        handle = os.pidfd_open(pid)
        try:
            if _stat(pid)[19] == start:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _below() -> list[tuple[int, bytes]]:
    """Return the living processes below this one, as number and start time; empty without /proc."""
    table: dict[int, list[bytes]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            table[int(path.name)] = _stat(int(path.name))
    children: dict[int, list[int]] = {}
    for pid, words in table.items():
        children.setdefault(int(words[1]), []).append(pid)
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        found += [(pid, table[pid][19]) for pid in below if table[pid][0] not in b"ZX"]
    return found


def _stat(pid: int) -> list[bytes]:
    """Return the fields of a process from its state on: state, parent, …, and the start time as the 20th."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()


if __name__ == "__main__":
    sys.exit(main())
