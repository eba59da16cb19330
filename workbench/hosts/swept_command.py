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
    """Run `argv` on `host` to its end, then end every process that it has left, in any session.
    Return its result. The exit code is 128 + n if signal n ended it. Raises the errors of
    `Host.run`."""
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
    """Run `argv` on `host` to its end, then end every process that it has left. Return its stdout
    as text, whatever its exit code. Its stdin ends if Workbench is killed or the link is lost. The
    program must limit its output. Raises the errors of `Host.stream`, and CommandTimeout after
    `timeout_s`."""
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
