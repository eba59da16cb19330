"""Requests the first token of a server, which proves that it is ready, and records it in the run
directory, so that later Workbench processes need not request a token."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from workbench.hosts.base import FileError, Host
from workbench.server import readiness, running_server_secrets
from workbench.server.run_directory import encode_ready
from workbench.server.watched_run import WatchedRun

TOKEN_TIMEOUT_S = 300.0  # the first forward pass may compile kernels


async def prove(host: Host, run: WatchedRun) -> bool:
    """Request a token from the server of a run. If it is the first token since the server's start,
    record readiness in `run` and in ready.json, and return True. Otherwise return False. Raises
    HostError if the host cannot be reached."""
    assert run.engine is not None
    answer = await readiness.check(await run.http(), run.engine, token_timeout_s=TOKEN_TIMEOUT_S)
    run.unanswered = answer.reason
    if answer.needs_key and run.api_key is None:
        run.api_key = await running_server_secrets.key_from_file(
            host, run.engine, run.record.command.workdir
        )
    if not answer.ready or answer.model is None or run.facts.ready is not None:
        return False
    ready = run.ready_now(answer.model)
    with contextlib.suppress(FileError):  # disk full: the next Workbench requests a token again
        await host.write_file(f"{run.run_dir}/ready.json", encode_ready(ready))
    run.facts = replace(run.facts, ready=ready)
    return True
