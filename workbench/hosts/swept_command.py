"""Runs a program that is not part of Workbench to its end, then ends every process that it has left
behind."""

from __future__ import annotations

import asyncio
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
    command_timeout_error,
    output_too_large_error,
)
from workbench.hosts.shell_scripts import shell_argv
from workbench.model.errors import HostError

SWEEP_S = 10.0


async def run_and_end_leftovers(
    host: Host, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Completed:
    """Run `argv` on `host` and return its result, after ending every process that it has left
    behind, in any session. If a signal ended the program, the exit code is 128 plus the signal's
    number. Raises the errors of `Host.run`."""
    mark = secrets.token_hex(8)
    try:
        return await host.run(
            shell_argv(shell_scripts.RUN_SWEPT, mark, *argv), timeout_s=timeout_s, env=env
        )
    except HostUnreachable:
        raise
    except HostError as error:
        with contextlib.suppress(HostError):
            await host.run(shell_argv(shell_scripts.SWEEP, mark), timeout_s=SWEEP_S)
        if isinstance(error, CommandTimeout):
            raise command_timeout_error(argv, timeout_s, host.name) from None
        if isinstance(error, OutputTooLarge):
            raise output_too_large_error(argv, host.name) from None
        raise


async def read_output_and_end_leftovers(
    host: Host, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> str:
    """Run `argv` on `host` and return its output as text, after ending every process that it has left
    behind. The program's stdin is open until this function returns. It ends too if Workbench is
    killed or the link is lost, so that the program can end itself. Raises the errors of
    `Host.stream`, and CommandTimeout. The program must limit its output."""
    mark = secrets.token_hex(8)
    stream = await host.stream(shell_argv(shell_scripts.RUN_SWEPT, mark, *argv), env=env)
    parts: list[bytes] = []
    ended = False
    try:
        async with asyncio.timeout(timeout_s):
            async for part in stream.chunks():
                parts.append(part)
            await stream.wait()
            ended = True
    except TimeoutError:
        raise command_timeout_error(argv, timeout_s, host.name) from None
    finally:
        await stream.close()
        if not ended:
            with contextlib.suppress(HostError):
                await host.run(shell_argv(shell_scripts.SWEEP, mark), timeout_s=SWEEP_S)
    return b"".join(parts).decode("utf-8", "replace")
