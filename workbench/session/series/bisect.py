"""The search for the first bad version: each step is an experiment of the good version against one
in the middle. The rule that chooses the versions is in workbench/model/bisection.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.bench.metric_changes import WORSE
from workbench.model.bench import format_half_width
from workbench.model.bisection import (
    Bisection,
    BisectStep,
    last_good_and_first_bad_index,
    next_version_to_test,
)
from workbench.model.counts import count_of
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.series_state import SeriesState
from workbench.session.series.night_watch import (
    arms_of_plans,
    candidate_plan,
    load_or_resume_experiment,
    plan_of_preset_with_variables,
    require_finished,
    validated_candidate,
)

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Experiment
    from workbench.session.servers.arm_targets import BasePlans
    from workbench.session.session import Session
    from workbench.store.bisections import BisectionStore

_MAX_VERSIONS = 1_000


def validated_versions(versions: tuple[str, ...]) -> tuple[str, ...]:
    """Return `versions`. Raises InputError unless they are at least two, all different, and either
    all images or all environments."""
    for version in versions:
        validated_candidate(version)
    kinds = {version.partition(":")[0] for version in versions}
    if not 2 <= len(versions) <= _MAX_VERSIONS or len(set(versions)) < len(versions):
        raise InputError(
            f"a bisection needs 2 to {_MAX_VERSIONS} different versions, got {len(versions)}",
            next_step="name them in their order: the good one first, the bad one last",
        )
    if len(kinds) > 1:
        raise InputError(
            "images and environments cannot be mixed in one bisection",
            next_step="give only image:… or only venv:…",
        )
    return versions


class Bisector:
    """Carries out a bisection and stores it after each step. `report_line` is called with a line on
    each step."""

    def __init__(
        self,
        found: Bisection,
        session: Session,
        store: BisectionStore,
        report_line: Callable[[str], None],
    ) -> None:
        self.found = found
        self._session, self._store, self._report_line = session, store, report_line

    async def carry_out_bisection(self) -> Bisection:
        """Compare versions until the first bad one is known. Return the bisection as done. Raises
        the error that ended it early, after the bisection was stored as failed or, if the task was
        cancelled, as stopped."""
        self._store_changed_bisection(state=SeriesState.RUNNING, error=None)
        try:
            while (version := next_version_to_test(self.found)) is not None:
                await self._compare_version(version)
        except asyncio.CancelledError:
            self._store_changed_bisection(state=SeriesState.STOPPED, error="interrupted")
            raise
        except WorkbenchError as error:
            self._store_changed_bisection(state=SeriesState.FAILED, error=error.message)
            raise
        self._store_changed_bisection(state=SeriesState.DONE, verdict=self._verdict_text())
        return self.found

    def _store_changed_bisection(self, **bisection_fields: Any) -> None:
        self.found = replace(self.found, **bisection_fields)
        self._store.save(self.found)

    def _add_or_replace_step(self, step: BisectStep) -> None:
        others = tuple(one for one in self.found.steps if one.version != step.version)
        self._store_changed_bisection(steps=(*others, step))

    async def _compare_version(self, version: int) -> None:
        found = self.found
        known = next((one for one in found.steps if one.version == version), BisectStep(version))
        self._report_line(f"{found.versions[0]} against {found.versions[version]}")
        experiment = await self._run_experiment(known)
        step = next(one for one in self.found.steps if one.version == version)
        self._add_or_replace_step(self._step_with_loss_and_verdict(step, experiment))

    async def _run_experiment(self, step: BisectStep) -> Experiment:
        if step.experiment_id is not None:
            return await load_or_resume_experiment(self._session, step.experiment_id)
        found = self.found
        a, b, bases = await asyncio.to_thread(self._arms_for_version, step.version)
        bench = {} if found.requests is None else {"requests": found.requests}

        async def record_experiment_id(number: int) -> None:
            self._add_or_replace_step(replace(step, experiment_id=number))

        ended = await self._session.experiments.run_experiment(
            a,
            b,
            bases=bases,
            on_experiment_stored=record_experiment_id,
            pairs=found.pairs,
            bench=bench,
            quality=False,
        )
        return require_finished(ended)

    def _arms_for_version(self, version: int) -> tuple[Arm, Arm, BasePlans]:
        found = self.found
        plan = plan_of_preset_with_variables(self._session, found.preset, found.variables)
        good, other = found.versions[0], found.versions[version]
        names = (f"{found.preset} with {good}", f"{found.preset} with {other}")
        plans = (candidate_plan(plan, good), candidate_plan(plan, other))
        return arms_of_plans(names, plans, found.sets)

    def _step_with_loss_and_verdict(self, step: BisectStep, experiment: Experiment) -> BisectStep:
        """Return the step with its loss in percent, which is negative for a gain, and whether its
        version is bad. The last version is bad if a loss is shown; a version between is bad if it
        has at least half of that loss. Raises WorkbenchError if the experiment has no value to
        compare."""
        change = experiment.change_of_deciding_metric
        if change is None or change.change_pct is None:
            raise WorkbenchError(
                f"experiment {experiment.id} has no value to compare",
                next_step=f"`workbench experiment show {experiment.id}` says why",
            )
        sign = -1 if change.higher_is_better else 1
        loss_pct, whole = sign * change.change_pct, self.found.loss_of_last_version_pct
        is_last = step.version == len(self.found.versions) - 1
        bad = change.verdict == WORSE if is_last else whole is not None and loss_pct >= whole / 2
        return replace(step, loss_pct=loss_pct, interval_pct=change.interval_pct, bad=bad)

    def _verdict_text(self) -> str:
        found, last = self.found, len(self.found.versions) - 1
        whole = next(one for one in found.steps if one.version == last)
        if not whole.bad:
            return (
                f"no loss was shown between {found.versions[0]} and {found.versions[last]} "
                f"({_step_size_text(whole)}), so there is nothing to search"
            )
        good, bad = last_good_and_first_bad_index(found)
        between = f"{found.versions[bad]} is the first bad version, {found.versions[good]} the last good one"
        sizes = {one.version: _step_size_text(one) for one in found.steps}
        doubts = [
            one for one in found.steps if one.version != last and self._is_step_uncertain(one)
        ]
        said = f"{between}: {sizes[bad]} against {found.versions[0]}"
        said += f"; {count_of(len(found.steps), 'experiment')}"
        if doubts:
            names = ", ".join(found.versions[one.version] for one in doubts)
            said += f"; not certain about {names}: more --pairs decide"
        return said

    def _is_step_uncertain(self, step: BisectStep) -> bool:
        """Return whether it is uncertain on which side of half of the last version's loss a version
        is: its interval reaches to the other side, or its loss or interval is not known."""
        whole = self.found.loss_of_last_version_pct or 0.0
        if step.loss_pct is None or step.interval_pct is None:
            return True
        return abs(step.loss_pct - whole / 2) < step.interval_pct


def _step_size_text(step: BisectStep) -> str:
    if step.loss_pct is None:
        return ""
    wide = "" if step.interval_pct is None else f" ± {format_half_width(step.interval_pct)}"
    return f"{-step.loss_pct:+.1f} %{wide}"
