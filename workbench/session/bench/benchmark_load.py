"""A load on a server: the benchmark to send, the server under test, and the processes that were
started ahead of time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import engines
from workbench.bench import runner
from workbench.bench.workers import ClientMissingError
from workbench.model.api_key import api_key_from_variable
from workbench.model.job_request import VISIBLE_TO_CUDA
from workbench.model.lazy_dataclass import dataclass
from workbench.session.bench.gpu_meter import Meter

if TYPE_CHECKING:
    from workbench.bench.workers import Worker
    from workbench.engines.base import Engine
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSpec
    from workbench.model.plan import LaunchPlan
    from workbench.model.server_run import EngineMetrics, ServerStatus
    from workbench.server.run_directory import RunRecord

CLIENT_ON_THIS_MACHINE, CLIENT_ON_HOST, CLIENT_ANYWHERE = (
    "here",
    "host",
    "anywhere",
)  # places of the load client


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """The server that a load goes to: a run of Workbench, or a server that others started (`status`
    None). `host` is where the server runs, `address` its URL. `gpus_known` says whether the server
    uses GPUs of the session's host."""

    host: str
    status: ServerStatus | None = None
    record: RunRecord | None = None
    simulated: bool = False
    gpus_known: bool = True
    address: str = ""

    @property
    def plan(self) -> LaunchPlan | None:
        """The plan of the server; None if Workbench did not start it. If a scheduler assigned GPUs
        to the server, the plan's CUDA_VISIBLE_DEVICES names these GPUs."""
        plan = self.record.plan if self.record else None
        given = self.status.gpus if self.status else ()
        return plan.with_env(VISIBLE_TO_CUDA, ",".join(given)) if plan and given else plan

    @property
    def engine(self) -> Engine | None:
        """The engine of the server; None if Workbench did not start it."""
        return engines.get_engine(self.status.engine) if self.status else None

    @property
    def why_gpus_are_unknown(self) -> str:
        if self.status is not None and self.status.node is not None:
            return f"the server runs on node {self.status.node}, whose GPUs are not read"
        return (
            f"the GPUs of {self.host} are not known: only those of a host that Workbench is "
            "on are read"
        )


@dataclass(frozen=True, slots=True)
class PrestartedClient:
    """Two processes of a benchmark that start ahead of it, because each takes 0.2 s to start.
    `meter` reads the GPUs (None if the server's GPUs are not known), and `worker` is the load
    client (None if none is needed). `client` says where the worker runs: "host" (on the server's
    remote host), "tunnel" (on this machine, with a tunnel to that host) or "local" (the server is
    on this machine, too). `why_not_there` says why the worker could not run on the server's host.
    """

    worker: Worker | None = None
    meter: Meter | None = None
    client: str = "local"
    why_not_there: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkLoad:
    """A load that may be sent now. `spec` is complete, `env` has the environment of the load
    client, and `cancel` is set to end the load."""

    spec: BenchSpec
    server: ServerUnderTest
    env: Mapping[str, str]
    cancel: asyncio.Event
    prestarted: PrestartedClient = PrestartedClient()
    on_engine_reading: Callable[[EngineMetrics], None] = lambda reading: None  # while the load runs
    url_there: str = ""  # the server's URL for a client on its host

    @property
    def run_id_or_url(self) -> str:
        """The run id of the server under load, or its URL if Workbench did not start it."""
        return self.server.status.run_id if self.server.status else self.spec.url

    @property
    def server_api_key(self) -> str | None:
        """The API key of the server; None if the benchmark names no environment variable for it.
        Raises InputError if the variable has no value that fits into an HTTP header."""
        name = self.spec.api_key_env
        return api_key_from_variable(name, {**os.environ, **self.env}) if name else None


@asynccontextmanager
async def prestart_client(
    host: Host,
    lock: AbstractAsyncContextManager[None],
    *,
    client_location: str | None,
    with_meter: bool,
    kept_result_path: Path | None = None,
) -> AsyncIterator[PrestartedClient]:
    """Hold `lock`, and yield a benchmark's load client, and its reader of the GPUs if `with_meter`
    is True. Both end with the block. `client_location` says where the load client runs:
    CLIENT_ON_THIS_MACHINE, CLIENT_ON_HOST (on `host`), CLIENT_ANYWHERE (on `host` if possible), or
    None for no client. Raises ClientMissingError if it is CLIENT_ON_HOST and `host` cannot run a
    load client. `kept_result_path` is the file for the result of a load client on this machine if
    this process is killed."""
    made = PrestartedClient(client="local" if host.is_local else "tunnel")
    async with AsyncExitStack() as stack:
        if client_location in (CLIENT_ON_HOST, CLIENT_ANYWHERE):
            try:
                process = await stack.enter_async_context(runner.open_worker(host))
                made = replace(made, worker=process, client="host")
            except ClientMissingError as error:
                if client_location == CLIENT_ON_HOST:
                    raise
                made = replace(made, why_not_there=error.message)
        if client_location is not None and made.worker is None:
            made = replace(
                made,
                worker=await stack.enter_async_context(
                    runner.open_worker(result_path=kept_result_path)
                ),
            )
        await stack.enter_async_context(lock)
        yield replace(
            made,
            meter=await stack.enter_async_context(Meter(host, wait=False)) if with_meter else None,
        )


def choose_load_client_location(host: Host, spec: BenchSpec, is_server_on_host: bool) -> str | None:
    """Return where the load client of `spec` runs: CLIENT_ON_THIS_MACHINE, CLIENT_ON_HOST (on
    `host`), or CLIENT_ANYWHERE (on `host` if possible). None if the user's own command makes the
    load. `is_server_on_host` says whether the server listens on `host` itself."""
    if spec.command:
        return None
    if host.is_local or spec.client == CLIENT_ON_THIS_MACHINE:
        return CLIENT_ON_THIS_MACHINE
    if spec.client == CLIENT_ON_HOST:
        return CLIENT_ON_HOST
    return CLIENT_ANYWHERE if is_server_on_host and not spec.ca_file else CLIENT_ON_THIS_MACHINE
