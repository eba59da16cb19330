"""Runs a program that is not part of Workbench to its end, then ends every process that it has left
behind."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence

from workbench.hosts import shell_scripts
from workbench.hosts.base import (
    CommandTimeout,
    Completed,
    Host,
    HostUnreachable,
    OutputTooLarge,
    timed_out,
    too_much,
)
from workbench.hosts.shell_scripts import sh
from workbench.model.errors import HostError

SWEEP_S = 10.0


async def run_swept(
    host: Host, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Completed:
    """Run `argv` on `host` and return its result, after ending every process that it has left
    behind, in any session. If a signal ended the program, the exit code is 128 plus the signal's
    number. Raises the errors of `Host.run`."""
    mark = secrets.token_hex(8)
    try:
        return await host.run(
            sh(shell_scripts.RUN_SWEPT, mark, *argv), timeout_s=timeout_s, env=env
        )
    except HostUnreachable:
        raise
    except HostError as error:
        with contextlib.suppress(HostError):
            await host.run(sh(shell_scripts.SWEEP, mark), timeout_s=SWEEP_S)
        if isinstance(error, CommandTimeout):
            raise timed_out(argv, timeout_s, host.name) from None
        if isinstance(error, OutputTooLarge):
            raise too_much(argv, host.name) from None
        raise
