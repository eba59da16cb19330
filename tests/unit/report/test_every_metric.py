"""Every metric of the table, in everything that shows a result: with one title and one number."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support import made_results

from workbench.bench.repeated_runs import spread_of_each_metric
from workbench.cli.result_output import metric_spread_lines, result_json, result_lines
from workbench.model.bench import BenchResult, Distribution
from workbench.model.distribution import PERCENTILES
from workbench.model.metrics import (
    LATENCY,
    METRICS,
    PARTS,
    SummaryMetric,
    metric_title,
    metric_value,
    names_of_narrow_table_metrics,
    narrow_table_title,
)
from workbench.report.content import Report
from workbench.report.format_values import format_metric_value, number_text
from workbench.report.registry import find_output_format
from workbench.report.result_blocks import results_overview_table
from workbench.tui.pages.result import result_rows


def of_format(name: str) -> Callable[[BenchResult], str]:
    return lambda result: find_output_format(name).render(Report.from_result(result))


def html_text(result: BenchResult) -> str:
    rows = of_format("html")(result).replace("</tr>", "\n")
    return html.unescape(re.sub(r"<[^>]*>", "  ", rows))


def markdown_text(result: BenchResult) -> str:
    return of_format("md")(result).replace("|", "  ")


READ_BY_PEOPLE: dict[str, Callable[[BenchResult], str]] = {
    "results show": of_format("txt"),
    "Markdown": markdown_text,
    "HTML": html_text,
}


def page_text(result: BenchResult) -> str:
    return "\n".join("".join(text for text, _ in row) for row in result_rows(result, 120))


READ_BY_PEOPLE["screen"] = page_text


def bench_text(result: BenchResult) -> str:
    return "\n".join(result_lines(result))


ENOUGH = max(each.least_values for each in PERCENTILES.values())  # for every percentile


def value_at(place: int) -> float:
    return 1000.0 + 10 * place


def with_every_metric() -> BenchResult:
    values: dict[str, Any] = {}
    for place, metric in enumerate(METRICS.values()):
        value = value_at(place)
        values[metric.name] = int(value)
        if metric.group == LATENCY:
            parts = {part: value + step for step, part in enumerate(PARTS)}
            values[metric.name] = Distribution(**parts, count=ENOUGH)
    made = made_results.result()
    return replace(made, summary=replace(made.summary, **values, absent={}, requests_ok=ENOUGH))


def without(result: BenchResult, metric: SummaryMetric) -> BenchResult:
    return replace(result, summary=replace(result.summary, **{metric.name: None}))


def rows_titled(title: str, text: str) -> list[list[str]]:
    """Return the other cells of each row whose first cell is `title`."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    return [cells for first, *cells in rows if first == title]


def numbers_of(metric: SummaryMetric, result: BenchResult) -> list[str]:
    if metric.group == LATENCY:
        return [number_text(result.summary.latency_ms(metric.name, part)) for part in PARTS]
    return [number_text(getattr(result.summary, metric.name), metric.unit)]


def test_no_two_metrics_have_one_title() -> None:
    """The rate of the prompt tokens and their number were both "prompt tokens"."""
    for titles in (
        [metric.title for metric in METRICS.values()],
        [metric.compared or metric.title for metric in METRICS.values()],
        [metric.short or f"{metric.title} {metric.unit}" for metric in METRICS.values()],
    ):
        assert sorted(set(titles)) == sorted(titles)


@pytest.mark.parametrize("shown_by", READ_BY_PEOPLE)
def test_each_metric_that_was_measured_has_its_title_and_its_number(shown_by: str) -> None:
    result = with_every_metric()
    text = READ_BY_PEOPLE[shown_by](result)
    for metric in METRICS.values():
        expected = numbers_of(metric, result)
        assert expected in rows_titled(metric.title, text), (metric.title, expected)


def test_bench_shows_latencies_and_no_metric_with_another_number() -> None:
    result = with_every_metric()
    text = bench_text(result)
    measured = {cell for metric in METRICS.values() for cell in numbers_of(metric, result)}
    for metric in METRICS.values():
        shown = rows_titled(metric.title, text)
        if metric.group == LATENCY:
            assert numbers_of(metric, result) in shown, metric.title
        assert all(row[0] in measured for row in shown), metric.title
    assert f"workbench results show {result.id}" in text


@pytest.mark.parametrize("shown_by", READ_BY_PEOPLE)
def test_a_metric_that_was_not_measured_has_no_number(shown_by: str) -> None:
    result = with_every_metric()
    for metric in METRICS.values():
        shown = READ_BY_PEOPLE[shown_by](without(result, metric))
        cells = [cell for row in rows_titled(metric.title, shown) for cell in row]
        unexpected = set(numbers_of(metric, result)) & set(cells)
        assert not unexpected, (metric.title, unexpected)


def test_the_data_formats_have_each_metric_by_its_name() -> None:
    result = with_every_metric()
    documents: Iterable[Mapping[str, Any]] = (
        json.loads(of_format("json")(result))["summary"],
        result_json(result),
    )
    rows = dict(csv.reader(io.StringIO(of_format("csv")(result))))
    for metric in METRICS.values():
        value = getattr(result.summary, metric.name)
        parts = (
            {f".{part}": getattr(value, part) for part in PARTS} if metric.group == LATENCY else {}
        )
        for document in documents:
            found = document[metric.name]
            assert found == value or {f".{p}": found[p] for p in PARTS} == parts
        for ending, number_of_part in (parts or {"": value}).items():
            assert float(rows[f"summary.{metric.name}{ending}"]) == number_of_part


@pytest.mark.parametrize("width", [58, 78, 118])
def test_the_page_keeps_every_percentile_at_every_width(width: int) -> None:
    result = with_every_metric()
    rows = ["".join(text for text, _ in row) for row in result_rows(result, width)]
    assert max(map(len, rows)) <= width
    for metric in METRICS.values():
        if metric.group == LATENCY:
            values = [
                number_text(result.summary.latency_ms(metric.name, part)) for part in PERCENTILES
            ]
            assert any(" ".join(values) in " ".join(row.split()) for row in rows), metric.title


def test_the_scatter_of_several_runs_has_each_compared_metric_by_its_title() -> None:
    """`bench --repeat` had a list of its own, and named metrics by their fields."""
    result = with_every_metric()
    other = replace(result, summary=replace(result.summary, output_tok_s=2000.0))
    shown = "\n".join(
        metric_spread_lines(spread_of_each_metric([result.summary, other.summary]), 2, 0)
    )
    compared = [m for m in METRICS.values() if m.higher_is_better is not None and not m.optional]
    assert len(shown.splitlines()) == 2 + len(compared)
    for metric in compared:
        title = metric_title(metric.name)
        assert title in shown, title
        assert any(row[0] == metric.unit for row in rows_titled(title, shown)) or (
            metric.group == LATENCY
        )
    (output,) = rows_titled("output", shown)
    assert output == ["tok/s", "1,414", "± 47.14 %"]


@pytest.mark.parametrize("render", ["txt", "md", "html"])
def test_several_results_are_listed_with_the_metrics_of_narrow_tables(render: str) -> None:
    """Reports had a list of their own."""
    result = with_every_metric()
    table = results_overview_table([result])
    assert table.head[3:-1] == tuple(map(narrow_table_title, names_of_narrow_table_metrics()))
    cells = [
        format_metric_value(name, metric_value(result.summary, name))
        for name in names_of_narrow_table_metrics()
    ]
    assert list(table.rows[0][3:-1]) == cells
    report = replace(Report.from_result(result), results=(result, result))
    text = find_output_format(render).render(report)
    assert all(cell in text for cell in cells)
