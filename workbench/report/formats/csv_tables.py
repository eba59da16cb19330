"""A report as CSV: one row for each result or request, or one row for each value of a single
result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from workbench.model.bench import KEPT_ONE_OF, BenchResult
from workbench.model.json_records import to_json
from workbench.model.untrusted_text import clean_text
from workbench.report.content import Answers, Layout, Report

SIMULATED = "SIMULATED: values of a model, not of hardware"
_REQUEST_COLUMNS = (
    "index",
    "warmup",
    "start_s",
    "ttft_us",
    "end_us",
    "chunks",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "first_tokens",
    "finish_reason",
    "error",
    "detail",
    KEPT_ONE_OF,
)


def render(report: Report) -> str:
    """Return the report as a CSV table, arranged by its layout. A missing value is an empty cell,
    and its reason is in the column summary.absent."""
    if report.layout is Layout.REQUESTS:
        head = ("result", "simulated", "rejected", *_REQUEST_COLUMNS, "gaps_us")
        return _csv_text(head, _request_rows(report))
    if report.layout is Layout.RESULT:
        return _csv_text(("name", "value"), _result_cells(report, report.results[0]).items())
    rows = [_result_cells(report, result) for result in report.results]
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    return _csv_text(names, (map(row.get, names) for row in rows))


def _result_cells(report: Report, result: BenchResult) -> dict[str, Any]:
    cells = {"simulated": _simulated_mark(result), **dict(_flatten_fields(to_json(result)))}
    return {**cells, **_answer_cells(report.answers.get(result.id, ()))}


def _answer_cells(answers: Answers) -> dict[str, Any]:
    """Return the cells about the newest comparison of answers that the result belongs to; {}
    without one. A measure that was taken in several ways has the cells of the first."""
    if not answers:
        return {}
    side, newest = answers[0]
    cells: dict[str, Any] = {
        "quality.side": side,
        "quality.a": newest.a,
        "quality.b": newest.b,
        "quality.verdict": newest.verdict,
        "quality.summary": newest.summary,
    }
    for one in newest.measures:
        for name, value in (
            ("", one.value.value),
            (".low", one.value.low),
            (".high", one.value.high),
        ):
            cells.setdefault(f"quality.{one.name}{name}", value)
        cells.setdefault(f"quality.{one.name}.floor", one.floor and one.floor.value)
        cells.setdefault(f"quality.{one.name}.margin", one.margin)
    return cells


def _simulated_mark(result: BenchResult) -> str:
    return SIMULATED if result.conditions.simulated else "no"


def _request_rows(report: Report) -> Iterable[Sequence[Any]]:
    for result in report.results:
        for request in report.samples.get(result.id, ()):
            gaps = " ".join(map(str, request.get("gaps_us", ())))
            yield [
                result.id,
                _simulated_mark(result),
                "; ".join(result.summary.refused) or "no",
                *(request.get(name) for name in _REQUEST_COLUMNS),
                gaps,
            ]


def _flatten_fields(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flatten_fields(value, f"{name}.")
        elif isinstance(value, (Mapping, list, tuple)):
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, value


def _csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(map(_safe_cell, row) for row in (head, *rows))
    return out.getvalue()


def _safe_cell(value: Any) -> Any:
    """Return a cell without control characters. If a spreadsheet would run the text as a formula,
    an apostrophe is put before it.
    """
    if not isinstance(value, str):
        return value
    value = clean_text(value, len(value), lines=True)
    if value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
