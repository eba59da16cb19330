"""The search for the rate of requests with which a server keeps its SLO over a horizon. It is
stored as a sweep of the kind "rates": each rate is a point, which is added when the search reaches
it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from workbench.bench.rate_capacity import (
    FIRST_RATE,
    HORIZON_S,
    MIN_REQUESTS_TO_HOLD,
    MOST_RATE,
    TYPICAL_FULL_RUNS,
    TYPICAL_SHORT_RUNS,
    RateRun,
    RateSearch,
    lowest_measurable_rate,
    rate_capacity_sentence,
    rate_text,
    short_run_duration_s,
)
from workbench.bench.result_validity import RATE_NOT_OFFERED_PREFIX
from workbench.bench.steadiness import NOT_KEPT_UP_PREFIX
from workbench.bench.user_capacity import MAX_LIMIT_PERCENT
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import RATES, SweepSpec
from workbench.session.bench.spec import OPEN_LOOP_MAX_STREAMS, seed_of_load
from workbench.session.series.load_search import (
    LoadSearch,
    bench_spec_for_target,
    check_searched_fields_unset,
    check_slo_limits,
)
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    SweepTarget,
    check_time_limit_minutes,
    conditions_of_target,
    require_same_target,
    resolve_sweep_target,
)
from workbench.session.series.sweep_progress import SweepProgress, bench_fields_to_store

if TYPE_CHECKING:
    from workbench.bench.user_capacity import LevelVerdict
    from workbench.model.bench import BenchResult
    from workbench.model.sweep import Sweep

MAX_HORIZON_S = 3600.0
_MAX_STREAMS = 4096
_LONGEST_REQUEST_S = 30.0  # a request that keeps its limits rarely takes longer
# fields of BenchSpec that the search sets itself, with the option that sets them elsewhere
_OPTIONS_OF_SEARCH_FIELDS = {
    "concurrency": "--concurrency",
    "requests": "--requests",
    "seconds": "--seconds",
    "command": "--command",
    "trace_file": "--trace",
}
_SERVER_REFUSAL_PREFIXES = (
    NOT_KEPT_UP_PREFIX,
    RATE_NOT_OFFERED_PREFIX,
)  # these refusals begin so, and say that the rate fails


@dataclass(frozen=True, slots=True)
class RateRange:
    """The rates in requests/s that a search may try: `first` is the first one, and `most` the
    highest. Each is judged over `horizon_s` seconds."""

    first: float | None = None
    most: float = MOST_RATE
    horizon_s: float = HORIZON_S

    def __post_init__(self) -> None:
        if not 0 < self.horizon_s <= MAX_HORIZON_S:
            raise InputError(
                f"a horizon of {self.horizon_s / 60:g} minutes is not possible",
                next_step=f"give more than 0 and at most {MAX_HORIZON_S / 60:g} minutes",
            )
        if not 0 < self.first_rate <= self.most <= MOST_RATE:
            raise InputError(
                f"a search from {self.first_rate:g} to {self.most:g} requests/s is not possible",
                next_step=f"give rates up to {MOST_RATE:g}, the first at most the last",
            )
        lowest = min(self.first_rate, self.most)
        if lowest * self.horizon_s < MIN_REQUESTS_TO_HOLD:
            raise InputError(
                f"{rate_text(lowest)} over {self.horizon_s / 60:g} min are "
                f"{lowest * self.horizon_s:.0f} requests, and fewer than {MIN_REQUESTS_TO_HOLD:,} say "
                "too little about a rate",
                next_step=f"give --horizon {math.ceil(MIN_REQUESTS_TO_HOLD / lowest / 60)} or more, or "
                f"begin at {lowest_measurable_rate(self.horizon_s):g} requests/s or more",
            )

    @property
    def first_rate(self) -> float:
        """The rate in requests/s with which the search begins."""
        if self.first is not None:
            return self.first
        return min(max(FIRST_RATE, lowest_measurable_rate(self.horizon_s)), self.most)

    @property
    def typical_search_s(self) -> float:
        """The typical seconds that a search takes."""
        looks_s = TYPICAL_SHORT_RUNS * short_run_duration_s(self.first_rate, self.horizon_s)
        return looks_s + TYPICAL_FULL_RUNS * self.horizon_s


async def plan_rate_capacity_search(
    parts: SweepParts,
    rates: RateRange,
    run_id: str | None,
    url: str | None,
    max_minutes: float | None,
    bench: Mapping[str, Any],
) -> PlannedSweep:
    """Check a search for a rate of requests, and return it as a sweep. The server is the run
    `run_id` or the one at `url`. `bench` has fields of BenchSpec with the SLO, unless the preset of
    the run has one. Raises InputError or BenchError for a search that cannot be carried out."""
    check_searched_fields_unset(
        bench,
        _OPTIONS_OF_SEARCH_FIELDS,
        "the rates and their requests",
        "--from, --most and --horizon limit the rates",
    )
    target = await resolve_sweep_target(parts, run_id, url)
    load = bench_spec_for_target(parts, target, {**bench, "rate": rates.first_rate})
    check_slo_limits(load.slo, "the search for a rate", MAX_LIMIT_PERCENT)
    shape = {**bench, "slo": load.slo}
    spec = SweepSpec(
        values=(f"{rates.first_rate:g}", f"{rates.most:g}", f"{rates.horizon_s:g}"),
        bench=bench_fields_to_store(shape),
        measured=await conditions_of_target(parts, (), target, shape),
        run_id=target.run_id,
        url=target.url,
        max_minutes=max_minutes,
    )
    return _planned_search(parts, spec, target, shape)


async def plan_resumed_rate_capacity_search(
    parts: SweepParts, sweep: Sweep, spec: SweepSpec
) -> PlannedSweep:
    """Return the search that continues a stored one. Raises InputError if the server or its
    conditions are not those of the first part."""
    return _planned_search(parts, spec, await require_same_target(parts, sweep, spec), spec.bench)


def _planned_search(
    parts: SweepParts, spec: SweepSpec, target: SweepTarget, shape: Mapping[str, Any]
) -> PlannedSweep:
    check_time_limit_minutes(spec.max_minutes)
    rates = RateRange(*map(float, spec.values))

    def make_design(progress: SweepProgress) -> CapacityOfRates:
        return CapacityOfRates(parts, progress, target, shape, rates=rates)

    return PlannedSweep(RATES, "rate", "requests/s", (), spec, make_design)


@dataclass
class CapacityOfRates(LoadSearch):
    """Searches the rate of requests. Its levels are rates in requests/s."""

    rates: RateRange = field(default_factory=RateRange)

    @property
    def search(self) -> RateSearch:
        horizon_s = self.rates.horizon_s
        runs = {
            rate: [_rate_run_from_result(result, horizon_s) for result in found]
            for rate, found in self.results.items()
        }
        return RateSearch(self.slo_limits, runs, horizon_s, self.rates.first_rate, self.rates.most)

    def next_run(self) -> float | None:
        wanted = self.search.next_rate_and_duration_s()
        return None if wanted is None else wanted[0]

    def raise_if_stopped(self, level: float) -> None:
        wanted = self.search.next_rate_and_duration_s()
        assert wanted is not None
        self.progress.raise_if_cancelled()
        self.progress.raise_if_no_time_for(wanted[1], self.level_label(level))

    def verdict_on_level(self, level: float) -> LevelVerdict | None:
        return self.search.verdict_at(level)

    def highest_level_within_slo(self) -> float | None:
        return self.search.highest_rate_that_holds

    def search_result_text(self, *, ended: bool) -> str:
        return rate_capacity_sentence(self.search, ended=ended)

    def level_label(self, level: float) -> str:
        return rate_text(level)

    def estimated_remaining_s(self) -> float:
        runs = [run for found in self.search.levels.values() for run in found]
        whole = sum(run.whole for run in runs)
        whole_left_s = max(1, TYPICAL_FULL_RUNS - whole) * self.rates.horizon_s
        looks_left = 0 if whole else max(1, TYPICAL_SHORT_RUNS - len(runs))
        return whole_left_s + looks_left * short_run_duration_s(
            self.rates.first_rate, self.rates.horizon_s
        )

    def why_result_unusable(self, result: BenchResult) -> str | None:
        """Return why the result says nothing about its rate and is measured again; None if it
        counts. A server that falls behind is no such reason: its rate has failed."""
        refused = result.summary.refused
        return next((why for why in refused if not why.startswith(_SERVER_REFUSAL_PREFIXES)), None)

    def bench_fields_at_level(self, level: float) -> dict[str, Any]:
        """Return the fields of BenchSpec of one run. Each run has a seed of its own, so that no
        prompt is sent twice."""
        wanted = self.search.next_rate_and_duration_s()
        assert wanted is not None
        seconds = wanted[1]
        earlier_runs = len(self.results.get(level, ()))
        streams = min(_MAX_STREAMS, math.ceil(_LONGEST_REQUEST_S * level))
        return {
            **self.bench,
            "rate": level,
            "requests": math.ceil(level * seconds),
            "concurrency": max(OPEN_LOOP_MAX_STREAMS, streams),
            "seed": seed_of_load(self.bench) + 10 * round(1000 * level) + earlier_runs,
        }

    def results_shown_for_level(self, level: float) -> Sequence[BenchResult]:
        return self.results[level][-1:]


def _rate_run_from_result(result: BenchResult, horizon_s: float) -> RateRun:
    summary, spec = result.summary, result.spec
    requests = summary.requests_ok + summary.requests_failed
    return RateRun(
        requests,
        summary.slo,
        kept_up=not any(why.startswith(_SERVER_REFUSAL_PREFIXES) for why in summary.refused),
        whole=requests >= max(MIN_REQUESTS_TO_HOLD, math.floor((spec.rate or 0.0) * horizon_s)),
    )
