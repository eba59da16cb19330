"""The start of the guard: it detaches from the command that started it and reports whether it runs.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from workbench.gpu.guard.files import GUARD_VERSION, GuardFiles
from workbench.gpu.guard.guard import Guard
from workbench.gpu.guard.privileges import Programs, UnsafeProgramError

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

READY_S = 10.0
# a guard of an earlier version that has not made way by then does not
TAKEOVER_REFUSED_AFTER_S = 5.0


def release_free_memory() -> None:
    """Give the memory that was needed to compile this program back to the system. Do nothing if the
    C library, such as musl, cannot do that."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def run_guard_and_report_start(guard: Guard, answers: int) -> None:
    """Run the guard in the detached process. After the first round, write {"pid": …} as JSON to the
    pipe with the file descriptor `answers`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, guard.request_end)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    log = guard.files.open_file("log", os.O_WRONLY | os.O_APPEND)
    for number, handle in ((0, null), (1, log), (2, log)):
        os.dup2(handle, number)
    release_free_memory()
    pipes = [answers]

    def report_guard_is_running() -> None:
        if pipes:
            os.write(pipes[0], json.dumps({"pid": os.getpid()}).encode())
            os.close(pipes.pop())

    guard.run(report_guard_is_running)
    report_guard_is_running()


def start_guard_daemon(guard: Guard) -> dict[str, Any]:
    """Start the guard as a daemon, in a session of its own. Return {"pid": process id}, or
    {"error": text} if it ended before its first round was over."""
    hears, answers = os.pipe()
    if os.fork() == 0:
        os.close(hears)
        os.setsid()
        if os.fork() == 0:
            try:
                run_guard_and_report_start(guard, answers)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
                os._exit(70)  # EX_SOFTWARE, sysexits.h
        os._exit(0)
    os.close(answers)
    os.wait()
    said = b""
    while True:
        more = os.read(hears, 4096)
        if not more:
            break
        said += more
    ended = {"error": f"the guard ended at once; its log is {guard.files.root}/guard/log"}
    return json.loads(said.decode()) if said else ended


def start_or_find_guard(
    files: GuardFiles, programs: Programs, options: Mapping[str, float]
) -> dict[str, Any]:
    """Start a guard, or wait until the guard that already runs has read the newest journal. Return
    {"pid": process id of the guard}, or {"error": text}. A guard of an earlier version, or one that
    lacks the needed rights, is asked to make way. One of an earlier version that does not is
    returned all the same. `options` are arguments of `Guard`."""
    files.create_guard_files()
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if files.try_to_acquire_guard_lock():
            files.withdraw_guard_end_request()
            return start_guard_daemon(Guard(files, programs, **options))
        state = files.read_state()
        older = state.get("version", 1) < GUARD_VERSION
        if older and time.monotonic() > until - READY_S + TAKEOVER_REFUSED_AFTER_S:
            files.withdraw_guard_end_request()
            return {"pid": state.get("pid"), "root": state.get("root")}
        if older or state.get("unseen") or (programs.root and state.get("root") is False):
            files.request_guard_end()
        elif state.get("running") and state.get("journal") == files.read_mtime_inode_and_size():
            return {"pid": state.get("pid"), "root": state.get("root")}
        time.sleep(0.02)
    return {"error": f"the running guard (process {files.read_state().get('pid')}) does not answer"}


def main() -> None:
    """Start the guard and print {"pid": …} or {"error": …} as JSON.

    argv[1] is a JSON object. "root" is gpu/ of the state directory, and "register" is the host's
    register directory. "options" are arguments of `Guard`. "nvidia_smi" and "tee" are paths of
    programs, and "sudo" the list of words to put before their commands.
    """
    orders = json.loads(sys.argv[1])
    os.umask(0o077)
    try:
        programs = Programs(orders)
        answer = start_or_find_guard(
            GuardFiles(orders["root"], orders.get("register")), programs, orders.get("options", {})
        )
    except OSError as error:
        answer = {"error": f"{error.filename or 'guard'}: {error.strerror}"}
    except UnsafeProgramError as why:
        answer = {"error": str(why)}
    print(json.dumps(answer))  # noqa: T201
