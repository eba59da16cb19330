"""How often the searches of AIPerf and GuideLLM are wrong, on the model of bench_capacity.py.

    PYTHONPATH=. PYTHON_OF_AIPERF tests/benchmarks/bench_other_searches.py aiperf [--searches 300]
    PYTHONPATH=. PYTHON_OF_GUIDELLM tests/benchmarks/bench_other_searches.py guidellm
    .venv/bin/python tests/benchmarks/bench_other_searches.py workbench

The search is the code of the installed package, of which nothing is copied: the script asks it for
the next number of users and answers with what one run of the model shows. A run has the number of
requests that is given, because both leave it to the user; Workbench chooses it. The columns are
those of bench_capacity.py. AIPerf and GuideLLM state the highest number that passed, which is
counted as a claim that it holds.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from bench_capacity import _FEWEST, _MOST, Outcome, Server, search  # noqa: E402

from workbench.model.slo import Limit, parse_slo  # noqa: E402

TAGS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2e": "request_latency",
}
Search = Callable[[Server, int, random.Random], Outcome]


def of_workbench(server: Server, requests: int, rng: random.Random) -> Outcome:
    return search(server, rng)


def aiperf(style: str) -> Search:
    """Return AIPerf's search "smooth_isotonic", its default, or "monotonic"."""
    from aiperf.config.config import BenchmarkConfig
    from aiperf.config.sweep import AdaptiveSearchSweep, Objective
    from aiperf.config.sweep.adaptive import SearchSpaceDimension, SLAFilter
    from aiperf.orchestrator.search_planner.monotonic import MonotonicSLASearchPlanner
    from aiperf.orchestrator.search_planner.smooth_isotonic import SmoothIsotonicSLAPlanner

    planner_of = {
        "monotonic": (MonotonicSLASearchPlanner, "monotonic_sla", 20),
        "smooth_isotonic": (SmoothIsotonicSLAPlanner, "smooth_isotonic", 30),
    }
    make, planner_name, iterations = planner_of[style]
    logging.getLogger("aiperf").setLevel(logging.ERROR)
    phase = {"name": "profiling", "type": "concurrency", "requests": 100, "concurrency": 1}
    base = BenchmarkConfig.model_validate(
        {
            "models": {"items": [{"name": "m"}]},
            "endpoint": {"urls": ["http://localhost:1"], "type": "chat", "streaming": True},
            "datasets": [{"name": "main", "type": "synthetic", "entries": 10}],
            "phases": [phase],
        }
    )

    def run(server: Server, requests: int, rng: random.Random) -> Outcome:
        filters = [
            SLAFilter(
                metric_tag=TAGS[limit.latency],
                stat=f"p{limit.percent:g}",
                op="lt",
                threshold=limit.most_ms,
            )
            for limit in server.limits
        ]
        path = "phases.profiling.concurrency"
        config = AdaptiveSearchSweep(
            planner=planner_name,
            search_space=[SearchSpaceDimension(path=path, lo=1, hi=1000, kind="int")],
            objectives=[Objective(metric="output_token_throughput", direction="maximize")],
            max_iterations=iterations,
            n_initial_points=1,
            sla_filters=filters,
        )
        planner = make(base, config)
        planner._mutate_base = lambda value: base  # the copy of the configuration is not needed
        runs = 0
        while (asked := planner.ask()) is not None:
            variation = asked[1]
            users = variation.values[path]
            planner.tell(variation, [_aiperf_result(server, users, requests, rng, runs)])
            runs += 1
        return Outcome(
            int(server.capacity),
            planner.feasible_max,
            planner.infeasible_min,
            runs,
            runs * requests,
        )

    return run


def _aiperf_result(
    server: Server, users: int, requests: int, rng: random.Random, number: int
) -> Any:
    from aiperf.common.models.export_models import JsonMetricResult
    from aiperf.orchestrator.models import RunResult

    attained = server.run(users, requests, rng).attained
    metrics = {
        TAGS[limit.latency]: JsonMetricResult(
            unit="ms", count=requests, **{f"p{limit.percent:g}": each.reached_ms}
        )
        for limit, each in zip(server.limits, attained, strict=True)
    }
    return RunResult(label=f"run_{number}", success=True, summary_metrics=metrics)


def guidellm() -> Search:
    """Return GuideLLM's profile "goodput"."""
    from guidellm.benchmark.profiles.goodput import GoodputProfile
    from guidellm.benchmark.schemas import GenerativeBenchmark
    from guidellm.benchmark.schemas.metrics import GenerativeMetrics
    from guidellm.schemas.benchmark.profiles import GoodputProfileArgs
    from loguru import logger

    logger.remove()

    def run(server: Server, requests: int, rng: random.Random) -> Outcome:
        share = max(limit.percent for limit in server.limits) / 100
        profile = GoodputProfile(
            GoodputProfileArgs(target_attainment=share), random_seed=1, constraints=None
        )
        steps = profile.strategies_generator()
        runs, found = 0, None
        while True:
            try:
                strategy, _ = steps.send(found)
            except StopIteration:
                break
            attained = server.run(strategy.streams, requests, rng).attained
            kept_pct = min(each.kept_pct or 0.0 for each in attained)
            metrics = GenerativeMetrics.model_construct(
                slo_attainment=kept_pct / 100,
                slo_determined_requests=requests,
                request_goodput=None,
            )
            found = GenerativeBenchmark.model_construct(metrics=metrics)
            runs += 1
        state = profile.search
        return Outcome(
            int(server.capacity),
            state.best_passing_streams,
            state.lowest_failing_streams,
            runs,
            runs * requests,
        )

    return run


def row(name: str, run: Search, slo: str, noise: float, requests: int, searches: int) -> str:
    limits: tuple[Limit, ...] = parse_slo(slo)
    outcomes = []
    for number in range(searches):
        rng = random.Random(f"1/{slo}/{noise}/{number}")
        capacity = math.exp(rng.uniform(math.log(_FEWEST), math.log(_MOST)))
        outcomes.append(run(Server(capacity, noise, limits), requests, rng))
    over = sum((o.holds or 0) > o.truth + 1 for o in outcomes) / searches
    far = sum((o.holds or 0) > 1.05 * o.truth + 1 for o in outcomes) / searches
    under = sum(o.fails is not None and o.fails <= o.truth for o in outcomes) / searches
    errors = sorted((o.holds or 0) / o.truth for o in outcomes)
    low, high = errors[int(0.05 * searches)], errors[int(0.95 * searches)]
    sized = f"{requests:,}" if requests else "its own"
    return (
        f"| {name} | `{slo}` | {100 * noise:.1f} % | {sized} | {100 * over:.1f} % "
        f"| {100 * far:.1f} % | {100 * under:.1f} % "
        f"| {median(errors):.2f} ({low:.2f} to {high:.2f}) "
        f"| {median(o.runs for o in outcomes):.0f} | {median(o.requests for o in outcomes):,.0f} |"
    )


def tools(which: str) -> dict[str, tuple[Search, tuple[int, ...]]]:
    if which == "aiperf":
        return {
            "AIPerf, default (smooth_isotonic)": (aiperf("smooth_isotonic"), (300, 1000)),
            "AIPerf, monotonic": (aiperf("monotonic"), (300, 1000)),
        }
    if which == "guidellm":
        return {"GuideLLM, goodput": (guidellm(), (300, 1000))}
    return {"Workbench": (of_workbench, (0,))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool", choices=("aiperf", "guidellm", "workbench"))
    parser.add_argument("--searches", type=int, default=300)
    given = parser.parse_args()
    print(
        "| search | SLO | noise between runs | requests of a run | holds > truth + 1 "
        "| holds > 1.05 truth + 1 | fails <= truth | holds / truth, median (5 to 95 %) "
        "| runs | requests |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, (run, sizes) in tools(given.tool).items():
        for slo in ("ttft<=500@p95, tpot<=40@p95", "tpot<=40@p95, ttft<=500@p95"):
            for noise in (0.007, 0.02):
                for requests in sizes:
                    print(row(name, run, slo, noise, requests, given.searches), flush=True)


if __name__ == "__main__":
    main()
