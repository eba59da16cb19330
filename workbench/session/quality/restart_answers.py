"""The answers of a server that is restarted with a changed plan: those of the run before, and then
those of the run that takes its place. The repetition of a benchmark after a change compares them
beside the speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.engines.answer_settings import list_plan_changes_affecting_answers
from workbench.gpu.measurement_lock import HostOccupied
from workbench.model.errors import BenchError, InputError, ServerError
from workbench.model.findings import Level
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import NOT_MEASURED
from workbench.model.server_run import ServerState
from workbench.quality import texts
from workbench.session.quality.experiment_answers import (
    answers_to_write_together,
    comparison_cost_text_for_engines,
)
from workbench.session.quality.measuring import (
    CHANGED_STEP,
    FIRST_STEP,
    Measuring,
    QualityOptions,
)
from workbench.session.quality.scored_server import open_scored_server
from workbench.store import paths
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult
    from workbench.model.quality import QualityResult
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.plans.plans import Plans
    from workbench.session.quality.comparison import QualityComparisons
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

_B_TITLE = "the plan under edit"
_LOOKED_AT = 8  # of the newest comparisons, because each has to be decoded
_STOPPED_BEFORE_TEXT = "stopped: the server was not restarted, and nothing was stored"
_STOPPED_AFTER_TEXT = "stopped: the benchmarks are compared, and their answers are not"


@dataclass(slots=True)
class MeasuredBefore:
    """The answers of the run that is restarted, with the time at which their measurement began."""

    run_id: str
    measuring: Measuring
    unix_s: float


class AnswersOfRestart:
    """Compares the answers of the selected run with those of the run that is started with the plan
    under edit in its place."""

    def __init__(
        self,
        core: StateHolder,
        plans: Plans,
        servers: Servers,
        load: ServerLoad,
        comparisons: QualityComparisons,
    ) -> None:
        self._core, self._plans, self._servers = core, plans, servers
        self._load, self._comparisons = load, comparisons

    def answer_comparison_cost_text(self) -> str:
        """Return in a sentence how many requests comparing the answers adds to a restart, and about
        how much time. "" if no server is READY, or if the plan changes nothing on which the answers
        depend."""
        why = self._settings_that_change_answers()
        if not why or self._core.state.server is None:
            return ""
        names = {self._core.state.server.engine, self._plans.editor.plan.engine}
        options = self._quality_options(None)
        return comparison_cost_text_for_engines(
            why, names, options, self._last_comparison_duration_s(options)
        )

    def _last_comparison_duration_s(self, options: QualityOptions) -> float | None:
        """Return how long the last comparison of two runs of this host took with the texts of
        `options`, the engine and the model of the selected run; None if there is none."""
        status = self._core.state.server
        if status is None:
            return None
        runs = {one.run_id for one in self._servers.supervisor.statuses()}
        asked = (options.texts.name, options.texts.version, status.engine, status.model)
        for one in QualityDb(paths.results_db()).newest_comparisons(_LOOKED_AT):
            of_a = one.conditions_a
            made = (one.text_set, one.text_version, of_a.get("engine"), of_a.get("model"))
            if made == asked and {one.a, one.b} <= runs and one.took_s is not None:
                return one.took_s
        return None

    async def measure_before_restart(self, earlier: BenchResult) -> MeasuredBefore | None:
        """Measure the answers of the selected run, whose benchmark was `earlier`. Return None if
        the answers are not compared: the plan changes nothing on which they depend, the benchmark
        had no text, or a notice says why. Raises HostOccupied if somebody else measures on the
        host."""
        status = self._core.state.server
        if (
            not self._settings_that_change_answers()
            or status is None
            or earlier.spec.endpoint == "embeddings"
        ):
            return None
        if earlier.conditions.run_id != status.run_id:
            self._warn_answers_not_compared(
                f"result {earlier.id} was not measured on run {status.run_id}"
            )
            return None
        spec = earlier.spec
        options = self._quality_options(None if spec.command else spec.concurrency)
        measuring = Measuring(
            options, self._comparisons.report_finished_step, on_step=self._comparisons.show_step
        )
        found = MeasuredBefore(status.run_id, measuring, time.time())
        with self._comparisons.show_comparison(status.run_id, _B_TITLE, _STOPPED_BEFORE_TEXT):
            measured = await self._measure_step(found, FIRST_STEP, status.run_id)
            if measured:
                self._comparisons.show_finding("A is measured, B follows")
        return found if measured else None

    async def measure_after_restart(
        self, before: MeasuredBefore, run_id: str
    ) -> QualityResult | None:
        """Measure the answers of the run `run_id`, which was started in place of that in `before`.
        Return the stored comparison. None if the answers could not be measured; a notice then says
        why."""
        with self._comparisons.show_comparison(before.run_id, run_id, _STOPPED_AFTER_TEXT):
            if not await self._measure_step(before, CHANGED_STEP, run_id):
                return None
            parts = before.measuring.parts
            result = before.measuring.quality_result((before.run_id, run_id))
            self._comparisons.show_finding(result.summary)
        return await self._comparisons.store_comparison(
            replace(result, unix_s=before.unix_s, took_s=round(parts.took_s, 3))
        )

    def _settings_that_change_answers(self) -> Sequence[str]:
        """Return the names of the settings in which the plan under edit differs from the selected
        run, and which may change the answers. () if that run is not READY, or if no plan is under
        edit."""
        status, editor = self._core.state.server, self._plans.current
        if status is None or status.state is not ServerState.READY or editor is None:
            return ()
        running = self._servers.supervisor.record(status.run_id).plan
        return list_plan_changes_affecting_answers(running, editor.effective_plan)

    def _quality_options(self, concurrency: int | None) -> QualityOptions:
        return QualityOptions(
            texts=texts.shipped_text_set(),
            concurrency=answers_to_write_together(concurrency),
            restart=False,
            judged=False,
        )

    async def _measure_step(self, found: MeasuredBefore, step: str, run_id: str) -> bool:
        """Measure a step on a run. Return whether it was measured to its end."""
        try:
            async with (
                self._load.open_load_on_run(run_id, {}) as load,
                open_scored_server(load) as server,
            ):
                await server.check_no_other_clients()
                await found.measuring.measure_step(step, server, may_be_shared=True)
        except HostOccupied:
            raise  # the user decides whether to measure beside others
        except (BenchError, InputError, ServerError) as error:
            found.measuring.end_measuring_early(f"{step}: {error.message}")
        problems = found.measuring.parts.problems
        if problems:
            self._warn_answers_not_compared(problems[0])
        return not problems

    def _warn_answers_not_compared(self, why: str) -> None:
        self._core.notify(Level.WARN, f"{NOT_MEASURED}: {why}")
