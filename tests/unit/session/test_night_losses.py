"""What a night takes from an experiment: by how much the candidate is worse in each pair."""

from __future__ import annotations

import math

import pytest

from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec, RunState
from workbench.model.watch import SPEED, START
from workbench.session.series.night_watch import compute_pair_losses


def test_half_the_speed_and_a_start_that_takes_twice_as_long_are_equal_losses() -> None:
    a = ExperimentRun(0, 0, "A", RunState.DONE, value=100.0, ready_after_s=10.0)
    b = ExperimentRun(1, 0, "B", RunState.DONE, value=50.0, ready_after_s=20.0)
    found = compute_pair_losses(
        Experiment(1, 0.0, "here", ExperimentSpec(Arm(), Arm(), {}), (a, b))
    )
    half = pytest.approx([math.log(2)])
    assert found == {SPEED: half, START: half}, "the runs name no KV tokens"
