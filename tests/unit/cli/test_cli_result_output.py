"""The text that `bench` prints about a result."""

from __future__ import annotations

import re
from dataclasses import replace

from support import made_results

from workbench.cli import result_output
from workbench.model.bench import BenchSummary, Distribution
from workbench.model.distribution import PERCENTILES
from workbench.report.result_blocks import key_metrics

WAITED = Distribution(500.0, 450.0, 900.0, 990.0, 0.0, 1000.0, 40)


def split_title(line: str) -> tuple[str, list[str]]:
    """Return the title of a table's row, which has single spaces, and its cells."""
    title, *cells = re.split(r" {2,}", line.strip())
    return title, cells


def read(summary: BenchSummary) -> str:
    return "\n".join(result_output.result_lines(replace(made_results.result(), summary=summary)))


def test_latency_from_the_schedule_is_shown_for_a_rate() -> None:
    closed = made_results.result().summary
    open_loop = replace(
        closed, queue_ms=WAITED, ttft_from_schedule_ms=WAITED, e2e_from_schedule_ms=WAITED
    )
    rows = {title.strip(): cells for title, cells in map(split_title, read(open_loop).splitlines())}
    assert rows["TTFT"][:2] == ["90.0", "88.0"]
    late = ["500", "450", "900", *["n/a"] * (len(PERCENTILES) - 2), "0", "1,000"]
    for title in ("wait for a stream", "TTFT from the schedule", "end to end from the schedule"):
        assert rows[title] == late, title
    assert "from the schedule" not in read(closed)
    names = [name for name, *_ in key_metrics(open_loop).items]
    assert "TTFT from the schedule p50" in names and "TTFT p50" not in names
    assert "TTFT p50" in [name for name, *_ in key_metrics(closed).items]


def test_an_invalid_result_says_so_first() -> None:
    said = read(
        replace(
            made_results.result().summary,
            refused=("the cache answered",),
            errors={"reset": 2},
            requests_failed=2,
        )
    )
    first, _, title, reason, *_ = said.splitlines()
    assert "40 ok, 2 failed" in first and "2 × reset" in said
    assert title == "REJECTED: This result is not valid" and reason == "  the cache answered"
