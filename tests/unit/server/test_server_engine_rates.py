"""Tests of the live metrics: true rates per second, gaps, restarts, and counters that fall."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.server_run import EngineMetrics
from workbench.server.engine_rates import RateMeter, compute_rates

T0 = 1_800_000_000


def values(*readings: EngineMetrics) -> dict[str, dict[int, float]]:
    """Return the values of all readings, by field and seconds since T0. Fails if a second has two
    values."""
    meter, found = RateMeter(), defaultdict[str, dict[int, float]](dict)
    for read in readings:
        for second, by_field in meter.add_reading_and_get_rates(read).items():
            for field, value in by_field.items():
                assert second - T0 not in found[field], (
                    f"second value of {field} in second {second - T0}"
                )
                found[field][second - T0] = value
    return found


def generated(at_s: float, count: int | None, **more: int | float | None) -> EngineMetrics:
    return EngineMetrics(unix_s=T0 + at_s, live_generation_tokens=count, **more)  # type: ignore[arg-type]


def test_a_rate_is_that_of_its_whole_second() -> None:
    found = values(
        generated(0.0, 100), generated(1.5, 250), generated(2.5, 450), generated(4.0, 450)
    )
    assert found["generation_tok_s"] == {0: 100.0, 1: 150.0, 2: 100.0, 3: 0.0}


def test_two_readings_give_the_rates_between_them() -> None:
    first = generated(0.0, 100, prefix_hit_tokens=0, prefix_query_tokens=0, preemptions=5)
    second = generated(
        2.0, 700, prefix_hit_tokens=30, prefix_query_tokens=120, preemptions=3, running=4, waiting=1
    )
    found = compute_rates(first, second)
    assert found == {"generation_tok_s": 300.0, "prefix_hit_pct": 25.0, "running": 4, "waiting": 1}
    assert compute_rates(second, second) == {"running": 4, "waiting": 1}


def test_the_part_of_the_first_second_is_not_a_value() -> None:
    assert values(generated(0.4, 0), generated(1.4, 100), generated(2.4, 200))[
        "generation_tok_s"
    ] == {1: 100.0}


@given(
    st.lists(st.tuples(st.floats(0.05, 4.9), st.integers(0, 10_000)), min_size=3, max_size=60),
    st.floats(0.0, 1.0),
)
def test_the_values_of_a_rate_sum_to_the_counter(
    steps: list[tuple[float, int]], begin_s: float
) -> None:
    at_s, count, readings = begin_s, 0, [generated(begin_s, 0)]
    for step_s, more in steps:
        at_s, count = at_s + step_s, count + more
        readings.append(generated(at_s, count))
    at_s = math.ceil(at_s)
    readings += [generated(at_s + 0.5, count), generated(at_s + 1.5, count)]
    rate = values(*readings)["generation_tok_s"]
    # at most: the second in which the first reading was made
    unknown = steps[0][1] if begin_s else 0
    assert all(value >= -1e-6 for value in rate.values())
    if begin_s + steps[0][0] < 1.0:
        return  # the first readings are inside of one second
    assert count - unknown - 1e-3 <= sum(rate.values()) <= count + 1e-3
    assert sorted(rate) == list(range(min(rate), max(rate) + 1))


def test_no_reading_for_some_seconds_is_a_gap() -> None:
    steady = [generated(s, 100 * s) for s in (0, 1, 2, 8, 9, 10)]
    assert values(*steady)["generation_tok_s"] == {0: 100.0, 1: 100.0, 8: 100.0, 9: 100.0}


def test_a_page_that_could_not_be_read_is_a_gap() -> None:
    found = values(
        generated(0, 0), generated(1, 50), generated(2, None), generated(3, 400), generated(4, 450)
    )
    assert found["generation_tok_s"] == {0: 50.0, 3: 50.0}


def test_a_restart_of_the_engine_is_a_gap_and_no_negative_rate() -> None:
    before = [generated(s, 1000 + 100 * s, live_prompt_tokens=5000) for s in (0, 1, 2)]
    after = [generated(s, 10 * s, live_prompt_tokens=s) for s in (3, 4, 5)]
    found = values(*before, *after)
    assert found["generation_tok_s"] == {0: 100.0, 1: 100.0, 3: 10.0, 4: 10.0}
    assert found["prompt_tok_s"] == {0: 0.0, 1: 0.0, 3: 1.0, 4: 1.0}


def test_a_request_that_ends_between_two_pages_is_counted_in_the_next_reading() -> None:
    dip = generated(2, 100, running=1)
    found = values(generated(0, 0), generated(1, 500), dip, generated(3, 1500), generated(4, 2000))
    assert found["generation_tok_s"] == {0: 500.0, 1: 500.0, 2: 500.0, 3: 500.0}


def test_tokens_that_vanish_with_an_aborted_request_are_a_gap() -> None:
    begin = (generated(0, 0), generated(1, 1000))
    beside = (generated(s, 50 * s, running=1) for s in range(2, 10))
    assert values(*begin, *beside)["generation_tok_s"] == {0: 1000.0, 7: 50.0, 8: 50.0}
    alone = (generated(s, 0, running=0) for s in range(2, 5))
    assert values(*begin, *alone)["generation_tok_s"] == {0: 1000.0, 2: 0.0, 3: 0.0}


def test_shares_are_of_the_second_and_absent_when_nothing_happened() -> None:
    def read(at_s: float, hits: int, queries: int) -> EngineMetrics:
        return EngineMetrics(unix_s=T0 + at_s, prefix_hit_tokens=hits, prefix_query_tokens=queries)

    found = values(read(0, 900, 1000), read(1, 925, 1100), read(2, 925, 1100), read(3, 925, 1200))
    assert found["prefix_hit_pct"] == {0: 25.0, 2: 0.0}


def test_gauges_stand_at_the_end_of_their_second() -> None:
    readings = [
        EngineMetrics(unix_s=T0 + s + 0.02, running=s, waiting=0, kv_use_pct=s / 2)
        for s in range(4)
    ]
    found = values(*readings)
    assert found["running"] == {0: 1, 1: 2, 2: 3}
    assert found["kv_use_pct"] == {0: 0.5, 1: 1.0, 2: 1.5}


@pytest.mark.parametrize("step_s", [0.0, -3.0])
def test_a_clock_that_is_set_back_gives_no_rate(step_s: float) -> None:
    assert values(generated(5, 0), generated(5 + step_s, 100))["generation_tok_s"] == {}
