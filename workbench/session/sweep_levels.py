"""Throughput and latency against the number of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError
from workbench.session.driving import REQUESTS
from workbench.session.sweep_run import Ended, SweepRun, broken

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec
    from workbench.session.sweeping import Sweeping

ROUNDS = 8  # requests per stream: the steady window is then some 88 % of the run (bench/profiles.py)
_MOST = 4096


def levels_of(levels: Sequence[int]) -> tuple[int, ...]:
    """In rising order, so that a server that cannot take more is met once."""
    found = tuple(sorted(set(levels)))
    if not found or found[0] < 1 or found[-1] > _MOST:
        raise InputError(
            f"{', '.join(map(str, levels)) or 'nothing'} is no list of concurrencies",
            next_step=f"for example 1,2,4,8,16 (1 to {_MOST})",
        )
    return found


@dataclass
class LevelSweep:
    """`target`: (run id, None) or (None, URL). `bench`: fields of BenchSpec as given; requests and warm-up grow with
    the level unless they are given, and are never fewer than its streams."""

    session: Sweeping
    run: SweepRun
    levels: Sequence[int]
    target: tuple[str | None, str | None]
    bench: Mapping[str, Any]
    max_minutes: float | None = None

    async def go(self) -> None:
        best_tok_s = 0.0
        for index, level in enumerate(self.levels):
            self.session.going_on()
            fields = self.fields(level)
            self._in_time(level, fields, best_tok_s)
            results = await self.run.measured(index, lambda fields=fields: self._measure(fields))  # type: ignore[misc]
            await self.run.save()
            point = self.run.sweep.points[index]
            if not results or broken(results[0]):  # figures that may not be used are no reason to end
                raise Ended(f"{point.label} failed: {point.error}")
            best_tok_s = max(best_tok_s, point.tok_s or 0.0)
            if failed := results[0].summary.requests_failed:
                self.run.note(f"{point.label}: {failed} requests failed")

    def fields(self, level: int) -> dict[str, Any]:
        given = self.bench
        requests = given.get("requests") or (REQUESTS if given.get("seconds") else ROUNDS * max(level, 2))
        warmup = given.get("warmup")
        return {
            **given,
            "concurrency": level,
            "requests": max(requests, level),
            "warmup": level if warmup is None else warmup,
        }

    async def _measure(self, fields: Mapping[str, Any]) -> int:
        run_id, url = self.target
        if run_id is not None:
            return await self.session.bench_run(run_id, **fields)
        assert url is not None
        return await self.session.bench_url(url, **fields)

    def _in_time(self, level: int, fields: Mapping[str, Any], best_tok_s: float) -> None:
        """Not begun when it would not end in time, judged by the best throughput so far."""
        if self.max_minutes is None:
            return
        left_s = 60 * self.max_minutes - self.run.elapsed_s
        spec: BenchSpec = self.session.spec_of(None, dict(fields))
        needs_s = (spec.requests + spec.warmup) * spec.max_tokens / best_tok_s if best_tok_s else 0.0
        if spec.seconds is not None:
            needs_s = min(needs_s, spec.seconds)
        if left_s <= 0 or needs_s > left_s:
            about = f"; c={level} would take about {needs_s:.0f} s" if left_s > 0 else ""
            raise Ended(f"{self.max_minutes:g} minutes were given, {max(0.0, left_s):.0f} s of them are left{about}")
