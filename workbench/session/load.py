"""A load on a server: the benchmark to send, the server under test, and what was started for it ahead of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.bench import runner
from workbench.session.gpu_meter import Meter

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSpec
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import ServerStatus
    from workbench.server.run_directory import RunRecord


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A run, or (without `status`) a server that others started. `host`: where it runs. `address`: its URL as given.
    `gpus_known`: whether the readings of the session's host are those of its GPUs."""

    host: str
    status: ServerStatus | None = None
    record: RunRecord | None = None
    simulated: bool = False
    gpus_known: bool = True
    address: str = ""

    @property
    def plan(self) -> LaunchPlan | None:
        return self.record.plan if self.record else None


@dataclass(frozen=True, slots=True)
class Prestarted:
    """Parts of a benchmark that take 0.2 s to start, started while the server is queried. `meter`: None if the server's
    GPUs are not known."""

    worker: Process | None = None
    meter: Meter | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """A load that may run now. `spec` is complete; `env` is the environment of the load client; `cancel` is set when
    the load shall end."""

    spec: BenchSpec
    server: ServerUnderTest
    env: Mapping[str, str]
    cancel: asyncio.Event
    prestarted: Prestarted = Prestarted()

    @property
    def target(self) -> str:
        """The run id of the server, or its URL."""
        return self.server.status.run_id if self.server.status else self.spec.url


@asynccontextmanager
async def prestarted(host: Host, *, worker: bool, meter: bool) -> AsyncIterator[Prestarted]:
    """Start the parts of one benchmark, and end what is left of them with the block."""
    async with AsyncExitStack() as stack:
        yield Prestarted(
            await stack.enter_async_context(runner.started_worker()) if worker else None,
            await stack.enter_async_context(Meter(host, wait=False)) if meter else None,
        )
