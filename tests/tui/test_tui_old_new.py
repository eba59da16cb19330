"""What was changed, from what to what, and whether it runs."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.model.flags import Origin
from workbench.model.plan import PlanDifference
from workbench.tui.panes.launch import changed_value_texts
from workbench.tui.widgets.comparison import _difference_texts


def row_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if f" {name} " in line and "$" not in line)


def test_a_changed_flag_shows_old_new_and_what_runs(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("2")
        assert "+ " not in row_of(d.text, "kv-cache-dtype")
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        await d.until(lambda: "1 change is not running: s restarts" in d.text)
        row = row_of(d.text, "kv-cache-dtype")
        assert "+" in row.split("kv-cache")[0]
        assert "fp8 → auto  running: fp8" in row
        await d.session.servers.start()
        await d.until(lambda: "not running: " not in d.text)
        row = row_of(d.text, "kv-cache-dtype")
        assert "+" in row.split("kv-cache")[0]  # it still differs from the preset
        assert "fp8 → auto  running: auto" in row

    drive(scenario, stage="ready", size=(200, 60))


def test_the_mark_of_a_change_stays_beside_the_sign_of_a_finding(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("max-num-seqs", "1024")
        await d.press("2")
        await d.until(lambda: "+! max-num-seqs" in d.text)
        assert "512 → 1024" in row_of(d.text, "max-num-seqs")

    drive(scenario, stage="ready", size=(80, 24))


def test_a_flag_that_only_the_running_server_has_is_a_change_too(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        await d.press("2")
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        await d.session.servers.start()
        d.session.plans.undo()
        await d.until(lambda: "1 change is not running" in d.text)
        row = row_of(d.text, "kv-cache-dtype")
        assert "+" in row.split("kv-cache")[0]
        assert "auto → fp8  running: auto" in row

    drive(scenario, stage="ready", size=(200, 60))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_command_says_whether_it_is_what_runs(drive: Any, size: tuple[int, int]) -> None:
    def command(d: Any) -> str:
        return next(line for line in d.text.splitlines() if line.startswith("$ "))

    async def scenario(d: Any) -> None:
        await d.until(lambda: "● running with " in command(d))
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        await d.until(lambda: command(d).endswith("○ not running"))
        assert command(d).startswith("$ ")

    drive(scenario, stage="ready", size=size)


def test_the_command_names_the_changes_that_run_where_it_is_cut_before_them(drive: Any) -> None:
    """Of ten readers who saw one picture only, seven could not tell whether the change runs."""

    def command(d: Any) -> str:
        return next(line for line in d.text.splitlines() if line.startswith("$ "))

    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("max-num-seqs", "2")
        d.session.plans.set_flag("port", "8123")
        await d.session.servers.start()
        await d.until(lambda: "● running with max-num-seqs=2" in command(d))
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        d.session.plans.set_flag("served-model-name", "a-name-that-is-long-enough")
        await d.session.servers.start()
        await d.until(lambda: "served-model-name=a-name-that-is-long" in d.text)
        assert "● running with max-num-seqs=2 kv-cache-dtype=auto" in command(d)

    drive(scenario, stage="ready", size=(80, 24))


def test_without_a_server_nothing_is_said_to_run_or_not(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        d.session.plans.set_flag("kv-cache-dtype", "auto")
        await d.press("2")
        await d.until(lambda: "fp8 → auto" in d.text)
        assert "running" not in row_of(d.text, "kv-cache-dtype")
        assert "running" not in d.text.splitlines()[-3]

    drive(scenario, stage="plan")


def test_with_little_room_the_words_become_fewer_and_the_old_value_stays() -> None:
    edit = PlanDifference("flag", "x", "on", "off")

    def text(room: int, served: str = "running") -> str:
        return "".join(run for run, _ in changed_value_texts("off", edit, edit, served, room))

    assert text(40) == "on → off  running: on"
    assert text(18) == "on → off  runs on"
    assert text(17) == "on → off runs on"  # the pane of a terminal with 120 columns
    assert text(40, "starting") == "on → off  starting: on"
    assert text(20, "starting") == "on → off  starts on"
    assert text(14) == "on → off"
    assert text(9) == "on → off"
    assert text(6) == "off"


def test_two_long_values_are_cut_and_not_left_out() -> None:
    edit = PlanDifference("flag", "x", "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct")

    def text(room: int) -> str:
        runs = changed_value_texts("Qwen/Qwen3-VL-8B-Instruct", edit, edit, "running", room)
        return "".join(run for run, _ in runs)

    assert text(60) == "Qwen/Qwen3-VL-2B-Instruct → Qwen/Qwen3-VL-8B-Instruct"
    assert [len(text(room)) for room in (40, 24, 17)] == [39, 23, 16]
    assert all(" → " in text(room) for room in range(10, 60))


def test_a_flag_of_the_preset_that_was_removed_stays_in_the_list() -> None:
    from workbench.model.plan import LaunchPlan
    from workbench.session.plans.plan_editor import PlanEditor

    plan = LaunchPlan("vllm", "m").with_flag("enforce-eager", True, Origin.PRESET)
    editor = PlanEditor(plan.with_env("VLLM_API_KEY", "sk-secret", Origin.PRESET))
    editor.unset_flag("enforce-eager")
    editor.set_env("VLLM_API_KEY", "sk-other")
    view = editor.view()
    (row,) = [row for row in view.rows if row.name == "enforce-eager"]
    assert (row.value, row.origin) == (None, Origin.EDITED)
    assert [(c.name, c.a, c.b) for c in view.changes] == [
        ("enforce-eager", True, None),
        ("VLLM_API_KEY", "***", "***"),
    ]
    assert view.edit_count == 2


def test_changed_flags_come_first_so_that_a_small_pane_shows_them(drive: Any) -> None:
    async def scenario(d: Any) -> None:
        pane = d.pane("launch")
        names = [item.name for item in pane.items]
        last = [item.name for item in pane.items if not item.is_env and item.name != "port"][-1]
        d.session.plans.set_flag("port", "8123")
        d.session.plans.set_flag(last, "auto")
        await d.until(lambda: [item.name for item in pane.items][2:4] == [last, "port"])
        assert [item.name for item in pane.items][:2] == names[:2]
        assert {item.name for item in pane.items} == {*names, "port"}
        d.session.plans.undo()
        await d.until(lambda: [item.name for item in pane.items][2] == "port")

    drive(scenario, stage="ready")


def test_a_setting_of_several_gpus_is_one_difference() -> None:
    """A flag and a power limit of four GPUs were "5 differences"."""
    limits = [
        {"kind": "gpu setting", "name": f"gpu{n}.power_limit_w", "a": 250.0, "b": 170.0}
        for n in range(4)
    ]
    flag = {"kind": "flag", "name": "enforce-eager", "a": True, "b": False}
    lock = {"kind": "gpu setting", "name": "gpu0.gpu_clocks", "a": None, "b": "1500,1500"}
    assert _difference_texts([flag, *limits, lock]) == [
        "enforce-eager on → off",
        "GPU0-3 power limit 250 → 170 W",
        "GPU0 GPU clocks - → 1500 MHz",
    ]
