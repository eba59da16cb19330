"""Plans of tunes: the candidates for a plan on its host, each checked as a launch plan before the
first start, and those that are left out, with the reason."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from workbench.advisor.candidates import TuneLoad, gpu_setting_choices, list_candidates_and_left_out
from workbench.bench import tune_race
from workbench.bench.tune_race import RaceSize
from workbench.bench.user_capacity import MAX_LIMIT_PERCENT
from workbench.engines.memory_estimate import MemoryFit
from workbench.engines.plan_context import PlanContext, list_visible_gpus
from workbench.model import tune
from workbench.model.counts import count_of
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.findings import Level
from workbench.model.host_cores import HostCores
from workbench.model.json_records import from_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan, plan_differences
from workbench.model.secrets import mask_secrets_of_plan
from workbench.model.sweep import TUNES, Sweep, SweepSpec
from workbench.model.tune import (
    LeftOut,
    TuneCandidate,
    TuneCost,
    TuneLimits,
    TuneSpec,
    gpu_settings_of_candidate,
    plan_assignments_of_candidate,
)
from workbench.model.tune_standings import format_point_label, parse_point_label
from workbench.server.preflight import uses_host_files
from workbench.session.conditions import gpu_indices_of_plan
from workbench.session.series.flag_sweep import FlagCombination
from workbench.session.series.flag_sweep_plan import FlagSweepPlanner, editor_with_assignments
from workbench.session.series.load_search import check_slo_limits
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    check_same_conditions,
    check_time_limit_minutes,
    conditions_of_plan,
)
from workbench.session.series.sweep_progress import bench_fields_to_store
from workbench.session.series.tune import Tune, can_candidates_change_answers

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec
    from workbench.model.findings import Finding
    from workbench.model.setting_records import SettingOutcome
    from workbench.session.plans.plan_editor import PlanEditor
    from workbench.session.series.sweep_progress import SweepProgress

_EXCLUDING_LEVELS = (Level.ERROR, Level.WARN)  # findings that exclude a candidate
_ALLOWED_WARNINGS = ("flag.word",)  # but for this warning: the start itself shows it
_CODE_AND_FLAG = attrgetter("code", "flag")  # of a finding


@dataclass(frozen=True, slots=True)
class TunePlanner(FlagSweepPlanner):
    """Makes and checks tunes of the plan under edit, before any server is started."""

    async def plan_new_tune(
        self,
        goal: str,
        limits_text: str,
        *,
        starts: int,
        max_minutes: float | None,
        quality: bool,
        quality_texts: str,
        bench: Mapping[str, Any],
    ) -> PlannedSweep:
        """Check a tune of the plan under edit, and return it. The arguments are those of
        `Sweeps.plan_tune`. Raises InputError or PlanError for a tune that cannot be carried out."""
        check_time_limit_minutes(max_minutes)
        chosen, kept = tune.find_goal(goal), tune.parse_tune_limits(limits_text)
        shape = dict(bench)
        if kept.slo:
            shape["slo"] = kept.slo
        await self._locate_engine()
        editor = self.parts.plans.editor
        plan = editor.effective_plan
        load = self.parts.load.make_spec(plan.preset_id, shape)
        if chosen.metric.startswith("ttft") and not load.stream:
            raise InputError(
                "answers that are not streamed have no TTFT", next_step="use another --goal"
            )
        _check_goal_and_limits(goal, kept, load)
        if goal == tune.USERS:
            shape["concurrency"] = load.concurrency
        candidates, left_out = select_candidates_and_left_out(editor, load, goal, kept)
        if not candidates:
            why = "; ".join(f"{excluded.words}: {excluded.reason}" for excluded in left_out[:3])
            raise InputError(
                f"there is no candidate for this plan ({why})",
                next_step="`workbench sweep` tries values of a flag that you choose",
            )
        if kept.kld is not None:
            _check_answers_are_compared(load, quality)
        check_starts = _count_answer_check_starts(plan.engine, candidates, kept)
        size = tune_race.largest_race_within_starts(len(candidates), starts, check_starts)
        racing, rest = candidates[: size.candidates], candidates[size.candidates :]
        no_room = f"no room in {starts} starts; --starts allows more"
        left_out += [LeftOut(shlex.join(candidate.sets), no_room) for candidate in rest]
        spec = SweepSpec(
            values=(),
            bench=bench_fields_to_store(shape),
            runs=1 if goal == tune.USERS else tune_race.RUNS_PER_RACE_START,
            pairs=size.pairs,
            measured=await conditions_of_plan(self.parts, editor, shape),
            plan=asdict(mask_secrets_of_plan(plan)),
            preset_id=plan.preset_id,
            preset_file=self.parts.presets.path_of_preset(plan.preset_id),
            max_minutes=max_minutes,
            quality=quality,
            quality_texts=quality_texts,
            tune=TuneSpec(
                goal=goal,
                starts=starts,
                candidates=tuple(racing),
                left_out=tuple(left_out),
                limits=kept,
            ),
        )
        labels = [format_point_label(1, tune_race.START)]
        labels += [format_point_label(1, candidate.sets) for candidate in racing]
        return self._planned_tune(spec, labels, self._editor_to_restore(), is_new=True)

    async def plan_resumed_tune(self, sweep: Sweep, spec: SweepSpec) -> PlannedSweep:
        """Check that a stored tune can be resumed, and return it. The tune's plan becomes the plan
        under edit. Raises WorkbenchError if it cannot be resumed."""
        check_time_limit_minutes(spec.max_minutes)
        await self._check_runs_have_records(sweep)
        self.parts.plans.edit_plan(self._plan_of_stored_sweep(spec), f"tune {sweep.id}")
        await self._locate_engine()
        editor = self.parts.plans.editor
        now = await conditions_of_plan(self.parts, editor, spec.bench)
        check_same_conditions(self.parts, sweep, spec, now)
        await self._stop_leftover_servers(sweep)
        labels = [point.label for point in sweep.points]
        return self._planned_tune(spec, labels, self._editor_to_restore(sweep.before), is_new=False)

    async def _locate_engine(self) -> None:
        plans = self.parts.plans
        await plans.locate_engine_unless_searched(plans.editor)
        self.parts.servers.require_startable_plan(plans.editor.effective_plan, plans.editor)

    def _planned_tune(
        self,
        spec: SweepSpec,
        labels: Sequence[str],
        editor_to_restore: PlanEditor | None,
        *,
        is_new: bool,
    ) -> PlannedSweep:
        assert spec.tune is not None
        base = self.parts.plans.editor
        combine = partial(combination_or_problem_text, base)
        combinations = []
        for label in labels:
            found = combine(parse_point_label(label)[1])
            if isinstance(found, str):
                raise InputError(f"{label} cannot be started now: {found}")
            combinations.append(found)
        count = len(spec.tune.candidates)

        def make_design(progress: SweepProgress) -> Tune:
            return Tune(
                self.parts,
                progress,
                combinations,
                spec.bench,
                editor_to_restore,
                runs=spec.runs,
                pairs=spec.pairs,
                quality=spec.quality,
                quality_texts=spec.quality_texts,
                spec=spec.tune,
                size=RaceSize(count, tune_race.count_second_block_candidates(count), spec.pairs),
                combine=combine,
                save_preset=self._save_preset_id_and_path,
                began_anew=is_new,
            )

        title = tune.find_goal(spec.tune.goal).title
        points = [(label, None) for label in labels]
        return PlannedSweep(TUNES, f"tune of {title}", "", points, spec, make_design)

    async def preview_setting_changes(self, spec: SweepSpec) -> Sequence[SettingOutcome]:
        """Return what the candidates of a tune do to GPU settings, as the outcomes of dry runs."""
        assert spec.tune is not None and spec.plan is not None
        infos = (await self.parts.telemetry.get_recent_reading()).infos
        gpus = gpu_indices_of_plan(from_json(LaunchPlan, spec.plan), infos)
        found: list[SettingOutcome] = []
        for candidate in spec.tune.candidates:
            settings = gpu_settings_of_candidate(candidate.sets)
            if settings:
                by_gpu = dict.fromkeys(map(str, gpus), settings)
                found += (await self.parts.gpu.apply_settings_by_gpu(by_gpu, dry_run=True)).outcomes
        return found

    def estimate_cost_of_tune(self, planned: PlannedSweep) -> TuneCost:
        """Return what a planned tune takes: starts, time and energy."""
        spec = planned.spec
        assert spec.tune is not None
        candidates = spec.tune.candidates
        count = len(candidates)
        engine = self.parts.plans.editor.plan.engine
        checks = _count_answer_check_starts(engine, candidates, spec.tune.limits)
        size = RaceSize(count, tune_race.count_second_block_candidates(count), spec.pairs)
        starts = size.server_starts + checks
        took_s = self._estimate_duration_s(spec, starts)
        load = self.parts.load.make_spec(spec.preset_id, dict(spec.bench))
        load_text = load_text_of_run(load)
        if spec.tune.goal == tune.USERS:
            load_text = _user_search_load_text(load)
        return TuneCost(
            starts=starts,
            pairs=spec.pairs,
            load=load_text,
            took_s=took_s,
            energy_kwh=self._energy_at_power_limits_kwh(took_s),
            checks=checks,
            compares_answers=spec.quality and can_candidates_change_answers(engine, candidates),
        )

    def _estimate_duration_s(self, spec: SweepSpec, starts: int) -> float | None:
        """Return how many seconds this number of starts takes; None if that is not known."""
        assert spec.tune is not None
        if spec.tune.goal == tune.USERS:  # the number of runs is not known before
            return None
        changed = Arm(sets=plan_assignments_of_candidate(spec.tune.candidates[0].sets))
        two_pairs_s = self.parts.experiments.estimate_duration_s(
            Arm(), changed, pairs=2, throw_away=False, bench=dict(spec.bench)
        )
        return None if two_pairs_s is None else starts * two_pairs_s / 4

    def _energy_at_power_limits_kwh(self, took_s: float | None) -> float | None:
        telemetry = self.parts.core.state.telemetry
        if telemetry is None or took_s is None:
            return None
        used = gpu_indices_of_plan(self.parts.plans.editor.plan, telemetry.infos)
        limits_w = []
        for sample in telemetry.gpus:
            if sample.index in used:
                if sample.limit_w is None:
                    return None
                limits_w.append(sample.limit_w)
        return sum(limits_w) * took_s / 3.6e6 if limits_w else None

    async def _save_preset_id_and_path(
        self, combination: FlagCombination, tune_number: str, evidence: Sequence[str]
    ) -> tuple[str, str]:
        """Save the plan of a combination as the preset of a tune, with lines of evidence. Return
        (preset id, path of the file)."""
        plan = combination.editor.plan
        base_name = plan.preset_id or plan.engine
        name = f"{base_name[:40]}-tune-{tune_number}"
        title = f"{base_name}, tune {tune_number}"
        settings = gpu_settings_of_candidate(combination.sets)
        return name, await self.parts.plans.write_tuned_preset_file(
            combination.editor, name, title, evidence, settings
        )


def select_candidates_and_left_out(
    editor: PlanEditor, load: BenchSpec, goal: str, limits: TuneLimits
) -> tuple[list[TuneCandidate], list[LeftOut]]:
    """Return (the candidates that can be started as far as is known, what is left out with the
    reason). A candidate with a problem that the plan itself does not have is left out."""
    plan, host_context = editor.effective_plan, editor.host_context
    context = PlanContext(
        plan,
        editor.catalog,
        editor.engine,
        list_visible_gpus(plan, host_context.gpus),
        host_context.installed_version,
        editor.allotment,
        cores=_host_cores_if_unrestricted(editor),
    )
    work = _tune_load_from_spec(load, goal)
    candidates: dict[tuple[str, ...], TuneCandidate] = {}
    left_out: list[LeftOut] = []
    proposals = [
        list_candidates_and_left_out(context, editor.findings(), work),
        gpu_setting_choices(context.gpus, goal, limits),
    ]
    if goal == "tok_j":  # the largest gains first: power decides about the tokens of a joule
        proposals.reverse()
    for proposal in chain(*proposals):
        if isinstance(proposal, LeftOut):
            left_out.append(proposal)
            continue
        found = combination_or_problem_text(editor, proposal.sets)
        if isinstance(found, str):
            left_out.append(LeftOut(shlex.join(proposal.sets), found))
        elif gpu_settings_of_candidate(proposal.sets) or plan_differences(
            plan, found.editor.effective_plan
        ):
            candidates.setdefault(proposal.sets, proposal)
    return list(candidates.values()), left_out


def _host_cores_if_unrestricted(editor: PlanEditor) -> HostCores | None:
    """Return the cores of the host if the plan's server runs there with all of them; None if a
    scheduler or an image may give it fewer, or if they are not known."""
    found = editor.host_context.found
    if found is None or not uses_host_files(editor.plan.run_as):
        return None
    return found.cores


def _tune_load_from_spec(load: BenchSpec, goal: str) -> TuneLoad:
    """Return what the load asks of the server: streams and prompt tokens at a time, None if not
    known. A search for users goes on above the load's number of streams, so it is not known."""
    streams = None if goal == tune.USERS else load.concurrency
    prompt_tokens: int | None = load.concurrency * load.input_tokens
    if load.prompts or load.trace or load.command:
        prompt_tokens = None
    return TuneLoad(streams, prompt_tokens, tune.find_goal(goal).less_is_better)


def _check_goal_and_limits(goal: str, limits: TuneLimits, load: BenchSpec) -> None:
    """Raise InputError if a goal needs limits on latencies that are not given, or another load."""
    if goal not in tune.OF_LATENCIES:
        return
    if not limits.slo:
        raise InputError(
            f"{goal} counts what keeps limits on latencies, and --subject-to has none",
            next_step="give them, for example --subject-to 'ttft<=500@p95, tpot<=40@p95'",
        )
    if goal != tune.USERS:
        return
    if load.command or load.trace or load.rate:
        raise InputError(
            "users send synthetic prompts or those of a file, each when the one before has ended",
            next_step="leave out the trace, the rate or the command, or use --goal goodput",
        )
    check_slo_limits(limits.slo, "the goal users", MAX_LIMIT_PERCENT)


def _check_answers_are_compared(load: BenchSpec, quality: bool) -> None:
    """Raise InputError if the answers are not compared, which a limit on KLD needs."""
    if not quality:
        next_step = "leave out --no-quality"
    elif load.endpoint == "embeddings":
        next_step = "leave the limit out: embeddings are no answers"
    else:
        return
    raise InputError("a limit on KLD needs the comparison of answers", next_step=next_step)


def _count_answer_check_starts(
    engine: str, candidates: Sequence[TuneCandidate], limits: TuneLimits
) -> int:
    """Return how many starts of a tune are kept free to compare the answers of a leader before the
    final. 0 if no candidate can break a limit on KLD."""
    if limits.kld is None or not can_candidates_change_answers(engine, candidates):
        return 0
    return tune_race.ANSWER_CHECK_STARTS


def _user_search_load_text(load: BenchSpec) -> str:
    tokens = f"{load.input_tokens} prompt and {load.max_tokens} output tokens"
    first = count_of(load.concurrency, "user")
    return f"a search for users that begins with {first}, a run for each number, of {tokens}"


def load_text_of_run(load: BenchSpec) -> str:
    """Return the load of a run in words."""
    if load.command:
        return "your own command"
    streams = count_of(load.concurrency, "request") + " at a time"
    size = count_of(load.requests, "request")
    if load.seconds:
        size = f"{load.seconds:g} s"
    if load.prompts or load.trace:
        return f"{size}, {streams}, of your own prompts"
    return f"{size}, {streams}, of {load.input_tokens} prompt and {load.max_tokens} output tokens"


def combination_or_problem_text(base: PlanEditor, sets: Sequence[str]) -> FlagCombination | str:
    """Return the plan of `base` with these assignments, or why no server can or should be started
    with it: an invalid value, a problem that the plan of `base` has not, or too little memory."""
    try:
        changed = editor_with_assignments(base, plan_assignments_of_candidate(sets))
    except WorkbenchError as error:
        return error.message
    if sets:
        problem = _first_new_problem_text(base, changed, sets) or _new_memory_shortage_text(
            base, changed
        )
        if problem is not None:
            return problem
    return FlagCombination(shlex.join(sets) or tune.START, None, tuple(sets), changed)


def _first_new_problem_text(
    base: PlanEditor, changed: PlanEditor, sets: Sequence[str]
) -> str | None:
    """Return the first problem of the changed plan that the plan of `base` does not have; None if
    there is none. `sets` are the changes."""
    known = set(map(_CODE_AND_FLAG, base.findings()))
    for finding in changed.findings():
        if finding.level not in _EXCLUDING_LEVELS or finding.code in _ALLOWED_WARNINGS:
            continue
        if _CODE_AND_FLAG(finding) not in known and not _is_proposal_for_other_change(
            finding, sets
        ):
            return finding.text
    return None


def _is_proposal_for_other_change(finding: Finding, sets: Sequence[str]) -> bool:
    """Return whether a finding only proposes a further change, of a flag that `sets` do not set."""

    if finding.expected_gain is None or finding.flag is None:
        return False
    return finding.flag not in [assignment.partition("=")[0] for assignment in sets]


def _new_memory_shortage_text(base: PlanEditor, changed: PlanEditor) -> str | None:
    match base.estimate_memory(), changed.estimate_memory():
        case MemoryFit(fits=True), MemoryFit(fits=False) as after:
            return f"it does not fit: {after.text}"
    return None
