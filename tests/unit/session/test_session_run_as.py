"""What runs a server, in plans and presets: options, their checks, rows, the real command, trust,
saving."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from support import standin_launcher

from workbench import engines
from workbench.engines.preset_trust import list_untrusted_parts
from workbench.model.errors import InputError
from workbench.model.findings import PlanChange
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan, plan_differences
from workbench.model.preset import Preset
from workbench.model.run_options import (
    launcher_option_value,
    launcher_option_values,
    with_launcher_and_options,
)
from workbench.model.secrets import MASK
from workbench.session.plans.plan_editor import PlanEditor
from workbench.store.preset_check import check_text
from workbench.store.preset_edit import document_from_plan
from workbench.store.preset_text import preset_sections

PRESET = """schema = 1
id = "unit"
title = "As a unit"
summary = "a test"
[hardware]
count = 1
[engine]
name = "vllm"
[launch]
run_as = "systemd"
run_options = {{ {options} }}
[model]
id = "org/tiny"
[provenance]
document = "none"
status = "untested"
"""


def plan(**more: str) -> LaunchPlan:
    flags = tuple(FlagSetting(name, value) for name, value in more.items())
    return LaunchPlan("vllm", "org/tiny", flags=flags)


def codes(options: str, run_as: str = "systemd") -> set[str]:
    return {
        f.code
        for f in check_text(
            PRESET.replace('"systemd"', f'"{run_as}"').format(options=options)
        ).findings
    }


def test_options_are_assigned_checked_and_kept() -> None:
    given = ["property=Nice=-5", "scope=SYSTEM", "property=MemoryMax=1 G"]
    made = with_launcher_and_options(plan(), "systemd", given)
    assert made.run_options == {"property": "Nice=-5\nMemoryMax=1 G", "scope": "system"}
    assert launcher_option_values("systemd", made.run_options, "property") == (
        "Nice=-5",
        "MemoryMax=1 G",
    )
    assert launcher_option_value("systemd", made.run_options, "restart") == "no"
    assert with_launcher_and_options(made, "process", ()).run_options == {}


@pytest.mark.parametrize(
    ("word", "given", "problem"),
    [
        ("sytemd", [], "there is no launcher"),
        ("systemd", ["scop=user"], "no run option 'scop'"),
        ("systemd", ["scope=all"], "expected one of user, system"),
        ("systemd", ["scope=user", "scope=system"], "given 2 times"),
        ("systemd", ["property=Nice"], "a property as NAME=VALUE"),
        ("systemd", ["property=A=b\nExecStartPre=/bin/sh"], "a property as NAME=VALUE"),
        ("systemd", ["scope"], "not of the form"),
        ("process", ["scope=user"], "no run option"),
    ],
)
def test_wrong_options_are_refused(word: str, given: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        with_launcher_and_options(plan(), word, given)


def test_the_editor_has_rows_for_the_launcher_and_its_options() -> None:
    editor = PlanEditor(plan())
    assert not [row for row in editor.flag_rows() if row.name.startswith("run-as")]
    assert [row.name for row in editor.flag_rows("all")][:3] == ["model", "executable", "run-as"]
    editor.set_flag("run-as", "systemd")
    editor.set_flag("run-as.restart", "always")
    editor.set_flag("run-as.property", "Nice=-5 'MemoryMax=1 G'")
    rows = {row.name: row.value for row in editor.flag_rows() if row.name.startswith("run-as")}
    assert rows == {
        "run-as": "systemd",
        "run-as.scope": None,
        "run-as.installed": None,
        "run-as.unit": None,
        "run-as.restart": "always",
        "run-as.property": "Nice=-5 'MemoryMax=1 G'",
    }
    assert editor.plan.run_options["property"] == "Nice=-5\nMemoryMax=1 G"
    assert [row.name for row in editor.flag_rows(query="run-as")][:1] == ["run-as"]
    editor.unset_flag("run-as.restart")
    assert "restart" not in editor.plan.run_options
    editor.undo()
    assert editor.plan.run_options["restart"] == "always"
    with pytest.raises(InputError):
        editor.set_flag("run-as.scope", "nobody")
    editor.unset_flag("run-as")
    assert (editor.plan.run_as, dict(editor.plan.run_options)) == ("process", {})
    assert editor._plan_with_change(plan(), PlanChange("run-as", "systemd")).run_as == "systemd"


def test_the_assignments_of_a_command_set_the_launcher() -> None:
    editor = PlanEditor(plan())
    editor.apply_assignments(["run-as=systemd", "run-as.scope=system"], [], [])
    assert editor.plan.run_options == {"scope": "system"}
    editor.apply_assignments([], ["run-as.scope"], [], None, ["restart=always"])
    assert editor.plan.run_options == {"restart": "always"}
    kinds = {(change.kind, change.name) for change in plan_differences(plan(), editor.plan)}
    assert kinds == {("run as", "run as"), ("run option", "restart")}


def test_the_view_shows_the_command_that_runs_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin_launcher.registered(monkeypatch, tmp_path / "scheduler")
    editor = PlanEditor(plan(**{"api-key": "sesame-sesame"}))
    assert editor.view().start_command == editor.view().command
    editor.set_env("HF_TOKEN", "hf-sesame-token")
    editor.set_flag("run-as", "standin")
    view = editor.view()
    assert view.run_command is not None
    assert view.run_command.argv[:3] == ("standin", "run", "RUN")
    assert MASK in view.run_command.files["job.sh"]
    assert "sesame" not in repr(view)
    assert view.shell_command() == view.run_command.shell_line


def test_a_preset_says_what_runs_its_server() -> None:
    checked = check_text(
        PRESET.format(options='scope = "user", property = ["Nice=-5", "MemoryMax=1G"]')
    )
    assert checked.preset is not None
    made = engines.plan_from_preset(checked.preset)
    assert (made.run_as, made.run_options) == (
        "systemd",
        {"scope": "user", "property": "Nice=-5\nMemoryMax=1G"},
    )
    facts = {line.label: line.text for line in preset_sections(checked.preset)[0].lines}
    assert facts["runs as"] == "systemd scope=user property=Nice=-5 property=MemoryMax=1G"
    document = tomllib.loads(PRESET.format(options='scope = "user"'))
    saved = document_from_plan(made, document, preset_id="mine", title="Mine")
    again = engines.plan_from_preset(Preset.model_validate(saved))
    assert (again.run_as, dict(again.run_options)) == (made.run_as, dict(made.run_options))
    with_process = document_from_plan(
        with_launcher_and_options(made, "process", ()), document, preset_id="mine", title="Mine"
    )
    assert "launch" not in with_process


def test_wrong_options_of_a_preset_are_errors() -> None:
    assert "preset.run-as" in codes("", "sytemd")
    assert "preset.run-option" in codes('scop = "user"')
    assert "preset.run-option" in codes('scope = "all"')
    assert "preset.run-option" in codes('scope = ["user", "system"]')
    assert "preset.wrong-type" in codes("scope = 8")
    assert not codes('scope = "user"')


def test_an_option_that_gives_rights_needs_trust() -> None:
    options = 'property = "ExecStartPre=/tmp/x"'
    checked = check_text(PRESET.format(options=options))
    assert [f.code for f in checked.findings] == ["preset.run-option"]
    assert checked.preset is not None
    made = engines.plan_from_preset(checked.preset)
    assert not list_untrusted_parts(made, ())  # not from a stranger
    (part,) = list_untrusted_parts(replace(made, stranger=True), ())
    assert "can run other programs" in part.text
    assert not list_untrusted_parts(replace(made, stranger=True), {part.digest})
