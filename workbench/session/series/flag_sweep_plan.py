"""Plans of sweeps of flags: each combination of values is checked as a launch plan before the first
start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench import engines
from workbench.model.errors import InputError, PlanError, ServerError
from workbench.model.experiment import Arm, ExperimentSpec
from workbench.model.findings import Level
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import plan_differences
from workbench.model.secrets import MASK, is_secret_name, mask_argv, mask_secrets_of_plan
from workbench.model.sweep import FLAGS, Sweep, SweepSpec
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.series.flag_sweep import FlagCombination, FlagSweep
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    check_same_conditions,
    check_time_limit_minutes,
    conditions_of_plan,
    validated_runs_per_value,
)
from workbench.session.series.sweep_progress import bench_fields_to_store
from workbench.session.servers.arm_targets import arms_and_plans_with_secrets

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan
    from workbench.session.series.sweep_progress import SweepProgress

MAX_FLAGS = 2


@dataclass(frozen=True, slots=True)
class FlagSweepPlanner:
    """Makes and checks sweeps of flags of the plan under edit, before any server is started."""

    parts: SweepParts

    async def plan_new_sweep(
        self,
        flags: Mapping[str, Sequence[str]],
        *,
        runs: int,
        pairs: int,
        max_minutes: float | None,
        quality: bool,
        quality_texts: str,
        bench: Mapping[str, Any],
    ) -> PlannedSweep:
        """Check a sweep over the values of one or two flags, and return it. `runs` is the number of
        runs of each combination of values, and `pairs` the number of pairs of runs that compare the
        best one with the current values. Raises InputError or PlanError for a sweep that cannot be
        carried out."""
        check_time_limit_minutes(max_minutes)
        combinations = await self._check_and_list_combinations(flags)
        if pairs < 0:
            raise InputError(
                f"a sweep with {pairs} pairs is not possible", next_step="give --pairs 0 or more"
            )
        editor = self.parts.plans.editor
        plan = editor.effective_plan
        self.parts.load.make_spec(plan.preset_id, dict(bench))
        editor_to_restore = self._editor_to_restore()
        spec = SweepSpec(
            mask_argv([f"{name}={value}" for name, values in flags.items() for value in values]),
            bench_fields_to_store(bench),
            validated_runs_per_value(runs),
            pairs,
            await conditions_of_plan(self.parts, editor, bench),
            plan=asdict(mask_secrets_of_plan(plan)),
            preset_id=plan.preset_id,
            preset_file=self.parts.presets.path_of_preset(plan.preset_id),
            max_minutes=max_minutes,
            quality=quality,
            quality_texts=quality_texts,
        )
        return self._planned_sweep(spec, combinations, bench, editor_to_restore)

    async def plan_resumed_sweep(self, sweep: Sweep, spec: SweepSpec) -> PlannedSweep:
        """Check that a stored sweep can be resumed, and return the sweep of the values that are not
        measured yet. The sweep's plan becomes the plan under edit. Raises WorkbenchError if the
        sweep cannot be resumed."""
        check_time_limit_minutes(spec.max_minutes)
        flags: dict[str, list[str]] = {}
        for word in spec.values:
            name, _, value = word.partition("=")
            flags.setdefault(name, []).append(value)
        await self._check_runs_have_records(sweep)
        self.parts.plans.edit_plan(self._plan_of_stored_sweep(spec), f"sweep {sweep.id}")
        combinations = await self._check_and_list_combinations(flags)
        if [c.label for c in combinations] != [p.label for p in sweep.points]:
            raise InputError(
                f"sweep {sweep.id} cannot be resumed: this version of Workbench would measure "
                "other values",
                next_step="start a new sweep",
            )
        now = await conditions_of_plan(self.parts, self.parts.plans.editor, spec.bench)
        check_same_conditions(self.parts, sweep, spec, now)
        await self._stop_leftover_servers(sweep)
        return self._planned_sweep(
            spec, combinations, spec.bench, self._editor_to_restore(sweep.before)
        )

    def _plan_of_stored_sweep(self, spec: SweepSpec) -> LaunchPlan:
        """Return the plan of a stored sweep with its secrets filled in. Its preset is known from
        then on, also if it is in a file outside the library. Raises WorkbenchError if the file or a
        secret is missing."""
        assert spec.plan is not None
        if spec.preset_file is not None:
            self.parts.presets.get(spec.preset_file)
        stored = ExperimentSpec(Arm(), Arm(), spec.plan, spec.preset_id)
        *_, bases = arms_and_plans_with_secrets(self.parts.presets, stored)
        return bases["A"]

    def _planned_sweep(
        self,
        spec: SweepSpec,
        combinations: Sequence[FlagCombination],
        bench: Mapping[str, Any],
        editor_to_restore: PlanEditor | None,
    ) -> PlannedSweep:
        def make_design(progress: SweepProgress) -> FlagSweep:
            return FlagSweep(
                self.parts,
                progress,
                combinations,
                bench,
                editor_to_restore,
                runs=spec.runs,
                pairs=spec.pairs,
                quality=spec.quality,
                quality_texts=spec.quality_texts,
            )

        names = list(dict.fromkeys(word.partition("=")[0] for c in combinations for word in c.sets))
        points = [(c.label, c.x) for c in combinations]
        return PlannedSweep(FLAGS, " x ".join(names), "", points, spec, make_design)

    async def _check_and_list_combinations(
        self, flags: Mapping[str, Sequence[str]]
    ) -> Sequence[FlagCombination]:
        plans = self.parts.plans
        await plans.locate_engine_unless_searched(plans.editor)
        combinations = list_combinations(plans.editor, flags)
        self.parts.servers.require_startable_plan(plans.editor.effective_plan, plans.editor)
        return combinations

    def _editor_to_restore(self, stopped_run_id: str | None = None) -> PlanEditor | None:
        """Return the plan with which the selected live run can be started again after the sweep. If
        there is no such run, `stopped_run_id` takes its place, and None is returned if that is
        None, too. Raises PlanError if the run was started with a secret, which is not stored."""
        live = self.parts.core.state.live_server
        run_id = stopped_run_id if live is None else live.run_id
        if run_id is None:
            return None
        current = self.parts.plans.editor
        plan = self.parts.servers.supervisor.record(run_id).plan
        if MASK not in repr(plan):
            editor = PlanEditor(plan, f"run {run_id}")
            editor.host_context = current.host_context
            return editor
        if not plan_differences(mask_secrets_of_plan(current.plan), plan):
            return editor_with_assignments(current, ())
        raise PlanError(
            f"run {run_id} was started with a secret. Workbench stores no secrets and cannot start "
            "it again",
            host=self.parts.core.host.name,
            next_step=f"run `workbench stop {run_id}`, then start the sweep again",
        )

    async def _check_runs_have_records(self, sweep: Sweep) -> None:
        """Raise ServerError if Workbench has no record of a run that the sweep started or stopped.
        That run might still be alive, and could not be stopped."""
        known = {s.run_id for s in await self.parts.servers.supervisor.runs()}
        unknown = next(
            (run for run in known_values((sweep.server, sweep.before)) if run not in known), None
        )
        if unknown is not None:
            raise ServerError(
                f"sweep {sweep.id} cannot be resumed: its run {unknown} has no record and may "
                "still be alive",
                host=self.parts.core.host.name,
                next_step="set XDG_STATE_HOME as it was when the sweep was started, or start a new "
                "sweep",
            )

    async def _stop_leftover_servers(self, sweep: Sweep) -> None:
        left = {sweep.server, sweep.starting}
        if sweep.experiment_id is not None:
            left.add((await self.parts.experiments.get(sweep.experiment_id)).server)
        for status in await self.parts.servers.supervisor.runs():
            if status.run_id in left and status.state.is_alive:
                await self.parts.servers.stop_run_quietly(status.run_id)


def list_combinations(
    editor: PlanEditor, flags: Mapping[str, Sequence[str]]
) -> tuple[FlagCombination, ...]:
    """Return the plan's current values as the first combination, then every other combination of
    `flags`. Raises InputError if a value is invalid or no combination can be started."""
    names = _validated_flag_names(editor, flags)
    values = [list(dict.fromkeys(given)) for given in flags.values()]
    empty = next((name for name, given in zip(names, values, strict=True) if not given), None)
    if empty:
        raise InputError(
            f"the flag {empty} has no value to try",
            next_step=f"give the values of the flag that the sweep tries, such as {empty}=128,256",
        )
    found = [_current_values_combination(editor, names)]
    for one in itertools.product(*values):
        sets = tuple(f"{name}={value}" for name, value in zip(names, one, strict=True))
        changed = editor_with_assignments(editor, sets)
        if plan_differences(editor.plan, changed.plan):
            found.append(
                FlagCombination(" ".join(sets), _single_value_as_number(one), sets, changed)
            )
    if len(found) < 2:
        current = found[0].label.removeprefix("start: ")
        raise InputError(
            f"the plan has {current} already, so there is nothing to sweep",
            next_step="give other values",
        )
    errors = [next((f for f in c.editor.findings() if f.level is Level.ERROR), None) for c in found]
    if errors[0] is None and errors[1] is not None and all(errors[1:]):
        raise InputError(
            f"no server can be started with any of the values: {errors[1].text}",
            next_step=errors[1].fix or "give other values",
        )
    return tuple(found)


def _validated_flag_names(editor: PlanEditor, flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of `flags` as the engine's catalog spells them. Raises InputError if these
    flags cannot be swept: none, too many, one given twice, or a secret."""
    if not flags or len(flags) > MAX_FLAGS:
        raise InputError(
            f"a sweep needs one or two flags, not {len(flags)}",
            next_step="give one or two flags to sweep",
        )
    names = [engines.canonical_flag_name(editor.catalog, name) for name in flags]
    if secret := next(filter(is_secret_name, names), None):
        raise InputError(
            f"{secret} is a secret, and a sweep stores its values in plain text",
            next_step="sweep another flag",
        )
    if len(set(names)) < len(names):
        raise InputError(
            f"the flag {names[0]} is given twice",
            next_step="give each flag once, with all its values",
        )
    return names


def _current_values_combination(editor: PlanEditor, names: Sequence[str]) -> FlagCombination:
    """Return the combination of the plan's current values of these flags, which changes nothing."""
    values = []
    for name in names:
        value = editor.plan.flag(name)
        values.append(None if value is None else engines.format_flag_value(value))
    words = (f"{n}={'default' if v is None else v}" for n, v in zip(names, values, strict=True))
    return FlagCombination(
        f"start: {' '.join(words)}",
        _single_value_as_number(values),
        (),
        editor_with_assignments(editor, ()),
    )


def editor_with_assignments(base: PlanEditor, sets: Sequence[str]) -> PlanEditor:
    """Return an editor of the plan of `base` with the assignments `sets`, on the same host."""
    editor = PlanEditor(base.plan, base.title)
    editor.host_context = base.host_context
    if sets:
        editor.apply_assignments(sets, (), ())
    return editor


def _single_value_as_number(values: Sequence[str | None]) -> float | None:
    match values:
        case [str(text)]:
            with suppress(ValueError):
                return float(text)
    return None
