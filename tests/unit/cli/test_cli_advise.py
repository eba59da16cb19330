"""The command `advise` on stored results: its lines, its JSON, and its errors."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.session.test_session_advice import eager_on_four_cards
from workbench.cli.parser import parse_command_line
from workbench.model.errors import InputError
from workbench.session.session import Session


def advise(*words: str) -> int:
    arguments = parse_command_line(["advise", *words])
    done = arguments.handler(arguments)
    return asyncio.run(done) if asyncio.iscoroutine(done) else done


@pytest.fixture(autouse=True)
def stored() -> None:
    made = eager_on_four_cards(env={}, simulated=True)
    Session.of_host().results.db.add(made.spec, made.conditions, made.summary)


def test_lines_have_the_gain_the_values_the_change_and_the_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert advise("1", "--expect", "2000") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "result #1: vllm org/tiny  SIMULATED"
    assert lines[1].startswith(
        " 1. warn: 2,000 tok/s are impossible for one stream: 111 % of the limit"
    )
    assert "    change    --unset enforce-eager" in lines
    assert any("(up to +127 % tok/s (transferred from " in line for line in lines)
    assert any(line.startswith("    source    eager.cost; ") for line in lines)


def test_json_has_every_field_of_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert advise("#1", "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    eager = next(f for f in document["findings"] if f["code"] == "eager.cost")
    assert (document["result"], document["simulated"], eager["level"], eager["verdicts"]) == (
        1,
        True,
        "hint",
        [],
    )
    assert eager["changes"] == [{"name": "enforce-eager", "value": None, "env": False}]
    assert {"text", "evidence", "fix", "expected_gain", "source"} <= {
        name for name, value in eager.items() if value
    }


def test_a_fix_names_the_host_of_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    made = eager_on_four_cards(env={}, host="gpu-box")
    summary = replace(made.summary, slo_pct=90.0)
    Session.of_host().results.db.add(made.spec, made.conditions, summary)
    assert advise("2") == 0
    assert "workbench --host gpu-box capacity RUN" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("9",), ("1", "--expect", "0"), ("1", "--expect", "nan")])
def test_what_cannot_be_advised_on_is_an_error(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        advise(*words)
