"""Carries an experiment out: which run now, what if it fails, when to end. All that it does to a host goes through
`Bench`, so that simulated experiments by the thousand take the same path (tests/benchmarks/bench_experiments.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from workbench.bench import experiment as design
from workbench.bench.changes import average, metric_called
from workbench.model.errors import BenchError, HostError, ServerError, WorkbenchError
from workbench.model.experiment import Experiment, ExperimentRun

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult

Tell = Callable[[str], None]


class StartFailed(ServerError):
    """The server of an arm did not become READY."""


class NothingServed(BenchError):
    """Not one request of a run succeeded."""


class Stopped(WorkbenchError):
    """The person ended what the experiment was doing, or its time was up too early."""


class Bench(Protocol):
    """What the runs are made on. Methods raise WorkbenchError; `ready` StartFailed for a server that did not start."""

    @property
    def started(self) -> str | None:
        """The run that is on and was started here."""
        ...

    async def compiles_first(self, arm: str) -> bool:
        """Whether this arm's first start does what later ones find done (compiling), and none is known."""
        ...

    async def server(self, arm: str) -> str:
        """A server, a fresh one where the arms differ in what a restart changes. Its run id; it need not be READY."""
        ...

    async def ready(self, arm: str, run_id: str) -> None:
        """Waits until it is, and makes the GPU settings those of the arm."""
        ...

    async def clear(self) -> None:
        """End the server that is on, GPU settings first."""
        ...

    async def settle(self, target_c: float | None, within_c: float, tell: Tell) -> float | None:
        """The temperature at which the run begins, after a bounded wait for the target."""
        ...

    async def measure(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult: ...

    async def give_back(self, experiment: Experiment) -> Sequence[str]:
        """GPU settings and servers as they were, whatever fails on the way; what a person must know of it."""
        ...


class Conduct:
    """One experiment from here to its end; `experiment` is replaced, `tell` hears of every change."""

    def __init__(
        self,
        experiment: Experiment,
        bench: Bench,
        *,
        save: Callable[[Experiment], Awaitable[None]],
        tell: Callable[[Experiment], None] = lambda _: None,
        results: Sequence[BenchResult] = (),
        left_s: float | None = None,
    ) -> None:
        self.experiment = experiment
        self._bench = bench
        self._save = save
        self._tell = tell
        self._results = {result.id: result for result in results}
        self._told_s = left_s  # the estimate from before the start
        self._began = time.monotonic()

    async def carry_out(self) -> Experiment:
        """The experiment as it ended: done, failed, or stopped when this task was cancelled or the link was lost.

        A cancellation ends here, because what was measured is the answer. Raises StoreError where it cannot be kept.
        """
        state: str = "failed"
        error: str | None = None
        try:
            await self._runs()
            state = "done"
        except asyncio.CancelledError:
            state, error = "stopped", design.INTERRUPTED
        except (Stopped, HostError) as ending:
            state, error = "stopped", ending.message
        except WorkbenchError as failure:
            error = failure.message + (f" ({failure.next_step})" if failure.next_step else "")
        finally:
            notes = await self._bench.give_back(self.experiment)
            self._ended(state, error, notes)
        await self._save(self.experiment)
        return self.experiment

    def _ended(self, state: str, error: str | None, notes: Sequence[str]) -> None:
        why = error if state == "failed" and error is not None else design.INTERRUPTED
        runs = tuple(design.cut_off(run, why) for run in self.experiment.runs)
        ended = replace(self.experiment, runs=runs, state=state, error=error, phase="", server=None, settings_on=False)
        self.experiment = ended
        self._note(*notes)
        self._judge()
        self._left()
        self._tell(self.experiment)

    async def _runs(self) -> None:
        spec = self.experiment.spec
        while (why := design.enough(self.experiment)) is None:
            if (late := self._late()) is not None:
                if self.experiment.pairs_done < 2:
                    raise Stopped(late, next_step="resume it with more time")
                self._note(late)
                return
            run = design.next_run(self.experiment)
            if self.experiment.restarts and spec.throw_away is not False:
                await self._throw_away(run.arm)
            await self._make(run)
        if spec.until_pct is not None:
            self._note(why)

    def _late(self) -> str | None:
        """Before a pair for which the time is too short."""
        limit, done = self.experiment.spec.max_minutes, self.experiment.pairs_done
        took = [r.took_s for r in self.experiment.runs if r.took_s is not None]
        in_pair = any(r.pair == done and r.state == "done" for r in self.experiment.runs)
        if limit is None or not took or in_pair:
            return None
        if time.monotonic() - self._began + 2 * average(took) <= 60 * limit:
            return None
        return f"{limit:g} min were up after {done} of {self.experiment.spec.pairs} pairs"

    # ---- one run

    async def _throw_away(self, arm: str) -> None:
        """An arm's first start, which compiles, is made once and not measured."""
        if arm in self.experiment.thrown_away:
            return
        if any(r.arm == arm and r.run_id for r in self.experiment.runs):
            return
        if self.experiment.spec.throw_away or await self._bench.compiles_first(arm):
            self._phase(f"{arm}: first start, thrown away")
            await self._server(arm)
            await self._bench.clear()
            thrown_away = (*self.experiment.thrown_away, arm)
            self.experiment = replace(self.experiment, thrown_away=thrown_away, server=None)
            await self._keep()

    async def _server(self, arm: str) -> str:
        """Server and settings are written down before they are on: what a crash leaves can be cleared by whoever
        resumes."""
        run_id = await self._bench.server(arm)
        settings = design.changes_gpus(self.experiment.spec)
        now = replace(self.experiment, server=self._bench.started, settings_on=settings)
        if now != self.experiment:
            self.experiment = now
            await self._keep()
        await self._bench.ready(arm, run_id)
        return run_id

    async def _make(self, run: ExperimentRun) -> None:
        began = time.monotonic()
        title = f"pair {run.pair + 1}, {run.arm}"
        run = await self._put(replace(run, state="starting"), f"{title}: starting")
        try:
            run = replace(run, run_id=await self._server(run.arm))
            run = replace(run, start_temperature_c=await self._settled(run, title))
            run = await self._put(replace(run, state="measuring"), f"{title}: measuring")
            result = await self._bench.measure(run.arm, run, design.seed_of(self.experiment.spec, run.pair))
        except HostError:
            raise
        except (BenchError, ServerError) as failure:
            await self._failed(replace(run, took_s=time.monotonic() - began), failure.message)
            self._give_up(run, failure)
            return
        run = replace(run, result_id=result.id, took_s=time.monotonic() - began)
        why = design.unfit(result.summary, self.experiment.spec.metric)
        if why is not None:
            await self._failed(run, why)
            if result.summary.requests_ok:
                self._give_up(run, BenchError(why))
            else:
                self._give_up(run, NothingServed(why, next_step=f"workbench logs {run.run_id} may say why"))
            return
        self._results[result.id] = result
        value = metric_called(self.experiment.spec.metric).of(result.summary)
        await self._put(replace(run, state="done", value=value))

    async def _settled(self, run: ExperimentRun, title: str) -> float | None:
        within = self.experiment.spec.match_temperature_c
        if within is None:
            return None
        first = next((r.start_temperature_c for r in self.experiment.runs if r.start_temperature_c is not None), None)
        temperature = await self._bench.settle(first, within, lambda text: self._phase(f"{title}: {text}"))
        if first is not None and temperature is not None and abs(temperature - first) > within:
            began = f"run {run.place + 1} ({run.arm}) began at {temperature:.0f} °C"
            self._note(f"{began}, the first one at {first:.0f} °C")
        return temperature

    async def _failed(self, run: ExperimentRun, why: str) -> None:
        await self._put(replace(run, state="failed", error=why))

    def _give_up(self, run: ExperimentRun, failure: WorkbenchError) -> None:
        """After a failure that repeating will not mend; else the pair is made again."""
        never = not any(r.arm == run.arm and r.state in ("done", "dropped") for r in self.experiment.runs)
        if isinstance(failure, (StartFailed, NothingServed)) and never:
            raise BenchError(f"{run.arm}: {failure.message}", next_step=failure.next_step)
        tries = design.tries(self.experiment, run.pair)
        if tries >= design.TRIES:
            raise BenchError(
                f"pair {run.pair + 1} failed {tries} times; the last time {run.arm}: {failure.message}",
                next_step=failure.next_step,
            )

    # ---- state

    async def _put(self, run: ExperimentRun, phase: str = "") -> ExperimentRun:
        self.experiment = replace(design.with_run(self.experiment, run), phase=phase)
        if run.state == "done" and self.experiment.pairs_done > run.pair:
            self._judge()
        self._left()
        if run.state in ("done", "failed"):
            await self._keep()
        else:
            self._tell(self.experiment)
        return run

    def _judge(self) -> None:
        self.experiment = design.judged(self.experiment, self._results)

    def _left(self) -> None:
        left = None
        if self.experiment.state == "running":
            known = design.left_s(self.experiment)
            told = self._told_s - (time.monotonic() - self._began) if self._told_s is not None else None
            left = known if known is not None else max(0.0, told) if told is not None else None
        self.experiment = replace(self.experiment, left_s=left)

    async def _keep(self) -> None:
        await self._save(self.experiment)
        self._tell(self.experiment)

    def _phase(self, text: str) -> None:
        self.experiment = replace(self.experiment, phase=text)
        self._tell(self.experiment)

    def _note(self, *lines: str) -> None:
        known = self.experiment.note.splitlines()
        self.experiment = replace(self.experiment, note="\n".join(dict.fromkeys([*known, *lines])))
