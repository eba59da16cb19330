"""Sweeps of a GPU setting, of the concurrency or of flags, searches under an SLO, and tunes:
started, resumed and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from workbench.bench.runner import BenchCancelled
from workbench.model.errors import BenchError, InputError, WorkbenchError
from workbench.model.secrets import MASK
from workbench.model.series_state import SeriesState
from workbench.model.sweep import (
    CONCURRENCY,
    FLAGS,
    RATES,
    TUNES,
    USERS,
    PointState,
    Sweep,
    SweepPoint,
    SweepSpec,
    planned_again_for_resume,
)
from workbench.session.bench.spec import WORDS_CONTENT, set_default_prompt_content
from workbench.session.hosts.names import check_resumed_on_same_host
from workbench.session.series.concurrency_sweep import (
    plan_concurrency_sweep,
    plan_resumed_concurrency_sweep,
)
from workbench.session.series.conduct import SeriesEndedEarly, SeriesEnding, carry_out_series
from workbench.session.series.flag_sweep_plan import FlagSweepPlanner
from workbench.session.series.gpu_sweep_plan import GpuSweepPlanner
from workbench.session.series.rate_capacity import (
    RateRange,
    plan_rate_capacity_search,
    plan_resumed_rate_capacity_search,
)
from workbench.session.series.sweep_progress import SweepProgress
from workbench.session.series.tune_plan import TunePlanner, load_text_of_run
from workbench.session.series.user_capacity import (
    UserLevels,
    estimate_user_run_s,
    plan_resumed_user_capacity_search,
    plan_user_capacity_search,
)
from workbench.store import paths
from workbench.store.sweeps import SweepStore, new_sweep

if TYPE_CHECKING:
    from workbench.model.setting_records import SettingCommand, SettingOutcome
    from workbench.model.tune import TuneCost
    from workbench.session.bench.measurement_lock import MeasurementLock
    from workbench.session.series.sweep_parts import PlannedSweep, SweepParts

_POLL_INTERVAL_S = 0.1  # between two looks for a load of a sweep that is being cancelled


class Sweeps:
    """Carries out one sweep at a time, and shows it in `state.sweep`. A stopped or failed sweep
    keeps its measured points and can be resumed."""

    def __init__(self, parts: SweepParts, lock: MeasurementLock) -> None:
        self._parts, self._lock = parts, lock
        self._gpu, self._flags = GpuSweepPlanner(parts), FlagSweepPlanner(parts)
        self._tunes = TunePlanner(parts)
        # by kind; any other kind is the key of a GPU setting
        self._resumed_by: Mapping[str, Callable[[Sweep, SweepSpec], Awaitable[PlannedSweep]]] = {
            FLAGS.name: self._flags.plan_resumed_sweep,
            CONCURRENCY.name: partial(plan_resumed_concurrency_sweep, parts),
            USERS.name: partial(plan_resumed_user_capacity_search, parts),
            RATES.name: partial(plan_resumed_rate_capacity_search, parts),
            TUNES.name: self._tunes.plan_resumed_tune,
        }
        self._one = asyncio.Lock()
        self._stop: asyncio.Event | None = None  # of the sweep under way

    @cached_property
    def sweep_store(self) -> SweepStore:
        return SweepStore(paths.sweeps_dir())

    async def run_gpu_setting_sweep(
        self,
        setting: str,
        values: Sequence[str],
        gpu: int | str | None = None,
        *,
        run_id: str | None = None,
        url: str | None = None,
        settle_s: float | None = None,
        pairs: int | None = None,
        runs: int = 1,
        password: str | None = None,
        **bench: Any,
    ) -> Sweep:
        """Measure a server (by default the selected or newest READY run) at each value of the GPU
        setting with this key, then restore the previous values. `gpu` None stands for every GPU of
        the server. `pairs` is the number of pairs of runs that compare the best value with the
        previous one, and `bench` has fields of BenchSpec."""
        planned = await self._gpu.plan_new_sweep(
            setting,
            values,
            gpu,
            run_id=run_id,
            url=url,
            settle_s=settle_s,
            pairs=pairs,
            runs=runs,
            password=password,
            bench=bench,
        )
        return await self._start_sweep(planned)

    async def list_gpu_sweep_commands(
        self,
        setting: str,
        values: Sequence[str],
        gpu: int | str | None = None,
        *,
        run_id: str | None = None,
    ) -> Mapping[str, Sequence[SettingCommand]]:
        """Return the commands that `run_gpu_setting_sweep` would run, by value: the key "350 W" has
        those that set that value, and the key BACK those that restore the previous values."""
        return await self._gpu.commands_of_sweep(setting, values, gpu, run_id)

    async def run_concurrency_sweep(
        self,
        levels: Sequence[int],
        *,
        run_id: str | None = None,
        url: str | None = None,
        max_minutes: float | None = None,
        **bench: Any,
    ) -> Sweep:
        """Measure a server at rising `levels`, which are numbers of concurrent requests. The server
        is the run `run_id` or the one at `url`, and `bench` has fields of BenchSpec. Return the
        ended sweep."""
        return await self._start_sweep(
            await plan_concurrency_sweep(self._parts, levels, run_id, url, max_minutes, bench)
        )

    async def run_user_capacity_search(
        self,
        levels: UserLevels,
        *,
        run_id: str | None = None,
        url: str | None = None,
        max_minutes: float | None = None,
        **bench: Any,
    ) -> Sweep:
        """Search the number of users that a server serves under an SLO. The server is the run
        `run_id` or the one at `url`, and `bench` has fields of BenchSpec. Return the ended search,
        which is a sweep of the kind "users"."""
        return await self._start_sweep(
            await plan_user_capacity_search(self._parts, levels, run_id, url, max_minutes, bench)
        )

    async def run_rate_capacity_search(
        self,
        rates: RateRange,
        *,
        run_id: str | None = None,
        url: str | None = None,
        max_minutes: float | None = None,
        **bench: Any,
    ) -> Sweep:
        """Search the rate of requests with which a server keeps its SLO over a horizon. The server
        is the run `run_id` or the one at `url`, and `bench` has fields of BenchSpec. Return the
        ended search, which is a sweep of the kind "rates"."""
        return await self._start_sweep(
            await plan_rate_capacity_search(self._parts, rates, run_id, url, max_minutes, bench)
        )

    def typical_user_capacity_run_s(
        self, levels: UserLevels, run_id: str | None, url: str | None
    ) -> float | None:
        """Return how many seconds one run of a search for users takes, estimated from the newest
        valid result of the same server. None if there is none."""
        return estimate_user_run_s(self._parts, levels, run_id, url)

    def check_flags_can_be_swept(self, flags: Mapping[str, Sequence[str]]) -> None:
        """Raise InputError if the flags of the plan under edit cannot be swept over these
        values."""
        from workbench.session.series.flag_sweep_plan import list_combinations

        list_combinations(self._parts.plans.editor, flags)

    async def run_flag_sweep(
        self,
        flags: Mapping[str, Sequence[str]],
        *,
        runs: int = 1,
        pairs: int = 3,
        max_minutes: float | None = None,
        quality: bool = True,
        quality_texts: str = "",
        **bench: Any,
    ) -> Sweep:
        """Start and measure the plan under edit at every combination of the values of one or two
        flags. Then compare the best combination with the current values in `pairs` pairs of runs,
        and also its answers unless `quality` is False (ExperimentSpec). A live selected run is
        stopped first and started again at the end."""
        planned = await self._flags.plan_new_sweep(
            flags,
            runs=runs,
            pairs=pairs,
            max_minutes=max_minutes,
            quality=quality,
            quality_texts=quality_texts,
            bench=bench,
        )
        return await self._start_sweep(planned)

    async def plan_tune(
        self,
        goal: str,
        limits_text: str,
        *,
        starts: int,
        max_minutes: float | None = None,
        quality: bool = True,
        quality_texts: str = "",
        **bench: Any,
    ) -> PlannedSweep:
        """Return a tune of the plan under edit that `run_tune` carries out. `goal` is a key of
        GOALS (model/tune.py), `limits_text` a text such as "ttft<=500@p95, power<=400", and
        `starts` the most servers that it starts. Raises WorkbenchError if it cannot be carried out.
        """
        return await self._tunes.plan_new_tune(
            goal,
            limits_text,
            starts=starts,
            max_minutes=max_minutes,
            quality=quality,
            quality_texts=quality_texts,
            bench=bench,
        )

    def tune_load_text(self, bench: Mapping[str, Any]) -> str:
        """Return in words the load of each run of a tune of the plan. `bench` has fields of
        BenchSpec."""
        plan = self._parts.plans.editor.effective_plan
        return load_text_of_run(self._parts.load.make_spec(plan.preset_id, dict(bench)))

    def estimate_tune_cost(self, planned: PlannedSweep) -> TuneCost:
        """Return what a planned tune takes: starts, time and energy."""
        return self._tunes.estimate_cost_of_tune(planned)

    async def preview_tune_setting_changes(self, spec: SweepSpec) -> Sequence[SettingOutcome]:
        """Return what a tune would do to GPU settings, as the outcomes of dry runs."""
        return await self._tunes.preview_setting_changes(spec)

    async def run_tune(self, planned: PlannedSweep) -> Sweep:
        """Carry out a planned tune, and return it when it has ended. A live selected run is stopped
        first and started again at the end."""
        return await self._start_sweep(planned)

    async def resume(
        self, sweep_id: int, *, max_minutes: float | None = None, password: str | None = None
    ) -> Sweep:
        """Continue a stored sweep, and return it when it has ended. `max_minutes` limits its time
        from now on. None sets no limit, but for a tune what is left of its own. Raises InputError
        if the sweep cannot be resumed."""
        async with self._hold_lock_with_stop_event(f"sweep {sweep_id}") as stop:
            with self.sweep_store.lock_and_read(sweep_id) as sweep:
                left = remaining_tune_minutes(sweep) if max_minutes is None else max_minutes
                spec = replace(self._require_resumable_spec(sweep), max_minutes=left)
                await self._parts.servers.supervisor.runs()
                planner = self._resumed_by.get(sweep.kind)
                if planner is not None:
                    planned = await planner(sweep, spec)
                else:
                    planned = await self._gpu.plan_resumed_sweep(sweep, spec, password)
                return await self._carry_out_sweep(planned_again_for_resume(sweep), planned, stop)

    async def list_resume_commands(self, sweep_id: int) -> Mapping[str, Sequence[SettingCommand]]:
        """Return the commands that resuming a sweep of a GPU setting would run, by value: the key
        "350 W" has those that set that value, and the key BACK those that restore the previous
        values."""
        sweep = await asyncio.to_thread(self.sweep_store.get, sweep_id)
        return await self._gpu.commands_of_resumed_sweep(sweep, self._require_resumable_spec(sweep))

    async def cancel(self) -> None:
        """Cancel the running sweep, if there is one. Returns when the sweep has ended and restored
        the previous values."""
        if self._stop is None:
            return
        self._stop.set()
        ended = asyncio.ensure_future(self._wait_for_sweep_end())
        try:
            # a load that was about to begin can be cancelled only once it has begun
            while not ended.done():
                await self._parts.experiments.stop()
                await self._parts.bench.cancel()
                await asyncio.wait({ended}, timeout=_POLL_INTERVAL_S)
        finally:
            ended.cancel()

    async def _wait_for_sweep_end(self) -> None:
        async with self._one:
            pass

    # ---- carried out

    async def _start_sweep(self, planned: PlannedSweep) -> Sweep:
        core = self._parts.core
        points = tuple(SweepPoint(label, x) for label, x in planned.points)
        first = new_sweep(
            core.host.name,
            planned.kind,
            planned.name,
            planned.unit,
            points,
            simulated=core.state.simulated,
            spec=planned.spec,
        )
        async with self._hold_lock_with_stop_event(f"a {first.description}") as stop:
            sweep = await asyncio.to_thread(self.sweep_store.add, first)
            with self.sweep_store.hold_lock(sweep.id):
                return await self._carry_out_sweep(sweep, planned, stop)

    @asynccontextmanager
    async def _hold_lock_with_stop_event(self, lock_text: str) -> AsyncIterator[asyncio.Event]:
        """Hold the measurement lock of the host while the block runs, and yield the event that
        stops the sweep. `lock_text` is the text that other Workbenches show about the lock. Raises
        BenchError if this session runs a sweep already, or if another Workbench measures on the
        host."""
        if self._one.locked():
            host = self._parts.core.host.name
            raise BenchError(
                "another sweep is running",
                host=host,
                next_step="wait until that sweep has ended, or cancel it",
            )
        async with self._one, self._lock.hold_lock(lock_text):
            self._stop = asyncio.Event()
            try:
                yield self._stop
            finally:
                self._stop = None

    async def _carry_out_sweep(
        self, sweep: Sweep, planned: PlannedSweep, stop: asyncio.Event
    ) -> Sweep:
        """Carry out a sweep while this session holds the measurement lock, and return the ended
        sweep. `planned` does the measurements, and the event `stop` ends them. If this task is
        cancelled, the sweep is stored as stopped before CancelledError is raised."""
        core, servers = self._parts.core, self._parts.servers
        minutes = planned.spec.max_minutes
        progress = SweepProgress(core, self._parts.results, self.sweep_store, sweep, stop, minutes)
        progress.change_sweep()
        await progress.save()
        what = sweep.description
        with core.show_as_busy(what), servers.reserve_servers(f"a {what}"):
            ending = await carry_out_series(planned.make_design(progress))
        self._set_final_state(progress, ending, planned)
        await progress.save()
        await self._parts.results.refresh_result_rows()  # their rows say what the sweep has found
        if ending.unexpected_error is not None:
            raise ending.unexpected_error
        return progress.sweep

    def _set_final_state(
        self, progress: SweepProgress, ending: SeriesEnding, planned: PlannedSweep
    ) -> None:
        """Set the final state of a sweep, with the reason if it ended early, and its best value.
        Record the outcome in the activity log."""
        state, why = ending.state, _reason_of_cause(ending.cause)
        progress.skip_unmeasured_points(why or "not reached")
        measured = any(p.state == PointState.DONE for p in progress.sweep.points)
        if isinstance(ending.cause, SeriesEndedEarly) and not measured:
            state = SeriesState.FAILED
        sweep = progress.sweep
        causes = (sweep.error, why if state != SeriesState.DONE else None)
        error = "; ".join(dict.fromkeys(filter(None, causes))) or None
        if state == SeriesState.DONE and sweep.error:
            state = SeriesState.FAILED  # all is measured, but a GPU or server is not as it was
        if state == SeriesState.DONE and why:
            progress.add_note(f"ended early: {why}")
        if planned.knee is not None:
            found = planned.knee(sweep.points)
            progress.change_sweep(knee=found.index, knee_text=found.text)
        progress.change_sweep(state=state, left_s=None, error=error)
        outcome = progress.sweep.knee_text or error or state
        self._parts.core.record_command(f"# sweep {sweep.id} of {sweep.name}", outcome)

    def _require_resumable_spec(self, sweep: Sweep) -> SweepSpec:
        which, host = f"sweep {sweep.id}", self._parts.core.host.name
        check_resumed_on_same_host(which, sweep.host, host)
        if sweep.state == SeriesState.RUNNING:
            raise InputError(
                f"another Workbench is running {which}",
                next_step="wait until the sweep has ended, or cancel it in that Workbench",
            )
        if sweep.spec is None:
            raise InputError(
                f"{which} cannot be resumed: an older Workbench stored it without its inputs",
                next_step="start a new sweep",
            )
        if not sweep.can_be_resumed:
            raise InputError(
                f"{which} is finished", next_step="start a new sweep to measure other values"
            )
        if MASK in repr((sweep.spec.bench, sweep.spec.values)):
            raise InputError(
                f"{which} cannot be resumed: its inputs contain a secret, which is not stored",
                next_step="start a new sweep",
            )
        # an older Workbench named no content, and its prompts were words
        return replace(
            sweep.spec, bench=set_default_prompt_content(sweep.spec.bench, WORDS_CONTENT)
        )


def remaining_tune_minutes(sweep: Sweep) -> float | None:
    """Return the minutes that are left of the time limit of a tune, which counts all of its work.
    None for a tune without a limit or in its final, and for any other sweep, whose limit counts for
    one command. Raises InputError if nothing is left."""
    limit = sweep.spec.max_minutes if sweep.spec is not None else None
    if sweep.kind != TUNES.name or limit is None or sweep.experiment_id is not None:
        return None
    left = limit - sweep.worked_s / 60
    if left <= 0:
        raise InputError(
            f"tune {sweep.id} has worked for its {limit:g} minutes",
            next_step=f"`workbench tune resume {sweep.id} --max-minutes M` gives it M more",
        )
    return left


def _reason_of_cause(cause: BaseException | None) -> str | None:
    """Return in words why a sweep ended early; None if all of its points were measured."""
    if cause is None:
        return None
    if isinstance(cause, (BenchCancelled, asyncio.CancelledError)):
        return "cancelled"
    if isinstance(cause, WorkbenchError):
        return cause.message
    return str(cause) if isinstance(cause, SeriesEndedEarly) else repr(cause)
