"""The answers of A and B, compared while the servers of an experiment run anyway: after the
benchmark of a run, and before the server of the next one starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench import engines
from workbench.gpu.measurement_lock import IfHeld
from workbench.model.errors import BenchError, InputError, ServerError
from workbench.model.quality import QualityParts
from workbench.quality import texts
from workbench.quality.lanes import interface_class
from workbench.session.quality.comparison import arm_arguments_text
from workbench.session.quality.measuring import (
    AGAIN_STEP,
    ANSWERS_WRITTEN_TOGETHER,
    CHANGED_STEP,
    FIRST_STEP,
    JUDGED_STEP,
    Measuring,
    QualityOptions,
    comparison_cost_text,
)
from workbench.session.quality.scored_server import open_scored_server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
    from workbench.model.quality import QualityResult
    from workbench.quality.texts import TextSet
    from workbench.session.series.experiment_run import ReportLine
    from workbench.session.servers.arm_targets import ComparedSide
    from workbench.store.quality_db import QualityDb

_UNCHANGED_ARM = "the base as it is"  # an arm without changes
_MAX_ANSWERS_TOGETHER = 256
# Shares of the time of the first step, which scores and writes twice.
_WORK_SHARES = {FIRST_STEP: 1.0, AGAIN_STEP: 0.5, CHANGED_STEP: 0.5, JUDGED_STEP: 0.25}


def load_quality_text_set(spec: ExperimentSpec) -> TextSet:
    """Return the texts with which an experiment compares answers. Raises InputError if the user's
    file cannot be read."""
    if spec.quality_texts:
        return texts.read_own_texts(spec.quality_texts)
    return texts.shipped_text_set()


def make_quality_options(
    spec: ExperimentSpec, concurrency: int | None, *, starts_servers_of_a: bool
) -> QualityOptions:
    """Return how an experiment compares answers. `concurrency` is that of its benchmark, and
    `starts_servers_of_a` says whether each run of A has a server of its own."""
    again = starts_servers_of_a and spec.pairs > 1
    return QualityOptions(
        texts=load_quality_text_set(spec),
        concurrency=answers_to_write_together(concurrency),
        restart=again,
    )


def answers_to_write_together(concurrency: int | None) -> int:
    """Return how many answers are written together beside a benchmark with this concurrency: as
    many as its streams, at most 256. None, for an unknown concurrency, gives 8."""
    return min(_MAX_ANSWERS_TOGETHER, concurrency or ANSWERS_WRITTEN_TOGETHER)


class ExperimentQualityFactory:
    """Makes the comparisons of answers that experiments need."""

    def answer_comparison_cost_text(
        self,
        spec: ExperimentSpec,
        concurrency: int,
        changed_settings: Sequence[str],
        engine_names: Collection[str],
        *,
        starts_servers_of_a: bool,
    ) -> str:
        """Return in a sentence how many requests comparing the answers adds to an experiment, and
        about how much time. `changed_settings` names the settings in which A and B differ, and
        `engine_names` the engines, as far as they are known."""
        return comparison_cost_text_for_engines(
            changed_settings,
            engine_names,
            make_quality_options(spec, concurrency, starts_servers_of_a=starts_servers_of_a),
        )

    async def create_or_restore_comparison(
        self,
        experiment: Experiment,
        sides: Mapping[str, ComparedSide],
        concurrency: int,
        db: QualityDb,
    ) -> ExperimentQuality:
        """Return the comparison of the answers of an experiment, with what it has measured so far.
        Raises InputError if its texts cannot be read."""
        spec, side_a = experiment.spec, sides[_first_side_name(sides, "A")]
        starts_a = side_a.measured_run_id_or_url is None
        options = await asyncio.to_thread(
            make_quality_options, spec, concurrency, starts_servers_of_a=starts_a
        )
        parts = await asyncio.to_thread(db.parts_so_far, experiment.id)
        return ExperimentQuality(experiment.id, spec, sides, options, db, parts)


def _first_side_name(side_names: Iterable[str], arm_name: str) -> str:
    """Return the first of `side_names` that is a side of an arm: on two hosts, only the answers on
    the first one are compared."""
    return next(name for name in side_names if name.startswith(arm_name))


def comparison_cost_text_for_engines(
    changed_settings: Sequence[str],
    engine_names: Collection[str],
    options: QualityOptions,
    last_took_s: float | None = None,
) -> str:
    """Return in a sentence how many requests comparing the answers adds to an experiment, and about
    how much time. `changed_settings` names the settings in which A and B differ, and `engine_names`
    the engines, as far as they are known. `last_took_s` is how long the last comparison like it
    took, None if not known."""
    interfaces = [engines.get_engine(name).score_interface for name in engine_names]
    prefill = all(one is not None and interface_class(one).prefill for one in interfaces)
    return comparison_cost_text(prefill, options, changed_settings, last_took_s)


class ExperimentQuality:
    """Compares the answers of A and B on the servers that one experiment runs anyway. `sides` are
    those of the experiment, and `parts` what it had measured before it was interrupted, None if
    nothing. A server that cannot be measured ends the comparison of the answers with a reason, and
    never the experiment."""

    def __init__(
        self,
        experiment_id: int,
        spec: ExperimentSpec,
        sides: Mapping[str, ComparedSide],
        options: QualityOptions,
        db: QualityDb,
        parts: QualityParts | None = None,
    ) -> None:
        self._id, self._spec, self._sides, self._db = experiment_id, spec, sides, db
        self._say: ReportLine = lambda text: None
        if parts is not None:
            has_other_texts = parts.text_version != options.texts.version
            if parts.problems or has_other_texts:
                parts = None  # what failed is tried again; the user's texts may be others now
        self._measuring = Measuring(
            options, lambda text: self._say(f"answers: {text}"), parts, each_text=True
        )
        self._began_unix_s = time.time()
        self._first_s: float | None = None
        self._ended = False

    async def measure_missing_answers(
        self, run: ExperimentRun, report_line: ReportLine
    ) -> QualityResult | None:
        """Measure the answers that are still missing on the server of a run that was benchmarked.
        Return the stored comparison once none is missing, before that None."""
        step = self._next_step_for_run(run)
        if step is None:
            return None
        self._say = report_line
        while step is not None:
            await self._measure_answers_of_step(step, run)
            await asyncio.to_thread(self._db.store_parts_so_far, self._id, self._measuring.parts)
            step = self._next_step_for_run(run)
        if self._measuring.parts.problems or self._unmeasured_steps():
            return None
        return await self._store_comparison()

    async def finish_comparison(self, *, experiment_done: bool) -> QualityResult | None:
        """Store the comparison of what was measured, and return it. Return None and store nothing
        if it is stored already, or if steps are missing that a resumed experiment can measure.
        `experiment_done` says whether the experiment has made all of its runs."""
        parts = self._measuring.parts
        missing = [step for step in (FIRST_STEP, CHANGED_STEP) if step not in parts.runs]
        if self._ended or (missing and not experiment_done):
            return None
        if missing and not parts.problems:
            self._measuring.end_measuring_early(
                f"no run was left on which the answers of {' and '.join(missing)} were measured"
            )
        return await self._store_comparison()

    def estimated_remaining_s(self) -> float:
        """Return the estimated seconds that the missing steps take; 0 before the first step."""
        if self._first_s is None or self._ended:
            return 0.0
        return self._first_s * sum(_WORK_SHARES[step] for step in self._unmeasured_steps())

    # ---- steps

    def _unmeasured_steps(self) -> list[str]:
        parts = self._measuring.parts
        if parts.problems:
            return []
        return [step for step in self._required_steps() if step not in parts.runs]

    def _required_steps(self) -> list[str]:
        steps = [FIRST_STEP]
        if self._measuring.options.restart:
            steps.append(AGAIN_STEP)
        steps.append(CHANGED_STEP)
        # Before B has written, it is not known whether A can score its answers.
        if self._measuring.can_score_answers_of_b():
            steps.append(JUDGED_STEP)
        return steps

    def _next_step_for_run(self, run: ExperimentRun) -> str | None:
        """Return the next missing step that can be measured on the server of a run; None if there
        is none."""
        if self._ended or run.side_label != _first_side_name(self._sides, run.arm):
            return None
        steps = [CHANGED_STEP]
        if run.arm == "A":
            steps = [FIRST_STEP, AGAIN_STEP, JUDGED_STEP]
            known = self._measuring.parts.runs.get(FIRST_STEP, "")
            if run.run_id is None or run.run_id in known:  # that step needs another server
                steps.remove(AGAIN_STEP)
        missing = self._unmeasured_steps()
        return next((step for step in steps if step in missing), None)

    async def _measure_answers_of_step(self, step: str, run: ExperimentRun) -> None:
        side, measuring = self._sides[run.side_label], self._measuring
        standing = side.measured_run_id_or_url is not None
        began = time.monotonic()
        try:
            async with (
                side.open_benchmark_load(run.run_id or "") as load,
                open_scored_server(load) as server,
            ):
                if standing:
                    anyway = side.session.measurement_lock.if_held is IfHeld.BESIDE
                    await measuring.check_no_other_clients(server, anyway=anyway)
                await measuring.measure_step(step, server, may_be_shared=standing)
        except (BenchError, InputError, ServerError) as error:
            if step == JUDGED_STEP:
                measuring.record_unscored_answers(error.message)
            else:
                measuring.end_measuring_early(f"{step}: {error.message}")
        if step == FIRST_STEP:
            self._first_s = time.monotonic() - began

    # ---- the verdict

    async def _store_comparison(self) -> QualityResult:
        self._ended = True
        names = (_shown_arm_name(self._spec.a), _shown_arm_name(self._spec.b))
        result = self._measuring.quality_result(names)
        took_s = round(self._measuring.parts.took_s, 3)
        result = replace(result, unix_s=self._began_unix_s, took_s=took_s)

        def store() -> QualityResult:
            stored = self._db.add(result)
            self._db.delete_parts(self._id)
            return stored

        return await asyncio.to_thread(store)


def _shown_arm_name(arm: Arm) -> str:
    return arm_arguments_text(arm) or _UNCHANGED_ARM
