"""A sweep of the concurrency: throughput and latency measured at rising numbers of concurrent
requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.bench.sweep_knee import find_knee_of_concurrency
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import CONCURRENCY, Sweep, SweepSpec
from workbench.session.bench.sustained_load import MAX_REQUESTS
from workbench.session.series.conduct import SeriesEndedEarly
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    SweepTarget,
    check_time_limit_minutes,
    conditions_of_target,
    require_same_target,
    resolve_sweep_target,
)
from workbench.session.series.sweep_progress import (
    SweepDesign,
    SweepProgress,
    bench_fields_to_store,
    why_server_failed,
)

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec

# requests per stream: the steady window is then about 88 % of the run (bench/profiles.py)
REQUESTS_PER_STREAM = 8
_MAX_LEVEL = 4096


async def plan_concurrency_sweep(
    parts: SweepParts,
    levels: Sequence[int],
    run_id: str | None,
    url: str | None,
    max_minutes: float | None,
    bench: Mapping[str, Any],
) -> PlannedSweep:
    """Check a sweep that measures a server at rising `levels` of concurrency, and return it. The
    server is the run `run_id` or the one at `url`, and `bench` has fields of BenchSpec. Raises
    InputError or BenchError for a sweep that cannot be carried out."""
    rising = validated_levels(levels)
    check_time_limit_minutes(max_minutes)
    parts.load.make_spec(None, dict(bench))
    target = await resolve_sweep_target(parts, run_id, url)
    spec = SweepSpec(
        values=tuple(map(str, rising)),
        bench=bench_fields_to_store(bench),
        measured=await conditions_of_target(parts, (), target, bench),
        run_id=target.run_id,
        url=target.url,
        max_minutes=max_minutes,
    )
    return _planned_sweep(parts, spec, target, bench)


async def plan_resumed_concurrency_sweep(
    parts: SweepParts, sweep: Sweep, spec: SweepSpec
) -> PlannedSweep:
    """Return the sweep that measures the levels that are missing in a stored one. Raises InputError
    if the server or its conditions are not those of the first part."""
    check_time_limit_minutes(spec.max_minutes)
    return _planned_sweep(parts, spec, await require_same_target(parts, sweep, spec), spec.bench)


def _planned_sweep(
    parts: SweepParts, spec: SweepSpec, target: SweepTarget, bench: Mapping[str, Any]
) -> PlannedSweep:
    levels = tuple(map(int, spec.values))
    points = [(f"c={level}", float(level)) for level in levels]

    def make_design(progress: SweepProgress) -> ConcurrencySweep:
        return ConcurrencySweep(parts, progress, levels, target, bench)

    return PlannedSweep(
        CONCURRENCY, "concurrency", "", points, spec, make_design, find_knee_of_concurrency
    )


def validated_levels(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels, which are numbers of concurrent requests, in rising order and each once.
    Raises InputError for an empty list or a level that is too low or too high."""
    found = tuple(sorted(set(levels)))
    if not found or found[0] < 1 or found[-1] > _MAX_LEVEL:
        raise InputError(
            f"{', '.join(map(str, levels)) or 'an empty list'} is not a valid list of concurrency "
            "levels",
            next_step=f"give levels from 1 to {_MAX_LEVEL}, for example 1,2,4,8,16",
        )
    return found


@dataclass
class ConcurrencySweep(SweepDesign):
    """Measures a server at rising numbers of concurrent requests, the levels, until a level fails.
    `bench` has the fields of BenchSpec that the user gave. The numbers of requests and of warm-up
    requests grow with the level unless the user gave them."""

    parts: SweepParts
    progress: SweepProgress
    levels: Sequence[int]
    target: SweepTarget
    bench: Mapping[str, Any]

    async def carry_out_run(self, run: int) -> None:
        bench = partial(
            self.parts.bench.benchmark_target,
            self.target.run_id,
            self.target.url,
            **self.bench_fields_at_level(self.levels[run]),
        )
        results = await self.progress.measure_point(run, bench)
        await self.progress.save()
        point = self.progress.sweep.points[run]
        if not results or why_server_failed(results[0]):  # an invalid result does not end the sweep
            raise SeriesEndedEarly(f"{point.label} failed: {point.error}")
        if failed := results[0].summary.requests_failed:
            self.progress.add_note(f"{point.label}: {count_of(failed, 'request')} failed")

    def bench_fields_at_level(self, level: int) -> dict[str, Any]:
        """Return the fields of BenchSpec that the sweep sets at one level, a number of concurrent
        requests."""
        given = self.bench
        requests = given.get("requests") or (
            MAX_REQUESTS if given.get("seconds") else REQUESTS_PER_STREAM * max(level, 2)
        )
        warmup = given.get("warmup")
        return {
            **given,
            "concurrency": level,
            "requests": max(requests, level),
            "warmup": level if warmup is None else warmup,
        }

    def estimated_run_s(self, run: int) -> float:
        """Return the estimated seconds of a level's run, at the highest tok/s measured so far; 0
        before the first level is measured."""
        spec: BenchSpec = self.parts.load.make_spec(
            None, self.bench_fields_at_level(self.levels[run])
        )
        best_tok_s = max((point.tok_s or 0.0 for point in self.progress.sweep.points), default=0.0)
        if not best_tok_s:
            return 0.0
        needs_s = (spec.requests + spec.warmup) * spec.max_tokens / best_tok_s
        return needs_s if spec.seconds is None else min(needs_s, spec.seconds)
