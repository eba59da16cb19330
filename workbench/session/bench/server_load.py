"""Loads on a server: choosing the server and the spec of the load, and preventing two loads at
once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.bench.runner import BenchCancelled
from workbench.hosts.base import LOOPBACK
from workbench.model.api_key import api_key_from_variable
from workbench.model.errors import BenchError, WorkbenchError
from workbench.model.secrets import SERVER_KEY_VARIABLE
from workbench.model.server_run import ServerState
from workbench.session.bench.benchmark_load import (
    BenchmarkLoad,
    PrestartedClient,
    ServerUnderTest,
    choose_load_client_location,
    prestart_client,
)
from workbench.session.bench.spec import spec_from_fields
from workbench.session.servers import server_address
from workbench.store import unfinished_benchmarks

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.bench import BenchSpec
    from workbench.session.bench.measurement_lock import MeasurementLock
    from workbench.session.plans.presets import Presets
    from workbench.session.servers.server_address import ServerAddress
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder


class ServerLoad:
    """Prepares a server for a load, with `open_load_on_server`, `open_load_on_run` or
    `open_load_on_url`. The caller may send the load inside their block, and a second block at the
    same time raises BenchError. `overrides` are fields of BenchSpec and "prompts_file". With
    `prestart`, the processes of a benchmark are started when the block is opened."""

    def __init__(
        self, core: StateHolder, presets: Presets, servers: Servers, lock: MeasurementLock
    ) -> None:
        self._core, self._presets, self._servers, self._lock = core, presets, servers, lock
        self._busy = asyncio.Lock()
        self._cancel: asyncio.Event | None = None
        self._run_id: str | None = None  # the run under load
        self._began_s = 0.0  # of the load, on the clock of time.monotonic
        servers.before_end.append(self._cancel_load_of_run)

    def make_spec(self, preset_id: str | None, overrides: dict[str, Any]) -> BenchSpec:
        """Return the benchmark that the preset suggests, changed by `overrides`. Without a preset
        the default profile is used. Raises InputError for a spec that cannot be run."""
        suggested = None
        if preset_id is not None:
            with suppress(WorkbenchError):  # the preset no longer exists: use the general shape
                suggested = self._presets.get(preset_id).benchmark
        return spec_from_fields(suggested, overrides)

    def why_preset_is_unreadable(self, preset_id: str | None) -> str:
        """Return why the preset of a run cannot be read, so that a load lacks what it suggests; ""
        if it can be read, or if there is no preset."""
        try:
            if preset_id is not None:
                self._presets.get(preset_id)
        except WorkbenchError as error:
            return error.message
        return ""

    @asynccontextmanager
    async def open_load_on_server(
        self, run_id: str | None, url: str | None, overrides: dict[str, Any]
    ) -> AsyncIterator[BenchmarkLoad]:
        """Allow a load on a server while the block runs, and yield that load. The server is the one
        at `url`, or else the run `run_id`, by default the selected or newest READY run. Raises
        BenchError if the server's GPUs cannot be read."""
        if url is None:
            opened = self.open_load_on_run(
                run_id or await self._servers.selected_or_ready_run_id(), overrides
            )
        else:
            opened = self.open_load_on_url(url, overrides)
        async with opened as load:
            if not load.server.gpus_known:
                why = load.server.why_gpus_are_unknown
                raise BenchError(
                    why, next_step="run the command on the server's host, or with --host HOST"
                )
            yield load

    @asynccontextmanager
    async def open_load_on_run(
        self, run_id: str, overrides: dict[str, Any], *, prestart: bool = False
    ) -> AsyncIterator[BenchmarkLoad]:
        """Allow a load on a READY run while the block runs, and yield that load. With `prestart`,
        the processes of a benchmark are started, too. Raises BenchError if the run is not READY."""
        supervisor = self._servers.supervisor
        status = supervisor.status(run_id)
        if status.state is not ServerState.READY or status.port is None:
            raise BenchError(
                f"run {run_id} is {status.state}, not READY",
                host=self._core.host.name,
                next_step="give a READY run; `workbench servers` lists the runs",
            )
        spec = _require_valid_api_key(self.make_spec(status.preset_id, overrides))
        what = f"a benchmark of run {run_id}"
        async with (
            self._lock_host_and_prestart_client(
                what, run_id, spec if prestart else None, status.node is None
            ) as (
                cancel,
                started,
            ),
            forward_server_port(self._core.host, status.port, status.node) as url,
        ):
            model = spec.model or status.model_name
            spec = replace(spec, url=url, model=model)
            env = {}
            if spec.api_key_env is None and (key := supervisor.api_key(run_id)):
                env = {SERVER_KEY_VARIABLE: key}
                spec = replace(spec, api_key_env=SERVER_KEY_VARIABLE)
            record, here = supervisor.record(run_id), status.node is None
            server = ServerUnderTest(self._core.host.name, status, record, gpus_known=here)
            hear = partial(self._servers.publish_engine_reading, run_id)
            there = f"http://{status.node or LOOPBACK}:{status.port}"
            yield BenchmarkLoad(spec, server, env, cancel, started, hear, there)

    @asynccontextmanager
    async def open_load_on_url(
        self, url: str, overrides: dict[str, Any], *, prestart: bool = False
    ) -> AsyncIterator[BenchmarkLoad]:
        """Lock the host for a benchmark of a server that Workbench did not start, and yield its
        load. `url` is the server's base URL; a loopback address means a server on the session's
        host. `overrides` are fields of the BenchSpec. `prestart` starts the load client at once.
        Raises BenchError if the server does not answer or names no model."""
        address = server_address.parse_server_url(url)
        spec = _require_valid_api_key(self.make_spec(None, overrides))
        async with (
            self._lock_host_and_prestart_client(
                "a benchmark of a server", None, spec if prestart else None, address.loopback
            ) as (
                cancel,
                started,
            ),
            open_server_address(self._core.host, address) as base,
        ):
            served = await server_address.read_served_models(base, spec)
            model = spec.model or served.model
            if not model:
                raise BenchError(
                    f"{base}/v1/models named no model: {served.problem}",
                    next_step="check the address; `workbench bench` takes the name with --model NAME",
                )
            host = self._core.host.name if address.loopback else address.hostname
            server = ServerUnderTest(
                host, simulated=served.simulated, gpus_known=address.loopback, address=address.base
            )
            spec = replace(spec, url=base, model=model)
            hear = partial(self._servers.publish_engine_reading, address.base)
            yield BenchmarkLoad(spec, server, {}, cancel, started, hear, address.base)

    @property
    def other_owner_texts(self) -> tuple[str, ...]:
        """Who else has measured on this host since the present load was prepared."""
        return self._lock.other_owner_texts_since(self._began_s)

    @property
    def duration_without_lock_s(self) -> float | None:
        """For how many seconds since the present load was prepared the measurement lock was lost,
        None if it was not."""
        return self._lock.duration_without_lock_s(self._began_s)

    @asynccontextmanager
    async def _lock_host_and_prestart_client(
        self, what: str, run_id: str | None, spec: BenchSpec | None, gpus_known: bool = True
    ) -> AsyncIterator[tuple[asyncio.Event, PrestartedClient]]:
        """Prevent other loads on this host while the block runs. Yield (event that cancels the
        load, the processes that are started ahead of the benchmark `spec`). No process is started
        if `spec` is None."""
        if self._busy.locked():
            host = self._core.host.name
            raise BenchError(
                "another benchmark is running",
                host=host,
                next_step="wait until that benchmark has ended, or cancel it",
            )
        lock = self._lock.hold_lock(what) if gpus_known else nullcontext()
        worker, meter = None, False
        if spec is not None:
            worker = choose_load_client_location(self._core.host, spec, gpus_known)
            meter = gpus_known
        async with self._busy:
            cancel = asyncio.Event()
            # a cancel before the load begins has its effect, too
            self._cancel, self._run_id = cancel, run_id
            self._began_s = time.monotonic()
            try:
                keep = unfinished_benchmarks.path_of_left_result(
                    unfinished_benchmarks.new_note_name()
                )
                async with prestart_client(
                    self._core.host,
                    lock,
                    client_location=worker,
                    with_meter=meter,
                    kept_result_path=keep,
                ) as started:
                    if cancel.is_set():
                        raise BenchCancelled(
                            "the benchmark was cancelled before its load began, and no result was "
                            "stored",
                            next_step="run the benchmark again",
                        )
                    yield cancel, started
            finally:
                self._cancel = self._run_id = None

    async def cancel(self) -> None:
        """Cancel the running load, if there is one. Returns when the load has ended."""
        if self._cancel is not None:
            self._cancel.set()
            async with self._busy:
                pass

    async def _cancel_load_of_run(self, run_id: str) -> None:
        """Cancel the load on the run `run_id`, which is about to be stopped."""
        if self._run_id == run_id:
            await self.cancel()


def _require_valid_api_key(spec: BenchSpec) -> BenchSpec:
    """Return `spec` as it is. Raises InputError if the environment variable of its API key has no
    value that fits into an HTTP header."""
    if spec.api_key_env is not None:
        api_key_from_variable(spec.api_key_env, os.environ)
    return spec


@asynccontextmanager
async def open_server_address(host: Host, address: ServerAddress) -> AsyncIterator[str]:
    """Make the server at `address` reachable on this machine while the block runs, and yield its
    base URL there. A loopback address means a server on `host`."""
    if host.is_local or not address.loopback:
        yield address.base
        return
    async with forward_server_port(host, address.port) as base:
        yield base


@asynccontextmanager
async def forward_server_port(host: Host, port: int, node: str | None = None) -> AsyncIterator[str]:
    """Make `port` of the host reachable on this machine while the block runs, and yield the base
    URL there. With `node`, the port is that of another machine, which the host can reach."""
    forward = await host.forward(port, node or LOOPBACK)
    try:
        yield forward.url
    finally:
        await forward.close()
