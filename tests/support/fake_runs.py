"""Helpers for tests with the fake engine: start it, wait until it is ready, order it to fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import httpx

from workbench import engines
from workbench.model.plan import Command, LaunchPlan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.supervisor import ServerEvent, Supervisor

Made = tuple[LaunchPlan, Command]
Make = Callable[..., Made]  # (behaviour: words of fake_engine, port, **environment)

VLLM = engines.get_engine("vllm")
READY_S = 30.0


async def start(supervisor: Supervisor, made: Made, ready_timeout_s: float = READY_S) -> str:
    status = await supervisor.start(*made, VLLM, ready_timeout_s=ready_timeout_s)
    return status.run_id


async def ready(supervisor: Supervisor, made: Made) -> ServerStatus:
    status = await supervisor.wait_ready(await start(supervisor, made), READY_S)
    assert status.state is ServerState.READY, status.reason
    return status


async def tell(status: ServerStatus, path: str) -> None:
    async with httpx.AsyncClient() as http:
        with contextlib.suppress(httpx.HTTPError):  # it dies while answering, as told
            await http.post(f"{status.url}{path}", timeout=5)


def states(events: list[ServerEvent]) -> list[ServerState]:
    """Return the states in order, without repetitions."""
    every = [e.state for e in events if isinstance(e, ServerStatus)]
    return [s for i, s in enumerate(every) if i == 0 or s is not every[i - 1]]
