"""A guard process on hosts with unified memory, where the GPU uses the memory of the operating
system. It stops a server before the host freezes for lack of memory."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.hosts.script_files import read_script

KILL_AFTER_TERM_S = 5  # from TERM to KILL of the server
_KIB_PER_GIB = 1 << 20

_GUARDED_SCRIPT = read_script(__file__, "run_with_memory_guard.sh")


def memory_guard_command(argv: Sequence[str], reserve_gib: float) -> tuple[str, ...]:
    """Return the command that runs the server `argv`, and stops it when less than `reserve_gib` GiB
    of the host's memory are available."""
    return (
        "sh",
        "-c",
        _GUARDED_SCRIPT,
        "sh",
        str(round(reserve_gib * _KIB_PER_GIB)),
        str(KILL_AFTER_TERM_S),
        *argv,
    )
