"""The search for the rate of requests with which a server keeps its SLO over a horizon. It is stored
as a sweep of the kind "rates": each rate is a point, which is added when the search reaches it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from workbench.bench.rate_capacity import (
    FIRST_RATE,
    HORIZON_S,
    LEAST_REQUESTS,
    MOST_RATE,
    TYPICAL_LOOKS,
    TYPICAL_RUNS,
    RateRun,
    RateSearch,
    answer_sentence,
    lowest_measurable_rate,
    rate_text,
    short_run_s,
)
from workbench.bench.result_validity import NOT_OFFERED
from workbench.bench.steadiness import NOT_KEPT_UP
from workbench.bench.user_capacity import MOST_PERCENT
from workbench.model.errors import InputError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.sweep import RATES, SweepSpec
from workbench.session.bench.spec import OPEN_STREAMS
from workbench.session.series.load_search import (
    LoadSearch,
    check_limits,
    check_own_fields,
    load_of_target,
)
from workbench.session.series.sweep_parts import (
    PlannedSweep,
    SweepParts,
    Target,
    check_minutes,
    conditions_of_target,
    same_target,
    target_of,
)
from workbench.session.series.sweep_progress import SweepProgress, stored_shape

if TYPE_CHECKING:
    from workbench.bench.user_capacity import Judged
    from workbench.model.bench import BenchResult
    from workbench.model.sweep import Sweep

LONGEST_HORIZON_S = 3600.0
_MOST_STREAMS = 4096
_IN_FLIGHT_S = 30.0  # a request that keeps its limits rarely takes longer
# fields of BenchSpec that the search sets itself, with the option that sets them elsewhere
_OWN = {
    "concurrency": "--concurrency",
    "requests": "--requests",
    "seconds": "--seconds",
    "command": "--command",
    "trace_file": "--trace",
}
_OF_THE_SERVER = (NOT_KEPT_UP, NOT_OFFERED)  # these refusals begin so, and say that the rate fails


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates in requests/s that a search may try: `first` is the first one, and `most` the
    highest. Each counts over `horizon_s` seconds."""

    first: float | None = None
    most: float = MOST_RATE
    horizon_s: float = HORIZON_S

    def __post_init__(self) -> None:
        if not 0 < self.horizon_s <= LONGEST_HORIZON_S:
            raise InputError(
                f"a horizon of {self.horizon_s / 60:g} minutes is not possible",
                next_step=f"give more than 0 and at most {LONGEST_HORIZON_S / 60:g} minutes",
            )
        if not 0 < self.begin <= self.most <= MOST_RATE:
            raise InputError(
                f"a search from {self.begin:g} to {self.most:g} requests/s is not possible",
                next_step=f"give rates up to {MOST_RATE:g}, the first at most the last",
            )
        lowest = min(self.begin, self.most)
        if lowest * self.horizon_s < LEAST_REQUESTS:
            raise InputError(
                f"{rate_text(lowest)} over {self.horizon_s / 60:g} min are "
                f"{lowest * self.horizon_s:.0f} requests, and fewer than {LEAST_REQUESTS:,} say "
                "too little about a rate",
                next_step=f"give --horizon {math.ceil(LEAST_REQUESTS / lowest / 60)} or more, or "
                f"begin at {lowest_measurable_rate(self.horizon_s):g} requests/s or more",
            )

    @property
    def begin(self) -> float:
        """The rate to begin with."""
        if self.first is not None:
            return self.first
        return min(max(FIRST_RATE, lowest_measurable_rate(self.horizon_s)), self.most)

    @property
    def typical_s(self) -> float:
        """How long a search takes, about."""
        looks_s = TYPICAL_LOOKS * short_run_s(self.begin, self.horizon_s)
        return looks_s + TYPICAL_RUNS * self.horizon_s


async def plan_rate_capacity(
    parts: SweepParts,
    rates: Rates,
    run_id: str | None,
    url: str | None,
    max_minutes: float | None,
    bench: Mapping[str, Any],
) -> PlannedSweep:
    """Check a search for a rate of requests, and return it as a sweep. The server is the run `run_id`
    or the one at `url`. `bench` has fields of BenchSpec with the SLO, unless the preset of the run
    has one. Raises InputError or BenchError for a search that cannot be carried out."""
    check_own_fields(
        bench, _OWN, "the rates and their requests", "--from, --most and --horizon limit the rates"
    )
    target = await target_of(parts, run_id, url)
    load = load_of_target(parts, target, {**bench, "rate": rates.begin})
    check_limits(load.slo, "the search for a rate", MOST_PERCENT)
    shape = {**bench, "slo": load.slo}
    spec = SweepSpec(
        values=(f"{rates.begin:g}", f"{rates.most:g}", f"{rates.horizon_s:g}"),
        bench=stored_shape(shape),
        measured=await conditions_of_target(parts, (), target, shape),
        run_id=target.run_id,
        url=target.url,
        max_minutes=max_minutes,
    )
    return _planned(parts, spec, target, shape)


async def resumed_rate_capacity(parts: SweepParts, sweep: Sweep, spec: SweepSpec) -> PlannedSweep:
    """Return the search that continues a stored one. Raises InputError if the server or its
    conditions are not those of the first part."""
    return _planned(parts, spec, await same_target(parts, sweep, spec), spec.bench)


def _planned(
    parts: SweepParts, spec: SweepSpec, target: Target, shape: Mapping[str, Any]
) -> PlannedSweep:
    check_minutes(spec.max_minutes)
    rates = Rates(*map(float, spec.values))

    def design(progress: SweepProgress) -> CapacityOfRates:
        return CapacityOfRates(parts, progress, target, shape, rates=rates)

    return PlannedSweep(RATES, "rate", "requests/s", (), spec, design)


@dataclass
class CapacityOfRates(LoadSearch):
    """Searches the rate of requests. Its levels are rates in requests/s."""

    rates: Rates = field(default_factory=Rates)

    @property
    def search(self) -> RateSearch:
        horizon_s = self.rates.horizon_s
        runs = {
            rate: [_run_of(result, horizon_s) for result in found]
            for rate, found in self.results.items()
        }
        return RateSearch(self.limits, runs, horizon_s, self.rates.begin, self.rates.most)

    def next_run(self) -> float | None:
        wanted = self.search.next_run()
        return None if wanted is None else wanted[0]

    def check_go_on(self, level: float) -> None:
        wanted = self.search.next_run()
        assert wanted is not None
        self.progress.check_stop()
        self.progress.check_time(wanted[1], self.label(level))

    def judged(self, level: float) -> Judged | None:
        return self.search.verdict_at(level)

    def holds(self) -> float | None:
        return self.search.holds

    def answer(self, *, ended: bool) -> str:
        return answer_sentence(self.search, ended=ended)

    def label(self, level: float) -> str:
        return rate_text(level)

    def left_s(self) -> float:
        runs = [run for found in self.search.levels.values() for run in found]
        whole = sum(run.whole for run in runs)
        whole_left_s = max(1, TYPICAL_RUNS - whole) * self.rates.horizon_s
        looks_left = 0 if whole else max(1, TYPICAL_LOOKS - len(runs))
        return whole_left_s + looks_left * short_run_s(self.rates.begin, self.rates.horizon_s)

    def refusal(self, result: BenchResult) -> str | None:
        """Return why the result says nothing about its rate and is measured again; None if it
        counts. A server that falls behind is no such reason: its rate has failed."""
        refused = result.summary.refused
        return next((why for why in refused if not why.startswith(_OF_THE_SERVER)), None)

    def fields(self, level: float) -> dict[str, Any]:
        """Return the fields of BenchSpec of one run. Each run has a seed of its own, so that no
        prompt is sent twice."""
        wanted = self.search.next_run()
        assert wanted is not None
        seconds = wanted[1]
        earlier_runs = len(self.results.get(level, ()))
        streams = min(_MOST_STREAMS, math.ceil(_IN_FLIGHT_S * level))
        return {
            **self.bench,
            "rate": level,
            "requests": math.ceil(level * seconds),
            "concurrency": max(OPEN_STREAMS, streams),
            "seed": (self.bench.get("seed") or 0) + 10 * round(1000 * level) + earlier_runs,
        }

    def shown(self, level: float) -> Sequence[BenchResult]:
        return self.results[level][-1:]


def _run_of(result: BenchResult, horizon_s: float) -> RateRun:
    summary, spec = result.summary, result.spec
    requests = summary.requests_ok + summary.requests_failed
    return RateRun(
        requests,
        summary.slo,
        kept_up=not any(why.startswith(_OF_THE_SERVER) for why in summary.refused),
        whole=requests >= max(LEAST_REQUESTS, math.floor((spec.rate or 0.0) * horizon_s)),
    )
