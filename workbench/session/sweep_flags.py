"""One or two flags over values: each combination is started and screened with a run or two, and the best is compared
with the start in pairs. Nothing is claimed of what was only screened."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.bench.metric_changes import BETTER
from workbench.model.errors import InputError, PlanError, WorkbenchError
from workbench.model.experiment import Arm
from workbench.model.findings import Level
from workbench.model.secrets import is_secret_name, mask_argv
from workbench.model.server_run import ServerState
from workbench.session.serving import LIVE
from workbench.session.sweep_run import SweepRun, TimeUp, undisturbed

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.server_run import ServerStatus
    from workbench.model.sweep import SweepPoint
    from workbench.session.editor import PlanEditor
    from workbench.session.sweeping import Sweeping

T = TypeVar("T")
MOST_FLAGS = 2
SCREENED = "screened with {}: no difference between two values is claimed, but for the one that was compared in pairs"


@dataclass(frozen=True, slots=True)
class Combination:
    """`sets` as typed, "flag=value"; () for the start."""

    label: str
    x: float | None
    sets: tuple[str, ...]
    editor: PlanEditor


def combinations_of(editor: PlanEditor, flags: Mapping[str, Sequence[str]]) -> tuple[Combination, ...]:
    """The start first, then the grid without it. InputError for a value that is none for its flag."""
    from workbench import engines
    from workbench.model.plan import diff

    if not flags or len(flags) > MOST_FLAGS:
        raise InputError(f"{len(flags) or 'no'} flags to sweep", next_step="give one or two")
    names = [engines.canonical_name(editor.catalog, name) for name in flags]
    if secret := next(filter(is_secret_name, names), None):
        raise InputError(
            f"{secret} is a secret: its values would stand in the sweep's record", next_step="sweep another"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{names[0]} is there twice", next_step="give all its values at once")
    values = [list(dict.fromkeys(given)) for given in flags.values()]
    short = next((n for n, v in zip(names, values, strict=True) if not v), None)
    if short:
        raise InputError(f"{short} has no value to try", next_step=f"for example {short}=128,256")
    start = [engines.format_value(v) if (v := editor.plan.flag(name)) is not None else None for name in names]
    words = " ".join(f"{n}={'default' if v is None else v}" for n, v in zip(names, start, strict=True))
    found = [Combination(f"start: {words}", _number(start), (), _with(editor, ()))]
    for one in itertools.product(*values):
        sets = tuple(f"{n}={v}" for n, v in zip(names, one, strict=True))
        changed = _with(editor, sets)  # what is no value for the flag is told before anything is started
        if diff(editor.plan, changed.plan):
            found.append(Combination(" ".join(sets), _number(one), sets, changed))
    if len(found) < 2:
        raise InputError(f"{words} is what the plan has already", next_step="give other values")
    refused = [next((f for f in c.editor.findings() if f.level is Level.ERROR), None) for c in found]
    if refused[0] is None and refused[1] is not None and all(refused[1:]):
        raise InputError(f"no value can be started: {refused[1].text}", next_step=refused[1].fix or "give other values")
    return tuple(found)


def _with(base: PlanEditor, sets: Sequence[str]) -> PlanEditor:
    from workbench.session.editor import PlanEditor

    editor = PlanEditor(base.plan, base.title)
    editor.around = base.around
    if sets:
        editor.assign(sets, (), ())
    return editor


def _number(values: Sequence[str | None]) -> float | None:
    """Of a single flag with a number."""
    with suppress(ValueError, TypeError):
        return float(values[0]) if len(values) == 1 and values[0] is not None else None
    return None


@dataclass
class FlagSweep:
    """`before`: what ran at the start and is started again at the end; None: nothing did. Values that were measured
    before (of a resumed sweep) stay."""

    session: Sweeping
    run: SweepRun
    combinations: Sequence[Combination]
    bench: Mapping[str, Any]
    before: PlanEditor | None
    stopped: asyncio.Event
    runs: int = 1
    pairs: int = 3
    max_minutes: float | None = None
    _on: str | None = field(default=None, init=False)  # the run that was started here

    async def go(self) -> None:
        try:
            await self._make_room()
            await self._screen_all()
            await self._confirm()
        finally:
            await undisturbed(self._give_back())

    async def _make_room(self) -> None:
        """Stop what runs, written down first: one that is killed now is resumed, and starts it again."""
        server = self.session.state.server
        if server is not None and server.state in LIVE:
            self.run.change(before=server.run_id)
            await self.run.save()
            await self.session._stop(server.run_id)

    # ---- screening

    async def _screen_all(self) -> None:
        missing = self.run.missing
        for count, index in enumerate(missing):
            self.session.going_on()
            each_s = self.run.elapsed_s / count if count else 0.0  # with the start of its server
            self._in_time(each_s)
            await self._screen(index, self.combinations[index])
            runs = len(missing) - count - 1 + 2 * self.pairs
            self.run.change(left_s=runs * self.run.elapsed_s / (count + 1))
        self.run.note(SCREENED.format("one run each" if self.runs == 1 else f"{self.runs} runs each"))

    def _in_time(self, needs_s: float) -> None:
        left_s = self._left_s()
        if left_s is not None and left_s <= needs_s:
            raise TimeUp(f"{self.max_minutes:g} minutes were given, {max(0.0, left_s):.0f} s are left")

    def _left_s(self) -> float | None:
        return None if self.max_minutes is None else 60 * self.max_minutes - self.run.elapsed_s

    async def _screen(self, index: int, one: Combination) -> None:
        self.run.point(index, state="measuring")
        try:
            self.session._startable(one.editor.effective, one.editor)
            run_id = await self._started(one.editor)
        except WorkbenchError as error:
            _pass_on(error)
            self.run.point(index, state="failed", error=f"not started: {error.message}")
            await self.run.save()
        else:
            await self.run.measured(index, lambda: self.session.bench_run(run_id, **self.bench), self.runs)
            await self.run.save()
        finally:
            await self._clear()

    async def _started(self, editor: PlanEditor) -> str:
        """The run id once READY. WorkbenchError with the engine's own reason when it does not get there."""
        starting = asyncio.ensure_future(self.session._start(editor))
        try:
            self._on = (await asyncio.shield(starting)).run_id
        except asyncio.CancelledError:  # it may run by now, and is to be ended
            with suppress(WorkbenchError):
                self._on = (await starting).run_id
            raise
        self.run.change(server=self._on)
        await self.run.save()  # one that is killed now says what it left on
        status = await self._unless_stopped(self.session.wait_ready(self._on))
        if status.state is not ServerState.READY:
            raise WorkbenchError(_reason(status))
        return self._on

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        """A server may take half an hour to start; a cancelled sweep does not wait for it."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stopped.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            self.session.going_on()
            return await task
        finally:
            for one in (task, stop):
                one.cancel()

    async def _clear(self) -> None:
        run_id, self._on = self._on, None
        if run_id is not None:
            await undisturbed(self._ended(run_id))

    async def _ended(self, run_id: str) -> None:
        await self.session._stop(run_id)
        self.run.change(server=None)

    # ---- the best against the start

    async def _confirm(self) -> None:
        points = self.run.sweep.points
        best = _best(points)
        if self.pairs < 1:
            return self.run.note("nothing was compared in pairs: --pairs 0")
        if best is None:
            return self.run.note(
                "nothing was compared in pairs: "
                + ("the start was not measured" if points[0].state != "done" else "no value was faster than the start")
            )
        label = points[best].label
        self._in_time(0.0)
        self.session.going_on()
        try:
            experiment = await self._compared(self.combinations[best].sets)
        except WorkbenchError as error:
            _pass_on(error)
            return self.run.note(f"{label} was not compared in pairs: {error.message}")
        shown = experiment.comparison.metrics[0].verdict if experiment.comparison else ""
        self.run.change(experiment_id=experiment.id, confirmed=experiment.state == "done" and shown == BETTER)
        me = asyncio.current_task()
        if me is not None and me.cancelling():  # an experiment that is cancelled ends in order, and returns
            raise asyncio.CancelledError
        self.session.going_on()
        if experiment.state == "stopped":
            raise TimeUp(f"the pairs of {label} were stopped: {experiment.error}")
        self.run.note(f"{label} against the start: {experiment.verdict or experiment.error or experiment.state}")
        return None

    async def _compared(self, sets: Sequence[str]) -> Experiment:
        """The experiment of the pairs: the one that a resumed sweep had begun, where it was of the same value."""
        left_s = self._left_s()
        minutes = None if left_s is None else left_s / 60
        begun = self.run.sweep.experiment_id
        if begun is not None:
            earlier = await self.session.experiment_called(begun)
            if earlier.spec.b.sets == mask_argv(sets):
                if earlier.state == "done":
                    return earlier
                return await self.session.resume_experiment(begun, max_minutes=minutes)
        options: dict[str, Any] = {"pairs": self.pairs, "bench": dict(self.bench)}
        if minutes is not None:
            options["max_minutes"] = minutes
        return await self.session.experiment(Arm(), Arm(sets=tuple(sets)), opened=self._begun, **options)

    async def _begun(self, experiment_id: int) -> None:
        self.run.change(experiment_id=experiment_id)
        await self.run.save()

    async def _give_back(self) -> None:
        """As it was: the server that ran before runs again, or none does."""
        await self._clear()
        if self.before is None:
            return
        try:
            status = await self.session._start(self.before)
        except WorkbenchError as error:
            text = f"the server that ran before was not started again: {error.message}"
            self.run.change(error=text)
            return
        self.run.change(before=None)
        self.run.note(f"the server that ran before is started again as {status.run_id}")


def _best(points: Sequence[SweepPoint]) -> int | None:
    """The fastest, where it is faster than the start (the first point)."""
    known = [(p.tok_s, i) for i, p in enumerate(points) if p.state == "done" and p.tok_s is not None]
    if not known or points[0].state != "done":
        return None
    return max(known)[1] or None


def _reason(status: ServerStatus) -> str:
    cause = f": {status.findings[0].text}" if status.findings else ""
    return f"the server is {status.state} ({status.reason or 'see its log'}){cause}"


def _pass_on(error: WorkbenchError) -> None:
    """A cancellation is no failure of a point."""
    from workbench.bench.runner import BenchCancelled

    if isinstance(error, BenchCancelled):
        raise error


async def before_of(session: Sweeping, stopped: str | None = None) -> PlanEditor | None:
    """How the selected run, where one lives, can be started again, else the run `stopped`. PlanError where it
    cannot."""
    from workbench.model.plan import diff
    from workbench.model.secrets import MASK, mask_plan
    from workbench.session.editor import PlanEditor

    status = session.state.server
    run_id = status.run_id if status is not None and status.state in LIVE else stopped
    if run_id is None:
        return None
    plan = session.supervisor.record(run_id).plan
    if plan is not None and MASK not in repr(plan):
        editor = PlanEditor(plan, f"run {run_id}")
        editor.around = session.editor.around
        return editor
    if plan is not None and not diff(mask_plan(session.editor.plan), plan):
        return _with(session.editor, ())
    raise PlanError(
        f"run {run_id} was started with a key, which is not kept: it could not be started again",
        host=session.host.name,
        next_step=f"workbench stop {run_id}, then sweep",
    )
