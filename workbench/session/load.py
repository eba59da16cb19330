"""A load on a server: the benchmark to send, the server under test, and the parts that were started ahead of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.bench import runner
from workbench.session.gpu_meter import Meter

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSpec
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import EngineMetrics, ServerStatus
    from workbench.server.run_directory import RunRecord


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """The server that a load goes to: a run of Workbench, or a server that others started (`status` None). `host` is
    where the server runs, `address` its URL. `gpus_known` says whether the server uses the GPUs of the session's
    host."""

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
    """Parts of a benchmark that are started early, because each takes 0.2 s to start. `meter` is None if the server's
    GPUs are not known, `worker` if none is needed."""

    worker: Process | None = None
    meter: Meter | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """A load that may be sent now. `spec` is complete, `env` has the environment of the load client, and `cancel` is
    set to end the load."""

    spec: BenchSpec
    server: ServerUnderTest
    env: Mapping[str, str]
    cancel: asyncio.Event
    prestarted: Prestarted = Prestarted()
    on_engine_reading: Callable[[EngineMetrics], None] = lambda reading: None  # while the load runs

    @property
    def target(self) -> str:
        """The run id of the server, or its URL."""
        return self.server.status.run_id if self.server.status else self.spec.url


@asynccontextmanager
async def prestarted(
    host: Host, lock: AbstractAsyncContextManager[None], *, worker: bool, meter: bool
) -> AsyncIterator[Prestarted]:
    """Hold `lock`, and yield the worker and the meter of a benchmark, as far as they are asked for. They are ended with
    the block. The worker starts while the lock is taken; it does nothing before it gets its spec."""
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(runner.started_worker()) if worker else None
        await stack.enter_async_context(lock)
        yield Prestarted(process, await stack.enter_async_context(Meter(host, wait=False)) if meter else None)
