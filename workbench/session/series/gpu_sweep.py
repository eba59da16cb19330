"""A sweep of a GPU setting with a running server. Each value is set, kept under load until the
readings are steady, and measured. Then the GPUs get their previous values back. If this process is
killed, a guard process on the host does that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from workbench.bench import sweep_knee
from workbench.bench.runner import BenchCancelled
from workbench.gpu.settings.clock_contrasts import LIMITER_OF_REASON, find_clock_that_proves_lock
from workbench.gpu.settings.owners import identity_of_this_process
from workbench.gpu.telemetry.steady_state import WINDOW_S, why_not_steady
from workbench.model.errors import BenchError, HostError, SettingsError, WorkbenchError
from workbench.model.experiment import Arm, ArmTarget, Experiment, ExperimentRun, ExperimentSpec
from workbench.model.findings import Level
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState
from workbench.model.setting_commands import is_clock_lock, value_equals
from workbench.model.setting_records import InForce
from workbench.model.settings import POWER_LIMIT, GpuSettings, label_of, setting_of
from workbench.model.sweep import PointState
from workbench.session.bench.gpu_meter import Meter
from workbench.session.bench.sustained_load import drive_load
from workbench.session.gpu.previous_settings import PreviousValues, restore_and_return_problem
from workbench.session.series.conduct import SeriesEndedEarly, SeriesStopped
from workbench.session.series.confirmation import confirm_value_by_experiment
from workbench.session.series.sweep_progress import (
    SweepDesign,
    SweepProgress,
    bench_fields_to_store,
)
from workbench.session.uninterrupted import finish_despite_cancellation

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, ResultId
    from workbench.model.setting_records import SettingsReport
    from workbench.model.settings import SettingValue
    from workbench.session.series.experiment_run import NoteRunId, ReportLine
    from workbench.session.series.sweep_parts import SweepParts, SweepTarget

DEFAULT_SETTLE_S = 30.0  # at most: the temperature of a GPU has a time constant of about 20 to 40 s
# a cut link is waited for this long; by then the guard has reverted the setting
RESTORE_TIMEOUT_S = 60.0
DEFAULT_PAIRS = 3  # of the named value against the previous one
RUNS_PER_VALUE_NOTE = "{} at each value: differences below about 2 % cannot be seen"
_RETRY_INTERVAL_S = 1.0
_POWER_BOUND_SHARE = 0.05  # of the readings in which the driver names the power limit
_LIMIT_DRAWN_SHARE = 0.97  # of the limit, from which on it counts as drawn
_MAX_FAILED_IN_A_ROW = 2  # values that could not be set, after which no more are tried
_VERDICTS_WORST_FIRST = (
    InForce.NO_EFFECT,
    InForce.CHANGED,
    InForce.CAPPED,
    InForce.NOT_CHECKED,
    InForce.CONSISTENT,
    InForce.YES,
)


@dataclass(frozen=True, slots=True)
class GpuValue:
    """One value of a sweep of a GPU setting. `wanted` has the settings that every GPU gets, and `x`
    is the value as a number in MHz or W."""

    label: str
    x: float
    wanted: GpuSettings


@dataclass
class GpuSweep(SweepDesign):
    """Carries out a sweep of a GPU setting. `previous` has, by GPU index, the value before the
    first change, and `warnings` what is known to speak against the sweep."""

    parts: SweepParts
    progress: SweepProgress
    setting: str
    values: Sequence[GpuValue]
    previous: Mapping[int, PreviousValues]
    target: SweepTarget
    bench: Mapping[str, Any]
    settle_s: float = DEFAULT_SETTLE_S
    pairs: int = DEFAULT_PAIRS
    runs: int = 1
    password: str | None = field(default=None, repr=False)
    warnings: Sequence[str] = ()
    _failed_in_a_row: int = 0
    _touched: bool = False
    _read_back: tuple[InForce, ...] = ()  # of the value that is on: what setting it has shown

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(self.previous)

    async def prepare_series(self) -> None:
        self.progress.add_note(
            RUNS_PER_VALUE_NOTE.format("one run" if self.runs == 1 else f"{self.runs} runs")
        )
        for warned in self.warnings:
            self.progress.add_note(warned)
        # the guard reverts the setting of a sweep that is killed
        self.parts.gpu.guard.start_heartbeats()
        unknown = [f"GPU{gpu}" for gpu, start in self.previous.items() if start.unknown]
        if unknown:
            self.progress.add_note(
                f"{', '.join(unknown)}: an earlier clock lock is not known, so the default is set "
                "at the end"
            )
        self.progress.pair_runs = 2 * self.pairs
        await self._store_previous_values()

    async def carry_out_run(self, run: int) -> None:
        value = self.values[run]
        why = await self._set_value_or_return_problem(value)
        if why is None:
            self._failed_in_a_row = 0
            return await self._measure_value(run, value)
        await self.progress.mark_point_failed(run, why)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _MAX_FAILED_IN_A_ROW:
            raise SeriesEndedEarly(
                f"{self._failed_in_a_row} values in a row could not be set: {why}"
            )
        return None

    async def finish_series(self) -> None:
        await self._recheck_clock_locks()
        await self._confirm_best_value()

    async def restore_host(self) -> None:
        if self._touched:
            await finish_despite_cancellation(self._restore_setting())

    async def _store_previous_values(self) -> None:
        """Write the previous values to disk before the first change, so that a killed sweep can
        restore them when it is resumed."""
        uuids = {
            info.index: info.uuid
            for info in (await self.parts.telemetry.get_recent_reading()).infos
        }
        owners = [*(self.progress.sweep.start or {}).get("owners", ()), identity_of_this_process()]
        gpus = {uuids[gpu]: asdict(start) for gpu, start in self.previous.items()}
        self.progress.change_sweep(start={"owners": owners, "gpus": gpus})
        await self.progress.save()

    # ---- one value

    async def _set_value_or_return_problem(self, value: GpuValue) -> str | None:
        """Set a value of the sweep on every GPU. Return None, or the reason if that failed. After a
        failure the sweep goes on with the next value."""
        self._touched = True
        try:
            report = await self.apply_settings(dict.fromkeys(self.gpus, value.wanted))
        except SettingsError as error:
            return error.message
        self._read_back = tuple(outcome.in_force for outcome in report.outcomes)
        failed = report.first_failure
        if failed is None:
            return None
        return f"GPU{failed.command.gpu_index}: {failed.message}"

    async def apply_settings(self, settings_by_gpu: Mapping[int, GpuSettings]) -> SettingsReport:
        """Apply the settings of each GPU, by its index, and return what became of each. Raises
        SettingsError if the settings cannot be applied at all."""
        by_gpu = {str(gpu): settings for gpu, settings in settings_by_gpu.items()}
        return await self.parts.gpu.apply_settings_by_gpu(by_gpu, password=self.password)

    async def _measure_value(self, point_index: int, value: GpuValue) -> None:
        self.progress.change_point(point_index, state=PointState.MEASURING)
        try:
            moving = await self.wait_and_name_unsteady_reading()
        except BenchCancelled:
            raise
        except BenchError as error:
            await self.progress.mark_point_failed(point_index, error.message)
            return await self._end_sweep_unless_server_ready(error.message)
        if moving:
            self.progress.add_note(
                f"{value.label}: not settled after {self.settle_s:.0f} s ({moving})"
            )
        results = await self.progress.measure_point(point_index, self.benchmark_server, self.runs)
        if not results:
            return await self._end_sweep_unless_server_ready(
                self.progress.sweep.points[point_index].error or ""
            )
        bound = [self._was_power_limit_binding(result, value) for result in results]
        self.progress.change_point(
            point_index,
            in_force=self._worst_in_force_verdict(results),
            bound=None if None in bound else any(bound),
        )
        for result in results:
            if result.summary.tok_per_joule is None:
                self.progress.add_note(
                    f"{value.label}: no tok/J "
                    f"({result.summary.absent.get('tok_per_joule', 'not measured')})"
                )
        await self._check_value_still_set(point_index, value)
        await self.progress.save()
        return None

    async def benchmark_server(self, **bench_fields: Any) -> ResultId:
        """Benchmark the server, with the fields `bench_fields` of BenchSpec. Return the result's
        id."""
        return await self.parts.bench.benchmark_target(
            self.target.run_id, self.target.url, **{**self.bench, **bench_fields}
        )

    async def wait_and_name_unsteady_reading(self) -> str | None:
        """Load the server until the GPUs' readings are steady. Return None, or a text that names
        what still changes after `settle_s` seconds."""
        if self.settle_s <= 0:
            return None
        unsteady: str | None = f"it takes {2 * WINDOW_S:g} s to tell"
        async with (
            self.parts.load.open_load_on_server(
                self.target.run_id, self.target.url, dict(self.bench)
            ) as load,
            Meter(self.parts.core.host) as meter,
        ):

            def should_stop_loading(loaded_s: float) -> bool:
                nonlocal unsteady
                now = time.monotonic()
                if loaded_s >= 2 * WINDOW_S:
                    unsteady = why_not_steady(
                        meter.readings_between(now - 2 * WINDOW_S, now), self.gpus, now
                    )
                return loaded_s >= self.settle_s or unsteady is None

            await drive_load(load.spec, load.env, load.cancel, should_stop_loading)
        return unsteady

    def _was_power_limit_binding(self, result: BenchResult, value: GpuValue) -> bool | None:
        """Return whether the power limit `value` slowed a GPU down during the benchmark: the driver
        says so, or a GPU drew about as much power as the limit allows. None if `value` is not a
        power limit, or if the readings do not show it."""
        gpu, limit_w = result.summary.gpu, value.wanted.get(POWER_LIMIT.key)
        if gpu is None or limit_w is None:
            return None
        named_share = 0.0
        for name, share in gpu.event_reasons.items():
            if LIMITER_OF_REASON.get(name) == "power":
                named_share += share
        if named_share >= _POWER_BOUND_SHARE:
            return True
        drawn_w = known_values(gpu.power_w_each)
        if not drawn_w:
            return None
        return bool(max(drawn_w) >= _LIMIT_DRAWN_SHARE * limit_w)

    # ---- the named value against the previous one

    async def _confirm_best_value(self) -> None:
        best = sweep_knee.find_knee_of_gpu_setting(self.progress.sweep.points).index
        if self.pairs < 1:
            return self.progress.add_note("no value was compared in pairs")
        if best is None:
            return self.progress.add_note(
                "no value was compared in pairs: no value is better than the previous one"
            )
        point, target = self.progress.sweep.points[best], self.target
        on = ArmTarget(target.run_id or target.url or "", url=target.url, run_id=target.run_id)
        spec = ExperimentSpec(
            Arm(target=on),
            Arm(target=on, gpu=self.values[best].wanted),
            plan={},
            bench=bench_fields_to_store(self.bench),
            pairs=self.pairs,
            metric="output_tok_s" if point.tok_per_joule is None else "tok_per_joule",
            throw_away=False,
            quality=False,
        )
        experiment = self.parts.experiments.run_sweep_experiment(
            spec, ValuePairTestBed(self, self.values[best]), self.progress
        )
        return await confirm_value_by_experiment(
            self.progress, point.label, "the previous value", experiment
        )

    async def _recheck_clock_locks(self) -> None:
        """Judge again whether the clock locks were in force. The clocks measured at one value of
        the sweep may prove that the lock of another value worked."""
        if not is_clock_lock(self.setting):
            return
        known = await self.parts.gpu.gpu_evidence.read_clocks_of_recent_loads("")
        infos = (await self.parts.telemetry.get_recent_reading()).infos
        uuids = {info.uuid for info in infos if info.index in self.gpus}
        mine = [c for c in known.clocks if c.setting == self.setting and c.gpu_uuid in uuids]
        for index, point in enumerate(self.progress.sweep.points):
            if point.in_force != InForce.CONSISTENT:
                continue
            lock = self.values[index].wanted[self.setting]
            newest = {clock.gpu_uuid: clock for clock in mine if clock.lock == lock}
            contrasts = [find_clock_that_proves_lock(clock, mine) for clock in newest.values()]
            if len(contrasts) == len(uuids) and None not in contrasts:
                self.progress.change_point(index, in_force=str(InForce.YES))

    def _worst_in_force_verdict(self, results: Sequence[BenchResult]) -> str | None:
        """Return as text how sure it is that the value was in force in these runs: the worst case
        of all runs and GPUs. If no load has shown it, the text says what reading the value back
        from the driver showed. None if neither says anything."""
        keys = [f"gpu{gpu}.{self.setting}" for gpu in self.gpus]
        reported: set[str | None] = set()
        for result in results:
            reported.update(map(result.conditions.in_force.get, keys))
        verdicts = reported - {None, ""} or set(map(str, self._read_back))
        for verdict in map(str, _VERDICTS_WORST_FIRST):
            if verdict in verdicts:
                return verdict
        return None

    async def _end_sweep_unless_server_ready(self, measuring_error: str) -> None:
        run_id = self.target.run_id
        if run_id is None:
            return
        state = self.parts.servers.supervisor.status(run_id).state
        if state is not ServerState.READY:
            raise SeriesEndedEarly(f"the server is {state}: {measuring_error}")

    async def _check_value_still_set(self, point_index: int, value: GpuValue) -> None:
        """Mark the point with this index as failed and raise SeriesEndedEarly if a GPU no longer
        has the value that the sweep had set, because then the benchmark measured something else."""
        await self.parts.gpu.alterations.read_altered_settings()
        for gpu in self.gpus:
            if not await self._is_value_set(gpu, value.wanted[self.setting]):
                why = (
                    f"GPU{gpu}: the setting was reverted during the measurement, by the guard "
                    "or by someone else"
                )
                self.progress.change_point(point_index, state=PointState.FAILED, error=why)
                raise SeriesEndedEarly(why)

    async def _is_value_set(self, gpu: int, wanted: SettingValue) -> bool:
        """Return whether a GPU has the value `wanted` of the swept setting. True also if the GPU
        does not report its value."""
        if is_clock_lock(self.setting):
            altered = self.parts.core.state.alterations
            locks = {lock.gpu_index: lock.now for lock in altered if lock.setting == self.setting}
            return locks.get(gpu) == wanted
        telemetry = await self.parts.telemetry.get_recent_reading()
        info = telemetry.info(gpu)
        if info is None:
            return True
        present = setting_of(self.setting).current_value(telemetry, info.uuid)
        return present is None or value_equals(self.setting, present, wanted)

    # ---- back to the previous values

    async def _restore_setting(self) -> None:
        """Set each GPU to its previous value. While the link is cut, retry for RESTORE_TIMEOUT_S
        seconds. A failure is reported to the user."""
        self.progress.change_sweep(left_s=None)
        until = time.monotonic() + RESTORE_TIMEOUT_S
        left = list(self.gpus)
        why = ""
        while left:
            try:
                why = await restore_and_return_problem(
                    self.parts.core.host,
                    self.parts.gpu,
                    left[0],
                    self.previous[left[0]],
                    self.password,
                )
                if why:
                    break
                left.pop(0)
            except HostError as error:
                why = error.message
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(_RETRY_INTERVAL_S)
            except WorkbenchError as error:
                why = error.message
                break
        if not left:
            return self.progress.change_sweep(start=None)
        gpus = ", ".join(f"GPU{gpu}" for gpu in left)
        text = (
            f"{gpus}: {label_of(self.setting)} was not restored to its value before the sweep "
            f"({why})"
        )
        self.progress.change_sweep(error=text)
        self.parts.core.notify(
            Level.ERROR,
            text,
            "run `workbench gpu revert` now; otherwise the guard reverts the setting",
        )
        return None


@dataclass
class ValuePairTestBed:
    """The TestBed of an experiment on the server of a sweep: arm A has the previous value of the
    setting, and arm B has `value`. The sweep restores the previous value when it ends."""

    sweep: GpuSweep
    value: GpuValue
    started_run_id: str | None = None
    _fit: dict[str, Any] = field(default_factory=dict)  # of the prompts: the same in all runs

    async def must_compile_first(self, arm: str) -> bool:
        return False

    async def start_or_reuse_server(self, arm: str, note_run_id: NoteRunId) -> str:
        if self.sweep.progress.stop.is_set():
            raise SeriesStopped("cancelled")
        return self.sweep.target.run_id or ""

    async def await_server_and_apply_settings(
        self, arm: str, run_id: str, report_line: ReportLine
    ) -> None:
        previous = {gpu: start.settings for gpu, start in self.sweep.previous.items()}
        wanted = previous if arm == "A" else dict.fromkeys(previous, self.value.wanted)
        report = await self.sweep.apply_settings(wanted)
        failed = report.first_failure
        if failed is not None:
            raise SettingsError(f"{failed.command.gpu_or_host_name}: {failed.message}")
        report_line("under load until the readings are steady")
        try:
            await self.sweep.wait_and_name_unsteady_reading()
        except BenchCancelled:
            raise SeriesStopped("cancelled") from None

    async def stop_server_and_revert_settings(self) -> None:
        return

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, report_line: ReportLine
    ) -> float | None:
        return None

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        try:
            result_id = await self.sweep.benchmark_server(seed=seed, **self._fit)
        except BenchCancelled:
            raise SeriesStopped("cancelled") from None
        result = await self.sweep.parts.results.get(result_id)
        self._fit = self._fit or result.spec.prompt_fitting_fields
        return result

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        return None, {}  # one server makes all runs

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        return ()
