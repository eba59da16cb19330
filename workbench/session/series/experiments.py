"""A/B experiments: two configurations measured in pairs of runs. They are stored after every run
and can be resumed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, fields, replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from workbench.bench import experiment as design
from workbench.bench import twins
from workbench.engines.answer_settings import list_plan_changes_affecting_answers
from workbench.model.errors import BenchError, InputError, StoreError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentSpec
from workbench.model.known_values import known_values
from workbench.model.secrets import mask_secrets_of_arm, mask_secrets_of_plan
from workbench.model.series_state import SeriesState
from workbench.session.bench.spec import (
    TEXT_CONTENT,
    WORDS_CONTENT,
    make_paths_absolute,
    set_default_prompt_content,
)
from workbench.session.hosts.names import check_resumed_on_same_host
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.series.experiment_arms import ExperimentArms
from workbench.session.series.experiment_run import ExperimentConduct
from workbench.session.servers.arm_targets import (
    ArmTargets,
    arms_and_plans_with_secrets,
    hold_measurement_locks,
)
from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.quality_db import QualityDb

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSpec
    from workbench.model.experiment import AdvisedChange, Arm
    from workbench.model.plan import LaunchPlan
    from workbench.model.quality import QualityResult
    from workbench.model.setting_records import SettingOutcome
    from workbench.session.bench.server_load import ServerLoad
    from workbench.session.gpu.control import GpuControl
    from workbench.session.hosts.other_hosts import OtherHosts
    from workbench.session.plans.plans import Plans
    from workbench.session.plans.presets import Presets
    from workbench.session.results.results import Results
    from workbench.session.series.experiment_run import (
        AnswerComparison,
        AnswerComparisonFactory,
        TestBed,
    )
    from workbench.session.series.sweep_progress import SweepProgress
    from workbench.session.servers.arm_targets import BasePlans, ComparedSide
    from workbench.session.servers.servers import Servers
    from workbench.session.state_holder import StateHolder

_LOCK_TITLE = "experiment"
_LOAD_SIZE = attrgetter(
    "concurrency",
    "requests",
    "max_tokens",
    "input_tokens",
    "warmup",
    "rate",
    "seconds",
    "command",
    "stream",
)
# stop, warm-up and reading around one benchmark, if nothing better is known
_BESIDE_BENCHMARK_S = 4.0


class Experiments:
    """Carries out one experiment at a time, and shows it in `state.experiment`. `targets` looks up
    the servers that the arms name, and `answers` returns what compares their answers."""

    def __init__(
        self,
        core: StateHolder,
        presets: Presets,
        plans: Plans,
        servers: Servers,
        load: ServerLoad,
        gpu: GpuControl,
        results: Results,
        hosts: OtherHosts,
        answers: Callable[[], AnswerComparisonFactory],
    ) -> None:
        self._core, self._presets, self._plans, self._servers = core, presets, plans, servers
        self._load, self._gpu, self._results = load, gpu, results
        self._answers = answers
        self.targets = ArmTargets(plans, hosts)
        self._conducting: asyncio.Task[Experiment] | None = None
        self._one = asyncio.Lock()
        # the experiment has ended, and its locks and servers are being given back
        self._ending = False

    @cached_property
    def db(self) -> ExperimentsDb:
        return ExperimentsDb(paths.results_db())

    @cached_property
    def _quality_db(self) -> QualityDb:
        return QualityDb(paths.results_db())

    # ---- stored

    async def list(self) -> Sequence[Experiment]:
        """Return the stored experiments, newest first, without their comparisons."""
        return await asyncio.to_thread(self.db.list)

    async def get(self, experiment_id: int) -> Experiment:
        """Return a stored experiment with the comparison of its results. Raises InputError if there
        is none with this id."""
        experiment = await asyncio.to_thread(self.db.get, experiment_id)
        results = {result.id: result for result in await self._read_results(experiment)}
        quality = await self._list_quality_results(experiment)
        return design.evaluate_experiment(experiment, results, quality)

    async def _list_quality_results(self, experiment: Experiment) -> Sequence[QualityResult]:
        """Return the newest comparisons of answers, and that of the experiment unless it was
        deleted."""
        known = await self._results.list_quality_results()
        own_id = experiment.quality_id
        if own_id is None or own_id in [result.id for result in known]:
            return known
        with suppress(InputError, StoreError):  # deleted or damaged
            return (*known, await asyncio.to_thread(self._quality_db.get, own_id))
        return known

    async def _read_results(self, experiment: Experiment) -> Sequence[BenchResult]:
        """Return the stored results of the finished runs, without those that were deleted."""

        def read_stored_results() -> Sequence[BenchResult]:
            found = []
            for result_id in experiment.finished_result_ids():
                with suppress(InputError):  # deleted
                    found.append(self._results.db.get(result_id))
            return found

        return await asyncio.to_thread(read_stored_results)

    async def _save_experiment(self, experiment: Experiment) -> None:
        def save_and_tag_results() -> None:
            self.db.save(experiment)
            for run in experiment.runs[-1:]:
                if run.result_id is not None:
                    arm = "discarded" if run.pair < 0 else run.arm
                    self._results.db.change_tags(
                        run.result_id, add=[f"experiment {experiment.id} {arm}"]
                    )

        await asyncio.to_thread(save_and_tag_results)

    # ---- designed

    def experiment_spec(self, a: Arm, b: Arm, **options: Any) -> ExperimentSpec:
        """Return the spec of an experiment that compares the arms `a` and `b`. If the arms name no
        servers, both start from the plan under edit. `options` are fields of ExperimentSpec;
        InputError is raised if the experiment cannot be carried out."""
        unknown = sorted(set(options) - {f.name for f in fields(ExperimentSpec)})
        if unknown:
            raise InputError(f"an experiment has no option {', '.join(unknown)}")
        if options.get("until_pct") is not None:
            options.setdefault("pairs", design.DEFAULT_MAX_PAIRS_UNTIL_SURE)
        if options.get("twins"):
            options.setdefault("pairs", twins.DEFAULT_PAIRS)
        options.setdefault("order_seed", random.SystemRandom().randrange(2**31))
        preset_id: str | None = None
        common_plan: dict[str, Any] = {}
        targets = list(filter(None, (a.target, b.target)))
        if targets:
            preset_id = targets[0].preset_id
        else:
            plan = self._plans.editor.effective_plan
            preset_id, common_plan = plan.preset_id, asdict(mask_secrets_of_plan(plan))
        options["bench"] = set_default_prompt_content(
            make_paths_absolute(options.get("bench", {})), TEXT_CONTENT
        )
        given = {"preset_id": preset_id, **options}
        masked_a, masked_b = mask_secrets_of_arm(a), mask_secrets_of_arm(b)
        spec = design.check_experiment_spec(
            ExperimentSpec(masked_a, masked_b, common_plan, **given)
        )
        design.require_measurable_metric(
            spec.metric, self._load.make_spec(spec.preset_id, dict(spec.bench))
        )
        return spec

    def estimate_duration_s(self, a: Arm, b: Arm, **options: Any) -> float | None:
        """Return the estimated duration of an experiment in seconds; None if no earlier starts or
        benchmarks of the same kind are stored."""
        spec = self.experiment_spec(a, b, **options)
        return self._estimate_spec_duration_s(
            spec, design.starts_server_for_each_run(a, b, bool(spec.twins))
        )

    def _estimate_spec_duration_s(self, spec: ExperimentSpec, restarts: bool) -> float | None:
        """Return the estimated duration of an experiment in seconds, from earlier starts and
        benchmarks of the same kind. None if there are none. `restarts` says whether each run starts
        a server."""
        start_s, bench_s = self._estimated_start_s(spec), self._estimated_bench_s(spec)
        if bench_s is None or start_s is None:
            return None
        pairs = spec.pairs if spec.until_pct is None else design.MIN_PAIRS_UNTIL_SURE
        runs = 2 * pairs + {True: 2, None: 1, False: 0}[spec.throw_away] * max(1, len(spec.twins))
        started = len(_plans_started_by_experiment(spec))
        starts = runs * started / 2 if restarts else min(1, started)
        return starts * start_s + runs * (bench_s + _BESIDE_BENCHMARK_S)

    def _estimated_start_s(self, spec: ExperimentSpec) -> float | None:
        longest = []
        for plan in _plans_started_by_experiment(spec):
            known = []
            for status in self._servers.supervisor.statuses():
                is_same = (status.engine, status.model) == (plan["engine"], plan["model"])
                if is_same and status.ready_after_s is not None:
                    known.append(status.ready_after_s)
            if not known:
                return None
            longest.append(max(known[:4]))
        return max(longest, default=0.0)

    def _estimated_bench_s(self, spec: ExperimentSpec) -> float | None:
        shape = self._bench_spec_of_experiment(spec)
        limits_s = known_values((shape.seconds, shape.trace_s))
        if limits_s and not shape.command:
            return min(limits_s)
        started = _plans_started_by_experiment(spec)
        here = [(self._core.host.name, plan["model"]) for plan in started]
        urls = {arm.target.url for arm in (spec.a, spec.b) if arm.target} - {None, ""}
        for result in self._results.db.list(200):
            made, took_s = result.conditions, result.summary.duration_s
            is_same_server = made.address in urls or (made.host, made.model) in here
            if is_same_server and took_s is not None and _have_same_load_size(result.spec, shape):
                return took_s * (1 + shape.warmup / max(1, shape.requests))
        return None

    async def preview_setting_changes(
        self, a: Arm, b: Arm, twins: Sequence[str] = ()
    ) -> Sequence[SettingOutcome]:
        """Return what `run_experiment` would do to GPU settings, as the outcomes of a dry run.
        `twins` are the names of two hosts with equal hardware on which it would run."""
        a, b, bases = await self.targets.resolve_targets(a, b)
        if not bases and a.target is None:
            bases = dict.fromkeys("AB", self._plans.editor.plan)
        return await self.targets.preview_setting_changes({"A": a, "B": b}, bases, twins)

    async def preview_resumed_setting_changes(
        self, experiment: Experiment
    ) -> Sequence[SettingOutcome]:
        """Return what `resume` would do to GPU settings, as the outcomes of a dry run."""
        a, b, bases = arms_and_plans_with_secrets(self._presets, experiment.spec)
        twins = experiment.spec.twins
        return await self.targets.preview_setting_changes({"A": a, "B": b}, bases, twins)

    def answer_comparison_cost_text(
        self, a: Arm, b: Arm, bases: BasePlans = MappingProxyType({}), **options: Any
    ) -> str:
        """Return in a sentence how many requests comparing the answers of A and B will add to an
        experiment, and about how much time. "" if A and B differ in nothing that changes the
        answers, or if the answers are not compared. `bases` and `options` are those of
        `run_experiment`."""
        spec = self.experiment_spec(a, b, **options)
        shape = self._bench_spec_of_experiment(spec)
        if not spec.quality or shape.endpoint == "embeddings":
            return ""
        plan_a, plan_b = self._plan_of_arm("A", a, bases), self._plan_of_arm("B", b, bases)
        why = _answer_changing_settings(plan_a, plan_b)
        if not why:
            return ""
        names = {plan.engine for plan in filter(None, (plan_a, plan_b))}
        starts_a = a.target is None or a.target.plan is not None
        return self._answers().answer_comparison_cost_text(
            spec, shape.concurrency, why, names, starts_servers_of_a=starts_a
        )

    def doubtful_value_warnings(
        self, a: Arm, b: Arm, bases: BasePlans = MappingProxyType({})
    ) -> Sequence[str]:
        """Return a sentence for each changed flag of A and B whose value the engine may not have.
        `bases` are those of `run_experiment`."""
        found = []
        for name, arm in (("A", a), ("B", b)):
            if not arm.sets:
                continue
            editor = self._editor_with_arm_changes(name, arm, bases)
            if editor is not None:
                for finding in editor.list_flag_value_warnings(arm.sets):
                    fix = f": {finding.fix}" if finding.fix else ""
                    found.append(f"{name}: {finding.text}{fix}")
        return found

    def _plan_of_arm(self, name: str, arm: Arm, bases: BasePlans) -> LaunchPlan | None:
        """Return the plan with which the server of an arm is or was started. None for a server of
        which only the address is known. Raises InputError for a change that cannot be made."""
        target = arm.target
        if target is not None and target.run_id is not None and target.host is None:
            return self._servers.supervisor.record(target.run_id).plan
        editor = self._editor_with_arm_changes(name, arm, bases)
        return editor.plan if editor is not None else None

    def _editor_with_arm_changes(self, name: str, arm: Arm, bases: BasePlans) -> PlanEditor | None:
        """Return an editor with the changed plan of the arm `name`, whose server is started; None
        if its server runs already. Raises InputError for a change that cannot be made."""
        if arm.target is None:
            editor = PlanEditor(self._plans.editor.plan)
            editor.host_context = self._plans.editor.host_context
        elif name in bases:
            editor = PlanEditor(bases[name])
        else:
            return None
        try:
            editor.apply_assignments(arm.sets, arm.unsets, arm.envs)
        except InputError as error:
            error.message = f"{name}: {error.message}"
            raise
        return editor

    # ---- carried out

    async def run_experiment(
        self,
        a: Arm,
        b: Arm,
        *,
        bases: BasePlans | None = None,
        on_experiment_stored: Callable[[int], Awaitable[None]] | None = None,
        advice: AdvisedChange | None = None,
        **options: Any,
    ) -> Experiment:
        """Carry out a new experiment and return it as done, failed or stopped. `options` are fields
        of ExperimentSpec, and `bases` the plans of the arms if `targets` has looked them up
        already. `advice` is the finding that the experiment tests; it is stored with the
        experiment. `on_experiment_stored` is called with the experiment's id before anything is
        started."""
        async with self._exclude_other_experiments():
            if not bases:
                a, b, bases = await self.targets.resolve_targets(a, b)
            spec = self.experiment_spec(a, b, **options)
            if a.target is None:
                await self._locate_engine_unless_searched()
                bases = {"A": self._plans.editor.plan, "B": self._plans.editor.plan}
            sides = await self.targets.make_checked_sides(spec, {"A": a, "B": b}, bases)
            restarts = design.starts_server_for_each_run(a, b, bool(spec.twins))
            left_s = await asyncio.to_thread(self._estimate_spec_duration_s, spec, restarts)
            state = self._core.state
            new = Experiment(
                0,
                time.time(),
                self._core.host.name,
                spec,
                restarts=restarts,
                simulated=state.simulated,
                left_s=left_s,
                advice=advice,
            )
            async with hold_measurement_locks(sides, "an experiment"):
                # a refused experiment is not stored
                await ExperimentArms(spec, sides, restarts=restarts).prepare_hosts(new)
                experiment = await asyncio.to_thread(self.db.add, new)
                if on_experiment_stored is not None:
                    await on_experiment_stored(experiment.id)
                return await self._carry_out_in_task(self._carry_out_experiment(experiment, sides))

    async def run_sweep_experiment(
        self, spec: ExperimentSpec, test_bed: TestBed, progress: SweepProgress
    ) -> Experiment:
        """Carry out the experiment of a sweep on `test_bed`, while the sweep holds the locks. If
        the sweep had begun this experiment before, go on with it. Only the sweep can resume it,
        because only the sweep knows the values that the GPUs get."""
        async with self._exclude_other_experiments():
            experiment = await self._stored_experiment_of_sweep(spec, progress)
            if experiment is None:
                experiment = await self._add_experiment_of_sweep(spec, progress)
            elif experiment.state == SeriesState.DONE:
                return experiment
            else:
                experiment = design.prepare_experiment_to_resume(experiment)
            return await self._carry_out_in_task(
                self._carry_out_sweep_experiment(experiment, test_bed)
            )

    async def _stored_experiment_of_sweep(
        self, spec: ExperimentSpec, progress: SweepProgress
    ) -> Experiment | None:
        """Return the stored experiment of a sweep; None if there is none, or if it compares other
        arms than `spec`."""
        if progress.sweep.experiment_id is None:
            return None
        stored = await self.get(progress.sweep.experiment_id)
        return stored if (stored.spec.a, stored.spec.b) == (spec.a, spec.b) else None

    async def _add_experiment_of_sweep(
        self, spec: ExperimentSpec, progress: SweepProgress
    ) -> Experiment:
        seed = random.SystemRandom().randrange(2**31)
        new = Experiment(
            0,
            time.time(),
            self._core.host.name,
            design.check_experiment_spec(replace(spec, order_seed=seed)),
            simulated=self._core.state.simulated,
            sweep_id=progress.sweep.id,
        )
        experiment = await asyncio.to_thread(self.db.add, new)
        await progress.store_experiment_id(experiment.id)
        return experiment

    async def resume(
        self, experiment_id: int, *, pairs: int | None = None, max_minutes: float | None = None
    ) -> Experiment:
        """Continue a stored experiment. `pairs` changes the planned number of pairs of runs.
        `max_minutes` limits the time from now on; with None there is no limit. Raises InputError if
        the experiment cannot be resumed."""
        async with self._exclude_other_experiments():
            stored = await self.get(experiment_id)
            spec = replace(
                stored.spec,
                max_minutes=max_minutes,
                # an older Workbench named no content, and its prompts were words
                bench=set_default_prompt_content(stored.spec.bench, WORDS_CONTENT),
            )
            if pairs is not None:
                spec = replace(spec, pairs=pairs)
            experiment = replace(stored, spec=design.check_experiment_spec(spec))
            self._check_resumable(experiment)
            await self._check_files_unchanged(experiment)
            has_judged_pairs = experiment.completed_pairs >= 2
            is_extended = has_judged_pairs and spec.pairs != stored.spec.pairs
            if is_extended or experiment.state == SeriesState.DONE:
                experiment = replace(experiment, extensions=experiment.extensions + 1)
            a, b, bases = arms_and_plans_with_secrets(self._presets, experiment.spec)
            if a.target is None:
                self._plans.edit_plan(bases["A"], f"experiment {experiment_id}")
                await self._locate_engine_unless_searched()
            sides = await self.targets.make_checked_sides(experiment.spec, {"A": a, "B": b}, bases)
            async with hold_measurement_locks(sides, f"experiment {experiment_id}"):
                return await self._carry_out_in_task(
                    self._carry_out_experiment(
                        design.prepare_experiment_to_resume(experiment), sides
                    )
                )

    async def _check_files_unchanged(self, experiment: Experiment) -> None:
        """Raise InputError if the trace or the prompts file of an experiment has changed since its
        first run."""
        bench = experiment.spec.bench
        if not (bench.get("trace_file") or bench.get("prompts_file")):
            return
        results = await self._read_results(experiment)
        now = await asyncio.to_thread(self._load.make_spec, experiment.spec.preset_id, dict(bench))
        first = results[0].spec if results else now
        for name in ("trace_name", "prompts_name"):
            present, before = getattr(now, name), getattr(first, name)
            if before != present:
                raise InputError(
                    f"experiment {experiment.id} cannot be resumed: its runs sent {before}, and the "
                    f"file is {present} now",
                    host=self._core.host.name,
                    next_step="start a new experiment, because the runs could not be compared",
                )

    def _check_resumable(self, experiment: Experiment) -> None:
        """Raise InputError if an experiment cannot be resumed on this host."""
        which, host = f"experiment {experiment.id}", self._core.host.name
        check_resumed_on_same_host(which, experiment.host, host)
        if experiment.state == SeriesState.RUNNING:
            raise InputError(
                f"{which} is running already", next_step="wait until the experiment has ended"
            )
        if experiment.sweep_id is not None:
            raise InputError(
                f"{which} belongs to sweep {experiment.sweep_id}, which resumes it",
                next_step=f"run `{experiment.resume_command}`",
            )
        if experiment.state == SeriesState.DONE and design.why_enough_pairs(experiment) is not None:
            next_step = "start an experiment with a narrower --until"
            if experiment.spec.until_pct is None:
                next_step = "give a higher --pairs to add pairs"
            raise InputError(
                f"{which} is finished: {experiment.verdict}",
                next_step=next_step,
            )

    async def stop(self) -> None:
        """Stop the running experiment, which can be resumed later. Returns when servers and GPU
        settings are restored."""
        work = self._conducting
        if work is None:
            return
        if not work.cancelling():  # a second cancellation would end the restoring
            work.cancel()
        await asyncio.wait([work])

    @asynccontextmanager
    async def _exclude_other_experiments(self) -> AsyncIterator[None]:
        """Run the block while no other experiment of this session runs. If an earlier experiment is
        being stored, wait for that. Raises BenchError if another experiment is running."""
        if self._one.locked() and not self._ending:
            host = self._core.host.name
            raise BenchError(
                "another experiment is running",
                host=host,
                next_step="wait until that experiment has ended, or stop it",
            )
        async with self._one:
            try:
                yield
            finally:
                self._ending = False

    async def _locate_engine_unless_searched(self) -> None:
        """Search the host for the installed engine, against which both arms are checked. Do nothing
        if that was done before."""
        await self._plans.locate_engine_unless_searched(self._plans.editor)

    async def _carry_out_in_task(self, work: Awaitable[Experiment]) -> Experiment:
        """Carry out an experiment in a task of its own. A cancelled experiment restores servers and
        settings, and is returned as stopped."""
        self._conducting = asyncio.ensure_future(work)
        try:
            with (
                self._core.show_as_busy(_LOCK_TITLE),
                self._servers.reserve_servers("an experiment"),
            ):
                return await self._conducting
        finally:
            self._conducting = None

    async def _carry_out_experiment(
        self, experiment: Experiment, sides: Mapping[str, ComparedSide]
    ) -> Experiment:
        # the guard reverts the settings of an experiment that is killed
        self._gpu.guard.start_heartbeats()
        with self.db.hold_lock(experiment.id):
            results = await self._read_results(experiment)
            arms = ExperimentArms(
                experiment.spec, sides, restarts=experiment.restarts, earlier=results
            )
            experiment = replace(experiment, replaces=experiment.replaces or arms.run_id_to_stop())
            await self._save_experiment(experiment)
            self._show_experiment(experiment)
            try:
                await arms.prepare_hosts(experiment)
            except WorkbenchError as error:
                failed = replace(
                    experiment, state=SeriesState.FAILED, error=error.message, left_s=None
                )
                await self._save_experiment(failed)
                self._show_experiment(failed)
                raise
            answers = await self._answer_comparison(experiment, sides)
            return await self._carry_out_on_test_bed(arms, experiment, results, answers)

    async def _carry_out_sweep_experiment(
        self, experiment: Experiment, test_bed: TestBed
    ) -> Experiment:
        with self.db.hold_lock(experiment.id):
            return await self._carry_out_on_test_bed(
                test_bed, experiment, await self._read_results(experiment)
            )

    async def _carry_out_on_test_bed(
        self,
        test_bed: TestBed,
        experiment: Experiment,
        results: Sequence[BenchResult],
        answers: AnswerComparison | None = None,
    ) -> Experiment:
        conduct = ExperimentConduct(
            replace(experiment, server=None, settings_on=False),
            test_bed,
            save=self._save_experiment,
            show_experiment=self._show_experiment,
            results=results,
            left_s=experiment.left_s,
            quality=await self._list_quality_results(experiment),
            answers=answers,
        )
        ended = await conduct.carry_out_experiment()
        self._show_experiment(ended)
        self._core.record_command(
            f"workbench experiment show {ended.id}", ended.verdict or ended.state
        )
        await self._results.refresh_result_rows()
        return ended

    async def _answer_comparison(
        self, experiment: Experiment, sides: Mapping[str, ComparedSide]
    ) -> AnswerComparison | None:
        """Return the comparison of answers that is made beside the runs. None if A and B differ in
        nothing that changes the answers, if the user wants none, or if it was made before."""
        spec = experiment.spec
        if not spec.quality or experiment.quality_id is not None:
            return None
        plans: dict[str, LaunchPlan | None] = {}
        for name, side in sides.items():
            plans.setdefault(name[0], side.effective_plan)
        if not _answer_changing_settings(plans["A"], plans["B"]):
            return None
        shape = self._bench_spec_of_experiment(spec)
        if shape.endpoint == "embeddings":
            return None
        return await self._answers().create_or_restore_comparison(
            experiment, sides, shape.concurrency, self._quality_db
        )

    def _bench_spec_of_experiment(self, spec: ExperimentSpec) -> BenchSpec:
        return self._load.make_spec(spec.preset_id, dict(spec.bench))

    def _show_experiment(self, experiment: Experiment) -> None:
        self._ending = experiment.state != SeriesState.RUNNING
        self._core.update(experiment=experiment)


def _answer_changing_settings(a: LaunchPlan | None, b: LaunchPlan | None) -> Sequence[str]:
    """Return the names of the settings in which A and B differ and which may change the answers.
    ("address",) if only the address of a server is known (None), which may differ in all of them.
    """
    return ("address",) if a is None or b is None else list_plan_changes_affecting_answers(a, b)


def _plans_started_by_experiment(spec: ExperimentSpec) -> list[Mapping[str, Any]]:
    """Return the plans of those arms whose servers the experiment starts."""
    return list(filter(None, (design.plan_json_of_arm(spec, name) for name in "AB")))


def _have_same_load_size(a: BenchSpec, b: BenchSpec) -> bool:
    return _LOAD_SIZE(a) == _LOAD_SIZE(b)
