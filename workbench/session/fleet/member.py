"""One host of a fleet: its link, its servers, its altered settings and the readings of its GPUs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.advisor.alert_rules import LiveFacts
from workbench.advisor.alert_watch import AlertWatch
from workbench.gpu.settings import journal
from workbench.gpu.settings.alterations import (
    alteration_of_claim,
    alteration_of_record,
    alterations_of_known_gpus,
    select_alterations_in_force,
)
from workbench.gpu.telemetry.source import TelemetrySource
from workbench.hosts.base import AuthFailed, HostKeyChanged, HostKeyUnknown
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError, WorkbenchError
from workbench.model.gpu import DriverStatus
from workbench.model.server_run import ServerState
from workbench.server import external_servers
from workbench.server.engine_rates import compute_rates
from workbench.server.supervisor import Supervisor
from workbench.session.fleet.state import FOUND_STATE, TRAIL_S, FleetHost, FleetServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from workbench.hosts.base import Host, LinkEvent
    from workbench.hosts.login_question import Ask
    from workbench.model.alerts import AlertLimits
    from workbench.model.gpu import Telemetry
    from workbench.model.server_run import EngineMetrics, ServerStatus
    from workbench.model.setting_records import Alteration
    from workbench.server.external_servers import ExternalMetrics, FoundServer

LOOK_INTERVAL_S = 10.0  # between two looks for servers and altered settings
_WHOLE_LOOK_INTERVAL_S = 60.0  # also if nothing of their files has changed
_LOOK_TIMEOUT_S = 20.0
_RATES_INTERVAL_S = 2.0  # between two readings of the servers' counters
_RATES_TIMEOUT_S = 4.0
_HTTP_TIMEOUT_S = 3.0
_RUN_CHECK_INTERVAL_S = 5.0  # between two checks of a live run
_CONNECT_TIMEOUT_S = 30.0
_RETRY_INTERVAL_S = 5.0
_CLOSE_TIMEOUT_S = 3.0
_FAILED_STATES = (ServerState.FAILED, ServerState.CRASHED)
_NO_TRAIL_VALUES: tuple[float | None, ...] = (None, None, None)  # of utilization, power, tokens


class _ServerRates:
    """The live metrics of one server, computed from two successive readings of its counters. `read`
    returns a new reading. `values` is {} until the second one, and after one with a `problem`."""

    def __init__(self, read: Callable[[], Awaitable[EngineMetrics]]) -> None:
        self._read = read
        self._last: EngineMetrics | None = None
        self.values: Mapping[str, float] = {}
        self.problem: str | None = None

    async def read_and_update_rates(self) -> None:
        """Read the counters, and compute the rates since the reading before. The first reading
        gives no rates, and one without counters gives the problem."""
        before, now = self._last, await self._read()
        self._last, self.values = now, {}
        self.problem = now.absent.get("live_generation_tokens")
        if before is not None and self.problem is None:
            self.values = compute_rates(before, now)


class FleetMember:
    """Reads one host from the call of `start_connecting` until `close`. `start_due_readings` starts
    the readings that are due, in tasks with time limits. The host is searched for servers
    `first_look_s` seconds after the connection, so that not all hosts are searched at the same
    time. `limits` are those of the alert rules that are watched."""

    def __init__(
        self,
        name: str,
        label: str,
        open_host: Callable[[str], Host],
        *,
        first_look_s: float = 0.0,
        limits: Mapping[str, AlertLimits] = MappingProxyType({}),
    ) -> None:
        self._name, self._label, self._open_host = name, label, open_host
        self._host: Host | None = None
        self._link, self._problem = "connecting", ""
        self._source: TelemetrySource | None = None
        self._telemetry: Telemetry | None = None
        self._arrived_s: float | None = None
        self._supervisor: Supervisor | None = None
        self._others: external_servers.ExternalServers | None = None
        self._found: list[ExternalMetrics] = []  # servers that Workbench did not start
        self._rates: dict[str, _ServerRates] = {}
        self._own: tuple[Alteration, ...] = ()  # altered by the user of this Workbench
        self._claimed: tuple[Alteration, ...] = ()  # by other users, as they claim
        self._latency_ms: float | None = None
        self._looked, self._look_problem = False, ""
        self._servers_read = False
        # as they were at the last whole look, and when the next one is due
        self._files, self._whole_look_s = "", 0.0
        self._register_dir: str | None = None
        self._look_after_s, self._look_due_s, self._rates_due_s = first_look_s, 0.0, 0.0
        self._alerts = AlertWatch(limits)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._trails: tuple[deque[float | None], ...] = tuple(
            deque(maxlen=TRAIL_S) for _ in _NO_TRAIL_VALUES
        )

    # ---- what is known

    def make_fleet_host(self) -> FleetHost:
        """Return the present state of the host."""
        telemetry, age_s = self._telemetry, None
        if self._arrived_s is not None:
            age_s = time.monotonic() - self._arrived_s
        return FleetHost(
            self._name,
            self._label,
            self._link,
            self._problem_text(),
            telemetry,
            age_s,
            self._servers_with_rates(),
            select_alterations_in_force(
                self._own, alterations_of_known_gpus(self._claimed, telemetry), telemetry
            ),
            self._is_simulated(),
            self._latency_ms,
            self._servers_read,
            self._alerts.active_alert_texts(time.monotonic()),
            *map(tuple, self._trails),
        )

    def _is_simulated(self) -> bool:
        if self._host is not None and self._host.simulated is not None:
            return True
        return self._telemetry is not None and self._telemetry.simulated

    def _problem_text(self) -> str | None:
        if self._link != "connected":
            return self._problem or None
        if self._source is not None and self._source.problem is not None:
            return self._source.problem
        if self._telemetry is not None and self._telemetry.why_no_gpus is not None:
            return self._telemetry.why_no_gpus
        return self._look_problem or None

    def _servers_with_rates(self) -> tuple[FleetServer, ...]:
        servers = (
            *map(_server_of_run, self._runs_to_show()),
            *(_server_started_elsewhere(metrics.server) for metrics in self._found),
        )
        return tuple(map(self._add_rates_to_server, servers))

    def _runs_to_show(self) -> Sequence[ServerStatus]:
        """Return the runs that have not ended; if there is none, the newest run if it failed."""
        if self._supervisor is None:
            return ()
        statuses = self._supervisor.statuses()
        shown = [status for status in statuses if not status.state.has_ended]
        if shown:
            return shown
        return [status for status in statuses[:1] if status.state in _FAILED_STATES]

    def _add_rates_to_server(self, server: FleetServer) -> FleetServer:
        rates = self._rates.get(server.name)
        if rates is None or not server.can_answer:
            return server
        return replace(server, values=rates.values, problem=rates.problem)

    @property
    def has_first_reading_ended(self) -> bool:
        """Whether the first reading of the host has ended: its GPUs, servers and settings are
        known, or the reason why they cannot be read."""
        if self._link in ("down", "refused"):
            return True
        if not self._looked:
            return False
        if not self._are_gpus_read() and not self._problem_text():
            return False
        return not any(
            server.awaits_second_metrics_reading for server in self._servers_with_rates()
        )

    def _are_gpus_read(self) -> bool:
        """Whether the GPUs are known, or the driver says why they are not."""
        telemetry = self._telemetry
        if telemetry is None:
            return False
        return bool(telemetry.infos) or telemetry.driver.status is not DriverStatus.OK

    def append_graph_values(self) -> None:
        """Add the readings of this second to the graphs. If the newest reading is too old, the
        graphs have no values at this second."""
        now, values = self.make_fleet_host(), _NO_TRAIL_VALUES
        if now.is_live:
            values = (now.util_pct, now.power_w, now.tok_s)
        for trail, value in zip(self._trails, values, strict=True):
            trail.append(value)

    # ---- the link

    def start_connecting(self, ask: Ask | None = None) -> None:
        """Connect and begin to read the GPUs in the background, unless that was done and the login
        was not refused. `ask` asks the user for login secrets."""
        if self._source is None or self._link == "refused":
            self._start_task_if_idle("link", lambda: self._connect(ask))

    async def _connect(self, ask: Ask | None) -> None:
        self._link, self._problem = "connecting", ""
        while True:
            if await self._try_to_connect(ask):
                break
            await asyncio.sleep(_RETRY_INTERVAL_S)
        if self._link == "refused":
            return
        assert self._host is not None
        self._link, self._problem = "connected", ""
        self._look_due_s = time.monotonic() + self._look_after_s
        if self._source is None:
            self._source = TelemetrySource(self._host, on_telemetry=self._store_reading, keep=False)
            self._supervisor = Supervisor(self._host)
            self._supervisor.pause_s = _RUN_CHECK_INTERVAL_S
            await self._source.start()

    async def _try_to_connect(self, ask: Ask | None) -> bool:
        """Try to connect to the host. Return False if a later attempt may succeed. Return True if
        no further attempt is to be made: the host is connected, there is no such host, or it has
        refused the login, which only the user can resolve."""
        try:
            if self._host is None:
                # may load the ssh library
                self._host = await asyncio.to_thread(self._open_host, self._name)
                self._host.on_link(self._update_link_state)
            self._host.login_prompt = ask
            async with asyncio.timeout(None if ask else _CONNECT_TIMEOUT_S):
                await self._host.connect()
        except (AuthFailed, HostKeyChanged, HostKeyUnknown) as error:
            self._link, self._problem = "refused", error.message
        except HostError as error:
            self._link, self._problem = "down", error.message
            return False
        except TimeoutError:
            self._link, self._problem = "down", f"no connection within {_CONNECT_TIMEOUT_S:.0f} s"
            return False
        except WorkbenchError as error:  # there is no such host
            self._link, self._problem = "refused", error.message
        return True

    def _update_link_state(self, event: LinkEvent) -> None:
        if event.connected:
            self._link, self._problem = "connected", ""
            self.request_host_scan()
        else:
            self._link = "refused" if event.refused is not None else "lost"
            self._problem = event.reason or "the link was lost"

    def _store_reading(self, telemetry: Telemetry) -> None:
        self._telemetry, self._arrived_s = telemetry, time.monotonic()
        facts = LiveFacts(telemetry, {}, server="")
        for server in self._servers_with_rates():
            if server.values:
                facts = LiveFacts(telemetry, server.values, server=server.name)
                break
        self._alerts.update_alerts(self._arrived_s, 1.0, facts)

    # ---- servers and settings

    def request_host_scan(self) -> None:
        """Search for servers and altered settings as soon as the host is connected."""
        self._look_after_s = self._look_due_s = self._whole_look_s = 0.0

    def start_due_readings(self) -> None:
        """Start the reading of servers and settings, and the reading of the servers' counters, if
        they are due and the previous ones have ended."""
        now_s, supervisor = time.monotonic(), self._supervisor
        if self._link != "connected" or supervisor is None:
            return
        look, read = partial(self._scan_host, supervisor), partial(self._read_rates, supervisor)
        if now_s >= self._look_due_s and self._start_task_if_idle("look", look):
            self._look_due_s = now_s + LOOK_INTERVAL_S
        if now_s >= self._rates_due_s and self._start_task_if_idle("rates", read):
            self._rates_due_s = now_s + _RATES_INTERVAL_S

    def _start_task_if_idle(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start `work` unless its previous task still runs. Return whether it was started."""
        task = self._tasks.get(name)
        if task is not None and not task.done():
            return False
        self._tasks[name] = asyncio.create_task(
            self._run_and_record_problem(work()), name=f"{name} of {self._name}"
        )
        return True

    async def _run_and_record_problem(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except WorkbenchError as error:
            self._look_problem = error.message
        except TimeoutError:
            self._look_problem = "the host did not answer in time"
        except Exception as error:
            from workbench.store.crash_files import internal_error_message_and_details

            self._look_problem = "; ".join(internal_error_message_and_details(error))

    async def _scan_host(self, supervisor: Supervisor) -> None:
        """Read the servers and the altered settings, if their files have changed or the last whole
        reading is old."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                files = await self._read_record_file_stamps(supervisor)
                if files != self._files or time.monotonic() >= self._whole_look_s:
                    await self._read_servers_and_settings(supervisor)
                    self._files = files
                    self._whole_look_s = time.monotonic() + _WHOLE_LOOK_INTERVAL_S
            self._look_problem = ""
        finally:
            self._looked = True

    async def _read_servers_and_settings(self, supervisor: Supervisor) -> None:
        host = supervisor.host
        await self._find_external_servers(host, await supervisor.runs())
        self._servers_read = True
        await self._read_settings(host)
        if self._latency_ms is None and not host.is_local:
            self._latency_ms = (await host.facts()).latency_ms

    async def _read_record_file_stamps(self, supervisor: Supervisor) -> str:
        """Return a text that changes when a run begins or is removed, or when a GPU setting is
        changed: the times and sizes of the directories and files in which Workbench records both.
        Reading these takes a tenth of the time of reading the files."""
        host = supervisor.host
        places = (
            await supervisor.runs_dir(),
            await journal.journal_path_on(host),
            self._register_dir,
        )
        return (await host.run(["stat", "-c", "%n %Y %Z %s", "--", *filter(None, places)])).out

    async def _find_external_servers(self, host: Host, statuses: tuple[ServerStatus, ...]) -> None:
        """Find the servers of the host that Workbench did not start. A simulated host is not
        searched, because its processes are those of this machine."""
        if host.simulated is not None:
            return
        if self._others is None:
            self._others = external_servers.ExternalServers(host)
        ports = external_servers.ports_of_live_servers(statuses)
        found = await self._others.find(ports)
        gone = {metrics.server: metrics for metrics in self._found}
        self._found = []
        for server in found:
            metrics = gone.pop(server, None) or external_servers.ExternalMetrics(host, server)
            self._found.append(metrics)
        for metrics in gone.values():
            await metrics.close()

    async def _read_settings(self, host: Host) -> None:
        state = await journal.read_journal(host, with_log=False)
        self._register_dir = state.register.directory
        energy_j = {}
        if self._telemetry is not None:
            energy_j = self._telemetry.energy_j_by_uuid
        records = [record for record in state.records(energy_j) if record.why_lost is None]
        self._own = tuple(map(alteration_of_record, records))
        self._claimed = tuple(
            map(alteration_of_claim, state.without_entries_of_lost_settings(energy_j).others)
        )

    async def _read_rates(self, supervisor: Supervisor) -> None:
        readers: dict[str, Callable[[], Awaitable[EngineMetrics]]] = {}
        for status in supervisor.statuses():
            if status.state is ServerState.READY:
                read = partial(supervisor.metrics, status.run_id, _HTTP_TIMEOUT_S)
                readers[status.run_id] = read
        for metrics in self._found:
            readers[metrics.server.url] = partial(metrics.read, _HTTP_TIMEOUT_S)
        known = self._rates
        self._rates = {name: known.get(name) or _ServerRates(readers[name]) for name in readers}
        async with asyncio.timeout(_RATES_TIMEOUT_S):
            await asyncio.gather(*map(_ServerRates.read_and_update_rates, self._rates.values()))

    async def close(self) -> None:
        """Disconnect from the host. Its servers and settings stay as they are. If the host hangs,
        the wait for it ends after a few seconds."""
        await cancel_all(self._tasks.values())
        with suppress(TimeoutError, WorkbenchError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                for part in (self._source, self._supervisor, *self._found, self._host):
                    if part is not None:
                        await part.close()


def _server_of_run(status: ServerStatus) -> FleetServer:
    return FleetServer(
        status.run_id,
        status.engine,
        status.model_name,
        status.port,
        status.state_word,
        status.reason or status.phase or status.text_problem,
    )


def _server_started_elsewhere(server: FoundServer) -> FleetServer:
    """Return a server that Workbench did not start."""
    models = ", ".join(server.models)
    return FleetServer(
        server.url, server.engine or "server", models, server.port, FOUND_STATE, server.note
    )
