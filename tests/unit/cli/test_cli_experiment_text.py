"""The text of an experiment: verdict, smallest difference and the command to resume."""

from __future__ import annotations

import pytest

from workbench.cli.experiment_text import experiment_lines
from workbench.model.experiment import Arm, Experiment, ExperimentSpec, SeriesState

SPEC = ExperimentSpec(Arm(), Arm(("max-num-seqs=64",)), {})


@pytest.mark.parametrize(
    ("verdict", "repeated"),
    [
        ("B is faster by 4.0 % ± 1.0", True),
        ("no difference: one of 2.5 % or more would have been shown", False),
    ],
)
def test_the_smallest_difference_is_printed_once(verdict: str, repeated: bool) -> None:
    done = Experiment(
        1, 0.0, "box", SPEC, state=SeriesState.DONE, verdict=verdict, smallest_pct=2.5
    )
    lines = list(experiment_lines(done))
    assert any("The smallest difference" in line for line in lines) is repeated
    assert not any("resume" in line for line in lines)


def test_a_stopped_experiment_names_the_command_to_resume_it() -> None:
    stopped = Experiment(3, 0.0, "box", SPEC, state=SeriesState.STOPPED, error="interrupted")
    assert list(experiment_lines(stopped))[-1] == "to resume it: workbench experiment resume 3"
