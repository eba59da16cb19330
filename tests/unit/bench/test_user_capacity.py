"""Tests of the search for the number of users that a server serves under an SLO."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.bench_capacity import Server
from workbench.bench.user_capacity import (
    MAX_RUNS_PER_LEVEL,
    CapacitySearch,
    LevelRun,
    Verdict,
    requests_needed_per_run,
    user_capacity_sentence,
    verdict_on_level,
)
from workbench.model.slo import LimitAttained, parse_slo

TPOT = parse_slo("tpot<=40@p95")


def run(reached_ms: float | None, kept_pct: float, requests: int = 100) -> LevelRun:
    return LevelRun(requests, (LimitAttained("tpot<=40@p95", 95, kept_pct, reached_ms, 40.0),))


def searched(
    measure: Callable[[int], LevelRun], first: int = 8, most: int = 4096
) -> CapacitySearch:
    levels: dict[int, list[LevelRun]] = {}
    users = CapacitySearch(TPOT, levels, first, most).next_level()
    number = 0
    while users is not None:
        number += 1
        levels.setdefault(users, []).append(replace(measure(users), number=number))
        assert len(levels[users]) <= MAX_RUNS_PER_LEVEL + 2
        users = CapacitySearch(TPOT, levels, first, most).next_level()
    return CapacitySearch(TPOT, levels, first, most)


def exact(capacity: int) -> Callable[[int], LevelRun]:
    """Return a server without noise whose time per token is 40 ms at `capacity` users."""
    return lambda users: run(40.0 * users / capacity, 100.0 if users <= capacity else 0.0)


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 64))
def test_a_server_without_noise_is_found_within_five_percent(capacity: int, first: int) -> None:
    found = searched(exact(capacity), first)
    assert found.highest_level_that_holds is not None and found.lowest_level_that_fails is not None
    assert found.highest_level_that_holds <= capacity < found.lowest_level_that_fails
    assert found.lowest_level_that_fails - found.highest_level_that_holds <= max(
        1, found.highest_level_that_holds * 0.05
    )


def test_one_run_decides_nothing() -> None:
    assert verdict_on_level((), TPOT) is None
    judged = verdict_on_level((run(1.0, 100.0),), TPOT)
    assert judged is not None and judged.verdict == Verdict.OPEN


def test_requests_that_all_keep_the_limit_are_not_enough_if_they_are_few() -> None:
    few = (run(10.0, 100.0, 20), run(10.0, 100.0, 20))
    many = (run(10.0, 100.0, 60), run(10.0, 100.0, 60))
    assert [verdict_on_level(runs, TPOT).verdict for runs in (few, many)] == ["open", "holds"]  # type: ignore[union-attr]


def test_runs_that_disagree_leave_the_level_open() -> None:
    apart = tuple(run(ms, 100.0) for ms in (30.0, 39.0, 30.0, 39.0))
    alike = tuple(run(ms, 100.0) for ms in (34.0, 34.2, 34.1, 34.0))
    assert verdict_on_level(apart, TPOT).verdict == Verdict.OPEN  # type: ignore[union-attr]
    assert verdict_on_level(alike, TPOT).verdict == Verdict.HOLDS  # type: ignore[union-attr]


def test_requests_that_fail_make_the_level_fail() -> None:
    found = searched(lambda users: run(20.0, 100.0) if users <= 16 else run(None, 60.0))
    assert (found.highest_level_that_holds, found.lowest_level_that_fails) == (16, 17)
    assert "too many requests failed at 17 users" in user_capacity_sentence(found, ended=True)


def test_a_server_that_no_user_can_use() -> None:
    found = searched(lambda users: run(90.0, 0.0))
    assert (found.highest_level_that_holds, found.lowest_level_that_fails) == (None, 1)
    said = user_capacity_sentence(found, ended=True)
    assert said.startswith("fails at 1 user; no level holds; tpot<=40@p95 binds: 90 ms at 1 user")


def test_the_highest_number_that_was_asked_for_ends_the_search() -> None:
    found = searched(lambda users: run(10.0, 100.0), most=20)
    assert (found.highest_level_that_holds, found.lowest_level_that_fails) == (20, None)
    said = user_capacity_sentence(found, ended=True)
    assert (
        "more users were not asked for; no limit binds yet: tpot is nearest (10 of 40 ms)" in said
    )


def test_the_answer_names_what_is_open_and_what_binds() -> None:
    def measure(users: int) -> LevelRun:
        if users == 23:
            return run(40.0 + random.Random(len(seen)).choice((-1, 1)), 95.0)
        return run(40.0 * users / 23, 100.0 if users < 23 else 0.0)

    seen: list[int] = []

    def counted(users: int) -> LevelRun:
        seen.append(users)
        return measure(users)

    said = user_capacity_sentence(searched(counted), ended=True)
    assert said.startswith("holds 22 users (attainment >= 99")
    assert "fails at 24; 23 is open; tpot<=40@p95 binds: 41.74 ms at 24 users" in said


def test_both_ends_are_measured_again_in_turn_after_all_other_levels() -> None:
    seen: list[int] = []

    def measure(users: int) -> LevelRun:
        seen.append(users)
        return exact(12)(users)

    found = searched(measure)
    assert (
        found.highest_level_that_holds,
        found.lowest_level_that_fails,
        found.level_of_changed_verdict,
    ) == (12, 13, None)
    assert seen[-4:] == [12, 13, 12, 13] or seen[-4:] == [13, 12, 13, 12]


@pytest.mark.parametrize("slow_from", [6, 9])
def test_a_machine_that_gets_slower_is_noticed_and_answered_for_as_it_is_now(
    slow_from: int,
) -> None:
    """Runs one after the other are alike; minutes later, the same level is twice as slow."""
    seen: list[int] = []

    def measure(users: int) -> LevelRun:
        seen.append(users)
        slow = 2.0 if len(seen) > slow_from else 1.0
        return exact(12)(round(users * slow))

    found = searched(measure)
    assert (found.highest_level_that_holds, found.lowest_level_that_fails) == (
        6,
        7,
    ) and found.level_of_changed_verdict is not None
    assert "the speed changed meanwhile: later runs at" in user_capacity_sentence(found, ended=True)


def test_a_machine_whose_speed_comes_and_goes_gets_a_wide_bracket() -> None:
    seen: list[int] = []

    def measure(users: int) -> LevelRun:
        seen.append(users)
        slow = 1.5 if len(seen) // 5 % 2 else 1.0
        return exact(12)(round(users * slow))

    found = searched(measure)
    assert found.highest_level_that_holds is not None and found.highest_level_that_holds <= 9
    assert found.lowest_level_that_fails is None or found.lowest_level_that_fails >= 12


def test_a_cliff_is_named() -> None:
    found = searched(lambda users: run(20.0, 100.0) if users <= 12 else run(200.0, 0.0))
    assert "a cliff: 5.0 times the limit" in user_capacity_sentence(found, ended=True)


def test_before_its_end_a_search_claims_no_more_than_it_measured() -> None:
    assert (
        user_capacity_sentence(CapacitySearch(TPOT, {}), ended=False)
        == "no number of users was decided"
    )
    half = CapacitySearch(TPOT, {8: (run(10.0, 100.0), run(10.0, 100.0))})
    assert user_capacity_sentence(half, ended=False).startswith(
        "holds 8 users (attainment >= 98.1 %); a level that fails was not found"
    )


@pytest.mark.parametrize(("slo", "least"), [("tpot<=40@p95", 64), ("tpot<=40@p99.9", 2600)])
def test_a_run_has_enough_requests_to_show_its_percentage(slo: str, least: int) -> None:
    assert requests_needed_per_run(1, parse_slo(slo)) >= least
    assert requests_needed_per_run(400, parse_slo(slo)) >= 3200


@pytest.mark.long
@pytest.mark.slow
def test_claims_about_a_noisy_server_are_true() -> None:
    """The figures of 1,000 searches are in docs/REFERENCE.md."""
    for seed in range(60):
        rng = random.Random(seed)
        server = Server(rng.uniform(3, 100), 0.01, TPOT)
        levels: dict[int, list[LevelRun]] = {}
        users = CapacitySearch(TPOT, levels).next_level()
        while users is not None:
            run_of_level = server.run(users, requests_needed_per_run(users, TPOT), rng)
            levels.setdefault(users, []).append(run_of_level)
            users = CapacitySearch(TPOT, levels).next_level()
        found = CapacitySearch(TPOT, levels)
        assert (
            found.highest_level_that_holds is None
            or found.highest_level_that_holds <= server.capacity + 1
        )
        assert (
            found.lowest_level_that_fails is None
            or found.lowest_level_that_fails > server.capacity - 1
        )
