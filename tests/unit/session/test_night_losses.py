"""What a night takes from an experiment: by how much the candidate is worse in each pair."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.fake_canned import canned_experiment

from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec, RunState
from workbench.model.quality import BROKEN, DIFFERS, NOT_DECIDED, SAME
from workbench.model.watch import ANSWERS, SPEED, START
from workbench.session.series import night_watch
from workbench.session.series.night_watch import compute_log_losses_by_measure


def test_half_the_speed_and_a_start_that_takes_twice_as_long_are_equal_losses() -> None:
    a = ExperimentRun(0, 0, "A", RunState.DONE, value=100.0, ready_after_s=10.0)
    b = ExperimentRun(1, 0, "B", RunState.DONE, value=50.0, ready_after_s=20.0)
    found = compute_log_losses_by_measure(
        Experiment(1, 0.0, "here", ExperimentSpec(Arm(), Arm(), {}), (a, b))
    )
    half = pytest.approx([math.log(2)])
    assert found == {SPEED: half, START: half}, "the runs name no KV tokens"


def judged(verdict: str) -> Experiment:
    experiment = canned_experiment()
    assert experiment.comparison is not None
    return replace(experiment, comparison=replace(experiment.comparison, quality_verdict=verdict))


@pytest.mark.parametrize(
    ("first", "second", "alarm"),
    [
        (DIFFERS, DIFFERS, True),
        (BROKEN, DIFFERS, True),
        (DIFFERS, SAME, False),
        (SAME, BROKEN, False),
        (SAME, SAME, False),
        (NOT_DECIDED, NOT_DECIDED, False),
        (DIFFERS, None, False),
    ],
)
def test_only_answers_that_are_worse_twice_are_an_alarm(
    first: str, second: str | None, alarm: bool
) -> None:
    repeated = judged(second) if second is not None else None
    losses = night_watch._entry_fields_from_experiments(judged(first), repeated)["losses"]
    assert [(loss.measure, loss.alarm) for loss in losses] == [(ANSWERS, True)] * alarm
