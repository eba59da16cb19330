"""How many users a server serves under an SLO: what a level of users proves, which level comes
next, and the answer. All functions are pure.

A user sends the next request when the answer to the previous one has ended. A level is a number of
users, and is measured in several runs. The unit is a run, because the requests of one run share the
state of the server and of the machine.

For each limit, a run has one number: the logarithm of the latency that the wanted share of its
requests kept, divided by the limit. A level *holds* if Student's t shows for each limit that the
mean of this number is at most 0, and if the exact binomial bound (Clopper and Pearson 1934) of the
requests of all runs shows that the wanted share is kept. A level *fails* if t shows for one limit
that the mean is above 0. Otherwise it is *open*. Because a level may be looked at after each run,
each look may err in `_ERROR_PROBABILITY` / (number of looks) of cases.

Runs one after the other share what else the machine does, so their spread does not show how much
its speed changes within minutes. Therefore the search comes back to both ends of its bracket, in
turn, after all other levels. If the later runs contradict the first ones, the level is open again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from statistics import fmean, stdev

from workbench.model.counts import count_of, format_four_digits
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.slo import Limit, LimitAttained, share_text
from workbench.model.student_t import incomplete_beta, t_quantile

MIN_RUNS_PER_LEVEL, MAX_RUNS_PER_LEVEL = 2, 6  # of one level, one after the other
_REPEATED_RUNS_OF_ENDS = 2  # of both ends of the bracket, after those of other levels
TYPICAL_RUNS = 33  # of a search, in the simulation of tests/benchmarks/bench_capacity.py
FIRST_USERS = 8
MOST_USERS = 4096
MAX_LIMIT_PERCENT = 99.9  # more would need more than 10,000 requests at each level
MIN_REQUESTS_PER_USER = (
    8  # least number of requests of a user in a run: fewer would be mostly ramp and tail
)
_ERROR_PROBABILITY = 0.025  # one-sided, of one level
_VERDICTS_PER_LEVEL = MAX_RUNS_PER_LEVEL + _REPEATED_RUNS_OF_ENDS - MIN_RUNS_PER_LEVEL + 1
_MIN_REQUESTS_PER_RUN = 64  # of one run; a percentile of fewer says little
_FINE_GAP_SHARE = 0.05  # the search ends at gaps of this share of the users that hold
_CLIFF_FACTOR = 2.0  # a latency this many times its limit, where the level before holds
_LOG_RATIO_OF_FAILED_RUN = math.log(
    1e3
)  # stands for the latency of a run in which too many requests failed


class Verdict(StrEnum):
    """What the runs of a level show."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class LevelRun:
    """One run at a level: how many of its requests kept each limit of the SLO. A run with a higher
    `number` came later."""

    requests: int
    attained: tuple[LimitAttained, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """The verdict on a level. `binding` is the index of the limit that binds, and `ratio` the mean
    latency at its wanted share, divided by the limit. `attainment_pct` is the lower bound of the
    percentage of requests that keep the limit that binds."""

    verdict: Verdict
    binding: int
    ratio: float
    attainment_pct: float


def requests_needed_per_run(users: int, limits: Sequence[Limit]) -> int:
    """Return how many requests a run needs, so that MIN_RUNS_PER_LEVEL runs can show the highest
    percentage of `limits`."""
    wanted = max((limit.percent / 100 for limit in limits), default=0.0)
    least = max(_MIN_REQUESTS_PER_RUN, MIN_REQUESTS_PER_USER * users)
    if not wanted:
        return least
    needed = math.log(_ERROR_PROBABILITY / _VERDICTS_PER_LEVEL) / math.log(wanted)
    return max(least, math.ceil(needed / MIN_RUNS_PER_LEVEL))


def verdict_on_level(runs: Sequence[LevelRun], limits: Sequence[Limit]) -> LevelVerdict | None:
    """Return the verdict on a level, or None before its first run."""
    if not runs:
        return None
    means = [fmean(_log_latency_to_limit_ratios(runs, place)) for place in range(len(limits))]
    binding = max(range(len(limits)), key=lambda place: means[place])
    lowest = _attainment_lower_bound(runs, binding)
    return LevelVerdict(
        _verdict_on_runs(runs, limits), binding, math.exp(means[binding]), 100 * lowest
    )


def _verdict_on_runs(runs: Sequence[LevelRun], limits: Sequence[Limit]) -> Verdict:
    if len(runs) < MIN_RUNS_PER_LEVEL:
        return Verdict.OPEN
    error = _ERROR_PROBABILITY / _VERDICTS_PER_LEVEL
    for place in range(len(limits)):
        mean, half = _mean_and_one_sided_half_width(
            _log_latency_to_limit_ratios(runs, place), error / len(limits)
        )
        if mean - half > 0:
            return Verdict.FAILS
    for place, limit in enumerate(limits):
        mean, half = _mean_and_one_sided_half_width(
            _log_latency_to_limit_ratios(runs, place), error
        )
        if mean + half > 0 or _attainment_lower_bound(runs, place, error) < limit.percent / 100:
            return Verdict.OPEN
    return Verdict.HOLDS


def _log_latency_to_limit_ratios(runs: Sequence[LevelRun], limit_index: int) -> list[float]:
    """Return ln(latency reached / limit) of the limit at this index, one number for each run."""
    return [_log_latency_to_limit_ratio(run.attained[limit_index]) for run in runs]


def _log_latency_to_limit_ratio(attained: LimitAttained) -> float:
    if attained.reached_ms is None or not attained.most_ms:
        return _LOG_RATIO_OF_FAILED_RUN
    return math.log(max(attained.reached_ms, 1e-3) / attained.most_ms)


def _mean_and_one_sided_half_width(values: Sequence[float], error: float) -> tuple[float, float]:
    """Return (mean, half width) of the one-sided t interval of the mean."""
    spread = stdev(values) / math.sqrt(len(values))
    return fmean(values), t_quantile(1 - error, len(values) - 1) * spread


def _attainment_lower_bound(
    runs: Sequence[LevelRun], limit_index: int, error: float = _ERROR_PROBABILITY
) -> float:
    """Return the lower confidence bound (Clopper and Pearson) of the share of requests that keep
    the limit at this index, over all requests of the runs. `error` is the probability that the
    share is lower."""
    requests = kept = 0
    for run in runs:
        requests += run.requests
        kept += _count_requests_within_limit(run, limit_index)
    return clopper_pearson_lower(kept, requests, error)


@lru_cache(maxsize=1024)
def clopper_pearson_lower(successes: float, trials: float, error: float) -> float:
    """Return the exact (Clopper-Pearson) lower confidence bound of a proportion.

    It is the share of which `successes` or more of `trials` are seen with probability `error`.
    """
    if not successes:
        return 0.0
    low, high = 0.0, successes / trials
    for _ in range(60):
        middle = (low + high) / 2
        tail = incomplete_beta(middle, successes, trials - successes + 1)  # P(X >= successes)
        low, high = (middle, high) if tail < error else (low, middle)
    return low


def _count_requests_within_limit(run: LevelRun, limit_index: int) -> int:
    return round(run.requests * run.attained[limit_index].kept_share)


@dataclass(frozen=True, slots=True)
class CapacitySearch:
    """The levels that were measured so far, by number of users. The search doubles the users until
    a level fails, halves them until one holds, halves the gaps, and then measures both ends
    again."""

    limits: tuple[Limit, ...]
    levels: Mapping[int, Sequence[LevelRun]]
    first: int = FIRST_USERS
    most: int = MOST_USERS

    def next_level(self) -> int | None:
        """Return the number of users to measure next: a level that is still undecided, a new one,
        or an end of the bracket again. None if the search has ended."""
        undecided = self._undecided_level()
        if undecided is not None:
            return undecided
        return self._bracket_end_to_repeat()

    def _undecided_level(self) -> int | None:
        for users in self._levels_with_verdict(Verdict.OPEN):
            if len(self.levels[users]) < MAX_RUNS_PER_LEVEL:
                return users
        if not self.levels:
            return min(self.first, self.most)
        holds, fails = self.highest_level_that_holds, self.lowest_level_that_fails
        highest = max(self.levels)
        if fails is None and highest < self.most:
            return min(2 * highest, self.most)
        if holds is None:
            return min(self.levels) // 2 or None
        if fails is None:
            return None
        return self._middle_of_wide_gap(holds, fails)

    def _middle_of_wide_gap(self, holds: int, fails: int) -> int | None:
        opened = [users for users in self.levels if holds < users < fails]
        low_gap = (holds, min(opened, default=fails))
        high_gap = (max(opened, default=holds), fails)
        for low, high in (low_gap, high_gap):
            if high - low > max(1, int(_FINE_GAP_SHARE * holds)):
                return (low + high) // 2
        return None

    def _bracket_end_to_repeat(self) -> int | None:
        """Return the end of the bracket with fewer later runs, None if both have enough."""
        ends = known_values((self.highest_level_that_holds, self.lowest_level_that_fails))
        later = {users: len(self._repeated_runs(users)) for users in ends}
        users = min(ends, key=later.__getitem__, default=None)
        if users is None or later[users] >= _REPEATED_RUNS_OF_ENDS:
            return None
        return users

    def _repeated_runs(self, users: int) -> Sequence[LevelRun]:
        """Return the runs of a level that were made after the search came back to it from another
        level. If no other level was measured meanwhile, return the runs after the first ones that
        decided the level."""
        own = self.levels[users]
        numbers = {run.number for runs in self.levels.values() for run in runs}
        others = numbers.difference(run.number for run in own)
        between = min((number for number in others if number > own[0].number), default=None)
        if between is not None:
            return [run for run in own if run.number > between]
        for count in range(1, len(own)):
            if self._is_decided(own[:count]):
                return own[count:]
        return []

    def _is_decided(self, runs: Sequence[LevelRun]) -> bool:
        return self._verdict_of_runs(runs).verdict != Verdict.OPEN

    @property
    def level_of_changed_verdict(self) -> int | None:
        """The lowest level whose first runs decided it and whose verdict over all runs is another
        one. None if there is no such level."""
        for users in sorted(self.levels):
            runs = self.levels[users]
            first = self._verdict_of_runs(runs[: len(runs) - len(self._repeated_runs(users))])
            latest = self._verdict_of_runs(runs)
            if first.verdict not in (Verdict.OPEN, latest.verdict):
                return users
        return None

    def _levels_with_verdict(self, verdict: Verdict) -> list[int]:
        """Return the measured levels that have this verdict."""
        levels = self.levels.items()
        return [n for n, runs in levels if self._verdict_of_runs(runs).verdict == verdict]

    @property
    def highest_level_that_holds(self) -> int | None:
        """The highest number of users that holds; None if none does. A level above one that fails
        does not count."""
        fails = min(self._levels_with_verdict(Verdict.FAILS), default=math.inf)
        holding = self._levels_with_verdict(Verdict.HOLDS)
        return max((users for users in holding if users < fails), default=None)

    @property
    def lowest_level_that_fails(self) -> int | None:
        """The lowest number of users that fails; None if none does."""
        return min(self._levels_with_verdict(Verdict.FAILS), default=None)

    def verdict_at(self, users: int) -> LevelVerdict | None:
        """Return the verdict on a level, or None if it was not measured."""
        return verdict_on_level(self.levels.get(users, ()), self.limits)

    def _verdict_of_runs(self, runs: Sequence[LevelRun]) -> LevelVerdict:
        """Return the verdict that one or more runs of a level give."""
        found = verdict_on_level(runs, self.limits)
        assert found is not None
        return found


def user_capacity_sentence(search: CapacitySearch, *, ended: bool) -> str:
    """Return the answer as clauses in one line: how many users hold, how many fail, what is open,
    which limit binds, and which verdicts changed. `ended` says whether the search came to its
    end."""
    holds, fails = search.highest_level_that_holds, search.lowest_level_that_fails
    changed = _changed_verdict_sentences(search)
    if holds is None and fails is None:
        return "; ".join(["no number of users was decided", *changed])
    parts = []
    if holds is not None:
        lowest = search.verdict_at(holds)
        assert lowest is not None
        parts.append(
            f"holds {_users_text(holds)} (attainment >= {share_text(lowest.attainment_pct)})"
        )
        if fails is not None:
            parts.append(f"fails at {fails}")
    elif fails is not None:
        parts.append(f"fails at {_users_text(fails)}")
    open_ = _undecided_level_sentences(search, holds, fails, ended=ended)
    binding = _binding_limit_sentences(search, holds, fails)
    return "; ".join([", ".join(parts), *open_, *binding, *changed])


def _changed_verdict_sentences(search: CapacitySearch) -> list[str]:
    users = search.level_of_changed_verdict
    if users is None:
        return []
    return [
        f"the speed changed meanwhile: later runs at {_users_text(users)} contradict the first ones"
    ]


def _undecided_level_sentences(
    search: CapacitySearch, holds: int | None, fails: int | None, *, ended: bool
) -> list[str]:
    if fails is None:
        if ended and holds == search.most:
            return ["more users were not asked for"]
        return ["a level that fails was not found"]
    if holds is None:
        return ["no level holds" if ended else "a level that holds was not found"]
    if fails - holds == 1:
        return []
    if fails - holds == 2:
        return [f"{holds + 1} is open"]
    word = "and" if fails - holds == 3 else "to"
    return [f"{holds + 1} {word} {fails - 1} are open"]


def _binding_limit_sentences(
    search: CapacitySearch, holds: int | None, fails: int | None
) -> list[str]:
    at = known_values((fails, holds))[0]
    judged = search.verdict_at(at)
    if judged is None:
        return []
    limit = search.limits[judged.binding]
    reached_ms = judged.ratio * limit.most_ms
    if fails is None:
        return [nearest_limit_text(limit, reached_ms)]
    if judged.ratio >= math.exp(_LOG_RATIO_OF_FAILED_RUN):
        return [f"{limit} binds: too many requests failed at {_users_text(at)}"]
    said = [f"{limit} binds: {format_four_digits(reached_ms)} ms at {_users_text(at)}"]
    if holds is not None and judged.ratio >= _CLIFF_FACTOR:
        said.append(f"a cliff: {judged.ratio:.1f} times the limit")
    return said


def nearest_limit_text(limit: Limit, reached_ms: float) -> str:
    """Return which limit is the nearest one while no level of load has broken a limit."""
    return (
        f"no limit binds yet: {limit.latency} is nearest ({format_four_digits(reached_ms)} of "
        f"{limit.most_ms:g} ms)"
    )


def _users_text(users: int) -> str:
    return count_of(users, "user")
