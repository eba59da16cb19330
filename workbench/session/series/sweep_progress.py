"""The progress of a running sweep: its measured points, their values, the estimated time left, and
its file on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.bench.compare import failed_requests_text
from workbench.bench.compared_texts import describe_broken_text
from workbench.bench.runner import BenchCancelled
from workbench.engines.references import nearest_reference_text
from workbench.engines.result_limits import pct_of_speed_limit
from workbench.hosts.base import HostUnreachable
from workbench.model.bench import FAILED_SHARE
from workbench.model.errors import StoreError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.known_values import mean_or_none, values_if_all_known
from workbench.model.secrets import mask_data
from workbench.model.sweep import UNFINISHED, PointState
from workbench.session.bench.spec import (
    TEXT_CONTENT,
    make_paths_absolute,
    set_default_prompt_content,
)
from workbench.session.series.conduct import Design, SeriesStopped, TimeLimit

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSummary, ResultId
    from workbench.model.sweep import PointIndex, Sweep, SweepPoint
    from workbench.session.results.results import Results
    from workbench.session.state_holder import StateHolder
    from workbench.store.sweeps import SweepStore


class SweepProgress:
    """A running sweep. Each change replaces `sweep` and shows the new one in the session's state;
    `save` also writes it to disk. `stop` is an event that is set when the user cancels the sweep.
    """

    def __init__(
        self,
        core: StateHolder,
        results: Results,
        store: SweepStore,
        sweep: Sweep,
        stop: asyncio.Event,
        max_minutes: float | None = None,
    ) -> None:
        self._core, self._results, self._store = core, results, store
        self.sweep, self.stop = sweep, stop
        self.pair_runs = 0  # runs in pairs that follow the points
        self._runs, self._runs_each = 0, 1  # made so far, and of one point
        self.limit = TimeLimit(max_minutes)
        self.worked_before_s = sweep.worked_s
        self._first_missing = self._missing_point_count  # when the sweep began or was resumed
        self._unsaved = False

    @property
    def elapsed_s(self) -> float:
        return self.limit.elapsed_s

    @property
    def _missing_point_count(self) -> int:
        return sum(point.state == PointState.PLANNED for point in self.sweep.points)

    @property
    def mean_seconds_per_value(self) -> float:
        """The mean seconds that a value of the sweep has taken so far; 0 before the first value has
        ended."""
        ended = self._first_missing - self._missing_point_count
        return self.elapsed_s / ended if ended else 0.0

    @property
    def next_planned_point_index(self) -> PointIndex | None:
        """The index of the first value of the sweep that was not tried yet. None if all were."""
        planned = (n for n, p in enumerate(self.sweep.points) if p.state == PointState.PLANNED)
        return next(planned, None)

    def raise_if_cancelled(self) -> None:
        """Raise BenchCancelled if the user has cancelled the sweep."""
        if self.stop.is_set():
            raise BenchCancelled(
                "the sweep was cancelled", next_step="the measured points of the sweep are kept"
            )

    def raise_if_no_time_for(self, needs_s: float, work_text: str = "") -> None:
        """Raise SeriesStopped if the time limit of the sweep does not leave the `needs_s` seconds
        that `work_text` would take."""
        if self.limit.has_time_for(needs_s):
            return
        left_s = max(0.0, self.limit.remaining_s)
        text = (
            f"the time limit of {self.limit.minutes:g} min leaves too little time to go on: "
            f"{left_s:.0f} s are left"
        )
        if work_text and left_s:
            text += f"; {work_text} would take about {needs_s:.0f} s"
        raise SeriesStopped(text)

    def change_sweep(self, **fields: Any) -> None:
        """Replace the given fields of the sweep."""
        self.sweep = replace(self.sweep, **fields)
        self._core.update(sweep=self.sweep)

    def change_point(self, point_index: int, **fields: Any) -> None:
        """Replace the given fields of the point (a measured value) with this index."""
        points = list(self.sweep.points)
        points[point_index] = replace(points[point_index], **fields)
        self.change_sweep(points=tuple(points))

    def add_points(self, points: Sequence[SweepPoint]) -> None:
        """Add points to the sweep, which are measured after those that it has."""
        self._first_missing += len(points)
        self.change_sweep(points=(*self.sweep.points, *points))

    def add_note(self, text: str) -> None:
        """Add a note to the sweep unless the sweep already has that note."""
        if text not in self.sweep.notes:
            self.change_sweep(notes=(*self.sweep.notes, text))

    def skip_unmeasured_points(self, why: str) -> None:
        """Mark every point (value of the sweep) that is not measured as skipped, with the reason
        `why`."""
        for index, point in enumerate(self.sweep.points):
            if point.state in UNFINISHED:
                self.change_point(index, state=PointState.SKIPPED, error=why)

    async def store_experiment_id(self, experiment_id: int) -> None:
        """Keep the id of the experiment that compares the best value, so that a killed sweep can go
        on with it."""
        self.change_sweep(experiment_id=experiment_id)
        await self.save()

    def _count_runs_and_estimate_left(self, runs: int) -> None:
        """Add `runs` to the number of finished runs, and estimate how long the sweep still takes
        from the mean time of a run."""
        self._runs += runs
        left = self._runs_each * self._missing_point_count + self.pair_runs
        self.change_sweep(left_s=left * self.elapsed_s / self._runs)

    async def save(self) -> None:
        """Write the sweep to disk. A failure is reported to the user once and raises nothing,
        because the results are stored elsewhere and the sweep must still restore GPUs and servers.
        """
        self.change_sweep(worked_s=self.worked_before_s + self.elapsed_s)
        try:
            await asyncio.to_thread(self._store.save, self.sweep)
        except StoreError as error:
            if not self._unsaved:
                self._core.notify(
                    Level.WARN,
                    f"the sweep could not be written to disk: {error.message}",
                    error.next_step,
                )
            self._unsaved = True

    async def mark_point_failed(self, point_index: int, why: str) -> None:
        """Mark the point with this index as failed for the reason `why`, and write the sweep to
        disk."""
        self.change_point(point_index, state=PointState.FAILED, error=why)
        await self.save()

    async def measure_point(
        self, point_index: int, run_benchmark: Callable[[], Awaitable[ResultId]], runs: int = 1
    ) -> Sequence[BenchResult]:
        """Measure the point with this index in `runs` runs of `run_benchmark`, which returns the id
        of a result. A run with an invalid result is repeated once. Return the results, () if a run
        raised an error; raises BenchCancelled if the user cancels, and HostUnreachable if the link
        is lost."""
        self.change_point(point_index, state=PointState.MEASURING)
        found: list[BenchResult] = []
        try:
            for _ in range(runs):
                found.append(await self.run_with_one_repeat(point_index, run_benchmark))
                if _why_unusable(found[-1]):
                    break
        except (BenchCancelled, HostUnreachable):  # the value itself is not to blame
            raise
        except WorkbenchError as error:
            await self.mark_point_failed(point_index, error.message)
            return ()
        self.change_point(point_index, **point_fields_from_results(found))
        text = nearest_reference_text(found[-1])
        # one is enough for a sweep
        if text and not any(" reference: " in note for note in self.sweep.notes):
            self.add_note(f"{self.sweep.points[point_index].label} reference: {text}")
        self._runs_each = len(found)
        self._count_runs_and_estimate_left(len(found))
        return found

    async def run_with_one_repeat(
        self,
        point_index: int,
        run_benchmark: Callable[[], Awaitable[ResultId]],
        why_unusable: Callable[[BenchResult], str | None] = lambda result: next(
            iter(result.summary.refused), None
        ),
    ) -> BenchResult:
        """Run `run_benchmark`, which returns the id of a result, for the point with this index. A
        run with an invalid result, of which `why_unusable` returns the reason, is repeated once.
        Return the result. Raises what `run_benchmark` raises, and BenchCancelled if the user
        cancels."""
        self.raise_if_cancelled()
        result = await self._results.get(await run_benchmark())
        why = why_unusable(result)
        if why and not why_server_failed(result):
            self.add_note(f"{self.sweep.points[point_index].label}: measured again ({why})")
            self.raise_if_cancelled()
            result = await self._results.get(await run_benchmark())
        if result.conditions.simulated and not self.sweep.simulated:
            self.change_sweep(simulated=True)  # a server at a URL may be simulated on any host
        return result


class SweepDesign(Design[int]):
    """What one kind of sweep decides and does. Its runs are the indices of the sweep's points."""

    progress: SweepProgress

    def next_run(self) -> PointIndex | None:
        return self.progress.next_planned_point_index

    def estimated_run_s(self, run: int) -> float:
        """Return the estimated time of a run in seconds; 0 if it is not known."""
        return 0.0

    def raise_if_stopped(self, run: int) -> None:
        self.progress.raise_if_cancelled()
        label = self.progress.sweep.points[run].label
        self.progress.raise_if_no_time_for(self.estimated_run_s(run), label)


def why_server_failed(result: BenchResult) -> str | None:
    """Return why a result shows that the server does not work, such as too many failed requests;
    None if the server works."""
    summary = result.summary
    if summary.requests_failed > FAILED_SHARE * (summary.requests_ok + summary.requests_failed):
        return failed_requests_text(summary)
    if (garbage := describe_broken_text(summary)) is not None:
        return garbage
    if summary.output_tok_s is None:
        return f"no tok/s: {summary.absent.get('output_tok_s', 'not measured')}"
    return None


def _why_unusable(result: BenchResult) -> str | None:
    """Return why a result cannot be used for a point of a sweep; None if the result can be used."""
    invalid = result.summary.refused
    return why_server_failed(result) or (
        f"the result is invalid: {invalid[0]}" if invalid else None
    )


def point_fields_from_results(results: Sequence[BenchResult]) -> dict[str, Any]:
    """Return the fields of one point of a sweep by name: its state, and the means of the metrics of
    its `results`. The point is failed if one of the results cannot be used."""
    error = next(filter(None, map(_why_unusable, results)), None)
    each = [
        {**_point_fields_from_summary(result.summary), "limit_pct": pct_of_speed_limit(result)}
        for result in results
    ]
    return {
        "state": PointState.FAILED if error else PointState.DONE,
        "error": error,
        "result_ids": tuple(result.id for result in results),
        "gpus": _gpu_count_if_constant(results),
        **{name: _mean_if_all_known([one[name] for one in each]) for name in each[0]},
    }


def _gpu_count_if_constant(results: Sequence[BenchResult]) -> int | None:
    """Return how many GPUs the server used in each of the results. None if they were not read, or
    if the results differ in it."""
    counts = {len(r.summary.gpu.gpus) if r.summary.gpu else 0 for r in results}
    return next(iter(counts)) or None if len(counts) == 1 else None


def _point_fields_from_summary(summary: BenchSummary) -> dict[str, float | None]:
    gpu = summary.gpu
    return {
        "tok_s": summary.output_tok_s,
        "tok_per_joule": summary.tok_per_joule,
        "power_w": summary.power_w,
        "sm_mhz": gpu.sm_mhz if gpu else None,
        "temperature_c": gpu.temperature_c if gpu else None,
        "ttft_p50_ms": summary.ttft_ms.p50 if summary.ttft_ms else None,
        "ttft_p90_ms": summary.ttft_ms.p90 if summary.ttft_ms else None,
        "itl_mean_ms": summary.itl_ms.mean if summary.itl_ms else None,
        "slo_pct": summary.slo_pct,
        "goodput_request_s": summary.goodput_request_s,
        "users": summary.users,
    }


def _mean_if_all_known(values: Sequence[float | None]) -> float | None:
    known = values_if_all_known(values)
    return None if known is None else mean_or_none(known)


def bench_fields_to_store(bench: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of BenchSpec as a sweep stores them: secrets are masked, paths of prompts and
    traces are absolute, and the content of the prompts is named."""
    masked: dict[str, Any] = mask_data(bench)
    return set_default_prompt_content(make_paths_absolute(masked), TEXT_CONTENT)
