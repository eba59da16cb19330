"""The table of the points of a sweep: in the reports, the commands and on the screen."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import made_results

from workbench.model.json_records import from_json, to_json
from workbench.model.metrics import narrow_table_title
from workbench.model.sweep import Sweep, SweepKind, SweepPoint
from workbench.report.format_values import NA
from workbench.report.series_blocks import points_table
from workbench.tui.block_rows import block_rows

METRICS = ("output_tok_s", "ttft_ms.p50", "ttft_ms.p90", "tok_per_joule", "power_w")


def screen(width: int) -> list[str]:
    rows = block_rows([points_table(made_results.sweep())], width)
    return ["".join(text for text, _ in row) for row in rows]


def test_a_sweep_names_its_columns_as_results_do_and_latencies_come_early() -> None:
    head = points_table(made_results.sweep()).head
    assert head[1:4] == tuple(map(narrow_table_title, METRICS[:3]))
    assert {narrow_table_title(name) for name in METRICS} <= set(head)
    assert points_table(replace(made_results.sweep(), kind="power_limit_w")).head[2] == "tok/J"


def test_a_sweep_of_a_kind_that_only_its_module_knows_is_shown_by_its_own_facts() -> None:
    facts = SweepKind("context", "sweep", varies_load=True, finds="capacity")
    new = replace(made_results.sweep(), kind="context", kind_facts=facts)
    read = from_json(Sweep, json.loads(json.dumps(to_json(new))))
    assert (read.command, read.searched_result_name, read.sweep_kind) == (
        "sweep",
        "capacity",
        facts,
    )
    assert points_table(read).head[2] == points_table(made_results.sweep()).head[2]  # of a load


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [(118, ["power W", "results"], []), (58, ["tok/s", "TTFT p50 ms"], ["results", "SM MHz"])],
)
def test_a_narrow_screen_leaves_out_what_matters_least(
    width: int, shown: list[str], left_out: list[str]
) -> None:
    rows = screen(width)
    assert max(map(len, rows)) <= width
    assert all(title in rows[0] for title in shown)
    assert not any(title in rows[0] for title in left_out)
    assert all(row.rstrip().endswith("done") for row in rows[1:])


def test_a_point_without_values_has_none_and_says_why() -> None:
    error = "the server ended during its start: out of memory, and the log has more about it"
    points = (
        SweepPoint("c=1", 1.0, "failed", (7,), tok_s=99.0, error=error),
        SweepPoint("c=2", 2.0, "planned", tok_s=99.0),
        SweepPoint("c=4", 4.0, "done", (8,), tok_s=77.0),
    )
    table = points_table(replace(made_results.sweep(), points=points, knee=None))
    assert table.rows[0][1] == NA and table.rows[1][1] == "" and table.rows[2][1] == "77.0"
    assert table.marks == ("bad", "dim", "")
    lines = ["".join(text for text, _ in row).strip() for row in block_rows([table], 58)]
    assert error in " ".join(" ".join(lines).split()).replace("failed: ", "")
