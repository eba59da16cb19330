"""The number of users within an SLO as one result of a server, so that servers can be compared by
it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.bench.user_capacity import (
    FIRST_USERS,
    MOST_USERS,
    LevelRun,
    requests_needed_per_run,
    verdict_on_level,
)
from workbench.bench.user_estimate import UserEstimate
from workbench.model.counts import format_four_digits
from workbench.model.errors import BenchError
from workbench.model.slo import parse_slo
from workbench.session.bench.spec import seed_of_load

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult, BenchSummary, ResultId
    from workbench.session.results.results import Results

_MAX_TRIES_PER_RUN = 3  # of a run that is invalid
# Benchmarks a server with fields of BenchSpec, and returns the id of the result.
RunBenchmark = Callable[..., "Awaitable[ResultId]"]


async def measure_user_capacity(
    run_benchmark: RunBenchmark, results: Results, load_fields: Mapping[str, Any]
) -> ResultId:
    """Search the number of users that keep the SLO of `load_fields` (fields of BenchSpec),
    beginning with its concurrency, one run a level. Return the id of a stored result with that
    number: its metrics are those of the highest level that kept the SLO, its spec is that of the
    first level. Raises BenchError without an SLO, if a level could not be judged, or if one user
    breaks the SLO."""
    slo = str(load_fields.get("slo") or "")
    if not slo:
        raise BenchError(
            "users are counted within limits, and there are none",
            next_step="give them, for example --slo 'ttft<=500@p95'",
        )
    limits = parse_slo(slo)
    measured: dict[int, BenchResult] = {}
    estimate = UserEstimate({}, int(load_fields.get("concurrency") or FIRST_USERS), MOST_USERS)
    while (users := estimate.next_level()) is not None:
        fields = {
            **load_fields,
            "concurrency": users,
            "requests": requests_needed_per_run(users, limits),
            "seconds": None,  # the number of requests decides
            "warmup": users,
            "seed": seed_of_load(load_fields) + 1000 * users,
        }
        measured[users] = result = await _measure_valid_result(run_benchmark, results, fields)
        summary = result.summary
        judged = verdict_on_level(
            [LevelRun(summary.requests_ok + summary.requests_failed, summary.slo)], limits
        )
        assert judged is not None
        ratios = {**estimate.ratios, users: math.log(judged.ratio)}
        estimate = UserEstimate(ratios, estimate.first, estimate.most)
    if estimate.highest_users_within_limits is None:
        raise BenchError(f"one user breaks a limit of {slo}", next_step="loosen the limits")
    best, value = measured[estimate.highest_users_within_limits], estimate.estimated_users()
    numbers = ", ".join(f"#{one.id}" for one in measured.values())
    note = f"{format_four_digits(value)} users keep {slo}, by {numbers}; the rest is of #{best.id}"
    first = measured[estimate.first]
    summary = replace(best.summary, users=value, notes=(*best.summary.notes, note))
    samples = await asyncio.to_thread(results.db.samples, best.id)
    return await asyncio.to_thread(results.db.add, first.spec, best.conditions, summary, samples)


async def _measure_valid_result(
    run_benchmark: RunBenchmark, results: Results, fields: Mapping[str, Any]
) -> BenchResult:
    """Return the result of one level, measured again if it is invalid. Requests that fail can show
    that a level breaks the limits; a level that keeps them needs a valid result. Raises BenchError
    if it stays invalid, or if its limits cannot be judged."""
    why = ""
    for _ in range(_MAX_TRIES_PER_RUN):
        result = await results.get(await run_benchmark(**fields))
        why = _why_level_is_not_judged(result.summary)
        if not why:
            return result
    raise BenchError(f"{fields['concurrency']} users: {why}")


def _why_level_is_not_judged(summary: BenchSummary) -> str:
    """Return why a result does not show whether its level keeps the SLO; "" if it does."""
    for one in summary.slo:
        if one.kept_pct is None:
            return f"{one.limit} was not measured"
    if not summary.slo:
        return next(iter(summary.refused), "no SLO")
    breaks_limit = any((one.margin_pct or 0.0) < 0 for one in summary.slo)
    if breaks_limit and summary.requests_failed and summary.requests_ok:
        return ""
    return next(iter(summary.refused), "")
