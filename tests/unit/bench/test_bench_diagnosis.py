"""Observations about the machine: reported if they are real, and seldom otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.simulated_runs import REALISTIC, Noise, SimulatedRuns

from workbench.bench import experiment as design
from workbench.bench.experiment_disturbances import (
    MeasuredRun,
    describe_disturbances,
    shared_compiled_code_note,
)
from workbench.model.experiment import WARM_UP, Arm, ExperimentRun, ExperimentSpec

QUIET = replace(REALISTIC, drift=0.0)


def pairs_of(seed: int, noise: Noise, pairs: int) -> list[tuple[MeasuredRun, MeasuredRun]]:
    spec = ExperimentSpec(Arm(), Arm(), {}, order_seed=seed)
    runs, place, found = SimulatedRuns(0.03, seed, noise), 0, []
    for pair in range(pairs):
        two = {}
        for arm in design.arm_order_of_pair(spec, pair):
            two[arm] = MeasuredRun(ExperimentRun(place, pair, arm), runs.speed(arm, place))
            place += 1
        found.append((two["A"], two["B"]))
    return found


def share(word: str, noise: Noise, pairs: int = 8, count: int = 300) -> float:
    """Return the percentage of experiments in which an observation contains this word."""
    said = [" ".join(describe_disturbances(pairs_of(seed, noise, pairs))) for seed in range(count)]
    return 100 * sum(word in text for text in said) / count


@pytest.mark.parametrize(
    "word", ["is an outlier", "two speeds", "trend", "the second run", "has outliers"]
)
@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_a_quiet_machine_is_seldom_accused(word: str, pairs: int) -> None:
    assert share(word, QUIET, pairs) <= 4.0


@pytest.mark.parametrize("pairs", [5, 8, pytest.param(12, marks=pytest.mark.slow)])
def test_runs_that_wander_together_are_seldom_called_a_trend(pairs: int) -> None:
    """Runs whose neighbours are correlated by 0.8 look like a trend: 6 to 12 % of such experiments
    were reported."""
    assert share("trend", replace(QUIET, correlation=0.8), pairs) <= 5.0


def test_facts_of_a_host_are_reported() -> None:
    assert share("two speeds", replace(QUIET, two_speeds=0.03)) > 80.0
    assert share("and stayed", replace(QUIET, step=0.06)) > 50.0
    assert share("trend", replace(QUIET, drift=0.01)) > 90.0


def test_an_effect_of_the_second_run_is_reported() -> None:
    assert share("the second run of a pair is +", replace(QUIET, second=0.02)) > 80.0
    assert share("the second run of a pair is -", replace(QUIET, second=-0.02)) > 80.0


def test_an_effect_of_the_second_run_is_reported_beside_a_trend() -> None:
    """The trend alone would explain the difference with the wrong sign: each second run is slower,
    although each run is faster than the one before on average."""
    both = replace(QUIET, drift=0.01, second=-0.03)
    assert share("besides the trend, the second run of a pair is -", both) > 80.0
    assert share("besides the trend", replace(QUIET, drift=0.01)) <= 2.0


def test_an_outlier_of_one_arm_is_reported_by_few_pairs() -> None:
    """Three pairs are the default, and had no limit of their own."""
    found = 0
    for seed in range(100):
        pairs = pairs_of(seed, QUIET, 3)
        a, b = pairs[seed % 3]
        pairs[seed % 3] = (a, replace(b, value=0.8 * b.value))
        found += any(
            said.startswith("only B has outliers") for said in describe_disturbances(pairs)
        )
    assert found > 80


def test_outliers_of_one_arm_are_reported() -> None:
    rare = replace(QUIET, b_outliers=0.1, b_outlier_size=0.2)
    # 57 % of these experiments have outliers; two or more of them look like two speeds of B.
    assert share("only B has outliers", rare) + share("two speeds: B ", rare) > 50.0
    assert share("only A has outliers", rare) <= 2.0
    assert share("has outliers", replace(QUIET, two_speeds=0.03)) <= 2.0


def in_order(
    ratios: Sequence[float], orders: str, step: float
) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Return pairs with these ratios B/A in these orders ("a": A first), on a machine that becomes
    faster by `step` with each run."""
    found = []
    for pair, (ratio, first) in enumerate(zip(ratios, orders, strict=True)):
        two = {}
        for place, arm in enumerate("AB" if first == "a" else "BA", start=2 * pair):
            speed = 100 * (1 + step) ** place * (ratio if arm == "B" else 1.0)
            two[arm] = MeasuredRun(ExperimentRun(place, pair, arm), speed)
        found.append((two["A"], two["B"]))
    return found


def test_the_note_on_a_trend_says_what_the_order_made_of_it() -> None:
    ratios = (1.0002, 0.9997, 1.0001, 1.0003, 0.9998)
    (confounded,) = describe_disturbances(in_order(ratios, "aaaaa", 0.01))
    assert "A ran first in all 5 pairs, so +1.0 % of the difference between A and B" in confounded
    (other,) = describe_disturbances(in_order(ratios, "bbbbb", 0.01))
    assert "B ran first in all 5 pairs, so -1.0 % of the difference between A and B" in other
    (spread,) = describe_disturbances(in_order(ratios, "abaab", 0.01))
    assert (
        "A ran first in 3 of 5 pairs, so this widens the interval and moves the difference by +0.2 %"
        in spread
    )
    (even,) = describe_disturbances(in_order((*ratios, 1.0), "ababab", 0.01))
    assert "A ran first in 3 of 6 pairs, so this widens the interval and does not move it" in even


def test_one_disturbed_run_is_found() -> None:
    found = 0
    for seed in range(100):
        pairs = pairs_of(seed, QUIET, 8)
        a, b = pairs[seed % 8]
        pairs[seed % 8] = (a, replace(b, value=0.9 * b.value))
        found += any(
            said.startswith(f"pair {seed % 8 + 1} is an outlier")
            for said in describe_disturbances(pairs)
        )
    assert found > 80


def exact(values: Sequence[tuple[float, float]]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    return [
        (
            MeasuredRun(ExperimentRun(2 * n, n, "A"), a),
            MeasuredRun(ExperimentRun(2 * n + 1, n, "B"), b),
        )
        for n, (a, b) in enumerate(values)
    ]


def test_the_run_that_did_it_is_named() -> None:
    said, arm = describe_disturbances(
        exact([(100, 103), (100.4, 103), (99.8, 103.1), (80, 103), (100.1, 102.8), (99.9, 103.2)])
    )
    assert (
        said.startswith("pair 4 is an outlier: +28.8 %, the others +3.0 % with")
        and "run 7 (A) is -20.0 %" in said
    )
    assert arm.startswith("only A has outliers: run 7 (A) -20.0 % from its median")


def test_a_step_is_distinguished_from_servers_that_alternate() -> None:
    (step,) = describe_disturbances(
        exact([(100, 100.1), (100.2, 99.9), (100, 100.1), (95, 95.2), (94.9, 95), (95.1, 95)])
    )
    assert "came before run 7 and stayed" in step
    (dice,) = describe_disturbances(
        exact([(100, 95.1), (95, 100), (95.2, 95), (100.2, 100.1), (99.9, 94.9), (95, 100)])
    )
    assert "A 3 runs near 95.07 and 3 near 100" in dice and "selects one of the two" in dice


@pytest.mark.parametrize("pairs", [3, 5, 8])
def test_a_first_run_like_the_others_is_seldom_called_cold(pairs: int) -> None:
    """Few runs tell little about their spread: four times the spread of three runs is not a cold
    start."""

    def told_pct(noise: Noise) -> float:
        told = 0
        for seed in range(300):
            (first, _), *rest = pairs_of(seed, noise, pairs + 1)
            discarded = replace(first, run=replace(first.run, pair=WARM_UP))
            told += any("a cold start" in text for text in describe_disturbances(rest, [discarded]))
        return told / 3

    assert told_pct(replace(QUIET, correlation=0.0)) <= 3.0
    assert told_pct(replace(QUIET, two_speeds=0.03)) <= 3.0


def test_a_cold_first_run_is_reported() -> None:
    first = [MeasuredRun(ExperimentRun(0, WARM_UP, "A"), 90.0)]
    assert list(describe_disturbances(exact([(100, 103), (100.2, 103.3)]), first)) == [
        "the discarded first run is -10.1 % from the other runs of A: a cold start"
    ]
    assert not list(
        describe_disturbances(exact([(100, 103), (100.2, 103.3)]), [replace(first[0], value=100.4)])
    )


def test_a_compile_cache_is_reported_for_the_arms_that_have_one() -> None:
    both = shared_compiled_code_note(["vllm", "vllm"], [False, False])
    assert both is not None and both.startswith(
        "all runs of A and all of B share the code compiled at the first start"
    )
    one = shared_compiled_code_note(["vllm", "vllm"], [False, True])
    assert one is not None and one.startswith("all runs of A share")
    assert shared_compiled_code_note(["llamacpp", "vllm"], [False, True]) is None


def test_equal_or_few_runs_are_no_trouble() -> None:
    assert not list(describe_disturbances([]))
    assert not list(describe_disturbances(exact([(100, 103)])))
    assert not list(describe_disturbances(exact([(100, 103)] * 8)))
