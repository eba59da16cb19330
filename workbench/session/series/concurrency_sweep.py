"""A sweep of the concurrency: throughput and latency measured at rising numbers of concurrent
requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.session.bench.sustained_load import REQUESTS
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    Target,
    check_minutes,
    target_of,
)
from workbench.session.series.sweep_progress import EndedEarly, SweepProgress, broken

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec

# requests per stream: the steady window is then about 88 % of the run (bench/profiles.py)
ROUNDS = 8
_MOST = 4096


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
    rising = levels_of(levels)
    check_minutes(max_minutes)
    parts.load.spec_of(None, dict(bench))
    target = await target_of(parts, run_id, url)
    points = [(f"c={level}", float(level)) for level in rising]

    async def carry_out(progress: SweepProgress) -> None:
        await ConcurrencySweep(parts, progress, rising, target, bench, max_minutes).run()

    return PlannedSweep("concurrency", "concurrency", "", points, None, carry_out)


def levels_of(levels: Sequence[int]) -> tuple[int, ...]:
    """Return the levels, which are numbers of concurrent requests, in rising order and each once.
    Raises InputError for an empty list or a level that is too low or too high."""
    found = tuple(sorted(set(levels)))
    if not found or found[0] < 1 or found[-1] > _MOST:
        raise InputError(
            f"{', '.join(map(str, levels)) or 'an empty list'} is not a valid list of concurrency "
            "levels",
            next_step=f"give levels from 1 to {_MOST}, for example 1,2,4,8,16",
        )
    return found


@dataclass
class ConcurrencySweep:
    """Measures a server at rising numbers of concurrent requests, the levels, until a level fails
    or would exceed the time limit. `bench` has the fields of BenchSpec that the user gave. The
    numbers of requests and of warm-up requests grow with the level unless the user gave them."""

    parts: SweepParts
    progress: SweepProgress
    levels: Sequence[int]
    target: Target
    bench: Mapping[str, Any]
    max_minutes: float | None = None

    async def run(self) -> None:
        best_tok_s = 0.0
        for index, level in enumerate(self.levels):
            self.progress.check_stop()
            fields = self.fields(level)
            self._check_time(level, fields, best_tok_s)
            bench = partial(
                self.parts.bench.run_target, self.target.run_id, self.target.url, **fields
            )
            results = await self.progress.measure(index, bench)
            await self.progress.save()
            point = self.progress.sweep.points[index]
            if not results or broken(results[0]):  # an invalid result does not end the sweep
                raise EndedEarly(f"{point.label} failed: {point.error}")
            best_tok_s = max(best_tok_s, point.tok_s or 0.0)
            if failed := results[0].summary.requests_failed:
                self.progress.note(f"{point.label}: {count_of(failed, 'request')} failed")

    def fields(self, level: int) -> dict[str, Any]:
        """Return the fields of BenchSpec that the sweep sets at one level, a number of concurrent
        requests."""
        given = self.bench
        requests = given.get("requests") or (
            REQUESTS if given.get("seconds") else ROUNDS * max(level, 2)
        )
        warmup = given.get("warmup")
        return {
            **given,
            "concurrency": level,
            "requests": max(requests, level),
            "warmup": level if warmup is None else warmup,
        }

    def _check_time(self, level: int, fields: Mapping[str, Any], best_tok_s: float) -> None:
        if self.max_minutes is None:
            return
        left_s = 60 * self.max_minutes - self.progress.elapsed_s
        spec: BenchSpec = self.parts.load.spec_of(None, dict(fields))
        needs_s = (
            (spec.requests + spec.warmup) * spec.max_tokens / best_tok_s if best_tok_s else 0.0
        )
        if spec.seconds is not None:
            needs_s = min(needs_s, spec.seconds)
        if left_s <= 0 or needs_s > left_s:
            about = f"; c={level} would take about {needs_s:.0f} s" if left_s > 0 else ""
            left = f"{max(0.0, left_s):.0f} s left{about}"
            raise EndedEarly(
                f"the sweep's limit of {self.max_minutes:g} minutes is nearly used up: {left}"
            )
