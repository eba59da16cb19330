"""A result whose text failed says so in each format of a report: that it is not valid, why, and what
the server answered. None of its values is drawn or listed like a valid one."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from support import made_results as made

from workbench.bench.compare import compare
from workbench.model.answer_text import (
    ProbeOutcome,
    ProbePartOutcome,
    SetFeatures,
    TextFinding,
    TextReport,
)
from workbench.model.bench import BenchResult
from workbench.model.distribution import PERCENTILES
from workbench.report import plots
from workbench.report.content import Layout, Report
from workbench.report.registry import OUTPUT_FORMATS, find_output_format
from workbench.session.series.sweep_progress import point_fields_from_results
from workbench.tui.widgets import sweep as sweep_widget

EXCERPT = "!!!! #### !!!!"
REASON = "degenerate output: 39 of 39 answers are broken"
GARBAGE_TOK_S = 70_277.0
P99_VALUES = PERCENTILES["p99"].least_values


def failed(number: int = 8) -> BenchResult:
    """Return a result of a server that answers garbage, faster than any other."""
    finding = TextFinding("error", "text.degenerate", REASON, f'"{EXCERPT}"')
    load = SetFeatures(answers=40, looked_at=40, excerpts=(f'"{EXCERPT}"',))
    probe = ProbeOutcome({"together": ProbePartOutcome(16, 16, 0, 'repeats "!"', f'"{EXCERPT}"')})
    good = made.result(number)
    summary = replace(
        good.summary,
        output_tok_s=GARBAGE_TOK_S,
        refused=(f'{REASON}; it said "{EXCERPT}"',),
        text=TextReport(load, probe, (finding,)),
    )
    return replace(good, summary=summary)


def reports() -> dict[str, Report]:
    """Return a report of each kind that contains a failed result."""
    good, bad = made.result(7), failed(8)
    samples = {7: made.samples(), 8: made.samples()}
    comparison = compare(good, bad)
    trial = replace(made.experiment(), comparison=comparison)
    swept = made.sweep()
    swept = replace(swept, points=(*swept.points, failed_point()))
    return {
        "result": Report.from_result(bad, samples[8]),
        "several": Report((good, bad), samples),
        "comparison": Report((good, bad), samples, comparison=comparison),
        "experiment": Report((good, bad), samples, experiment=trial),
        "sweep": Report((good, bad), samples, sweep=swept),
        "requests": replace(Report((good, bad), samples), layout=Layout.REQUESTS),
    }


def failed_point() -> Any:
    return replace(made.sweep({"c=512": 512.0}).points[0], **point_fields_from_results([failed()]))


def plain(text: str, form: str) -> str:
    """Return what a reader of a document sees."""
    if form == "json":
        return json.dumps(json.loads(text), ensure_ascii=False).replace("\\", "")
    if form == "csv":
        return " ".join(cell for row in csv.reader(io.StringIO(text)) for cell in row)
    return html.unescape(text) if form == "html" else text.replace("\\", "")


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
@pytest.mark.parametrize("kind", reports())
def test_every_format_has_the_failure_its_reason_and_the_text(kind: str, form: str) -> None:
    said = plain(find_output_format(form).render(reports()[kind]), form)
    assert EXCERPT in said
    assert REASON in said
    marks = {"json": '"refused": [', "csv": REASON, "comparison": "not an answer"}
    shown = marks.get(form, marks.get(kind, "not valid|failed: |rejected"))
    assert re.search(re.escape(shown) if form in marks else shown, said)


def test_the_table_of_requests_names_the_requests_of_an_invalid_result() -> None:
    text = find_output_format("csv").render(reports()["requests"])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {(row["result"], row["rejected"] == "no") for row in rows} == {
        ("7", True),
        ("8", False),
    }


def test_key_metrics_and_plots_of_an_invalid_result_say_that_it_is_not_valid() -> None:
    page = find_output_format("html").render(reports()["result"])
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) == 3 and all("This result is not valid." in one for one in captions)
    assert "<small>not valid, steady window</small>" in page
    sound = find_output_format("html").render(Report.from_result(made.result(), made.samples()))
    assert "not valid" not in sound


def test_a_failed_point_is_in_no_plot_and_its_values_in_no_table() -> None:
    report = reports()["sweep"]
    assert report.sweep is not None and report.sweep.points[-1].tok_s == GARBAGE_TOK_S
    drawn = [plot.svg for plot in plots.sweep_plots(report.sweep)]
    assert drawn and not any("70,000" in svg or "80,000" in svg for svg in drawn)
    (row,) = [
        line
        for line in find_output_format("md").render(report).splitlines()
        if line.startswith("| c=512 ")
    ]
    assert row.startswith("| c=512 | n/a |") and "failed: its text is not an answer" in row


def test_the_screen_draws_no_failed_point() -> None:
    point = failed_point()
    swept = made.sweep({f"c={n}": float(n) for n in (8, 16)}, knee=None)
    swept = replace(swept, points=(*swept.points, point))
    shown = "\n".join(
        "".join(t for t, _ in row) for row in sweep_widget.sweep_plot_rows(swept, 100, 20)
    )
    assert "512" not in shown and "c" in shown
    only = replace(swept, points=(point,))
    assert sweep_widget.sweep_plot_rows(only, 100, 20) == []


@pytest.mark.parametrize("requests", [40, P99_VALUES])
def test_a_plot_marks_p99_only_if_there_are_enough_requests(requests: int) -> None:
    drawn, gaps = plots.latency_plots(made.samples(requests, tokens=32))
    assert (">p99" in drawn.svg) == (requests >= P99_VALUES)
    assert ">p99" in gaps.svg and ">p90" in drawn.svg  # there are 31 gaps in each answer
