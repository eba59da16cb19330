"""An experiment on twins tells the change from the machine, and both intervals contain the truth as
often as they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.simulated_runs import REALISTIC, TWINS, Noise, SimulatedRuns

from workbench.bench import experiment as design
from workbench.bench import twins
from workbench.bench.metric_changes import BETTER, WORSE
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentSpec


def spec_of(seed: int = 0, **options: Any) -> ExperimentSpec:
    given = {"pairs": twins.DEFAULT_PAIRS, "order_seed": seed, "twins": TWINS, **options}
    return design.check_experiment_spec(ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, **given))


def made(spec: ExperimentSpec, runs: SimulatedRuns) -> Experiment:
    """Return an experiment that ran to its end by the product's own rules."""
    experiment = Experiment(1, 0.0, "one", spec, restarts=True)
    results = {}
    while design.why_enough_pairs(experiment) is None:
        for _ in "AB":
            run = design.next_run_to_make(experiment)
            result = runs.result(
                run,
                runs.speed(run.arm, len(runs.results)),
                design.workload_seed_of_pair(spec, run.pair),
            )
            results[result.id] = result
            done = replace(
                run, state="done", value=result.summary.output_tok_s, result_id=result.id
            )
            experiment = design.add_or_replace_run(experiment, done)
        experiment = design.evaluate_experiment(experiment, results)
    return design.evaluate_experiment(replace(experiment, state="done"), results)


def test_each_arm_runs_on_each_host_in_half_of_the_pairs() -> None:
    for seed in range(50):
        spec = spec_of(seed, pairs=8)
        for block in range(4):
            hosts = {twins.host_of_arm(spec, pair, "A") for pair in (2 * block, 2 * block + 1)}
            assert hosts == set(TWINS), "of every two pairs one is swapped"
        for pair in range(8):
            assert {twins.host_of_arm(spec, pair, arm) for arm in "AB"} == set(TWINS)
    assert len({twins.are_arm_hosts_swapped(spec_of(seed), 0) for seed in range(20)}) == 2, (
        "which one is drawn"
    )
    assert twins.host_of_arm(spec_of(twins=()), 0, "A") is None


def test_without_noise_both_effects_are_exact() -> None:
    runs = SimulatedRuns(0.05, 1, Noise(0, 0, 0, 0, machine=-0.03))
    one = made(spec_of(4), runs)
    assert one.comparison is not None and one.comparison.like_for_like, one.comparison
    change, machine = one.comparison.metrics[0], one.comparison.machine
    assert machine is not None and change.change_pct is not None and machine.change_pct is not None
    assert change.change_pct == pytest.approx(5.0, abs=1e-6)
    assert machine.change_pct == pytest.approx(-3.0, abs=1e-6)
    assert (change.verdict, machine.verdict) == (BETTER, WORSE)
    assert one.verdict == (
        "B is faster by 5.0 % ± 0.1 (output tok/s, 6 pairs); "
        "two is slower than one by 3.0 % ± 0.1 with the same configuration"
    )
    assert not [d for d in one.comparison.differences if d["kind"] == "host"], (
        "half of the pairs have it the other way"
    )


def test_without_its_results_an_experiment_says_nothing_of_the_machines() -> None:
    one = made(spec_of(4), SimulatedRuns(0.05, 1, Noise(0, 0, 0, 0, machine=-0.03)))
    without = design.evaluate_experiment(one, {})
    assert without.verdict == "no claim: no pair is complete"


def test_the_formula_gives_what_a_hand_calculation_gives() -> None:
    """d = 0.10 and 0.12 as they are, 0.02 and 0.06 swapped."""
    found = twins.separate_host_effect([0.10, 0.02, 0.12, 0.06], [False, True, False, True], 0.0)
    assert found is not None and found.error is not None
    assert (found.change, found.machine, found.df) == (
        pytest.approx(0.075),
        pytest.approx(0.035),
        2,
    )
    spread = (0.01**2 * 2 + 0.02**2 * 2) / 2
    assert found.error == pytest.approx(0.5 * math.sqrt(spread * (1 / 2 + 1 / 2)))
    assert twins.separate_host_effect([0.1, 0.2], [False, False], 0.0) is None
    few = twins.separate_host_effect([0.1, 0.2, 0.1], [False, False, True], 0.0)
    assert few is not None and few.error is None


def shares(
    count: int, effect: float = 0.0, noise: Noise = REALISTIC, **options: Any
) -> dict[str, float]:
    """Return the percentages of intervals that contain the truth, and of experiments that show a
    difference, for the change and for the machine."""
    held = dict.fromkeys(("change", "machine", "shown", "machine shown"), 0)
    for seed in range(count):
        one = made(spec_of(seed, **options), SimulatedRuns(effect, seed, noise))
        assert one.comparison is not None and one.comparison.machine is not None
        for name, found, truth in (
            ("change", one.comparison.metrics[0], effect),
            ("machine", one.comparison.machine, noise.machine),
        ):
            assert found.change_pct is not None and found.interval_pct is not None
            held[name] += abs(found.change_pct - 100 * truth) <= found.interval_pct
            held["shown" if name == "change" else "machine shown"] += found.verdict in (
                BETTER,
                WORSE,
            )
    return {name: 100 * number / count for name, number in held.items()}


def cases() -> Iterator[Any]:
    yield pytest.param({"pairs": 4}, 0.0, 0.0, id="4 pairs, nothing")
    yield pytest.param({"pairs": 6}, 0.0, 0.05, id="6 pairs, only the machine")
    yield pytest.param({"pairs": 6}, 0.03, -0.03, id="6 pairs, both")
    yield pytest.param({"pairs": 8}, 0.03, 0.0, id="8 pairs, only the change")
    yield pytest.param({"pairs": 16, "until_pct": 2.0}, 0.0, 0.05, id="until 2")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("options", "effect", "machine"), list(cases()))
def test_93_to_97_in_100_intervals_hold_the_truth(
    options: dict[str, Any], effect: float, machine: float
) -> None:
    found = shares(600, effect, replace(REALISTIC, machine=machine), **options)
    assert 92.5 <= found["change"] <= 97.5 and 92.5 <= found["machine"] <= 97.5, found
    if effect == 0.0:
        assert found["shown"] <= 7.5, "a machine that is 5 % faster is not taken for the change"
    if machine == 0.0:
        assert found["machine shown"] <= 7.5
    if abs(machine) >= 0.03 and options["pairs"] > 4:
        assert found["machine shown"] > 85.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"twins": ("one",)}, "twins are two different hosts, got one"),
        ({"twins": ("one", "one")}, "twins are two different hosts, got one, one"),
        ({"pairs": 5}, "an even number of pairs, at least 4, got 5"),
        ({"pairs": 2}, "an even number of pairs, at least 4, got 2"),
    ],
    ids=str,
)
def test_a_design_that_cannot_separate_the_effects_is_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        spec_of(**options)
