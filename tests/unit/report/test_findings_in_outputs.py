"""Findings of a host and of the advisor, on the terminal and on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from workbench.model.findings import Finding, Level, PlanChange
from workbench.report.blocks import ShownBlock
from workbench.report.finding_blocks import NO_ADVICE, advice_blocks, doctor_blocks
from workbench.report.formats.terminal import block_lines
from workbench.tui.block_rows import block_rows

MISSING = Finding(Level.ERROR, "driver.missing", "the driver is missing", fix="install it")
ADVICE = Finding(
    Level.HINT,
    "eager.cost",
    "CUDA graphs are off",
    fix="remove the flag",
    source="a write-up",
    evidence="enforce-eager is on",
    changes=(PlanChange("enforce-eager", None),),
    expected_gain="up to +20 % tok/s",
)
VERDICTS = {"eager.cost": ("better by 18 % ± 2",)}


def screen(blocks: Sequence[ShownBlock], width: int) -> str:
    rows = ["".join(text for text, _ in row) for row in block_rows(blocks, width)]
    assert max(map(len, rows)) <= width
    return " ".join(" ".join(rows).split())


@pytest.mark.parametrize("width", [40, 78])
def test_everything_about_a_finding_is_on_the_terminal_and_on_the_screen(width: int) -> None:
    blocks = advice_blocks([ADVICE], VERDICTS)
    lines = block_lines(blocks)
    assert lines[0] == " 1. hint: CUDA graphs are off (up to +20 % tok/s)"
    assert [line.split()[0] for line in lines[1:]] == [
        "evidence",
        "next",
        "change",
        "verdict",
        "source",
    ]
    shown = screen(blocks, width)
    for text in ("up to +20 %", "enforce-eager is on", "remove the flag", "--unset", "eager.cost"):
        assert text in shown and text in "\n".join(lines), text


def test_what_is_missing_on_a_host_comes_before_what_was_read() -> None:
    blocks = doctor_blocks([MISSING], [("driver", "n/a")])
    lines = block_lines(blocks)
    assert lines[:2] == ["error: the driver is missing", "    next      install it"]
    assert lines[-2:] == ["Facts", "  driver  n/a"]
    assert screen(blocks, 78).startswith("x the driver is missing next install it")


def test_a_check_of_a_cluster_names_the_place_and_the_change() -> None:
    found = replace(MISSING, file="node-2", changes=(PlanChange("port", 8001),))
    lines = block_lines(doctor_blocks([found], [("node-1", "127.0.0.2")]))
    assert lines[0] == "error: node-2: the driver is missing"
    assert lines[2].split() == ["change", "--set", "port=8001"]


def test_nothing_found_is_said() -> None:
    assert block_lines(doctor_blocks([], [])) == ["  Nothing is missing."]
    assert block_lines(doctor_blocks([], [], "The nodes fit together.")) == [
        "  The nodes fit together."
    ]
    assert block_lines(advice_blocks([], {})) == [f"  {NO_ADVICE}"]
