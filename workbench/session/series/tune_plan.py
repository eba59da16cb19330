"""Plans of tunes: the candidates for a plan on its host, each checked as a launch plan before the first
start, and those that are left out, with the reason."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.advisor.candidates import Work, gpu_choices, list_candidates
from workbench.bench import tune_race
from workbench.bench.tune_race import RaceSize
from workbench.bench.user_capacity import MAX_LIMIT_PERCENT
from workbench.engines.memory_estimate import MemoryFit
from workbench.engines.plan_context import Situation, visible_gpus
from workbench.model import tune
from workbench.model.counts import count_of
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.findings import Level
from workbench.model.host_cores import HostCores
from workbench.model.json_records import from_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan, plan_differences
from workbench.model.secrets import mask_plan
from workbench.model.sweep import TUNES, Sweep, SweepSpec
from workbench.model.tune import (
    LeftOut,
    TuneCandidate,
    TuneCost,
    TuneLimits,
    TuneSpec,
    gpu_settings_in,
    plan_assignments_in,
)
from workbench.model.tune_standings import parse_point_label, point_label
from workbench.server.preflight import uses_host_files
from workbench.session.conditions import gpus_of_plan
from workbench.session.series.flag_sweep import FlagCombination, changes_answers
from workbench.session.series.flag_sweep_plan import FlagSweepPlanner, with_assignments
from workbench.session.series.load_search import check_limits
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    check_minutes,
    check_same_conditions,
    conditions_of_plan,
)
from workbench.session.series.sweep_progress import stored_shape
from workbench.session.series.tune import Tune

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec
    from workbench.model.findings import Finding
    from workbench.model.setting_records import SettingOutcome
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.series.sweep_progress import SweepProgress

_EXCLUDING_LEVELS = (Level.ERROR, Level.WARN)  # findings that exclude a candidate
_ALLOWED_WARNINGS = ("flag.word",)  # but for this warning: the start itself shows it


@dataclass(frozen=True, slots=True)
class TunePlanner(FlagSweepPlanner):
    """Makes and checks tunes of the plan under edit, before any server is started."""

    async def plan_new_tune(
        self,
        goal: str,
        limits: str,
        *,
        starts: int,
        max_minutes: float | None,
        quality: bool,
        quality_texts: str,
        bench: Mapping[str, Any],
    ) -> PlannedSweep:
        """Check a tune, and return it. Raises InputError or PlanError for a tune that cannot be
        carried out."""
        check_minutes(max_minutes)
        chosen, kept = tune.find_goal(goal), tune.parse_limits(limits)
        shape = {**bench, **({"slo": kept.slo} if kept.slo else {})}
        await self._look_for_engine()
        editor = self.parts.plans.editor
        plan = editor.effective_plan
        load = self.parts.load.spec_of(plan.preset_id, shape)
        if chosen.metric.startswith("ttft") and not load.stream:
            raise InputError(
                "answers that are not streamed have no TTFT", next_step="use another --goal"
            )
        _check_goal_and_limits(goal, kept, load)
        if goal == tune.USERS:
            shape = {**shape, "concurrency": load.concurrency}
        candidates, left_out = check_candidates(editor, load, goal, kept)
        if not candidates:
            why = "; ".join(f"{one.words}: {one.reason}" for one in left_out[:3])
            raise InputError(
                f"there is no candidate for this plan ({why})",
                next_step="`workbench sweep` tries values of a flag that you choose",
            )
        if kept.kld is not None and (not quality or load.endpoint == "embeddings"):
            raise InputError(
                "a limit on KLD needs the comparison of answers",
                next_step="leave out --no-quality"
                if not quality
                else "leave the limit out: embeddings are no answers",
            )
        sets = [one.sets for one in candidates]
        size = tune_race.race_size(len(candidates), starts, _check_starts(plan.engine, sets, kept))
        rest = candidates[size.candidates :]
        no_room = f"no room in {starts} starts; --starts allows more"
        left_out += [LeftOut(shlex.join(one.sets), no_room) for one in rest]
        spec = SweepSpec(
            values=(),
            bench=stored_shape(shape),
            runs=1 if goal == tune.USERS else tune_race.RUNS_PER_RACE_START,
            pairs=size.pairs,
            measured=await conditions_of_plan(self.parts, editor, shape),
            plan=asdict(mask_plan(plan)),
            preset_id=plan.preset_id,
            preset_file=self.parts.presets.file_of(plan.preset_id),
            max_minutes=max_minutes,
            quality=quality,
            quality_texts=quality_texts,
            tune=TuneSpec(
                goal=goal,
                starts=starts,
                candidates=tuple(candidates[: size.candidates]),
                left_out=tuple(left_out),
                limits=kept,
            ),
        )
        first = (tune_race.START, *(one.sets for one in candidates[: size.candidates]))
        labels = tuple(point_label(1, entry) for entry in first)
        return self._planned_tune(spec, labels, self._restartable_runs(), anew=True)

    async def plan_resumed(self, sweep: Sweep, spec: SweepSpec) -> PlannedSweep:
        """Check that a stored tune can be resumed, and return it. The tune's plan becomes the plan
        under edit. Raises WorkbenchError if it cannot be resumed."""
        check_minutes(spec.max_minutes)
        await self._check_runs_known(sweep)
        self.parts.plans.edit_plan(self._stored_plan(spec), f"tune {sweep.id}")
        await self._look_for_engine()
        editor = self.parts.plans.editor
        now = await conditions_of_plan(self.parts, editor, spec.bench)
        check_same_conditions(self.parts, sweep, spec, now)
        await self._end_leftovers(sweep)
        labels = tuple(point.label for point in sweep.points)
        return self._planned_tune(spec, labels, self._restartable_runs(sweep.before), anew=False)

    async def _look_for_engine(self) -> None:
        plans = self.parts.plans
        around = plans.editor.around
        if around.installed is None and around.installed_problem is None:
            await plans.look_for_engine()
        self.parts.servers.check_startable(plans.editor.effective_plan, plans.editor)

    def _planned_tune(
        self, spec: SweepSpec, labels: Sequence[str], before: PlanEditor | None, *, anew: bool
    ) -> PlannedSweep:
        assert spec.tune is not None
        base = self.parts.plans.editor
        combine = partial(combination_of, base)
        combinations = []
        for label in labels:
            found = combine(parse_point_label(label)[1])
            if isinstance(found, str):
                raise InputError(f"{label} cannot be started now: {found}")
            combinations.append(found)
        count = len(spec.tune.candidates)

        def design(progress: SweepProgress) -> Tune:
            return Tune(
                self.parts,
                progress,
                combinations,
                spec.bench,
                before,
                runs=spec.runs,
                pairs=spec.pairs,
                quality=spec.quality,
                quality_texts=spec.quality_texts,
                spec=spec.tune,
                size=RaceSize(count, tune_race.count_kept_candidates(count), spec.pairs),
                combine=combine,
                save_preset=self._save_preset,
                began_anew=anew,
            )

        title = tune.find_goal(spec.tune.goal).title
        points = [(label, None) for label in labels]
        return PlannedSweep(TUNES, f"tune of {title}", "", points, spec, design)

    async def setting_changes(self, spec: SweepSpec) -> Sequence[SettingOutcome]:
        """Return what the candidates of a tune do to GPU settings, as the outcomes of dry runs."""
        assert spec.tune is not None and spec.plan is not None
        infos = (await self.parts.telemetry.reading()).infos
        gpus = gpus_of_plan(from_json(LaunchPlan, spec.plan), infos)
        found: list[SettingOutcome] = []
        for one in spec.tune.candidates:
            if settings := gpu_settings_in(one.sets):
                by_gpu = {str(gpu): settings for gpu in gpus}
                found += (await self.parts.gpu.apply_settings_by_gpu(by_gpu, dry_run=True)).outcomes
        return found

    def cost_of_tune(self, planned: PlannedSweep) -> TuneCost:
        """Return what a planned tune takes."""
        spec = planned.spec
        assert spec.tune is not None
        count = len(spec.tune.candidates)
        sets = [one.sets for one in spec.tune.candidates]
        engine = self.parts.plans.editor.plan.engine
        checks = _check_starts(engine, sets, spec.tune.limits)
        starts = RaceSize(count, tune_race.count_kept_candidates(count), spec.pairs).starts + checks
        changed = Arm(sets=plan_assignments_in(spec.tune.candidates[0].sets))
        two_pairs_s = self.parts.experiments.estimate_duration_s(
            Arm(), changed, pairs=2, throw_away=False, bench=dict(spec.bench)
        )
        searches = spec.tune.goal == tune.USERS  # whose number of runs is not known before
        took_s = None if two_pairs_s is None or searches else starts * two_pairs_s / 4
        load = self.parts.load.spec_of(spec.preset_id, dict(spec.bench))
        return TuneCost(
            starts=starts,
            pairs=spec.pairs,
            load=_search_text(load) if searches else load_text(load),
            took_s=took_s,
            energy_kwh=None if took_s is None else self._energy_kwh(took_s),
            checks=checks,
            compares_answers=spec.quality and any(changes_answers(engine, one) for one in sets),
        )

    def _energy_kwh(self, took_s: float) -> float | None:
        telemetry = self.parts.core.state.telemetry
        if telemetry is None:
            return None
        used = gpus_of_plan(self.parts.plans.editor.plan, telemetry.infos)
        limits = [sample.limit_w for sample in telemetry.gpus if sample.index in used]
        known = [limit for limit in limits if limit is not None]
        return sum(known) * took_s / 3.6e6 if known and len(known) == len(limits) else None

    async def _save_preset(
        self, found: FlagCombination, number: str, evidence: Sequence[str]
    ) -> tuple[str, str]:
        plan = found.editor.plan
        name = f"{(plan.preset_id or plan.engine)[:40]}-tune-{number}"
        title = f"{plan.preset_id or plan.engine}, tune {number}"
        settings = gpu_settings_in(found.sets)
        return name, await self.parts.plans.save_tuned(
            found.editor, name, title, evidence, settings
        )


def check_candidates(
    editor: PlanEditor, load: BenchSpec, goal: str, limits: TuneLimits
) -> tuple[list[TuneCandidate], list[LeftOut]]:
    """Return the candidates that can be started as far as is known, and what is left out. A
    candidate with a finding that the plan itself has not is left out with it."""
    plan, around = editor.effective_plan, editor.around
    here = Situation(
        plan,
        editor.catalog,
        editor.engine,
        visible_gpus(plan, around.gpus),
        around.installed_version,
        editor.allotment,
        cores=_cores_of(editor),
    )
    work = _work_of(load, goal)
    candidates: dict[tuple[str, ...], TuneCandidate] = {}
    left_out: list[LeftOut] = []
    of_gpus = gpu_choices(here.gpus, goal, limits)
    of_plan = list_candidates(here, editor.findings(), work)
    # the largest gains first: power decides about the tokens of a joule
    each = (*of_gpus, *of_plan) if goal == "tok_j" else (*of_plan, *of_gpus)
    for one in each:
        if isinstance(one, LeftOut):
            left_out.append(one)
            continue
        found = combination_of(editor, one.sets)
        if isinstance(found, str):
            left_out.append(LeftOut(shlex.join(one.sets), found))
        elif gpu_settings_in(one.sets) or plan_differences(plan, found.editor.effective_plan):
            candidates.setdefault(one.sets, one)
    return list(candidates.values()), left_out


def _cores_of(editor: PlanEditor) -> HostCores | None:
    """Return the cores of the host, if the plan's server runs there with all of them: a scheduler or
    an image may give it fewer."""
    found = editor.around.found
    return found.cores if found is not None and uses_host_files(editor.plan.run_as) else None


def _work_of(load: BenchSpec, goal: str) -> Work:
    """Return what the load asks of the server. A search for users goes on above the load's number of
    requests at a time."""
    streams = None if goal == tune.USERS else load.concurrency
    own = load.prompts or load.trace or load.command
    prompt_tokens = None if own else load.concurrency * load.input_tokens
    return Work(streams, prompt_tokens, tune.find_goal(goal).less_is_better)


def _check_goal_and_limits(goal: str, limits: TuneLimits, load: BenchSpec) -> None:
    """Raise InputError if a goal needs limits on latencies or a load that are not given."""
    if goal not in tune.OF_LATENCIES:
        return
    if not limits.slo:
        raise InputError(
            f"{goal} counts what keeps limits on latencies, and --subject-to has none",
            next_step="give them, for example --subject-to 'ttft<=500@p95, tpot<=40@p95'",
        )
    if goal == tune.USERS and (load.command or load.trace or load.rate):
        raise InputError(
            "users send synthetic prompts or those of a file, each when the one before has ended",
            next_step="leave out the trace, the rate or the command, or use --goal goodput",
        )
    if goal == tune.USERS:
        check_limits(limits.slo, "the goal users", MAX_LIMIT_PERCENT)


def _check_starts(engine: str, entries: Sequence[Sequence[str]], limits: TuneLimits) -> int:
    """Return how many starts are kept to compare the answers of a leader before the final."""
    if limits.kld is None or not any(changes_answers(engine, entry) for entry in entries):
        return 0
    return tune_race.ANSWER_CHECK_STARTS


def _search_text(load: BenchSpec) -> str:
    tokens = f"{load.input_tokens} prompt and {load.max_tokens} output tokens"
    first = count_of(load.concurrency, "user")
    return f"a search for users that begins with {first}, a run for each number, of {tokens}"


def load_text(load: BenchSpec) -> str:
    """Return the load of a run in words."""
    if load.command:
        return "your own command"
    streams = count_of(load.concurrency, "request") + " at a time"
    much = f"{load.seconds:g} s" if load.seconds else count_of(load.requests, "request")
    if load.prompts or load.trace:
        return f"{much}, {streams}, of your own prompts"
    return f"{much}, {streams}, of {load.input_tokens} prompt and {load.max_tokens} output tokens"


def combination_of(base: PlanEditor, sets: Sequence[str]) -> FlagCombination | str:
    """Return the plan of `base` with these assignments, or why no server can or should be started
    with it: an invalid value, a problem that the plan of `base` has not, or too little memory."""
    try:
        changed = with_assignments(base, plan_assignments_in(sets))
    except WorkbenchError as error:
        return error.message
    if sets:
        known = {_flag_of_finding(finding) for finding in base.findings()}
        new = [
            f
            for f in changed.findings()
            if f.level in _EXCLUDING_LEVELS and _flag_of_finding(f) not in known
        ]
        new = [finding for finding in new if not _is_proposal(finding, sets)]
        problem = next((f for f in new if f.code not in _ALLOWED_WARNINGS), None)
        if problem is not None:
            return problem.text
        if (memory := _why_it_does_not_fit(base, changed)) is not None:
            return memory
    return FlagCombination(shlex.join(sets) or tune.START, None, tuple(sets), changed)


def _is_proposal(finding: Finding, sets: Sequence[str]) -> bool:
    """Return whether a finding does not speak against these assignments, but proposes another change
    that would gain more with them."""
    names = {word.partition("=")[0] for word in sets}
    return finding.expected_gain is not None and finding.flag not in (None, *names)


def _why_it_does_not_fit(base: PlanEditor, changed: PlanEditor) -> str | None:
    before, after = base.estimate(), changed.estimate()
    if not isinstance(before, MemoryFit) or not isinstance(after, MemoryFit):
        return None
    return f"it does not fit: {after.text}" if before.fits and not after.fits else None


def _flag_of_finding(finding: Finding) -> tuple[str, str | None]:
    return finding.code, finding.flag
