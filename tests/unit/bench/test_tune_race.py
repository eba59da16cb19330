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
    combine_noise,
    entries_of_second_block,
    entry_for_final,
    findable_gain_pct,
    index_of_outlier,
    mean_gains_of_newest_block,
    race_size,
    run_noise_pct,
    runs_disagree,
    simulate_tune,
)
from workbench.model.errors import InputError


def test_thirty_starts_have_room_for_twelve_candidates_and_six_pairs() -> None:
    assert race_size(12, 30) == RaceSize(12, 4, 6)
    assert race_size(12, 30).starts == 30
    assert race_size(40, 30) == RaceSize(14, 4, 5)  # one pair less leaves room for two more


def test_candidates_are_left_out_before_the_final_gets_too_few_pairs() -> None:
    assert race_size(12, 20) == RaceSize(6, 2, 5)
    with pytest.raises(InputError, match="10 starts is not possible"):
        race_size(3, 10)


def test_a_block_without_the_start_preset_compares_nothing() -> None:
    assert mean_gains_of_newest_block([{("a",): 1.0}]) == {}
    blocks = [{START: 1.0, ("a",): 1.2, ("b",): 1.1}, {START: 0.5, ("a",): 0.6}]
    assert mean_gains_of_newest_block(blocks) == {("a",): pytest.approx(0.15)}


def test_a_machine_that_slows_down_between_the_blocks_favours_nobody() -> None:
    first = {START: 1.0, ("a",): 1.04, ("b",): 1.05}
    slower = {START: 0.7, ("a",): 0.74, ("b",): 0.74}
    assert entry_for_final(mean_gains_of_newest_block([first, slower])) == ("b",)


def test_two_that_gain_are_joined_only_if_one_server_can_have_both() -> None:
    found = {("a",): 0.03, ("b",): 0.02, ("c",): -0.01, ("d",): -0.02}
    assert entries_of_second_block(found, 3, lambda entry: True, Noise()) == [
        ("a",),
        ("b",),
        ("a", "b"),
    ]
    assert entries_of_second_block(found, 3, lambda entry: False, Noise()) == [
        ("a",),
        ("b",),
        ("c",),
    ]


def test_what_is_too_far_behind_for_chance_is_not_started_again() -> None:
    found = {("a",): 0.3, ("b",): 0.28, ("c",): 0.1, ("d",): -0.2}
    assert entries_of_second_block(found, 4, lambda entry: False, Noise()) == [("a",), ("b",)]
    slower = {("a",): -0.2, ("b",): -0.22, ("c",): -0.5}
    assert entries_of_second_block(slower, 3, lambda entry: False, Noise()) == []
    kept = entries_of_second_block(slower, 3, lambda entry: False, Noise(), start_holds=False)
    assert kept == [("a",), ("b",)], "the start preset breaks a limit, so it leads nothing"
    assert len(entries_of_second_block(found, 4, lambda entry: False, Noise(15, 10))) == 4


def test_the_noise_of_a_tune_is_measured_from_its_own_runs() -> None:
    rng = random.Random(5)
    runs = [[rng.gauss(3, 0.01) for _ in range(2)] for _ in range(400)]
    assert run_noise_pct(runs) == pytest.approx(1.0, rel=0.1)
    assert run_noise_pct([[1.0, 1.1], [1.0]]) is None
    ratios = [rng.gauss(0, math.sqrt(2) * math.hypot(0.015, 0.01)) for _ in range(400)]
    measured = combine_noise(1.0, ratios)
    assert measured is not None and measured.server_pct == pytest.approx(1.5, rel=0.15)
    assert combine_noise(1.0, ratios[:4]) is None
    with_runs = combine_noise(None, ratios)
    assert with_runs is not None and with_runs.run_pct == 0.0
    assert with_runs.server_pct > measured.server_pct  # that of the runs is in it
    assert combine_noise(50.0, ratios) == Noise(0.0, 50.0)


def test_runs_of_one_server_disagree_only_beyond_chance() -> None:
    rng = random.Random(3)
    calm = [[rng.gauss(5, 0.01), rng.gauss(5, 0.01)] for _ in range(2_000)]
    assert sum(runs_disagree(runs, None) for runs in calm) <= 2
    assert runs_disagree([5.0, 4.7], None) and not runs_disagree([5.0], None)
    assert not runs_disagree([5.0, 4.7], 10.0), "the runs of all servers differ as much here"
    assert index_of_outlier([5.0, 4.7, 5.01]) == 1 and index_of_outlier([5.0, 5.3, 4.99]) == 1


def test_nothing_meets_the_start_preset_if_nothing_was_faster() -> None:
    slower = mean_gains_of_newest_block([{START: 1.0, ("a",): 0.9}])
    assert entry_for_final(slower) is None and entry_for_final({}) is None
    assert entry_for_final(slower, start_holds=False) == ("a",)


def test_a_gain_of_eight_percent_is_proven_and_equal_candidates_are_not() -> None:
    assert row(workbench_tune, 8.0, 100, 1)["right"] >= 97
    assert row(workbench_tune, 0.0, 100, 1)["claims"] <= 6


def test_what_a_tune_finds_depends_on_the_noise() -> None:
    assert findable_gain_pct(RaceSize(2, 2, 6), Noise(0.2, 0.1), tunes=20) == 0.5
    assert findable_gain_pct(RaceSize(2, 2, 6), Noise(90.0, 50.0), tunes=20) is None


def test_a_claim_is_never_about_a_slower_candidate() -> None:
    rng = random.Random(3)
    ended = [simulate_tune({"a": -5.0}, race_size(1, 30), Noise(), rng) for _ in range(50)]
    assert not any(one.least_pct for one in ended)
