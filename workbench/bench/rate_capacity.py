"""Which rate of requests a server keeps up with under an SLO, over a stated horizon: what the runs
at a rate prove, which rate comes next, and the answer, which is always a bracket. All functions are
pure.

A rate is far noisier than a number of users, because near saturation a queue needs minutes to grow
or to empty. So only a run over the whole horizon, with at least MIN_REQUESTS_TO_HOLD requests, can
show that a rate *holds*: the exact bound of Clopper and Pearson over the independent requests that
the run is worth (independent_requests.py) shows for each limit that the wanted share is kept, and
the server kept up. A rate *fails* if the same bound shows for one limit that the share is not kept.
Otherwise it is *open*. Short looks find the region first, and prove at most that a rate fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workbench.bench.user_capacity import (
    LevelVerdict,
    Verdict,
    clopper_pearson_lower,
    nearest_limit_text,
)
from workbench.model.counts import format_four_digits
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.slo import Limit, LimitAttained, share_text

MIN_REQUESTS_TO_HOLD = 1000  # of a run that shows that a rate holds
HORIZON_S = 600.0
FIRST_RATE = 2.0  # requests/s
MOST_RATE = 2000.0
SHORT_RUN_S = 60.0
TYPICAL_SHORT_RUNS, TYPICAL_FULL_RUNS = (
    6,
    4,
)  # of a search, in tests/benchmarks/bench_rate_capacity.py
_SHORT_RUN_REQUESTS = 100
_SHORT_RUN_SHARE = 0.2  # of the horizon
_ERROR_PROBABILITY = 0.005  # one-sided, of one verdict: a search has a few of them
_FULL_RUNS_BELOW_FACTOR = 1.15  # factor between two looks at which runs over the horizon begin
_MIN_RATE_FACTOR = 1.1  # least factor between two rates that are measured over the horizon
_MAX_FULL_RUNS = 6  # over the horizon, of a search


@dataclass(frozen=True, slots=True)
class RateRun:
    """One run at a rate. `whole` says whether it covers the horizon, and `kept_up` whether the
    server completed the requests as fast as they came."""

    requests: int
    attained: tuple[LimitAttained, ...]
    kept_up: bool
    whole: bool


def lowest_measurable_rate(horizon_s: float) -> float:
    """Return the lowest rate whose horizon has enough requests to be judged."""
    return _round_rate_to_three_digits(MIN_REQUESTS_TO_HOLD / horizon_s, up=True)


def short_run_duration_s(rate: float, horizon_s: float) -> float:
    """Return how many seconds a short run at a rate takes: a minute, but at most a fifth of the
    horizon. It is longer if 100 requests need more time, up to the horizon."""
    wanted_s = max(SHORT_RUN_S, _SHORT_RUN_REQUESTS / rate)
    return min(wanted_s, max(_SHORT_RUN_SHARE * horizon_s, _SHORT_RUN_REQUESTS / rate), horizon_s)


def verdict_on_rate(runs: Sequence[RateRun], limits: Sequence[Limit]) -> LevelVerdict | None:
    """Return the verdict on a rate from its last run, None before its first one. The `ratio` of the
    verdict is that of the latency reached to its limit, infinite if too many requests failed."""
    if not runs:
        return None
    run = runs[-1]
    margins = [
        _share_of_requests_within_limit(run, n) - limit.percent / 100
        for n, limit in enumerate(limits)
    ]
    binding = min(
        range(len(limits)), key=lambda index: (margins[index], -_latency_to_limit_ratio(run, index))
    )
    lowest = _lower_bound_of_kept_share(run, binding)
    return LevelVerdict(
        _verdict_on_run(run, limits), binding, _latency_to_limit_ratio(run, binding), 100 * lowest
    )


def _verdict_on_run(run: RateRun, limits: Sequence[Limit]) -> Verdict:
    error = _ERROR_PROBABILITY / len(limits)
    verdict = Verdict.HOLDS if run.whole and run.kept_up else Verdict.OPEN
    for limit_index, limit in enumerate(limits):
        wanted = limit.percent / 100
        worth = _count_independent_requests(run, limit_index)
        missed = (1 - _share_of_requests_within_limit(run, limit_index)) * worth
        if clopper_pearson_lower(missed, worth, error) > 1 - wanted:
            return Verdict.FAILS
        if _lower_bound_of_kept_share(run, limit_index) < wanted:
            verdict = Verdict.OPEN
    return verdict


def _share_of_requests_within_limit(run: RateRun, limit_index: int) -> float:
    return run.attained[limit_index].kept_share


def _count_independent_requests(run: RateRun, limit_index: int) -> float:
    """Return how many independent requests the run is worth; 1 if that is not known."""
    return min(float(run.requests), run.attained[limit_index].independent or 1.0)


def _lower_bound_of_kept_share(run: RateRun, limit_index: int) -> float:
    worth = _count_independent_requests(run, limit_index)
    return clopper_pearson_lower(
        _share_of_requests_within_limit(run, limit_index) * worth, worth, _ERROR_PROBABILITY
    )


def _latency_to_limit_ratio(run: RateRun, limit_index: int) -> float:
    attained = run.attained[limit_index]
    if attained.reached_ms is None or not attained.most_ms:
        return math.inf
    return attained.reached_ms / attained.most_ms


def _round_rate_to_three_digits(rate: float, *, up: bool = False) -> float:
    """Return a rate with three digits."""
    scale = 10.0 ** (math.floor(math.log10(rate)) - 2)
    steps = math.ceil(rate / scale - 1e-9) if up else round(rate / scale)
    return float(f"{steps * scale:.12g}")


@dataclass(frozen=True, slots=True)
class RateSearch:
    """The rates that were measured so far, with their runs. Looks double the rate until one does
    not keep the limits, and halve the gap. Then runs over the horizon begin at the highest rate
    that kept them, and go down until a rate holds and up until one fails."""

    limits: tuple[Limit, ...]
    levels: Mapping[float, Sequence[RateRun]]
    horizon_s: float = HORIZON_S
    first: float = FIRST_RATE
    most: float = MOST_RATE

    def next_rate_and_duration_s(self) -> tuple[float, float] | None:
        """Return (rate, seconds) of the next run. None if the search has ended."""
        whole = [rate for rate, runs in self.levels.items() if any(run.whole for run in runs)]
        if not whole:
            rate = self._next_short_run_rate()
            if rate is not None:
                return rate, short_run_duration_s(rate, self.horizon_s)
        rate = self._next_full_run_rate(whole)
        if rate is None:
            return None
        return rate, self.horizon_s

    @property
    def lowest_rate(self) -> float:
        return lowest_measurable_rate(self.horizon_s)

    def _next_short_run_rate(self) -> float | None:
        """Return the next rate to look at. None if the looks have found the region."""
        if not self.levels:
            return self.first
        kept_rates = self._rates_within_limits
        missed = min((rate for rate in self.levels if rate not in kept_rates), default=None)
        if missed is None:
            top = max(self.levels)
            return _round_rate_to_three_digits(min(2 * top, self.most)) if top < self.most else None
        kept = max((rate for rate in self.levels if rate < missed), default=None)
        if kept is not None:
            is_wide = missed > _FULL_RUNS_BELOW_FACTOR * kept
            return _round_rate_to_three_digits(math.sqrt(kept * missed)) if is_wide else None
        if missed <= self.lowest_rate:
            return None
        return _round_rate_to_three_digits(max(missed / 2, self.lowest_rate))

    @property
    def _rates_within_limits(self) -> list[float]:
        """The rates at which the newest run kept all limits and the server kept up. Unlike a
        verdict, this can be chance."""
        return [rate for rate, runs in self.levels.items() if self._keeps_limits_and_rate(runs[-1])]

    def _keeps_limits_and_rate(self, run: RateRun) -> bool:
        shares = (
            _share_of_requests_within_limit(run, n) >= limit.percent / 100
            for n, limit in enumerate(self.limits)
        )
        return run.kept_up and all(shares)

    def _next_full_run_rate(self, full_run_rates: Sequence[float]) -> float | None:
        """Return the next rate to measure over the horizon. None if the bracket is narrow, if no
        other rate can be measured, or after _MAX_FULL_RUNS."""
        if not full_run_rates:
            return max(self._rates_within_limits, default=self.lowest_rate)
        if len(full_run_rates) >= _MAX_FULL_RUNS:
            return None
        holds, fails = self.highest_rate_that_holds, self.lowest_rate_that_fails
        step = _MIN_RATE_FACTOR ** len(full_run_rates)  # longer, the longer nothing is found
        if holds is None:
            lower = _round_rate_to_three_digits(max(min(full_run_rates) / step, self.lowest_rate))
            return lower if lower < min(full_run_rates) else None
        if fails is None:
            higher = _round_rate_to_three_digits(min(max(full_run_rates) * step, self.most))
            return higher if higher > max(full_run_rates) else None
        opened = [rate for rate in full_run_rates if holds < rate < fails]
        for low, high in ((holds, min(opened, default=fails)), (max(opened, default=holds), fails)):
            if high > _MIN_RATE_FACTOR * _MIN_RATE_FACTOR * low:
                return _round_rate_to_three_digits(math.sqrt(low * high))
        return None

    @property
    def highest_rate_that_holds(self) -> float | None:
        """The highest rate that holds; None if none does. A rate above one that fails does not
        count."""
        fails = min(self._rates_with_verdict(Verdict.FAILS), default=math.inf)
        holding = self._rates_with_verdict(Verdict.HOLDS)
        return max((rate for rate in holding if rate < fails), default=None)

    @property
    def lowest_rate_that_fails(self) -> float | None:
        """The lowest rate that fails; None if none does."""
        return min(self._rates_with_verdict(Verdict.FAILS), default=None)

    def _rates_with_verdict(self, verdict: Verdict) -> list[float]:
        """Return the measured rates that have this verdict."""
        levels = self.levels.items()
        return [r for r, runs in levels if _verdict_on_run(runs[-1], self.limits) == verdict]

    def verdict_at(self, rate: float) -> LevelVerdict | None:
        """Return the verdict on a rate, or None if it was not measured."""
        return verdict_on_rate(self.levels.get(rate, ()), self.limits)


def rate_text(rate: float) -> str:
    return f"{rate:g} requests/s"


def rate_capacity_sentence(search: RateSearch, *, ended: bool) -> str:
    """Return the answer: which rate holds over the horizon, which fails, what is open between them,
    and which limit binds. `ended` says whether the search came to its end."""
    holds, fails = search.highest_rate_that_holds, search.lowest_rate_that_fails
    over = f"over {search.horizon_s / 60:g} min"
    words = [f"{word} {rate:g}" for word, rate in (("holds", holds), ("fails", fails)) if rate]
    if not words:
        return f"no rate was decided {over}"
    answer = f"{', '.join(words)} requests/s {over}"
    if holds is not None:
        lowest = search.verdict_at(holds)
        assert lowest is not None
        answer += f" (attainment >= {share_text(lowest.attainment_pct)})"
    open_ = _undecided_rate_sentences(search, ended=ended)
    return "; ".join([answer, *open_, *_binding_limit_sentences(search)])


def _undecided_rate_sentences(search: RateSearch, *, ended: bool) -> list[str]:
    holds, fails = search.highest_rate_that_holds, search.lowest_rate_that_fails
    if fails is None:
        if ended and holds == search.most:
            return ["higher rates were not asked for"]
        return ["a rate that fails was not found"]
    if holds is not None:
        return []
    if ended and min(search.levels) <= search.lowest_rate:
        return [
            f"no rate holds; less than {search.lowest_rate:g} requests/s needs a longer --horizon"
        ]
    return ["a rate that holds was not found"]


def _binding_limit_sentences(search: RateSearch) -> list[str]:
    fails = search.lowest_rate_that_fails
    at = known_values((fails, search.highest_rate_that_holds))[0]
    judged = search.verdict_at(at)
    if judged is None:
        return []
    limit = search.limits[judged.binding]
    if not math.isfinite(judged.ratio):
        return [f"{limit} binds: too many requests failed at {rate_text(at)}"]
    reached_ms = judged.ratio * limit.most_ms
    if fails is None:
        return [nearest_limit_text(limit, reached_ms)]
    return [f"{limit} binds: {format_four_digits(reached_ms)} ms at {rate_text(at)}"]
