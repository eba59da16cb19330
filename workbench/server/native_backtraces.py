"""Reads the calls of native code in a backtrace that gdb, glibc or llama.cpp has written into a
log."""

from __future__ import annotations

import re
from collections.abc import Iterable

BACKTRACE_MARKS = (" 0x0000", "+0x")  # one of them is in each backtrace
_MAX_CALL_CHARACTERS = 300  # characters
_CALL_LINE = re.compile(
    r"""
    # gdb: "#5  0x00007fd741ddef43 in ggml_cuda_error(char const*) () from libggml.so"
    ^\s*\#\d{1,3}\s+(?:0x[0-9a-f]+\ in\ )?(?P<gdb>[A-Za-z_(<~].*)
    # glibc: "libggml.so(ggml_abort+0x136)[0x7e716c216266]"
    | ^\S*?(?P<file>[^/\s()]+)\((?P<symbol>[\w.]*)\+0x[0-9a-f]+\)\s?\[0x
    """,
    re.VERBOSE,
)
# Calls that every crash has: how it was reported, and how the thread began.
_CALLS_OF_EVERY_CRASH = re.compile(
    r"ggml_abort|ggml_print_backtrace|ggml_cuda_error|ggml_uncaught_exception|abort|raise|gsignal"
    r"|pthread_kill|wait4|waitpid|terminate|__cxa_|_Unwind|signal handler called|libc_start|start_thread"
    r"|clone3?\b"
)
_CALLS_PASSING_WORK_ON = re.compile(r"ggml_backend_|ggml_gallocr_|ggml_graph_")
_FUNCTION_NAME = re.compile(r"^(?P<name>[\w:~]+(?:<[^()]*>)?(?:::[\w~]+)*)")


def parse_backtrace_call(line: str) -> str | None:
    """Return the call in a line of a backtrace, such as "ggml_abort (libggml.so)"; None if the line
    is not one of a backtrace."""
    if "+0x" not in line and "#" not in line[:8]:
        return None
    found = _CALL_LINE.match(line)
    if found is None:
        return None
    call = found["gdb"] or f"{found['symbol']} ({found['file']})"
    return call[:_MAX_CALL_CHARACTERS]


def calls_of_crash(calls: Iterable[str]) -> Iterable[str]:
    """Return `calls` in their order, without those that every crash has."""
    return (call for call in calls if not _CALLS_OF_EVERY_CRASH.search(function_name_of(call)))


def function_name_of(call: str) -> str:
    """Return the name of the function in `call`, without its arguments; the whole call if it has no
    name."""
    found = _FUNCTION_NAME.match(call)
    return found["name"] if found else call


def is_forwarding_call(call: str) -> bool:
    """Return whether the function in `call` only passes work on to a device or a buffer."""
    return bool(_CALLS_PASSING_WORK_ON.match(function_name_of(call)))
