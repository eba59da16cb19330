"""How often the search for users is wrong, on a model of a server whose truth is known.

    python tests/benchmarks/bench_capacity.py [--searches 1000] [--seed 1]

The time per token rises with the number of users, each run has a speed of its own (`noise`), and
each request differs a little. The truth is the highest number of users whose latency, at the wanted
share of requests and in the median run, is within the limit. It is drawn from 3 to 300 users. If
there are several limits, the last one binds.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

from workbench.bench.user_capacity import CapacitySearch, LevelRun, requests_needed_per_run
from workbench.model.slo import Limit, LimitAttained, parse_slo

_FEWEST, _MOST = 3, 300  # users
_SHARE = 0.3  # of a limit's latency that does not depend on the users
_SPREAD = {"ttft": 0.25, "tpot": 0.002, "e2e": 0.02}  # sigma of ln(latency) within a run
_REQUESTS_S = 5.0
_SLACK = 2.0
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose latencies reach their limits at `capacity` users. `noise` is the standard
    deviation of ln(speed) between runs."""

    capacity: float
    noise: float
    limits: Sequence[Limit]

    def run(self, users: int, requests: int, rng: random.Random) -> LevelRun:
        slow = math.exp(rng.gauss(0.0, self.noise))
        return LevelRun(
            requests, tuple(self._attained(x, users, requests, slow, rng) for x in self.limits)
        )

    def _attained(
        self, limit: Limit, users: int, requests: int, slow: float, rng: random.Random
    ) -> LimitAttained:
        """Draw what one run shows: the latency at the wanted share is an order statistic, and the
        requests beyond it are independent."""
        spread = _SPREAD[limit.latency]
        middle_ms = self._median_ms(limit, users) * slow
        place = max(1, math.ceil(requests * limit.percent / 100 - 1e-9))
        reached = rng.betavariate(place, requests - place + 1)
        reached_ms = middle_ms * math.exp(spread * _NORMAL.inv_cdf(reached))
        within = _NORMAL.cdf(math.log(limit.most_ms / middle_ms) / spread)
        if within >= reached:
            more = (within - reached) / (1 - reached)
            kept = place + sum(rng.random() < more for _ in range(requests - place))
        else:
            kept = round((place - 1) * within / reached)
        share = 100 * kept / requests
        return LimitAttained(str(limit), limit.percent, share, reached_ms, limit.most_ms)

    def _median_ms(self, limit: Limit, users: int) -> float:
        """Return the median latency. The last limit is reached at `capacity` users, and the others
        at _SLACK times as many."""
        z = _NORMAL.inv_cdf(limit.percent / 100)
        at_capacity_ms = limit.most_ms / math.exp(z * _SPREAD[limit.latency])
        capacity = self.capacity * (1.0 if limit == self.limits[-1] else _SLACK)
        return at_capacity_ms * (_SHARE + (1 - _SHARE) * users / capacity)


@dataclass(frozen=True, slots=True)
class Outcome:
    truth: int
    holds: int | None
    fails: int | None
    runs: int
    requests: int


def search(server: Server, rng: random.Random) -> Outcome:
    levels: dict[int, list[LevelRun]] = {}
    requests = runs = 0
    limits = tuple(server.limits)
    users = CapacitySearch(limits, levels).next_level()
    while users is not None:
        size = requests_needed_per_run(users, limits)
        requests += size
        run = replace(server.run(users, size, rng), number=runs)
        runs += 1
        levels.setdefault(users, []).append(run)
        users = CapacitySearch(limits, levels).next_level()
    found = CapacitySearch(limits, levels)
    return Outcome(
        int(server.capacity),
        found.highest_level_that_holds,
        found.lowest_level_that_fails,
        runs,
        requests,
    )


def row(name: str, noise: float, searches: int, seed: int) -> str:
    limits = parse_slo(name)
    outcomes = []
    for number in range(searches):
        rng = random.Random(f"{seed}/{name}/{noise}/{number}")
        capacity = math.exp(rng.uniform(math.log(_FEWEST), math.log(_MOST)))
        outcomes.append(search(Server(capacity, noise, limits), rng))
    over = sum((o.holds or 0) > o.truth + 1 for o in outcomes) / searches
    under = sum(o.fails is not None and o.fails <= o.truth for o in outcomes) / searches
    open_users = [o.fails - o.holds for o in outcomes if o.fails and o.holds]
    wide = [(o.fails - o.holds) / o.holds for o in outcomes if o.fails and o.holds]
    tens = [o for o in outcomes if o.truth <= 32]
    minutes = median(o.requests for o in tens) / _REQUESTS_S / 60
    return (
        f"| `{name}` | {100 * noise:.1f} % | {100 * over:.1f} % | {100 * under:.1f} % "
        f"| {100 * median(wide):.1f} % ({median(open_users):.0f} users) "
        f"| {median(o.runs for o in outcomes):.0f} | {minutes:.0f} min |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(
        "| SLO | noise between runs | holds > truth + 1 | fails < truth | median bracket | runs | at 5 requests/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in (
        "ttft<=500@p95, tpot<=40@p95",
        "tpot<=40@p99",
        "tpot<=40@p95, ttft<=500@p95",
        "e2e<=8000@p95",
    ):
        for noise in (0.007, 0.02):
            print(row(name, noise, given.searches, given.seed), flush=True)


if __name__ == "__main__":
    main()
