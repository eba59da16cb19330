"""Helpers for tests of servers: free ports, a Supervisor and a session that leave nothing behind, and
the processes that have a run's log open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from workbench.hosts.base import Host
from workbench.hosts.local import LocalHost
from workbench.server.supervisor import ServerEvent, Supervisor
from workbench.session.session import Session


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.asynccontextmanager
async def session_on(profile: str) -> AsyncIterator[Session]:
    """Open a session with a simulated host. All runs of the host end after the block."""
    session = Session.of_host(None, profile)
    try:
        await session.link.connect()
        yield session
    finally:
        for status in await session.servers.supervisor.runs():
            await session.servers.supervisor.stop(status.run_id, grace_s=1)
        await session.close()


def supervised(
    scenario: Callable[[Any, list[ServerEvent]], Awaitable[None]],
    host: Host | None = None,
    supervise: Any = Supervisor,
) -> None:
    """Run `scenario` with the host's supervisor, of the class `supervise`, and the list of its
    events. Stop every run afterwards, also after a failure."""

    async def go() -> None:
        events: list[ServerEvent] = []
        supervisor = supervise(host or LocalHost(), events.append)
        try:
            await scenario(supervisor, events)
        finally:
            for status in await supervisor.runs():
                await supervisor.stop(status.run_id, grace_s=1)
            await supervisor.close()
            await supervisor.host.close()

    asyncio.run(go())


def processes_of(run_dir: str) -> list[psutil.Process]:
    """Return the processes that have the run's log open and are still alive a second later: every
    process of the run that did not close its output."""
    log = os.path.realpath(f"{run_dir}/log")
    found = []
    for process in psutil.process_iter():
        try:
            fds = Path(f"/proc/{process.pid}/fd")
            if any(os.path.realpath(fd) == log for fd in fds.iterdir()):
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return psutil.wait_procs(found, timeout=1)[1]


async def eventually(
    condition: Callable[[], object], timeout_s: float = 60.0, what: str = "condition"
) -> None:
    """Wait until `condition()` is true; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        await asyncio.sleep(0.02)


async def stream(
    url: str, model: str, max_tokens: int, prompt: str = "one two three"
) -> tuple[int, int]:
    """Return (prompt tokens, completion tokens) of one streamed completion, from the server's last
    chunk."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage = None
    async with (
        httpx.AsyncClient(timeout=300) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as reply,
    ):
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
    assert usage is not None
    return usage["prompt_tokens"], usage["completion_tokens"]
