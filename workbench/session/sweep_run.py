"""What all sweeps have in common: the points, written down and shown as they come, and how one ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError, StoreError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.sweep import Sweep, SweepPoint

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSummary
    from workbench.session.sweeping import Sweeping
    from workbench.store.sweeps import SweepStore

FAILED_SHARE = 0.01  # of its requests: above it a level's figures are not those of the load that was asked for


MOST_RUNS = 8  # of one value


class Ended(Exception):
    """The sweep goes no further, and why; what it has stays."""


class TimeUp(Exception):
    """The time that was given is over, and how much was made of it: the sweep is stopped, and can be resumed."""


class SweepRun:
    """One sweep under way: `sweep` is replaced at each step, shown in the state, and kept at each point."""

    def __init__(self, session: Sweeping, sweep: Sweep, store: SweepStore) -> None:
        self.session, self.sweep, self.store = session, sweep, store
        self._made, self._each = 0, 1  # runs in all, and of one point
        self.to_pair = 0  # runs that follow the points
        self._began_s = time.monotonic()
        self._unsaved = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def change(self, **fields: Any) -> None:
        self.sweep = replace(self.sweep, **fields)
        self.session.update(sweep=self.sweep)

    def point(self, index: int, **fields: Any) -> None:
        points = list(self.sweep.points)
        points[index] = replace(points[index], **fields)
        self.change(points=tuple(points))

    def note(self, text: str) -> None:
        if text not in self.sweep.notes:
            self.change(notes=(*self.sweep.notes, text))

    def skip_rest(self, why: str) -> None:
        for index, point in enumerate(self.sweep.points):
            if point.state in ("planned", "measuring"):
                self.point(index, state="skipped", error=why)

    def estimate(self, runs: int = 0) -> None:
        """After the `runs` of a point, or one run of a pair: what is left, by what the runs so far took with all that
        lies between them."""
        self._each = runs or self._each
        self._made += runs or 1
        left = self._each * sum(p.state == "planned" for p in self.sweep.points) + self.to_pair
        self.change(left_s=left * self.elapsed_s / self._made)

    def paired(self) -> None:
        self.to_pair -= 1
        self.estimate()

    async def save(self) -> None:
        """A disk that is full must not end a sweep: its results are kept elsewhere, and the GPU is to be given back."""
        try:
            await asyncio.to_thread(self.store.save, self.sweep)
        except StoreError as error:
            if not self._unsaved:
                self.session.notify(Level.WARN, f"the sweep is not kept: {error.message}", error.next_step)
            self._unsaved = True

    @property
    def missing(self) -> Sequence[int]:
        """Places of the points that are yet to be measured."""
        return [index for index, point in enumerate(self.sweep.points) if point.state != "done"]

    async def measured(self, index: int, measure: Callable[[], Awaitable[int]], runs: int = 1) -> Sequence[BenchResult]:
        """Measure one point in so many runs, a run once more where its figures may not be used the first time. What
        fails ends it. Empty, with the reason in the point, when a run could not be made; BenchCancelled goes on up."""
        from workbench.bench.runner import BenchCancelled

        self.point(index, state="measuring")
        found: list[BenchResult] = []
        try:
            while len(found) < runs and not (found and _useless(found[-1])):
                found.append(await self._one_run(index, measure))
        except BenchCancelled:
            raise
        except WorkbenchError as error:
            self.point(index, state="failed", error=error.message)
            await self.save()
            return ()
        self.point(index, **figures(found))
        self.estimate(len(found))
        return found

    async def _one_run(self, index: int, measure: Callable[[], Awaitable[int]]) -> BenchResult:
        result = await self.session.result(await measure())
        if result.summary.refused and not broken(result):
            self.note(f"{self.sweep.points[index].label}: measured again ({result.summary.refused[0]})")
            result = await self.session.result(await measure())
        return result


def broken(result: BenchResult) -> str | None:
    """What is wrong with the server, judged by its answers; None where they came."""
    summary = result.summary
    failed, asked = summary.requests_failed, summary.requests_ok + summary.requests_failed
    if failed > FAILED_SHARE * asked:
        kinds = ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())
        return f"{failed} of {asked} requests failed ({kinds})"
    if summary.output_tok_s is None:
        return f"no tok/s: {summary.absent.get('output_tok_s', 'not measured')}"
    return None


def _useless(result: BenchResult) -> str | None:
    """Why the figures of a result are no point's; None where they are."""
    refused = result.summary.refused
    return broken(result) or (f"not to be used: {refused[0]}" if refused else None)


def figures(results: Sequence[BenchResult]) -> dict[str, Any]:
    """Return what a point shows of its results, in the mean. One useless result makes a failed point."""
    error = next(filter(None, map(_useless, results)), None)
    each = [_figures(result.summary) for result in results]
    return {
        "state": "failed" if error else "done",
        "error": error,
        "result_ids": tuple(result.id for result in results),
        **{name: _mean([one[name] for one in each]) for name in each[0]},
    }


def _figures(summary: BenchSummary) -> dict[str, float | None]:
    gpu = summary.gpu
    return {
        "tok_s": summary.output_tok_s,
        "tok_per_joule": summary.tok_per_joule,
        "power_w": summary.power_w,
        "sm_mhz": gpu.sm_mhz if gpu else None,
        "temperature_c": gpu.temperature_c if gpu else None,
        "ttft_p50_ms": summary.ttft_ms.p50 if summary.ttft_ms else None,
        "ttft_p99_ms": summary.ttft_ms.p99 if summary.ttft_ms else None,
        "itl_mean_ms": summary.itl_ms.mean if summary.itl_ms else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Of all runs or of none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def stored_shape(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of BenchSpec as they are kept: without secrets, and with a file that is found from anywhere."""
    from workbench.model.secrets import mask_data

    masked: dict[str, Any] = mask_data(bench)
    if masked.get("prompts_file"):
        masked["prompts_file"] = str(Path(masked["prompts_file"]).absolute())
    return masked


def runs_checked(runs: int) -> int:
    if not 1 <= runs <= MOST_RUNS:
        raise InputError(f"{runs} runs of each value", next_step=f"1 to {MOST_RUNS}")
    return runs


async def undisturbed(work: Awaitable[None]) -> None:
    """Await `work` to its end, also when this task is cancelled meanwhile (once or twice: Ctrl-C); then the
    cancellation goes on."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    if cancelled:
        with suppress(Exception):
            task.result()
        raise asyncio.CancelledError
    task.result()


def planned(labels: Sequence[tuple[str, float | None]]) -> tuple[SweepPoint, ...]:
    return tuple(SweepPoint(label, x) for label, x in labels)
