"""Tests of the search for the rate of requests with which a server keeps its SLO over a horizon."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.bench_rate_capacity import Server, search, truth
from workbench.bench.independent_requests import equivalent_independent_requests
from workbench.bench.rate_capacity import (
    MIN_REQUESTS_TO_HOLD,
    RateRun,
    RateSearch,
    lowest_measurable_rate,
    rate_capacity_sentence,
    short_run_duration_s,
    verdict_on_rate,
)
from workbench.model.errors import InputError
from workbench.model.slo import LimitAttained, parse_slo
from workbench.session.series.rate_capacity import RateRange

TTFT = parse_slo("ttft<=500@p95")
HORIZON_S = 600.0


def run(
    kept_pct: float,
    requests: int = 3000,
    *,
    independent: float | None = None,
    reached_ms: float | None = 400.0,
    kept_up: bool = True,
    whole: bool = True,
) -> RateRun:
    worth = float(requests) if independent is None else independent
    attained = LimitAttained("ttft<=500@p95", 95, kept_pct, reached_ms, 500.0, worth)
    return RateRun(requests, (attained,), kept_up, whole)


def searched(
    measure: Callable[[float], float], first: float = 2.0, most: float = 2000.0
) -> RateSearch:
    """Return the ended search of a server whose share of kept requests is `measure` of the rate."""
    levels: dict[float, list[RateRun]] = {}
    while True:
        found = RateSearch(TTFT, levels, HORIZON_S, first, most)
        wanted = found.next_rate_and_duration_s()
        if wanted is None:
            return found
        rate, seconds = wanted
        assert lowest_measurable_rate(HORIZON_S) <= rate <= most
        made = run(measure(rate), round(rate * seconds), whole=seconds >= HORIZON_S)
        levels.setdefault(rate, []).append(made)
        assert sum(map(len, levels.values())) < 40


def test_only_a_run_over_the_horizon_shows_that_a_rate_holds() -> None:
    judged = [verdict_on_rate([run(100.0, whole=whole)], TTFT) for whole in (False, True)]
    assert [each.verdict for each in judged if each] == ["open", "holds"]
    assert verdict_on_rate([], TTFT) is None


def test_requests_that_wait_together_count_as_few() -> None:
    """3,000 requests of which 98 % keep the limit show that 95 % do, unless they came in queues."""
    verdicts = [
        verdict_on_rate([run(98.0, independent=worth)], TTFT).verdict  # type: ignore[union-attr]
        for worth in (3000.0, 60.0)
    ]
    assert verdicts == ["holds", "open"]


def test_a_server_that_falls_behind_holds_no_rate() -> None:
    judged = verdict_on_rate([run(100.0, kept_up=False)], TTFT)
    assert judged is not None and judged.verdict == "open"


@settings(deadline=None, max_examples=40)
@given(st.floats(2.5, 900.0), st.floats(1.7, 900.0))
def test_a_server_without_noise_is_bracketed(capacity: float, first: float) -> None:
    found = searched(lambda rate: 100.0 if rate <= capacity else 0.0, first)
    assert found.highest_rate_that_holds is not None and found.lowest_rate_that_fails is not None
    assert (
        found.highest_rate_that_holds
        <= capacity
        < found.lowest_rate_that_fails
        <= 1.25 * found.highest_rate_that_holds
    )


def test_the_answer_is_a_bracket_over_the_horizon() -> None:
    found = searched(lambda rate: 100.0 if rate <= 6.38 else 60.0)
    said = rate_capacity_sentence(found, ended=True)
    assert said.startswith("holds 6.17, fails 6.73 requests/s over 10 min (attainment >= 99."), said
    assert "ttft<=500@p95 binds: 400 ms at 6.73 requests/s" in said


def test_no_answer_without_a_bracket_is_called_one() -> None:
    assert (
        rate_capacity_sentence(RateSearch(TTFT, {}), ended=False)
        == "no rate was decided over 10 min"
    )
    none = searched(lambda rate: 0.0)
    assert (
        "no rate holds; less than 1.67 requests/s needs a longer --horizon"
        in rate_capacity_sentence(none, ended=True)
    )
    half = RateSearch(TTFT, {4.0: [run(100.0)]})
    assert "a rate that fails was not found" in rate_capacity_sentence(half, ended=False)
    top = searched(lambda rate: 100.0, most=8.0)
    assert rate_capacity_sentence(top, ended=True).startswith("holds 8 requests/s over 10 min (")
    assert "higher rates were not asked for" in rate_capacity_sentence(top, ended=True)


@pytest.mark.parametrize("horizon_s", [10.0, 60.0, 600.0, 3600.0])
def test_a_horizon_has_enough_requests_and_a_look_is_shorter(horizon_s: float) -> None:
    rate = lowest_measurable_rate(horizon_s)
    assert rate * horizon_s >= MIN_REQUESTS_TO_HOLD > 0.98 * rate * horizon_s
    assert short_run_duration_s(rate, horizon_s) <= 0.21 * horizon_s


def test_a_slow_queue_makes_requests_dependent() -> None:
    rng = random.Random(1)
    alone = [rng.lognormvariate(0.0, 0.5) for _ in range(4000)]
    queued = [each * (8 if place // 500 % 2 else 1) for place, each in enumerate(alone)]
    assert equivalent_independent_requests(alone, 2.0, 95) > 1500
    assert equivalent_independent_requests(queued, 6.0, 95) < 40
    assert equivalent_independent_requests([], 1.0, 95) == 0
    assert equivalent_independent_requests([float("inf")] * 50, 1.0, 95) == 50


def test_latencies_far_from_the_limit_need_no_independence() -> None:
    """Times per token follow the batch, which changes slowly; a limit of twice them is kept anyway."""
    rng = random.Random(2)
    batch = 1.0
    times = []
    for _ in range(4000):
        batch = 0.995 * batch + 0.005 + rng.gauss(0.0, 0.004)
        times.append(30 * batch * rng.lognormvariate(0.0, 0.01))
    assert equivalent_independent_requests(times, 60.0, 95) == 4000
    assert equivalent_independent_requests(times, 32.0, 95) < 400


@pytest.mark.long
@pytest.mark.slow
def test_claims_about_a_simulated_server_are_true() -> None:
    """The figures of 1,000 searches are in docs/REFERENCE.md."""
    server, limits = Server(), parse_slo("ttft<=1000@p95")
    true = truth(server, limits[0])
    found = [search(server, limits, 0.007, 600.0, random.Random(n))[0] for n in range(40)]
    assert sum((each.highest_rate_that_holds or 0.0) > 1.05 * true for each in found) <= 2
    assert (
        sum(
            each.lowest_rate_that_fails is not None and each.lowest_rate_that_fails < true / 1.05
            for each in found
        )
        <= 2
    )
    assert (
        sum(
            each.highest_rate_that_holds is not None and each.lowest_rate_that_fails is not None
            for each in found
        )
        >= 36
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"horizon_s": 7200.0}, "a horizon of 120 minutes is not possible"),
        ({"first": 0.5, "horizon_s": 120.0}, "over 2 min are 60 requests"),
    ],
)
def test_a_refused_range_names_its_horizon_in_minutes(given: dict[str, float], text: str) -> None:
    with pytest.raises(InputError) as refused:
        RateRange(**given)
    assert text in refused.value.message
