"""The race of a tune: who goes on, and that only the final claims a gain."""

from __future__ import annotations

import random

import pytest

from tests.benchmarks.bench_tune import row, workbench_tune
from workbench.bench.tune_race import (
    START,
    Noise,
    RaceSize,
    findable_pct,
    gains,
    leader,
    race_size,
    second_block,
    simulate,
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
    assert gains([{("a",): 1.0}]) == {}
    blocks = [{START: 1.0, ("a",): 1.2, ("b",): 1.1}, {START: 0.5, ("a",): 0.6}]
    assert gains(blocks) == {("a",): pytest.approx(0.15)}


def test_a_machine_that_slows_down_between_the_blocks_favours_nobody() -> None:
    first = {START: 1.0, ("a",): 1.04, ("b",): 1.05}
    slower = {START: 0.7, ("a",): 0.74, ("b",): 0.74}
    assert leader([first, slower]) == ("b",)


def test_two_that_gain_are_joined_only_if_one_server_can_have_both() -> None:
    found = {("a",): 0.3, ("b",): 0.2, ("c",): -0.1, ("d",): -0.2}
    assert second_block(found, 3, lambda entry: True) == [("a",), ("b",), ("a", "b")]
    assert second_block(found, 3, lambda entry: False) == [("a",), ("b",), ("c",)]


def test_nothing_meets_the_start_preset_if_nothing_was_faster() -> None:
    assert leader([{START: 1.0, ("a",): 0.9}]) is None
    assert leader([]) is None


def test_a_gain_of_eight_percent_is_proven_and_equal_candidates_are_not() -> None:
    assert row(workbench_tune, 8.0, 100, 1)["right"] >= 97
    assert row(workbench_tune, 0.0, 100, 1)["claims"] <= 6


def test_what_a_tune_finds_depends_on_the_noise() -> None:
    assert findable_pct(RaceSize(2, 2, 6), Noise(0.2, 0.1), tunes=20) == 0.5
    assert findable_pct(RaceSize(2, 2, 6), Noise(90.0, 50.0), tunes=20) is None


def test_a_claim_is_never_about_a_slower_candidate() -> None:
    rng = random.Random(3)
    ended = [simulate({"a": -5.0}, race_size(1, 30), Noise(), rng) for _ in range(50)]
    assert not any(one.least_pct for one in ended)
