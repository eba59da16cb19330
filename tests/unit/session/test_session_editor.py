"""The plan editor, and the shell script of a plan."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.model.errors import InputError
from workbench.model.flags import FlagSetting, Origin
from workbench.model.gpu import GpuInfo
from workbench.model.plan import LaunchPlan, Node
from workbench.session.plans.plan_editor import MAX_UNDO_STEPS, HostContext, PlanEditor
from workbench.session.plans.recipes import export_plan
from workbench.session.session import Session

BASE = LaunchPlan("vllm", "org/model", flags=(FlagSetting("port", 8000, Origin.PRESET),))


def test_undo_brings_back_an_edited_plan_over_which_a_preset_was_loaded() -> None:
    async def scenario() -> None:
        session = Session.of_host()
        plans = session.plans
        try:
            await plans.load_preset("sglang-any")
            await plans.load_preset("vllm-any")
            assert not plans.view().can_undo  # nothing was edited
            plans.set_flag("max-num-seqs", "77")
            await plans.load_preset("sglang-any")
            assert plans.view().can_undo
            plans.undo()
            assert plans.editor.plan.preset_id == "vllm-any"
            assert plans.editor.plan.flag("max-num-seqs") == 77
            plans.undo()
            assert plans.editor.plan.flag("max-num-seqs") is None and not plans.view().can_undo
        finally:
            await session.close()

    asyncio.run(scenario())


def test_edits_can_be_taken_back_and_done_again() -> None:
    editor = PlanEditor(BASE, "title")
    view = editor.view()
    assert (view.edit_count, view.can_undo, view.can_redo, view.title) == (0, False, False, "title")
    editor.set_flag("max-num-seqs", "512")
    editor.set_env("VLLM_LOGGING_LEVEL", "DEBUG")
    editor.unset_flag("port")
    assert (editor.view().edit_count, editor.view().can_undo) == (3, True)
    plans = [editor.plan]
    for _ in range(3):
        editor.undo()
        plans.append(editor.plan)
    assert editor.plan == BASE and editor.view().can_redo
    editor.undo()  # at the first: nothing more
    assert editor.plan == BASE
    for _ in range(3):
        editor.redo()
    assert editor.plan == plans[0]
    editor.redo()
    assert editor.plan == plans[0]
    editor.undo()
    editor.set_flag("max-num-seqs", "4")
    assert not editor.view().can_redo  # another way was taken


def test_an_edit_that_does_not_hold_changes_nothing() -> None:
    editor = PlanEditor(BASE)
    with pytest.raises(InputError):
        editor.set_flag("max-num-seqs", "many")
    with pytest.raises(InputError):
        editor.set_env("A", "b\0c")
    with pytest.raises(InputError):
        editor.apply_assignments(["max-num-seqs=4", "max-model-len=wide"], [], [])
    assert editor.plan is BASE and not editor.view().can_undo
    editor.set_flag("port", "8000")  # as it is: no step
    editor.unset_env("NOT_SET")
    assert not editor.view().can_undo


def test_assignments_are_one_step() -> None:
    editor = PlanEditor(BASE)
    editor.apply_assignments(["max-num-seqs=4", "enforce-eager=on"], ["port"], ["A=1"])
    assert editor.plan.flag("port") is None and editor.plan.flag("enforce-eager") is True
    editor.undo()
    assert editor.plan == BASE


def test_unknown_flags_are_kept_and_found() -> None:
    editor = PlanEditor(BASE)
    editor.set_flag("max-num-sequences", "8")
    command = editor.launch_command()
    assert command.argv[-2:] == ("--max-num-sequences", "8")
    assert any(f.flag == "max-num-sequences" for f in editor.findings())
    assert "max-num-sequences" in [row.name for row in editor.flag_rows()]


def test_rows_changed_all_and_searched() -> None:
    editor = PlanEditor(BASE)
    editor.set_env("HF_HOME", "/x")
    assert [row.name for row in editor.flag_rows()] == ["model", "executable", "port", "HF_HOME"]
    assert len(editor.flag_rows("all")) > 300
    assert editor.flag_rows(query="max num seqs")[0].name == "max-num-seqs"
    assert editor.flag_rows(query="qqqqzzzz") == []


def test_the_model_is_a_row_that_can_be_set_but_not_taken_away() -> None:
    editor = PlanEditor(BASE)
    row = editor.flag_rows()[0]
    assert (row.name, row.value, row.origin) == ("model", "org/model", Origin.PRESET)
    editor.set_flag("model", "/other")
    row = editor.flag_rows()[0]
    assert (row.value, row.origin) == ("/other", Origin.EDITED) and row.spec is not None
    with pytest.raises(InputError, match="model cannot be removed"):
        editor.unset_flag("model")
    assert [r.name for r in editor.flag_rows("all")].count("model") == 1


def test_the_executable_is_a_row_and_not_a_flag_of_the_engine() -> None:
    editor = PlanEditor(BASE)
    row = editor.flag_rows()[1]
    assert (row.name, row.value, row.default, row.origin) == (
        "executable",
        None,
        "vllm",
        Origin.DEFAULT,
    )
    editor.set_flag("executable", "'/opt/v 1/bin/vllm'")
    assert (
        editor.launch_command().argv[:2] == ("/opt/v 1/bin/vllm", "serve")
        and "--executable" not in editor.launch_command().argv
    )
    row = editor.flag_rows()[1]
    assert (row.value, row.origin) == (
        "'/opt/v 1/bin/vllm'",
        Origin.EDITED,
    ) and editor.view().edit_count == 1
    editor.apply_assignments(
        ["executable=/opt/v/bin/python -m vllm.entrypoints.openai.api_server"], (), ()
    )
    assert editor.launch_command().argv[:3] == (
        "/opt/v/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
    )
    for wrong in ("venv/bin/vllm", "~/venv/bin/vllm", "'/opt"):
        with pytest.raises(InputError):
            editor.set_flag("executable", wrong)
    editor.unset_flag("executable")
    assert editor.launch_command().argv[0] == "vllm"
    editor.undo()
    assert editor.launch_command().argv[0] == "/opt/v/bin/python"


def test_a_host_without_the_engine_is_a_finding_like_others() -> None:
    editor = PlanEditor(BASE)
    assert "engine.missing" not in [f.code for f in editor.findings()]
    editor.host_context = HostContext(
        installed_problem="vllm not found on box", executables=("/opt/v/bin/vllm",)
    )
    (finding,) = [f for f in editor.findings() if f.code == "engine.missing"]
    assert finding.text == "vllm not found on box" and "/opt/v/bin/vllm" in (finding.fix or "")
    assert editor.flag_rows()[1].finding == finding.text and finding in editor.view().findings


def test_the_history_does_not_grow_without_end() -> None:
    editor = PlanEditor(BASE)
    for number in range(MAX_UNDO_STEPS + 50):
        editor.set_flag("max-num-seqs", str(number + 1))
    for _ in range(MAX_UNDO_STEPS + 50):
        editor.undo()
    assert editor.plan.flag("max-num-seqs") == 50 and not editor.view().can_undo


def test_the_surroundings_decide_what_is_found() -> None:
    editor = PlanEditor(BASE)
    editor.set_flag("tensor-parallel-size", "2")
    assert "gpus.too-few" not in [f.code for f in editor.findings()]  # not known yet
    editor.host_context = HostContext(
        gpus=(GpuInfo(0, "GPU-0", "NVIDIA GB10"),), installed_version="0.11.0"
    )
    assert "gpus.too-few" in [f.code for f in editor.findings()]
    assert editor.view().catalog_version != PlanEditor(BASE).view().catalog_version


def test_every_node_is_in_what_is_shown_copied_and_written(tmp_path: Path) -> None:
    """The worker's command was in none of them."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$IP $*"\n')
    program.chmod(0o755)
    nodes = tuple(
        Node(name, rank, {"node-rank": rank}, {"IP": f"10.0.0.{rank}"})
        for rank, name in enumerate("hw")
    )
    editor = PlanEditor(replace(BASE, executable=(str(program),), nodes=nodes))
    view = editor.view()
    assert [node.name for node, _ in view.nodes] == ["h", "w"]
    assert (
        "# h (rank 0)" in view.shell_command()
        and "# w (rank 1)" in view.shell_command()
        and ("--node-rank 1") in view.shell_command()
    )
    script = tmp_path / "start.sh"
    script.write_text(export_plan(editor.effective_plan, "shell", name="x").text)
    for rank, name in enumerate("hw"):
        ran = subprocess.run(["sh", str(script), name], capture_output=True, text=True, check=True)
        assert (
            ran.stdout.startswith(f"10.0.0.{rank} serve org/model")
            and f"--node-rank {rank}" in ran.stdout
        )
    wrong = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "h|w" in wrong.stderr
    assert PlanEditor(BASE).view().shell_command() == PlanEditor(BASE).launch_command().shell_line
