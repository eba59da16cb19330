"""The application without a screen: one host, and the parts of the application that work on this
host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.hosts.base import AuthFailed, Host, HostKeyChanged, HostKeyUnknown, HostUnreachable
from workbench.model.errors import HostError, InputError, WorkbenchError
from workbench.model.findings import by_severity
from workbench.session.hosts.names import open_host_by_name
from workbench.session.servers.run_log import RunLog
from workbench.session.state import SessionState
from workbench.session.state_holder import StateHolder, StateListener, host_view
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.server.log_lines import LogRing
    from workbench.session.alerts.alerts import Alerts
    from workbench.session.bench.bench import Bench
    from workbench.session.bench.measurement_lock import MeasurementLock
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.gpu.control import GpuControl
    from workbench.session.gpu.proof import GpuVerifier
    from workbench.session.history.kept_history import KeptHistory
    from workbench.session.history.telemetry_watch import TelemetryWatch
    from workbench.session.history.timeline import Timeline
    from workbench.session.hosts.link import HostLink
    from workbench.session.hosts.models import Models
    from workbench.session.hosts.other_hosts import OtherHosts
    from workbench.session.last_screen import ScreenMemory
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.quality.comparison import QualityComparisons
    from workbench.session.quality.experiment_answers import ExperimentQualityFactory
    from workbench.session.quality.restart_answers import AnswersOfRestart
    from workbench.session.results.advice import Advisor
    from workbench.session.results.reports import Reports
    from workbench.session.results.results import Results
    from workbench.session.series.experiments import Experiments
    from workbench.session.series.sweeps import Sweeps
    from workbench.session.servers.servers import Servers
    from workbench.store.config import ConfigStore

T = TypeVar("T")
# of the state when the host changes
_FIELDS_KEPT_ON_SWITCH = frozenset({"presets", "presets_read", "plan", "activity", "notice"})
_RETRY_INTERVAL_S = 5.0
_OTHERS_LOOK_INTERVAL_S = 3.0  # between two looks for what others did on the host
# for a sweep or an experiment to restore settings and servers when the session closes
_RESTORE_TIMEOUT_S = 15.0
# everything else waits at most this long for the start of the telemetry agent
_AGENT_START_WAIT_S = 0.3


class Session:
    """One host, and the parts of the application that work on this host. A screen calls `open`,
    which starts everything that watches the host; a single command only connects `link`. Each part
    is imported and built when it is first used, so that the screen appears early."""

    @classmethod
    def of_host(cls, name: str | None = None, simulate: str | None = None) -> Session:
        """Return a session of this machine (None), of the host or container with this name, or of a
        simulated host. `simulate` names a profile whose simulated driver and engines are put on
        that host."""
        return cls(open_host_by_name(name, simulate))

    def __init__(self, host: Host) -> None:
        self.core = StateHolder(host)
        self.log = RunLog(self._log_ring)
        self._watched = asyncio.Event()  # the telemetry agent is being started
        self._retry = asyncio.Event()  # try to connect now
        self._own_files_read = asyncio.Event()  # of the present host
        self._is_first_connection = False
        self._kept: KeptHistory | None = None

    @property
    def host(self) -> Host:
        return self.core.host

    @property
    def state(self) -> SessionState:
        return self.core.state

    def subscribe(self, listener: StateListener) -> Callable[[], None]:
        """Call `listener(state, changed field names)` after each change of the state. Return a
        function that unsubscribes the listener."""
        return self.core.subscribe(listener)

    # ---- parts

    @cached_property
    def link(self) -> HostLink:
        from workbench.session.hosts.link import HostLink

        return HostLink(self.core)

    @cached_property
    def telemetry(self) -> TelemetryWatch:
        from workbench.session.history.telemetry_watch import TelemetryWatch

        return TelemetryWatch(self.core)

    @cached_property
    def timeline(self) -> Timeline:
        from workbench.session.history.timeline import Timeline

        return Timeline(self.core, self.telemetry)

    @cached_property
    def _config(self) -> ConfigStore:
        from workbench.store.config import ConfigStore

        return ConfigStore()

    @cached_property
    def alerts(self) -> Alerts:
        from workbench.session.alerts.alerts import Alerts

        return Alerts(self.core, self.telemetry, self.timeline, self._config)

    @cached_property
    def presets(self) -> Presets:
        from workbench.session.plans.presets import Presets

        return Presets(self.core, self._config)

    @cached_property
    def plans(self) -> Plans:
        from workbench.session.plans.plans import Plans

        return Plans(self.core, self._config, self.presets, self.telemetry)

    @cached_property
    def servers(self) -> Servers:
        from workbench.session.servers.servers import Servers

        servers = Servers(self.core, self.presets, self.plans)
        self.telemetry.on_reading.append(servers.forward_gpu_reading)
        return servers

    @cached_property
    def gpu(self) -> GpuControl:
        from workbench.session.gpu.control import GpuControl

        return GpuControl(self.core, self._config, self.telemetry)

    @cached_property
    def measurement_lock(self) -> MeasurementLock:
        from workbench.session.bench.measurement_lock import MeasurementLock

        return MeasurementLock(self.core, self.gpu.alterations)

    @cached_property
    def results(self) -> Results:
        from workbench.session.results.results import Results

        return Results(self.core, self.timeline)

    @cached_property
    def server_load(self) -> ServerLoad:
        from workbench.session.bench.server_load import ServerLoad

        return ServerLoad(self.core, self.presets, self.servers, self.measurement_lock)

    @cached_property
    def bench(self) -> Bench:
        from workbench.session.bench.bench import Bench

        return Bench(
            self.core,
            self.plans,
            self.servers,
            self.server_load,
            self.gpu,
            self.results,
            self._make_answers_of_restart,
        )

    def _make_answers_of_restart(self) -> AnswersOfRestart:
        from workbench.session.quality.restart_answers import AnswersOfRestart

        return AnswersOfRestart(self.core, self.plans, self.servers, self.server_load, self.quality)

    @cached_property
    def gpu_verifier(self) -> GpuVerifier:
        from workbench.session.gpu.proof import GpuVerifier

        return GpuVerifier(self.core, self.telemetry, self.gpu, self.server_load)

    @cached_property
    def hosts(self) -> OtherHosts:
        from workbench.session.hosts.other_hosts import OtherHosts

        return OtherHosts(self, Session.of_host)

    @cached_property
    def models(self) -> Models:
        from workbench.session.hosts.models import Models

        return Models(self)

    @cached_property
    def experiments(self) -> Experiments:
        from workbench.session.series.experiments import Experiments

        return Experiments(
            self.core,
            self.presets,
            self.plans,
            self.servers,
            self.server_load,
            self.gpu,
            self.results,
            self.hosts,
            self._make_quality_factory,
        )

    def _make_quality_factory(self) -> ExperimentQualityFactory:
        from workbench.session.quality.experiment_answers import ExperimentQualityFactory

        return ExperimentQualityFactory()

    @cached_property
    def quality(self) -> QualityComparisons:
        from workbench.session.quality.comparison import QualityComparisons

        return QualityComparisons(self.core, self.presets, self.plans, self.servers, self.hosts)

    @cached_property
    def advisor(self) -> Advisor:
        from workbench.session.results.advice import Advisor

        return Advisor(self.presets, self.servers, self.telemetry, self.results, self.experiments)

    @cached_property
    def sweeps(self) -> Sweeps:
        from workbench.session.series.sweep_parts import SweepParts
        from workbench.session.series.sweeps import Sweeps

        parts = SweepParts(
            core=self.core,
            telemetry=self.telemetry,
            presets=self.presets,
            plans=self.plans,
            servers=self.servers,
            gpu=self.gpu,
            load=self.server_load,
            bench=self.bench,
            results=self.results,
            experiments=self.experiments,
        )
        return Sweeps(parts, self.measurement_lock)

    @cached_property
    def reports(self) -> Reports:
        from workbench.session.results.reports import Reports

        return Reports(self.results, self.experiments, self.sweeps)

    @cached_property
    def screen_memory(self) -> ScreenMemory:
        from workbench.session.last_screen import ScreenMemory

        return ScreenMemory(self.core, lambda: self.experiments, lambda: self.results)

    def _part_if_built(self, name: str) -> Any:
        return vars(self).get(name)

    def _log_ring(self) -> LogRing | None:
        return self.servers.log_of_selected_run() if self.state.run_id is not None else None

    # ---- open and close

    async def _start_telemetry(self) -> None:
        with suppress(WorkbenchError):
            await self.host.connect()
            await self.telemetry.start()

    async def open(self, *, before_screen: bool = False) -> None:
        """Start, in the background, everything that a screen needs. Failures show in the state.
        With `before_screen`, only start the telemetry agent of this machine: its first reading
        takes as long as loading the screen. `open` is called again for the rest."""
        if before_screen and not self.host.is_local:
            return
        kept = self._start_keeping_history()
        if before_screen:
            self.core.spawn(self._start_telemetry())
            return
        kept.load_stored_history()
        self._own_files_read = asyncio.Event()
        self.core.spawn(self._connect_and_start_readings())
        self.core.spawn(self._load_presets_results_and_config())

    def _start_keeping_history(self) -> KeptHistory:
        """Begin to keep every reading in memory and on disk."""
        from workbench.session.history.kept_history import KeptHistory

        if self._kept is None:
            self._kept = KeptHistory(self.core, self.timeline, self.telemetry)
        return self._kept

    async def _load_presets_results_and_config(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._watched.wait(), _AGENT_START_WAIT_S)
        await asyncio.to_thread(self.presets.library.list)  # parses for 0.1 s
        self.presets.reload_presets()
        await self.results.refresh_result_rows()
        await self.screen_memory.resume_last_screen()
        self._own_files_read.set()
        await self._apply_config()

    async def _apply_config(self) -> None:
        """Set the refresh interval and the alerts from config.toml, and report the problems of
        config.toml and hosts.toml. A file that does not exist is not checked, because loading the
        check takes time."""
        found = list(await asyncio.to_thread(lambda: HostsStore().findings))
        config, ui = self._config, None
        alerts = self.alerts
        if config.path.exists():
            ui = (await asyncio.to_thread(lambda: config.config)).ui
            alerts.apply_alerts_config(config.config.alerts)
            found += config.findings
        if found:  # one message, because a second one would replace the first
            worst = by_severity(found)
            text = "; ".join(f"{finding.file_and_line_text}: {finding.text}" for finding in worst)
            self.core.notify(worst[0].level, text, worst[0].fix)
        if ui is None:
            return
        if self.telemetry.interval_s is None:
            await self.telemetry.set_interval(ui.refresh_s)

    async def _connect_and_start_readings(self) -> None:
        self.link.on_return = self._read_changes_while_disconnected
        self._is_first_connection = True
        try:
            await self._connect_with_retries()
        finally:
            self._is_first_connection = False
        source = await self.telemetry.start()
        with suppress(TimeoutError):  # the imports of the parts below would keep it waiting
            await asyncio.wait_for(source.launched.wait(), _AGENT_START_WAIT_S)
        self._watched.set()
        self.gpu.guard.start_heartbeats()
        await self._read_changes_while_disconnected()
        self.core.spawn(self._watch_engine())
        self.core.spawn(self._show_changes_since_last_screen())
        self.core.spawn(self._watch_changes_by_other_processes())

    async def _connect_with_retries(self) -> None:
        """Connect to the host. Retry until the host answers, because it may be booting. Raises
        AuthFailed or a host key error, which only the user can resolve."""
        reported = False
        while True:
            try:
                return await self.link.connect()
            except (AuthFailed, HostKeyChanged, HostKeyUnknown):
                raise  # only the user can help
            except HostUnreachable as error:
                if not reported:
                    self.core.notify_error(error)
                reported = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._retry.wait(), _RETRY_INTERVAL_S)
                self._retry.clear()

    async def _read_changes_while_disconnected(self) -> None:
        """Find out what changed on the host while this session was not connected. Failures show in
        the state."""
        looks: list[Callable[[], Awaitable[object]]] = [
            self.link.measure_and_show_latency,
            self.servers.list_runs_and_select_one,
            self._read_settings_and_lock_owner,
            self.gpu.rights.load_rights,
        ]
        if self.plans.current is not None:  # the plan was loaded before the link was there
            looks.append(self.plans.locate_engine_and_ask_flags)

        async def report_failure(look: Callable[[], Awaitable[object]]) -> None:
            try:
                await look()
            except WorkbenchError as error:
                self.core.notify_error(error)

        # at once, because each waits for the link several times
        await asyncio.gather(*map(report_failure, looks))

    async def _read_settings_and_lock_owner(self) -> None:
        await self.gpu.alterations.read_altered_settings()
        await self.measurement_lock.refresh_other_lock_owner()

    async def _watch_engine(self) -> None:
        from workbench.session.servers.engine_live import EngineReader

        await EngineReader(self.core, self.servers, self.timeline).watch_engine()

    async def _store_detached_results(self) -> None:
        from workbench.store import unfinished_benchmarks

        found = await asyncio.to_thread(unfinished_benchmarks.find_benchmark_notes, self.host.name)
        if found:
            # loads the load client and what judges answers, which a screen seldom needs
            from workbench.session.bench.unfinished_benchmarks import store_detached_results

            await store_detached_results(self, found)

    async def _show_changes_since_last_screen(self) -> None:
        """Show what happened on the host since this user's last screen of it closed, with what a
        killed screen has left."""
        await self._store_detached_results()
        await self._own_files_read.wait()
        with suppress(WorkbenchError):
            # one may have been stored since they were read
            await self.results.refresh_if_database_changed()
        left_unix_s = self.screen_memory.left_unix_s
        if left_unix_s is None:
            return
        from workbench.session.changes_while_away import changes_since_last_screen

        servers, ahead_s = self.state.servers, 0.0
        if servers:
            ahead_s = self.servers.supervisor.host_unix_time_s(servers[0].run_id) - time.time()
        self.core.update(
            changes_while_away=changes_since_last_screen(self.state, left_unix_s, ahead_s)
        )

    async def _watch_changes_by_other_processes(self) -> None:
        while True:
            await asyncio.sleep(
                self.core.beat.seconds_until_beat_near_pause_end(_OTHERS_LOOK_INTERVAL_S)
            )
            with suppress(WorkbenchError):  # a lost link shows in the state
                await self._show_changes_by_other_processes()

    async def _show_changes_by_other_processes(self) -> None:
        """Show the results that other Workbenches stored, the servers that they started, and
        whether one of them is measuring."""
        await self.results.refresh_if_database_changed()
        await self.servers.list_servers_started_elsewhere()
        await self.measurement_lock.refresh_other_lock_owner()
        await self.screen_memory.record_screen_open()

    def spawn_session_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task that does not end with the screen, and return the task."""
        return self.core.spawn_session_task(work)

    @property
    def _has_benchmarks_left(self) -> bool:
        return bool(self.core.kept) or self.state.bench.queued

    async def finish_benchmarks_without_screen(self) -> None:
        """Wait for the end of the benchmarks that the user has asked for, although the screen is
        gone. Until then, the GPUs are read and the guard gets heartbeats of this process."""
        bench = self._part_if_built("bench")
        if bench is None or not self._has_benchmarks_left:
            return
        bench.note_screen_closed_on_disk()
        self.screen_memory.record_screen_close()  # the result comes after the user has left
        self.core.record_command(
            "# the terminal was closed", "the benchmark goes on without the screen"
        )
        changed = asyncio.Event()
        unsubscribe = self.subscribe(lambda state, fields: changed.set())
        try:
            while self._has_benchmarks_left:
                changed.clear()
                waiting = asyncio.ensure_future(changed.wait())
                await asyncio.wait({waiting, *self.core.kept}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            unsubscribe()

    async def close(self) -> None:
        """Leave the host without changing its servers and GPU settings. A benchmark is cancelled,
        and a sweep or an experiment restores what it has changed."""
        await self._cancel_measurements()
        if (hosts := self._part_if_built("hosts")) is not None:
            await hosts.close()
        await self._stop_work_on_host()
        await self.host.close()

    async def _cancel_measurements(self) -> None:
        """Cancel the sweep, the experiment and the benchmark that run. Each has a limited time to
        restore GPU settings and servers; over a lost link the guard restores the settings."""
        if (sweeps := self._part_if_built("sweeps")) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(sweeps.cancel(), _RESTORE_TIMEOUT_S)
        if (experiments := self._part_if_built("experiments")) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(experiments.stop(), _RESTORE_TIMEOUT_S)
        if (quality := self._part_if_built("quality")) is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(quality.stop(), _RESTORE_TIMEOUT_S)
        if (bench := self._part_if_built("bench")) is not None:
            await bench.cancel()

    async def _stop_work_on_host(self) -> None:
        if (gpu := self._part_if_built("gpu")) is not None:
            gpu.guard.stop_heartbeats()
        await self.core.cancel_and_await_tasks()
        if (telemetry := self._part_if_built("telemetry")) is not None:
            await telemetry.stop()
        if (servers := self._part_if_built("servers")) is not None:
            await servers.close()
        if self._kept is not None:
            self._kept.close()
        if (memory := self._part_if_built("screen_memory")) is not None:
            memory.record_screen_close()

    # ---- hosts

    async def retry_connection(self) -> None:
        """Connect again to a host that could not be reached. Raises InputError if the last attempt
        has not failed."""
        host = self.state.host
        if host.link != "failed":
            raise InputError(
                f"there is no failed connection to try again: the link to {host.name} is "
                f"{host.link}",
                next_step="press h to work on another host",
            )
        self.core.update_host(link="connecting", message=None)
        if self._is_first_connection:
            self._retry.set()
        else:
            self.core.spawn(self._connect_and_start_readings())

    async def accept_host_key(self) -> None:
        """Trust the host key that `state.host` shows, and connect."""
        self.link.trust_host_key()
        self.core.spawn(self._connect_and_start_readings())

    async def switch_host(self, name: str) -> None:
        """Leave this host as it is and open another one. The plan under edit stays loaded."""
        # may load the ssh library, which takes long
        host = await asyncio.to_thread(open_host_by_name, name)
        await self._cancel_measurements()
        await self._stop_work_on_host()
        with suppress(HostError):
            await self.host.close()
        self.core.host = host
        fresh = SessionState(host=host_view(host))
        of_host = {
            name: getattr(fresh, name)
            for name in fresh.__dataclass_fields__
            if name not in _FIELDS_KEPT_ON_SWITCH
        }
        self.core.update(**{**of_host, "log_revision": self.state.log_revision + 1})
        self.plans.adapt_plan_to_new_host()
        await self.open()
