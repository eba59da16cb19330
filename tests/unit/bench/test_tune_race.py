"""The race of a tune: who goes on, and that only the final claims a gain."""

from __future__ import annotations

import math
import random

import pytest

from tests.benchmarks.bench_tune import row, workbench_tune
from workbench.bench.tune_race import (
    START,
    Noise,
    RaceSize,
    estimate_noise_from_final,
    findable_gain_pct,
    index_of_outlier,
    largest_race_within_starts,
    mean_log_gains_of_newest_block,
    run_noise_std_pct,
    runs_differ_beyond_noise,
    select_final_entry,
    select_second_block_entries,
    simulate_tune,
)
from workbench.model.errors import InputError


def test_thirty_starts_have_room_for_twelve_candidates_and_six_pairs() -> None:
    assert largest_race_within_starts(12, 30) == RaceSize(12, 4, 6)
    assert largest_race_within_starts(12, 30).server_starts == 30
    assert largest_race_within_starts(40, 30) == RaceSize(
        14, 4, 5
    )  # one pair less leaves room for two more


def test_candidates_are_left_out_before_the_final_gets_too_few_pairs() -> None:
    assert largest_race_within_starts(12, 20) == RaceSize(6, 2, 5)
    with pytest.raises(InputError, match="10 starts is not possible"):
        largest_race_within_starts(3, 10)


def test_a_block_without_the_start_preset_compares_nothing() -> None:
    assert mean_log_gains_of_newest_block([{("a",): 1.0}]) == {}
    blocks = [{START: 1.0, ("a",): 1.2, ("b",): 1.1}, {START: 0.5, ("a",): 0.6}]
    assert mean_log_gains_of_newest_block(blocks) == {("a",): pytest.approx(0.15)}


def test_a_machine_that_slows_down_between_the_blocks_favours_nobody() -> None:
    first = {START: 1.0, ("a",): 1.04, ("b",): 1.05}
    slower = {START: 0.7, ("a",): 0.74, ("b",): 0.74}
    assert select_final_entry(mean_log_gains_of_newest_block([first, slower])) == ("b",)


def test_two_that_gain_are_joined_only_if_one_server_can_have_both() -> None:
    found = {("a",): 0.03, ("b",): 0.02, ("c",): -0.01, ("d",): -0.02}
    assert select_second_block_entries(found, 3, lambda entry: True, Noise()) == [
        ("a",),
        ("b",),
        ("a", "b"),
    ]
    assert select_second_block_entries(found, 3, lambda entry: False, Noise()) == [
        ("a",),
        ("b",),
        ("c",),
    ]


def test_what_is_too_far_behind_for_chance_is_not_started_again() -> None:
    found = {("a",): 0.3, ("b",): 0.28, ("c",): 0.1, ("d",): -0.2}
    assert select_second_block_entries(found, 4, lambda entry: False, Noise()) == [("a",), ("b",)]
    slower = {("a",): -0.2, ("b",): -0.22, ("c",): -0.5}
    assert select_second_block_entries(slower, 3, lambda entry: False, Noise()) == []
    kept = select_second_block_entries(
        slower, 3, lambda entry: False, Noise(), start_keeps_limits=False
    )
    assert kept == [("a",), ("b",)], "the start preset breaks a limit, so it leads nothing"
    assert len(select_second_block_entries(found, 4, lambda entry: False, Noise(15, 10))) == 4


def test_the_noise_of_a_tune_is_measured_from_its_own_runs() -> None:
    rng = random.Random(5)
    runs = [[rng.gauss(3, 0.01) for _ in range(2)] for _ in range(400)]
    assert run_noise_std_pct(runs) == pytest.approx(1.0, rel=0.1)
    assert run_noise_std_pct([[1.0, 1.1], [1.0]]) is None
    ratios = [rng.gauss(0, math.sqrt(2) * math.hypot(0.015, 0.01)) for _ in range(400)]
    measured = estimate_noise_from_final(1.0, ratios)
    assert measured is not None and measured.server_pct == pytest.approx(1.5, rel=0.15)
    assert estimate_noise_from_final(1.0, ratios[:4]) is None
    with_runs = estimate_noise_from_final(None, ratios)
    assert with_runs is not None and with_runs.run_pct == 0.0
    assert with_runs.server_pct > measured.server_pct  # that of the runs is in it
    assert estimate_noise_from_final(50.0, ratios) == Noise(0.0, 50.0)


def test_runs_of_one_server_disagree_only_beyond_chance() -> None:
    rng = random.Random(3)
    calm = [[rng.gauss(5, 0.01), rng.gauss(5, 0.01)] for _ in range(2_000)]
    assert sum(runs_differ_beyond_noise(runs, None) for runs in calm) <= 2
    assert runs_differ_beyond_noise([5.0, 4.7], None) and not runs_differ_beyond_noise([5.0], None)
    assert not runs_differ_beyond_noise([5.0, 4.7], 10.0), (
        "the runs of all servers differ as much here"
    )
    assert index_of_outlier([5.0, 4.7, 5.01]) == 1 and index_of_outlier([5.0, 5.3, 4.99]) == 1


def test_nothing_meets_the_start_preset_if_nothing_was_faster() -> None:
    slower = mean_log_gains_of_newest_block([{START: 1.0, ("a",): 0.9}])
    assert select_final_entry(slower) is None and select_final_entry({}) is None
    assert select_final_entry(slower, start_keeps_limits=False) == ("a",)


def test_a_gain_of_eight_percent_is_proven_and_equal_candidates_are_not() -> None:
    assert row(workbench_tune, 8.0, 100, 1)["right"] >= 97
    assert row(workbench_tune, 0.0, 100, 1)["claims"] <= 6


def test_what_a_tune_finds_depends_on_the_noise() -> None:
    assert findable_gain_pct(RaceSize(2, 2, 6), Noise(0.2, 0.1), tunes=20) == 0.5
    assert findable_gain_pct(RaceSize(2, 2, 6), Noise(90.0, 50.0), tunes=20) is None


def test_a_claim_is_never_about_a_slower_candidate() -> None:
    rng = random.Random(3)
    ended = [
        simulate_tune({"a": -5.0}, largest_race_within_starts(1, 30), Noise(), rng)
        for _ in range(50)
    ]
    assert not any(one.least_pct for one in ended)
