"""The rule of a watch: when more pairs are measured, and what is an alarm (the whole table:
tests/benchmarks/bench_watch.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from workbench.bench import watch_rule
from workbench.bench.tune_race import Noise
from workbench.bench.watch_rule import (
    detect_losses_of_night,
    needs_more_pairs,
    needs_second_experiment,
    p_value_of_loss,
)
from workbench.model.watch import MEMORY, SPEED, START

SLOWER = [0.03, 0.031, 0.029, 0.03, 0.032, 0.028, 0.03, 0.03]
EQUAL = [0.004, -0.004, 0.003, -0.003, 0.002, -0.002, 0.001, -0.001]


def test_a_better_candidate_needs_three_pairs_and_no_second_experiment() -> None:
    faster = {SPEED: [-loss for loss in SLOWER[:3]]}
    assert not needs_more_pairs(faster) and not needs_second_experiment(faster)
    assert needs_more_pairs({SPEED: SLOWER[:3]}) and needs_second_experiment({SPEED: SLOWER})
    assert (
        not needs_second_experiment({SPEED: EQUAL})
        and not needs_second_experiment({})
        and not needs_more_pairs({})
    )


def test_an_alarm_needs_both_experiments() -> None:
    def alarmed(first: Sequence[float], second: Sequence[float]) -> bool:
        ((loss,),) = detect_losses_of_night([({SPEED: first}, {SPEED: second})])
        return loss.alarm

    assert alarmed(SLOWER, SLOWER * 2)
    assert not alarmed(SLOWER, ()), "one experiment is never enough"
    assert not alarmed(SLOWER, EQUAL * 2), "the second did not repeat it"
    assert not alarmed(EQUAL, SLOWER * 2), "the first did not show it"


def test_a_loss_too_small_to_matter_is_no_alarm() -> None:
    half_a_percent = [0.005 + loss / 100 for loss in EQUAL]
    ((loss,),) = detect_losses_of_night([({SPEED: half_a_percent}, {SPEED: half_a_percent * 2})])
    assert loss.p is not None and loss.p < 1e-6 and not loss.alarm


@pytest.mark.parametrize(("measure", "ratio"), [(START, 1.5), (MEMORY, 0.9)])
def test_start_time_and_kv_tokens_are_judged_too(measure: str, ratio: float) -> None:
    worse = [abs(math.log(ratio)) + loss for loss in EQUAL]
    entry = ({SPEED: EQUAL, measure: worse}, {SPEED: EQUAL * 2, measure: worse * 2})
    (losses,) = detect_losses_of_night([entry])
    assert {loss.measure: loss.alarm for loss in losses} == {SPEED: False, measure: True}


def test_more_presets_make_the_level_of_each_smaller() -> None:
    rng = random.Random(3)
    loss = [0.02 + rng.gauss(0, 0.02) for _ in range(24)]
    entry = ({SPEED: loss[:8]}, {SPEED: loss[8:]})
    equal = ({SPEED: EQUAL}, {})
    p = detect_losses_of_night([entry])[0][0].p
    assert p is not None and watch_rule.ALPHA_PER_NIGHT / 500 < p < watch_rule.ALPHA_PER_NIGHT
    assert detect_losses_of_night([entry])[0][0].alarm
    assert not detect_losses_of_night([entry, *[equal] * 500])[0][0].alarm


def test_p_of_loss_is_one_sided_and_never_divides_by_nothing() -> None:
    assert p_value_of_loss([0.1]) is None
    sure, unsure = p_value_of_loss([0.03] * 8), p_value_of_loss([0.0] * 8)
    assert sure is not None and sure < 1e-9 and unsure == pytest.approx(0.5)
    opposite = p_value_of_loss([-0.03] * 8)
    assert opposite is not None and opposite > 0.99


def test_a_simulated_night_finds_what_is_there_and_nothing_else() -> None:
    rng = random.Random(1)
    nights = [
        watch_rule.simulate_alarms_of_night([5.0, 0.0], Noise(0.7, 0.7), rng) for _ in range(10)
    ]
    assert [night for night in nights if night != [True, False]] == []
