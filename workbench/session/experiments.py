"""A/B experiments: two configurations, runs in pairs, kept after every run and resumed where they ended."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from workbench.model.errors import BenchError, InputError, PlanError, WorkbenchError
from workbench.session.sweep_resuming import SweepResuming

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSpec
    from workbench.model.experiment import Arm, Experiment, ExperimentSpec
    from workbench.model.plan import LaunchPlan
    from workbench.session.targets import Bases, Side
    from workbench.store.experiments import ExperimentsDb

_EXPERIMENT = "experiment"
_BETWEEN_S = 4.0  # stop, warm-up and reading around one benchmark, where nothing better is known


class Experimenting(SweepResuming):
    _experiments: ExperimentsDb | None = None
    _conducting: asyncio.Task[Experiment] | None = None

    @property
    def experiments_db(self) -> ExperimentsDb:
        if self._experiments is None:
            from workbench.store import paths
            from workbench.store.experiments import ExperimentsDb

            self._experiments = ExperimentsDb(paths.results_db())
        return self._experiments

    # ---- asked for

    def experiment_spec(self, a: Arm, b: Arm, **options: Any) -> ExperimentSpec:
        """The design, on the plan under edit. Raises InputError for one that cannot be carried out."""
        from workbench.bench import experiment as design
        from workbench.model.experiment import ExperimentSpec
        from workbench.model.secrets import mask_plan

        unknown = sorted(set(options) - {f.name for f in fields(ExperimentSpec)})
        if unknown:
            raise InputError(f"an experiment has no {', '.join(unknown)}")
        if options.get("until_pct") is not None:
            options.setdefault("pairs", design.UNTIL_MOST)
        options.setdefault("order_seed", random.SystemRandom().randrange(2**31))
        plan = self.editor.effective if a.target is None and b.target is None else None
        preset_id = plan.preset_id if plan else next((t.preset_id for t in (a.target, b.target) if t), None)
        given = {"preset_id": preset_id, **options}
        body = asdict(mask_plan(plan)) if plan else {}
        spec = design.checked(ExperimentSpec(_masked(a), _masked(b), body, **given))
        design.measurable(spec.metric, self.spec_of(spec.preset_id, dict(spec.bench)))
        return spec

    async def experiment(
        self,
        a: Arm,
        b: Arm,
        *,
        bases: Bases | None = None,
        opened: Callable[[int], Awaitable[None]] | None = None,
        **options: Any,
    ) -> Experiment:
        """`bases`: of arms whose targets were looked up before (`look_up`). `opened` hears of its id before anything
        is started."""
        from workbench.bench import experiment as design
        from workbench.model.experiment import Experiment

        self._not_two()
        if not bases:
            a, b, bases = await self.look_up(a, b)
        spec = self.experiment_spec(a, b, **options)
        if a.target is None:
            await self._know_engine()
            bases = {"A": self.editor.plan, "B": self.editor.plan}
        sides = await self.sides({"A": a, "B": b}, bases)
        restarts = design.restarts(a, b)
        left_s = await asyncio.to_thread(self._estimate_s, spec, restarts)
        new = Experiment(
            0, time.time(), self.host.name, spec, restarts=restarts, simulated=self.state.simulated, left_s=left_s
        )
        async with self._turn_on_all(sides, "an experiment"):
            experiment = await asyncio.to_thread(self.experiments_db.open_experiment, new)
            if opened is not None:
                await opened(experiment.id)
            return await self._carry_out(experiment, sides)

    async def resume_experiment(
        self, experiment_id: int, *, pairs: int | None = None, max_minutes: float | None = None
    ) -> Experiment:
        """`pairs`: another number than was planned, as more for a finished one: after such a look the interval is a
        wider one. `max_minutes`: from now; None: without end."""
        from workbench.bench import experiment as design

        self._not_two()
        experiment = await self.experiment_called(experiment_id)
        if experiment.host != self.host.name:
            raise InputError(
                f"experiment {experiment_id} was made on {experiment.host}",
                host=self.host.name,
                next_step=f"resume it there: workbench --host {experiment.host} …",
            )
        if experiment.state == "running":
            raise InputError(f"experiment {experiment_id} is being carried out", next_step="wait for it")
        planned = experiment.spec.pairs
        spec = replace(experiment.spec, max_minutes=max_minutes, pairs=planned if pairs is None else pairs)
        experiment = replace(experiment, spec=design.checked(spec))
        if experiment.state == "done" and design.enough(experiment) is not None:
            raise InputError(
                f"experiment {experiment_id} is finished: {experiment.verdict}",
                next_step="start one with a narrower --until"
                if experiment.spec.until_pct is not None
                else "give --pairs with a higher number to make more",
            )
        if experiment.state == "done" or (spec.pairs != planned and experiment.pairs_done >= 2):
            experiment = replace(experiment, extensions=experiment.extensions + 1)
        a, b, bases = self._with_secrets(experiment.spec)
        if a.target is None:
            self.take_plan(bases["A"], f"experiment {experiment_id}")
            await self._know_engine()
        sides = await self.sides({"A": a, "B": b}, bases)
        async with self._turn_on_all(sides, f"experiment {experiment_id}"):
            return await self._carry_out(design.taken_up(experiment), sides)

    @asynccontextmanager
    async def _turn_on_all(self, sides: Mapping[str, Side], what: str) -> AsyncIterator[None]:
        """The turn to measure on each host of the arms, in one order whoever asks."""
        sessions = {side.session.host.name: side.session for side in sides.values()}
        async with AsyncExitStack() as stack:
            for name in sorted(sessions):
                await stack.enter_async_context(sessions[name].turn(what))
            yield

    async def stop_experiment(self) -> None:
        """Returns when it has given everything back; it can be resumed."""
        work = self._conducting
        if work is not None:
            work.cancel()
            await asyncio.wait([work])

    async def experiments(self) -> Sequence[Experiment]:
        """Newest first, without their comparisons."""
        return await asyncio.to_thread(self.experiments_db.experiments)

    async def experiment_called(self, experiment_id: int) -> Experiment:
        """With the comparison of its results."""
        from workbench.bench import experiment as design

        experiment = await asyncio.to_thread(self.experiments_db.experiment, experiment_id)
        return design.judged(experiment, {r.id: r for r in await self._results_of(experiment)})

    async def show_experiment(self, experiment_id: int) -> None:
        """Into the state."""
        self.update(experiment=await self.experiment_called(experiment_id))

    # ---- time

    def experiment_estimate_s(self, a: Arm, b: Arm, **options: Any) -> float | None:
        from workbench.bench import experiment as design

        return self._estimate_s(self.experiment_spec(a, b, **options), design.restarts(a, b))

    def _estimate_s(self, spec: ExperimentSpec, restarts: bool) -> float | None:
        """From earlier starts of this plan's engine and model and an earlier benchmark of this shape; None without."""
        start_s, bench_s = self._start_estimate_s(spec), self._bench_estimate_s(spec)
        if bench_s is None or start_s is None:
            return None
        from workbench.bench import experiment as design

        pairs = spec.pairs if spec.until_pct is None else design.UNTIL_PAIRS
        runs = 2 * pairs + {True: 2, None: 1, False: 0}[spec.throw_away]
        started = [name for name in "AB" if design.plan_of(spec, name)]
        starts = runs * len(started) / 2 if restarts else min(1, len(started))
        return starts * start_s + runs * (bench_s + _BETWEEN_S)

    def _start_estimate_s(self, spec: ExperimentSpec) -> float | None:
        if self._supervisor is None:
            return None
        from workbench.bench import experiment as design

        longest = []
        for plan in filter(None, (design.plan_of(spec, name) for name in "AB")):
            known = [
                s.ready_after_s
                for s in self._supervisor.statuses()
                if s.ready_after_s is not None and s.engine == plan["engine"] and s.model == plan["model"]
            ]
            if not known:
                return None
            longest.append(max(known[:4]))
        return max(longest, default=0.0)

    def _bench_estimate_s(self, spec: ExperimentSpec) -> float | None:
        shape = self.spec_of(spec.preset_id, dict(spec.bench))
        if shape.seconds is not None and not shape.command:
            return shape.seconds
        from workbench.bench import experiment as design

        models = {plan["model"] for plan in (design.plan_of(spec, name) for name in "AB") if plan}
        urls = {arm.target.url for arm in (spec.a, spec.b) if arm.target}
        for result in self.results_db.list(200):
            made = result.conditions
            here = made.host == self.host.name and made.model in models
            if (here or (made.address and made.address in urls)) and _alike(result.spec, shape):
                return result.summary.duration_s * (1 + shape.warmup / max(1, shape.requests))
        return None

    # ---- carried out

    def _not_two(self) -> None:
        if self._conducting is not None:
            raise BenchError("an experiment is running", host=self.host.name, next_step="wait for it, or stop it")

    async def _know_engine(self) -> None:
        """What is installed decides how both arms are checked; asked once, before anything is started."""
        around = self.editor.around
        if around.installed is None and around.installed_problem is None:
            await self.look_for_engine()

    async def _carry_out(self, experiment: Experiment, sides: Mapping[str, Side]) -> Experiment:
        """Cancelled from outside it ends in order and returns what it has, like one that was stopped."""
        self._conducting = asyncio.ensure_future(self._conduct(experiment, sides))
        try:
            with self.busy(_EXPERIMENT):
                return await self._conducting
        finally:
            self._conducting = None

    async def _conduct(self, experiment: Experiment, sides: Mapping[str, Side]) -> Experiment:
        from workbench.session.arms import Arms
        from workbench.session.conduct import Conduct

        self.attend()  # an experiment that is killed is one whose heartbeat stops
        with self.experiments_db.held(experiment.id):
            results = await self._results_of(experiment)
            arms = Arms(self, experiment.spec, sides, restarts=experiment.restarts, earlier=results)
            await self._save_experiment(experiment)
            self.update(experiment=experiment)
            try:
                await arms.prepare(experiment)
            except WorkbenchError as error:
                failed = replace(experiment, state="failed", error=error.message, left_s=None)
                await self._save_experiment(failed)
                self.update(experiment=failed)
                raise
            conduct = Conduct(
                replace(experiment, server=None, settings_on=False),
                arms,
                save=self._save_experiment,
                tell=lambda now: self.update(experiment=now),
                results=results,
                left_s=experiment.left_s,
            )
            ended = await conduct.carry_out()
        self.update(experiment=ended)
        self.record(f"workbench experiment show {ended.id}", ended.verdict or ended.state)
        await self.read_results()
        return ended

    async def _save_experiment(self, experiment: Experiment) -> None:
        def save() -> None:
            self.experiments_db.save_experiment(experiment)
            for run in experiment.runs[-1:]:
                if run.result_id is not None:
                    arm = "discarded" if run.pair < 0 else run.arm
                    self.results_db.retag(run.result_id, add=[f"experiment {experiment.id} {arm}"])

        await asyncio.to_thread(save)

    async def _results_of(self, experiment: Experiment) -> list[BenchResult]:
        """Those that are still there."""

        def read() -> list[BenchResult]:
            found = []
            for run in experiment.runs:
                if run.state == "done" and run.result_id is not None:
                    try:
                        found.append(self.results_db.get(run.result_id))
                    except InputError:  # deleted
                        continue
            return found

        return await asyncio.to_thread(read)

    def _with_secrets(self, spec: ExperimentSpec) -> tuple[Arm, Arm, dict[str, LaunchPlan]]:
        """The arms, and the plans that they start from. Keys are not kept: they come from this process's environment
        under their own names, or from the preset."""
        from workbench.bench import experiment as design
        from workbench.model.json_records import from_json
        from workbench.model.secrets import MASK

        known = dict(os.environ)
        for arm in (spec.a, spec.b):
            preset_id = spec.preset_id if arm.target is None else arm.target.preset_id
            if preset_id is not None and MASK in repr(spec):
                preset = self.plan_of(preset_id)
                known.update({s.name: str(s.value) for s in (*preset.env, *preset.flags) if s.value != MASK})

        def given(name: str) -> str:
            if name not in known:
                raise PlanError(f"{name} is a secret, which is not kept", next_step=f"set {name} in the environment")
            return known[name]

        def whole(word: str) -> str:
            name, _, value = word.partition("=")
            return f"{name}={given(name)}" if value == MASK else word

        bases = {}
        for name in ("A", "B"):
            body = design.plan_of(spec, name)
            if not body:
                continue
            plan = from_json(LaunchPlan, body)
            for setting in (*plan.env, *plan.flags):
                if setting.value == MASK:
                    with_it = plan.with_env if setting in plan.env else plan.with_flag
                    plan = with_it(setting.name, given(setting.name))
            bases[name] = plan
        a, b = (
            replace(arm, sets=tuple(map(whole, arm.sets)), envs=tuple(map(whole, arm.envs))) for arm in (spec.a, spec.b)
        )
        return a, b, bases


def _masked(arm: Arm) -> Arm:
    from workbench.model.secrets import mask_argv

    return replace(arm, sets=mask_argv(arm.sets), envs=mask_argv(arm.envs))


def _alike(a: BenchSpec, b: BenchSpec) -> bool:
    """The same amount of work."""
    names = ("concurrency", "requests", "max_tokens", "input_tokens", "warmup", "rate", "seconds", "command", "stream")
    return all(getattr(a, name) == getattr(b, name) for name in names)
