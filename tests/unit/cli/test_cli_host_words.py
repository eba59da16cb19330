"""Commands that a message proposes name the host of the command line."""

from __future__ import annotations

import pytest

from workbench.cli.host_words import name_host, name_host_in_fixes
from workbench.cli.parser import parse_command_line
from workbench.cli.run import run
from workbench.model.findings import Finding, Level

SIMULATED = ("--simulate", "rtx-pro-6000")


@pytest.mark.parametrize(
    ("words", "text", "named"),
    [
        (
            SIMULATED,
            "workbench gpu set --persistence on",
            "workbench --simulate rtx-pro-6000 gpu set --persistence on",
        ),
        (
            ("--host", "gpu-box", "--container", "podman:a b"),
            "`workbench stop 7`, or `workbench servers`",
            "`workbench --host gpu-box --container 'podman:a b' stop 7`, or "
            "`workbench --host gpu-box --container 'podman:a b' servers`",
        ),
        ((), "workbench gpu revert", "workbench gpu revert"),
        (SIMULATED, "workbench --host NODE doctor", "workbench --host NODE doctor"),
        (SIMULATED, "`workbench demo` needs no GPU", "`workbench demo` needs no GPU"),
        (SIMULATED, "workbench hosts check node-2", "workbench hosts check node-2"),
        (SIMULATED, "workbench models copy M --from A", "workbench models copy M --from A"),
        (SIMULATED, "/etc/workbench start", "/etc/workbench start"),
        (SIMULATED, "workbench starts it again", "workbench starts it again"),
    ],
)
def test_a_command_names_the_host(words: tuple[str, ...], text: str, named: str) -> None:
    assert name_host(text, parse_command_line([*words, "doctor"])) == named


def test_a_fix_names_the_host_and_a_finding_without_one_is_unchanged() -> None:
    """The fix of `workbench --host gpu-box doctor`, copied, changed the GPUs of this machine."""
    arguments = parse_command_line(["--host", "gpu-box", "doctor"])
    bare = Finding(Level.WARN, "a.b", "text")
    fixed = Finding(Level.WARN, "a.c", "text", fix="workbench gpu revert")
    named = name_host_in_fixes((bare, fixed), arguments)
    assert [each.fix for each in named] == [None, "workbench --host gpu-box gpu revert"]


def test_the_next_step_of_an_error_names_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATED, "doctor", "--engine", "vllm"]) == 2
    next_step = "next: workbench --simulate rtx-pro-6000 doctor --multi-gpu"
    assert next_step in capsys.readouterr().err
