"""A sweep of one or two flags. The server of each combination of values is started and measured
with a few runs, which do not suffice to show a difference. Then the best combination is compared
with the current values in pairs of runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.bench.runner import BenchCancelled
from workbench.engines.answer_settings import kind_of_answer_flag
from workbench.model.errors import BenchError, HostError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import NOT_MEASURED
from workbench.model.secrets import mask_argv
from workbench.model.series_state import SeriesState
from workbench.model.server_run import ServerState
from workbench.model.sweep import PointState
from workbench.session.series.confirmation import confirm_value_by_experiment
from workbench.session.series.sweep_progress import SweepDesign, SweepProgress
from workbench.session.uninterrupted import finish_despite_cancellation

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, ResultId
    from workbench.model.experiment import Experiment
    from workbench.model.server_run import ServerStatus
    from workbench.model.sweep import PointIndex, SweepPoint
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.series.sweep_parts import SweepParts

T = TypeVar("T")
SCREENED_NOTE = (
    "screened with {}: only a value that was compared in pairs is claimed to be different"
)

GOODPUT_METRIC, SPEED_METRIC = "goodput_request_s", "output_tok_s"
_POINT_FIELD_OF_METRIC = {
    GOODPUT_METRIC: "goodput_request_s",
    SPEED_METRIC: "tok_s",
}  # of SweepPoint
_MORE_TEXTS = {GOODPUT_METRIC: "more goodput", SPEED_METRIC: "more tok/s"}


@dataclass(frozen=True, slots=True)
class FlagCombination:
    """One combination of flag values. `sets` has the assignments "flag=value"; () stands for the
    plan's current values. `x` is the value as a number, or None if two flags are swept or the value
    is not a number. `editor` has the changed plan."""

    label: str
    x: float | None
    sets: tuple[str, ...]
    editor: PlanEditor


@dataclass
class FlagSweep(SweepDesign):
    """Carries out a sweep of flags. `editor_to_restore` has the plan of the server that ran when
    the sweep began and that is started again at the end, None if no server ran. A resumed sweep
    does not measure again what was measured already."""

    parts: SweepParts
    progress: SweepProgress
    combinations: Sequence[FlagCombination]
    bench: Mapping[str, Any]
    editor_to_restore: PlanEditor | None
    runs: int = 1
    pairs: int = 3
    quality: bool = True
    quality_texts: str = ""
    # the run that the sweep started and that is on
    _server: str | None = field(default=None, init=False)
    _begun: bool = field(default=False, init=False)

    async def prepare_series(self) -> None:
        await self._check_server_can_start()
        self._begun = True
        self.progress.pair_runs = 2 * self.pairs
        if self._can_values_change_answers():
            self.progress.change_sweep(quality=NOT_MEASURED)
        await self._stop_selected_server()

    async def finish_series(self) -> None:
        if all(point.state != PointState.DONE for point in self.progress.sweep.points[1:]):
            raise BenchError("none of the values could be measured")
        runs = "one run each" if self.runs == 1 else f"{self.runs} runs each"
        self.progress.add_note(SCREENED_NOTE.format(runs))
        await self._confirm_best_value()

    async def restore_host(self) -> None:
        if self._begun:
            await finish_despite_cancellation(self._restart_earlier_server())

    def _can_values_change_answers(self) -> bool:
        engine = self.combinations[0].editor.plan.engine
        return any(can_assignments_change_answers(engine, one.sets) for one in self.combinations)

    async def _check_server_can_start(self) -> None:
        """Raise ServerError, while the selected server still runs, if no server of this plan can be
        started on the host."""
        await self.parts.servers.check_start_on_host(
            self.combinations[0].editor, self.parts.core.state.live_server
        )

    async def _stop_selected_server(self) -> None:
        """Stop the selected server if it is live. Its run id is stored first, so that a killed
        sweep can start that server again when it is resumed."""
        server = self.parts.core.state.live_server
        if server is not None:
            self.progress.change_sweep(before=server.run_id)
            await self.progress.save()
            await self.parts.servers.stop_run_quietly(server.run_id)

    def bench_fields_of_run(self, run: int) -> Mapping[str, Any]:
        """Return the fields of BenchSpec for the run of the point with this index."""
        return self.bench

    def confirmation_experiment_fields(self) -> dict[str, Any]:
        """Return the fields of ExperimentSpec for the experiment that compares the best combination
        with the current values."""
        metric = metric_that_ranks_points(self.progress.sweep.points)
        return {
            "pairs": self.pairs,
            "bench": dict(self.bench),
            "quality": self.quality,
            "quality_texts": self.quality_texts,
            **({} if metric == SPEED_METRIC else {"metric": metric}),
        }

    # ---- screening

    def estimated_run_s(self, run: int) -> float:
        return self.progress.mean_seconds_per_value

    async def carry_out_run(self, run: int) -> None:
        combination = self.combinations[run]
        self.progress.change_point(run, state=PointState.MEASURING)
        try:
            self.parts.servers.require_startable_plan(
                combination.editor.effective_plan, combination.editor
            )
            run_id = await self._start_server_until_ready(combination.editor)
            await self.prepare_started_server(run)
        except (BenchCancelled, HostError):  # the combination is not to blame
            raise
        except WorkbenchError as error:
            await self.progress.mark_point_failed(run, f"not started: {error.message}")
        else:
            await self.measure_point_on_server(run_id, run)
            await self.progress.save()
        finally:
            await self._stop_started_server()

    async def measure_point_on_server(self, run_id: str, run: int) -> Sequence[BenchResult]:
        """Measure a point on its server, and return the results; () if a run raised an error."""
        return await self.progress.measure_point(
            run, lambda: self.benchmark_point(run_id, run), self.runs
        )

    async def benchmark_point(self, run_id: str, run: PointIndex) -> ResultId:
        """Benchmark the server of a point, and return the id of the result."""
        return await self.parts.bench.benchmark_run(run_id, **self.bench_fields_of_run(run))

    async def prepare_started_server(self, run: int) -> None:
        """Do what comes between the start of a server and its measurement. By default nothing."""

    async def _start_server_until_ready(self, editor: PlanEditor) -> str:
        """Start a server, and return its run id once the server is READY. Raises WorkbenchError
        with the reason if the server does not become READY."""

        async def launch() -> str:
            try:
                status = await self.parts.servers.launch_unchecked_plan(
                    editor, note_run_id=self._record_starting_run_id
                )
            finally:
                self.progress.change_sweep(starting=None)
            self._server = status.run_id
            return status.run_id

        # otherwise a cancelled sweep would not know a server that it has to end
        run_id = await finish_despite_cancellation(launch())
        self.progress.change_sweep(server=run_id)
        await self.progress.save()
        status = await self._await_unless_stopped(self.parts.servers.wait_ready(run_id))
        if status.state is not ServerState.READY:
            raise WorkbenchError(_start_failure_reason(status))
        return run_id

    async def _record_starting_run_id(self, run_id: str) -> None:
        """Store which server the sweep starts now, so that it ends that server if it is killed and
        resumed."""
        self.progress.change_sweep(starting=run_id)
        await self.progress.save()

    async def _await_unless_stopped(self, work: Awaitable[T]) -> T:
        """Return the result of `work`, such as the start of a server, which may take half an hour.
        Raises BenchCancelled as soon as the sweep is cancelled."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.progress.stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            self.progress.raise_if_cancelled()
            return await task
        finally:
            for one in (task, stop):
                one.cancel()

    async def _stop_started_server(self) -> None:
        run_id, self._server = self._server, None
        if run_id is not None:
            await finish_despite_cancellation(self._stop_server(run_id))

    async def _stop_server(self, run_id: str) -> None:
        await self.parts.servers.stop_run_quietly(run_id)
        self.progress.change_sweep(server=None)

    # ---- the best combination against the current values

    async def _confirm_best_value(self) -> None:
        points = self.progress.sweep.points
        metric = metric_that_ranks_points(points)
        best = best_point_index(points, metric)
        if self.pairs < 1:
            return self.progress.add_note("no value was compared in pairs: --pairs 0")
        if best is None:
            why = f"no value had {_MORE_TEXTS[metric]} than the current one"
            if points[0].state != PointState.DONE:
                why = "the current values were not measured"
            return self.progress.add_note(f"no value was compared in pairs: {why}")
        label = points[best].label
        self.progress.raise_if_no_time_for(0.0)
        self.progress.raise_if_cancelled()
        experiment = self.run_experiment(Arm(sets=self.combinations[best].sets))
        return await confirm_value_by_experiment(
            self.progress, label, "the current values", experiment
        )

    async def run_experiment(self, b: Arm, **spec_fields: Any) -> Experiment:
        """Compare the plan with the changes `b` against the plan as it is, in an experiment, and
        return the experiment. `spec_fields` has fields of ExperimentSpec. If a resumed sweep had
        begun this experiment already, continue it, or return it if it is done."""
        options = {**self.confirmation_experiment_fields(), **spec_fields}
        left_s = self.progress.limit.remaining_s
        minutes = None if math.isinf(left_s) else left_s / 60
        begun = self.progress.sweep.experiment_id
        if begun is not None:
            earlier = await self.parts.experiments.get(begun)
            same = (earlier.spec.b.sets, earlier.spec.b.gpu) == (mask_argv(b.sets), b.gpu)
            if same and earlier.spec.pairs == options["pairs"]:
                if earlier.state == SeriesState.DONE:
                    return earlier
                return await self.parts.experiments.resume(begun, max_minutes=minutes)
        if minutes is not None:
            options["max_minutes"] = minutes
        return await self.parts.experiments.run_experiment(
            Arm(), b, on_experiment_stored=self.progress.store_experiment_id, **options
        )

    async def _restart_earlier_server(self) -> None:
        await self._stop_started_server()
        if self.editor_to_restore is None:
            return
        before = f"the server that ran before the {self.progress.sweep.kind_noun}"
        try:
            status = await self.parts.servers.launch_unchecked_plan(self.editor_to_restore)
        except WorkbenchError as error:
            self.progress.change_sweep(error=f"{before} was not started again: {error.message}")
            return
        self.progress.change_sweep(before=None)
        self.progress.add_note(f"{before} was started again as {status.run_id}")


def can_assignments_change_answers(engine: str, sets: Sequence[str]) -> bool:
    """Return whether one of the assignments can change what the model answers."""
    return any(kind_of_answer_flag(engine, word.partition("=")[0]) for word in sets)


def metric_that_ranks_points(points: Sequence[SweepPoint]) -> str:
    """Return the metric by which the values of a sweep are ranked and compared in pairs: the
    goodput if it is known at every measured value and above 0 at one, otherwise the tok/s."""
    done = [point for point in points if point.state == PointState.DONE]
    known = [point.goodput_request_s for point in done]
    return GOODPUT_METRIC if any(known) and None not in known else SPEED_METRIC


def best_point_index(points: Sequence[SweepPoint], metric: str) -> PointIndex | None:
    """Return the index of a sweep's measured value with the highest `metric`, a key of
    _POINT_FIELD_OF_METRIC. None if no value is higher than the first, which is the plan's current
    one, or if that one was not measured."""
    values = [(getattr(point, _POINT_FIELD_OF_METRIC[metric]), n) for n, point in enumerate(points)]
    known = [
        (value, -n)
        for value, n in values
        if points[n].state == PointState.DONE and value is not None
    ]
    if not known or points[0].state != PointState.DONE:
        return None
    return -max(known)[1] or None


def _start_failure_reason(status: ServerStatus) -> str:
    cause = f": {status.findings[0].text}" if status.findings else ""
    return f"the server {status.state} ({status.reason or 'see its log'}){cause}"
