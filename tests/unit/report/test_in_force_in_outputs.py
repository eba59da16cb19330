"""The settings of a server, requested and in force, on the terminal and on the screen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec, RunState
from workbench.model.in_force import InForceReport, InForceRow
from workbench.report.blocks import Heading, Table
from workbench.report.formats.terminal import block_lines
from workbench.report.in_force_blocks import settings_in_force_blocks
from workbench.report.series_blocks import engine_choice_blocks
from workbench.tui.block_rows import block_rows

PLACE = "/v1/models of http://127.0.0.1:8000"
ROWS = (
    InForceRow("engine", "max model length", "8192", "4096", PLACE, differs=True),
    InForceRow("flag", "speculative-config", '{"method": "eagle3"}', None, ""),
    InForceRow("flag", "max-num-seqs", None, "256", "/metrics"),
)
NOTES = ("/server_info cannot be read: HTTP 404",)
REPORT = InForceReport("run", ROWS, NOTES)


def test_a_difference_is_counted_and_marked_and_a_missing_value_is_not() -> None:
    lines = block_lines(settings_in_force_blocks(REPORT))
    assert lines[0].strip() == "1 setting differs from what was asked"
    marked = [line.split()[1:4] for line in lines if line.strip().startswith("!")]
    assert marked == [["max", "model", "length"]]
    (unknown,) = [line for line in lines if "speculative-config" in line]
    assert "not reported" in unknown and "!" not in unknown
    assert NOTES[0] in "\n".join(lines)


@pytest.mark.parametrize("width", [48, 78, 118])
def test_the_screen_shows_every_value_and_place_at_every_width(width: int) -> None:
    rows = block_rows(settings_in_force_blocks(REPORT), width)
    texts = ["".join(text for text, _ in row) for row in rows]
    assert max(map(len, texts)) <= width
    shown = " ".join(" ".join(texts).split())
    for value in ("8192", "4096", "256", "/v1/models", "/metrics", "HTTP 404"):
        assert value in shown, value
    (differing,) = [row for row in rows if "4096" in "".join(text for text, _ in row)]
    assert {role for _, role in differing} == {"warn"}


def test_an_experiment_says_what_the_engines_use_and_how_long_they_started() -> None:
    def run(place: int, arm: str, backend: str, ready_after_s: float) -> ExperimentRun:
        chosen = {"attention backend": backend, "KV cache, tokens": "1000"}
        made = ExperimentRun(place, place // 2, arm, RunState.DONE, value=1.0, chosen=chosen)
        return replace(made, ready_after_s=ready_after_s)

    runs = (
        run(0, "A", "MARLIN", 20.0),
        run(1, "B", "CUTLASS", 31.0),
        run(2, "B", "CUTLASS", 40.0),
        run(3, "A", "MARLIN", 20.4),
        replace(run(4, "A", "UNUSED", 1.0), state=RunState.DISCARDED),
    )
    experiment = Experiment(1, 0.0, "h", ExperimentSpec(Arm(), Arm(), {}), runs)
    heading, table = engine_choice_blocks(experiment)
    assert isinstance(heading, Heading) and isinstance(table, Table)
    assert table.rows == (
        ("attention backend", "MARLIN", "CUTLASS"),
        ("KV cache, tokens", "1000", "1000"),
        ("ready after", "20 s", "31 to 40 s"),
    )
    assert table.marks == ("warning", "", "")
    # between the first and the second run of the first pair
    _, table = engine_choice_blocks(replace(experiment, runs=runs[:1]))
    assert isinstance(table, Table) and table.rows[0] == ("attention backend", "MARLIN", "n/a")
    assert table.marks == ("", "", "")
    assert not engine_choice_blocks(
        replace(experiment, runs=(replace(runs[0], chosen={}, ready_after_s=None),))
    )
