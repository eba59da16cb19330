"""How often the search for a rate of requests is wrong, on an event model of a server that batches
continuously.

    python tests/benchmarks/bench_rate_capacity.py [--searches 1000] [--seed 1]

Requests come at random times (Poisson), with lengths that differ (lognormal), and wait for one of the
server's slots. A step of the server takes longer with each request in it, and a prefill stops all of
them. Each run has a speed of its own (`noise`). The truth is the rate at which the wanted share of
300,000 requests in a row just keeps the limit. Searches begin at different rates, so that their rates
lie differently around the truth.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from workbench.bench.independent_requests import equivalent_independent_requests
from workbench.bench.rate_capacity import RateRun, RateSearch
from workbench.bench.steadiness import why_server_fell_behind
from workbench.model.slo import LATENCIES, Limit, LimitAttained, parse_slo

TRUTH_REQUESTS = 300_000


class Served(NamedTuple):
    """A request: when it came, and its latencies in seconds, in the order of LATENCIES."""

    due_s: float
    ttft: float
    tpot: float
    e2e: float


@dataclass(frozen=True, slots=True)
class Server:
    """A model of a server. A step with n requests takes `step_s` + n `request_s`. Lengths are
    lognormal, with the deviation `spread` of their logarithm."""

    slots: int = 32
    step_s: float = 0.012
    request_s: float = 0.00035
    prefill_tok_s: float = 20000.0
    prompt_tokens: float = 1024.0
    output_tokens: float = 256.0
    spread: float = 0.6

    def serve(
        self, rate: float, requests: int, rng: random.Random, noise: float = 0.0
    ) -> list[Served]:
        slow = math.exp(rng.gauss(0.0, noise)) if noise else 1.0
        due_s = [0.0]
        for _ in range(requests - 1):
            due_s.append(due_s[-1] + rng.expovariate(rate))
        middle = -(self.spread**2) / 2  # so that the mean length is the given one
        now_s, tokens, waiting = (
            0.0,
            0.0,
            0,
        )  # `tokens` each request in a slot has got since the start
        running: list[
            tuple[float, int, float, int]
        ] = []  # ends at tokens, index, first token, length
        served: list[Served | None] = [None] * requests
        left = requests
        while left:
            next_s = due_s[waiting] if waiting < requests else math.inf
            free = len(running) < self.slots
            if free and next_s <= now_s:
                prompt = self.prompt_tokens * math.exp(rng.gauss(middle, self.spread))
                output = 2 + int(self.output_tokens * math.exp(rng.gauss(middle, self.spread)))
                now_s += slow * (prompt / self.prefill_tok_s + self.step_s)
                heapq.heappush(running, (tokens + output - 1, waiting, now_s, output))
                waiting += 1
                continue
            if not running:
                now_s = next_s
                continue
            token_s = slow * (self.step_s + self.request_s * len(running))
            ends_s = now_s + (running[0][0] - tokens) * token_s
            if free and next_s < ends_s:
                tokens += (next_s - now_s) / token_s
                now_s = next_s
                continue
            now_s = ends_s
            tokens, index, first_s, output = heapq.heappop(running)
            came_s = due_s[index]
            tpot = (now_s - first_s) / (output - 1)
            served[index] = Served(came_s, first_s - came_s, tpot, now_s - came_s)
            left -= 1
        return [each for each in served if each is not None]


def kept(served: list[Served], limit: Limit) -> float:
    """Return the share of the requests that kept a limit."""
    place = 1 + list(LATENCIES).index(limit.latency)
    return fmean(1000 * each[place] <= limit.most_ms for each in served)


def truth(server: Server, limit: Limit) -> float:
    low, high = 0.2, 60.0
    for _ in range(12):
        middle = math.sqrt(low * high)
        sized = TRUTH_REQUESTS if high / low < 1.5 else TRUTH_REQUESTS // 20
        share = kept(server.serve(middle, sized, random.Random("truth")), limit)
        low, high = (middle, high) if share >= limit.percent / 100 else (low, middle)
    return math.sqrt(low * high)


def attained(served: list[Served], limit: Limit) -> LimitAttained:
    place = 1 + list(LATENCIES).index(limit.latency)
    latencies_ms = [1000 * each[place] for each in served]
    needed = math.ceil(len(served) * limit.percent / 100 - 1e-9)
    return LimitAttained(
        str(limit),
        limit.percent,
        100 * kept(served, limit),
        sorted(latencies_ms)[needed - 1],
        limit.most_ms,
        equivalent_independent_requests(latencies_ms, limit.most_ms, limit.percent),
    )


def search(
    server: Server,
    limits: tuple[Limit, ...],
    noise: float,
    horizon_s: float,
    rng: random.Random,
) -> tuple[RateSearch, float]:
    """Return an ended search, and how many seconds of load it took."""
    levels: dict[float, list[RateRun]] = {}
    least = RateSearch(limits, {}, horizon_s).lowest_rate
    first = max(least, math.exp(rng.uniform(math.log(0.8), math.log(8.0))))
    took_s = 0.0
    while True:
        found = RateSearch(limits, levels, horizon_s, first)
        wanted = found.next_rate_and_duration_s()
        if wanted is None:
            return found, took_s
        rate, seconds = wanted
        served = server.serve(rate, math.ceil(rate * seconds), rng, noise)
        ends = [(each.due_s, each.due_s + each.e2e) for each in served]
        took_s += max(end for _, end in ends)
        run = RateRun(
            len(served),
            tuple(attained(served, limit) for limit in limits),
            why_server_fell_behind(ends) is None,
            whole=seconds >= horizon_s,
        )
        levels.setdefault(rate, []).append(run)


def row(name: str, server: Server, horizon_s: float, noise: float, searches: int, seed: int) -> str:
    limits = parse_slo(name)
    true = min(truth(server, limit) for limit in limits)
    found = [
        search(server, limits, noise, horizon_s, random.Random(f"{seed}/{name}/{noise}/{n}"))
        for n in range(searches)
    ]
    ended = [each for each, _ in found]
    over = fmean((each.highest_rate_that_holds or 0.0) > 1.05 * true for each in ended)
    under = fmean((each.lowest_rate_that_fails or math.inf) < true / 1.05 for each in ended)
    pairs = [
        (s.highest_rate_that_holds, s.lowest_rate_that_fails)
        for s in ended
        if s.highest_rate_that_holds is not None and s.lowest_rate_that_fails is not None
    ]
    wide = median(fails / holds for holds, fails in pairs)
    looks = [sum(not r.whole for runs in s.levels.values() for r in runs) for s in ended]
    whole = [sum(r.whole for runs in s.levels.values() for r in runs) for s in ended]
    return (
        f"| `{name}`, {true:.1f} requests/s | {horizon_s / 60:g} min | {100 * noise:.1f} % "
        f"| {100 * over:.1f} % | {100 * under:.1f} % | {100 * len(pairs) / searches:.0f} % "
        f"| {median(h for h, _ in pairs) / true:.2f} to {median(f for _, f in pairs) / true:.2f} "
        f"({100 * (wide - 1):.0f} %) | {median(looks):.0f} and {median(whole):.0f} "
        f"| {median(took_s for _, took_s in found) / 60:.0f} min | {searches} |"
    )


SERVERS = (
    ("ttft<=1000@p95", Server(), 600.0),
    ("ttft<=500@p95, tpot<=40@p95", Server(slots=64, step_s=0.008), 600.0),
    ("tpot<=30@p95", Server(slots=256), 600.0),
    ("e2e<=20s@p95", Server(slots=64, prompt_tokens=4096, spread=0.4), 600.0),
    ("ttft<=500@p95", Server(slots=64, step_s=0.004, request_s=0.00005, output_tokens=64), 120.0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(
        "| SLO and truth | horizon | noise between runs | holds > 1.05 truth | fails < truth / 1.05 "
        "| brackets | median bracket / truth | looks and runs | load | searches |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, server, horizon_s in SERVERS:
        for noise in (0.007, 0.02):
            print(row(name, server, horizon_s, noise, given.searches, given.seed), flush=True)


if __name__ == "__main__":
    main()
