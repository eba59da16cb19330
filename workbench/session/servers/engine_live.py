"""The counters of the host's engine, read once a second for the screen. No benchmark is needed."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from workbench.engines import registry
from workbench.model.engine_live import LIVE_METRICS, EngineView
from workbench.model.errors import WorkbenchError
from workbench.model.server_run import EngineMetrics, ServerState, ServerStatus
from workbench.server.engine_rates import RateMeter, gauge_values
from workbench.session.servers.engine_episodes import EngineEpisodes

if TYPE_CHECKING:
    from workbench.engines.base import Engine
    from workbench.model.plan import LaunchPlan
    from workbench.server.external_servers import ExternalMetrics
    from workbench.session.history.timeline import Timeline
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

TIMEOUT_S = 3.0
_READ_INTERVAL_S = 1.0
# a benchmark that has read the counters within this time continues to read them
_BENCH_READING_VALID_S = 1.6
_MAX_FAILED_READINGS = 3  # failed readings in a row before the readings become rarer
_RARE_READ_INTERVAL_S = 5.0
_LOOK_INTERVAL_S = 15.0  # between two looks for servers that Workbench did not start
_ANSWERING_STATES = (ServerState.READY, ServerState.UNRESPONSIVE)


class EngineReader:
    """Reads the counters of one engine once a second, from the call of `watch_engine` on. That
    engine serves the selected run, else the newest READY run, else a server that Workbench did not
    start. The values go into the timeline and into `state.engine`. While a benchmark loads the
    server, the benchmark's readings are used instead."""

    def __init__(self, core: StateHolder, servers: Servers, timeline: Timeline) -> None:
        self._core, self._servers, self._timeline = core, servers, timeline
        servers.on_engine_reading.append(self._use_benchmark_reading)
        self._external: ExternalMetrics | None = None
        self._looked_s = float("-inf")
        self._reset_counters(None)

    def _reset_counters(
        self, view: EngineView | None, episodes: EngineEpisodes | None = None
    ) -> None:
        """Forget the counters of the server that was read so far. `view` and `episodes` are the
        first state and the events of the server to read next; `view` is None if there is no such
        server."""
        self._meter, self._episodes = RateMeter(), episodes or EngineEpisodes()
        self._failures, self._benchmark_s = 0, float("-inf")
        self._core.update(engine=view)

    async def watch_engine(self) -> None:
        """Read the engine's counters once a second, until this task is cancelled."""
        try:
            while True:
                await asyncio.sleep(
                    self._core.beat.seconds_until_beat_near_pause_end(_READ_INTERVAL_S)
                )
                # a lost link shows in the state; the run may have been removed
                with suppress(WorkbenchError):
                    await self._read_engine_counters()
        finally:
            await self._close_external_server()
            self._reset_counters(None)

    async def _read_engine_counters(self) -> None:
        if not self._core.host.connected:
            return
        run = self._find_answering_run()
        if run is None:
            await self._read_external_server()
            return
        await self._close_external_server()
        self._switch_to_server(
            run.run_id,
            registry.get_engine(run.engine),
            run.port,
            self._servers.supervisor.record(run.run_id).plan,
        )
        if self._is_reading_due():
            self._store_reading(await self._servers.supervisor.metrics(run.run_id, TIMEOUT_S))

    def _find_answering_run(self) -> ServerStatus | None:
        """Return the run whose engine's counters are read: the selected one, or else the newest
        one, that is or was READY and has a known engine. None if there is no such run."""
        state = self._core.state
        for run in filter(None, (state.server, *state.servers)):
            if run.state in _ANSWERING_STATES and run.engine in registry.engine_names():
                return run
        return None

    async def _read_external_server(self) -> None:
        """Read and store the counters of a server that Workbench did not start, if that is due. If
        none is known, search the host for such a server, but not more often than every
        _LOOK_INTERVAL_S seconds. After more than _MAX_FAILED_READINGS failures, forget the server.
        """
        if self._external is None and time.monotonic() - self._looked_s >= _LOOK_INTERVAL_S:
            from workbench.server.external_servers import ExternalMetrics

            self._looked_s = time.monotonic()
            found = await self._servers.find_external_servers()
            # engines with known metrics first
            known = sorted(found, key=lambda server: not server.engine)
            self._external = ExternalMetrics(self._core.host, known[0]) if known else None
        if self._external is None:
            if self._core.state.engine is not None:
                self._reset_counters(None)
            return
        server = self._external.server
        self._switch_to_server(
            server.url, registry.get_engine(server.engine) if server.engine else None, server.port
        )
        if self._is_reading_due():
            self._store_reading(await self._external.read(TIMEOUT_S))
            if self._failures > _MAX_FAILED_READINGS:
                await self._close_external_server()  # the server may have ended

    async def _close_external_server(self) -> None:
        external, self._external = self._external, None
        if external is not None:
            await external.close()

    def _switch_to_server(
        self, server: str, engine: Engine | None, port: int | None, plan: LaunchPlan | None = None
    ) -> None:
        """Begin to read the counters of `server`, a run id or URL, unless they are read already.
        `engine`, `port` and `plan` are the server's; None if they are not known."""
        view = self._core.state.engine
        if view is None or view.server != server:
            title = f"{engine.title if engine else 'server'} :{port}"
            self._reset_counters(
                EngineView(server, title), EngineEpisodes(_concurrency_flag_and_total(engine, plan))
            )

    def _is_reading_due(self) -> bool:
        """Return whether the engine's counters are to be read now. They are not read while a
        benchmark reads them, and only rarely after failed readings."""
        if time.monotonic() - self._benchmark_s < _BENCH_READING_VALID_S:
            return False
        return (
            self._failures <= _MAX_FAILED_READINGS or int(time.time()) % _RARE_READ_INTERVAL_S == 0
        )

    def _use_benchmark_reading(self, server: str, read: EngineMetrics) -> None:
        """Use a reading of the engine's counters that a benchmark has made. `server` is the run id
        or the URL of the benchmark's server."""
        view = self._core.state.engine
        if view is None:
            return
        is_same_server = view.server == server
        if self._external is not None:  # its address may be written in another way
            is_same_server = server.rpartition(":")[2] == view.server.rpartition(":")[2]
        if is_same_server:
            self._benchmark_s = time.monotonic()
            self._store_reading(read)

    def _store_reading(self, read: EngineMetrics) -> None:
        """Put a reading of the engine's counters into the timeline and into the session's state."""
        view = self._core.state.engine
        if view is None:
            return
        ended = self._meter.add_reading_and_get_rates(read)
        for second, values in ended.items():
            self._timeline.add_engine_values(values, second)
        for event in self._episodes.episode_events_of_reading(read):
            self._timeline.add_event(event.kind, event.text, unix_s=event.unix_s)
        absent = {}
        for metric in LIVE_METRICS:
            for name in metric.counters:
                if reason := read.absent.get(name):
                    absent[metric.field] = reason
        problem = next(iter(absent.values())) if len(absent) == len(LIVE_METRICS) else None
        self._failures = self._failures + 1 if problem else 0
        newest = {**(ended[max(ended)] if ended else {}), **gauge_values(read)}
        self._core.update(engine=EngineView(view.server, view.title, newest, absent, problem))


def _concurrency_flag_and_total(
    engine: Engine | None, plan: LaunchPlan | None
) -> tuple[str, int] | None:
    """Return (flag, value) of the flag that limits the requests which run at the same time, with
    the value for all replicas. None if the plan does not set such a flag."""
    if engine is None or plan is None or not engine.concurrency_flag:
        return None
    values = [plan.flag(engine.concurrency_flag), plan.flag("data-parallel-size") or 1]
    try:
        each, replicas = (int(str(value)) for value in values)
    except ValueError:
        return None
    return (engine.concurrency_flag, each * replicas) if each > 0 else None
