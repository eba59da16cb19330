"""What a comparison of answers says before it measures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.session.plans.plan_editor import PlanEditor
from workbench.session.quality.comparison import _warning_lines_of_plans


def side(**flags: Any) -> Any:
    set_flags = tuple(FlagSetting(name.replace("_", "-"), value) for name, value in flags.items())
    return SimpleNamespace(editor=PlanEditor(LaunchPlan("vllm", "some/model", flags=set_flags), ""))


def test_what_is_doubtful_about_b_is_said_before_a_is_measured_for_minutes() -> None:
    """B failed at its start, or was slow, after A had been measured three times."""
    [line] = _warning_lines_of_plans({"A": side(), "B": side(max_num_seqs=1)})
    assert line.startswith("B: warning: with max-num-seqs 1 the server has no batching")
    assert line.endswith("— unset max-num-seqs")


def test_what_both_sides_have_is_said_once_and_a_running_server_has_no_plan() -> None:
    both = {"A": side(max_num_seqs=1), "B": side(max_num_seqs=1)}
    [line] = _warning_lines_of_plans(both)
    assert line.startswith("A: warning: ")
    assert not list(_warning_lines_of_plans({"A": SimpleNamespace(editor=None)}))  # type: ignore[dict-item]
