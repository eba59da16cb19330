"""Every metric by which results are compared, in everything that shows a comparison or an
experiment: with one title and its own numbers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support import made_results

from workbench.model.bench import Comparison, MetricChange
from workbench.model.metrics import LATENCY, METRICS, PARTS, metric_title, narrow_table_title
from workbench.report.content import Report
from workbench.report.format_values import format_metric_value
from workbench.report.formats.terminal import block_lines
from workbench.report.registry import find_output_format
from workbench.report.series_blocks import comparison_blocks, experiment_blocks
from workbench.tui.widgets.comparison import comparison_rows
from workbench.tui.widgets.experiment import experiment_rows


def every_change() -> list[MetricChange]:
    """Return a change of every metric and every part of a latency, each with numbers of its own."""
    names = []
    for metric in METRICS.values():
        parts = [f"{metric.name}.{part}" for part in PARTS]
        names += parts if metric.group == LATENCY else [metric.name]
    changes = []
    for place, name in enumerate(names):
        a, b = 1000.0 + 10 * place, 1001.0 + 10 * place
        unit = METRICS[name.partition(".")[0]].unit
        changes.append(
            MetricChange(
                metric=name,
                unit=unit,
                a=a,
                b=b,
                change_pct=100 * (b / a - 1),
                interval_pct=0.5,
                higher_is_better=True,
                verdict="better",
                pairs=((a, b), (a, b)),
            )
        )
    return changes


def compared() -> Comparison:
    return replace(made_results.comparison(), metrics=tuple(every_change()))


def of_format(name: str, **content: Any) -> str:
    results = (made_results.result(7), made_results.result(8))
    return find_output_format(name).render(Report(results, **content))


def html_rows(**content: Any) -> str:
    rows = of_format("html", **content).replace("</tr>", "\n")
    return html.unescape(re.sub(r"<[^>]*>", "  ", rows))


def markdown_rows(**content: Any) -> str:
    return of_format("md", **content).replace("|", "  ")


def screen_rows(width: int) -> list[str]:
    rows = comparison_rows(compared(), width)
    return ["".join(text for text, _ in row) for row in rows]


def experiment_text() -> str:
    made = replace(made_results.experiment(), comparison=compared())
    return "\n".join(block_lines(experiment_blocks(made, ())))


def experiment_content() -> dict[str, Any]:
    return {"experiment": replace(made_results.experiment(), comparison=compared())}


SHOWN_BY: dict[str, Callable[[], str]] = {
    "compare": lambda: "\n".join(block_lines(comparison_blocks(compared()))),
    "Markdown of a comparison": lambda: markdown_rows(comparison=compared()),
    "HTML of a comparison": lambda: html_rows(comparison=compared()),
    "screen": lambda: "\n".join(screen_rows(160)),
    "experiment": experiment_text,
    "Markdown of an experiment": lambda: markdown_rows(**experiment_content()),
    "HTML of an experiment": lambda: html_rows(**experiment_content()),
}


def rows_of(text: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


@pytest.mark.parametrize("shown_by", SHOWN_BY)
def test_each_metric_has_its_title_its_unit_and_its_numbers(shown_by: str) -> None:
    rows = rows_of(SHOWN_BY[shown_by]())
    for change in every_change():
        numbers = [format_metric_value(change.metric, value) for value in (change.a, change.b)]
        unit = [change.unit] if change.unit else []
        expected = [metric_title(change.metric), *unit, *numbers]
        found = [row for row in rows if row[: len(expected)] == expected]
        assert len(found) == 1, (expected, [row for row in rows if row[0] == expected[0]])


@pytest.mark.parametrize("shown_by", [name for name in SHOWN_BY if "experiment" in name])
def test_each_metric_has_its_pairs(shown_by: str) -> None:
    rows = rows_of(SHOWN_BY[shown_by]())
    for change in every_change():
        title = ", ".join(filter(None, (metric_title(change.metric), change.unit)))
        numbers = [format_metric_value(change.metric, value) for value in (change.a, change.b)]
        for pair in ("1", "2"):
            assert [title, pair, *numbers] in [row[:4] for row in rows], title


def test_the_data_have_each_change_under_the_name_of_its_metric() -> None:
    for content in ({"comparison": compared()}, experiment_content()):
        document = json.loads(of_format("json", **content))
        found = document.get("comparison") or document["experiment"]["comparison"]
        by_name = {one["metric"]: one for one in found["metrics"]}
        for change in every_change():
            assert (by_name[change.metric]["a"], by_name[change.metric]["b"]) == (
                change.a,
                change.b,
            )


@pytest.mark.parametrize("width", [58, 78])
def test_a_narrow_screen_has_short_titles_and_every_number(width: int) -> None:
    rows = screen_rows(width)
    assert max(map(len, rows)) <= width
    for change in every_change():
        numbers = [format_metric_value(change.metric, value) for value in (change.a, change.b)]
        title = narrow_table_title(change.metric, change.unit)[:8].split()[0]
        found = [row for row in rows if row.startswith(title) and numbers[0] in row.split()]
        assert any(numbers[1] in row.split() for row in found), (change.metric, found)


@pytest.mark.parametrize("width", [58, 118])
def test_the_page_of_an_experiment_has_the_digits_of_the_reports(width: int) -> None:
    """The page had two digits where the reports have three: 0.41 and 0.412 tok/J."""
    made = made_results.experiment()
    spec = replace(made.spec, metric="tok_per_joule")
    runs = tuple(replace(run, value=0.4123 + run.place / 1000) for run in made.runs)
    page = experiment_rows(replace(made, spec=spec, runs=runs), width)
    cells = {cell for row in page for text, _ in row for cell in text.split()}
    done = [run for run in runs if run.state == "done"]
    expected = {format_metric_value("tok_per_joule", run.value) for run in done}
    assert done and expected <= cells
    assert all(re.fullmatch(r"0\.\d{3}", text) for text in expected)
