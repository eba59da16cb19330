"""A report as CSV: a row for each result or request, or name-value pairs of one result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.model.bench import BenchResult
from workbench.model.json_records import to_json
from workbench.model.untrusted_text import clean
from workbench.report.content import Layout, Report

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
)


def render(report: Report) -> str:
    """Return the table that the report's layout names. A missing value is empty; the reason is in summary.absent."""
    if report.layout is Layout.REQUESTS:
        return _table(("result", "simulated", *_REQUEST_COLUMNS, "gaps_us"), _request_rows(report))
    if report.layout is Layout.RESULT:
        return _table(("name", "value"), _cells(report.results[0]).items())
    rows = [_cells(result) for result in report.results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return _table(names, ([row.get(name) for name in names] for row in rows))


def _cells(result: BenchResult) -> dict[str, Any]:
    """Return every value of a result by its dotted name: "summary.ttft_ms.p99"."""
    return {"simulated": _simulated(result), **dict(_flat(to_json(result)))}


def _simulated(result: BenchResult) -> str:
    return SIMULATED if result.conditions.simulated else "no"


def _request_rows(report: Report) -> Iterable[Sequence[Any]]:
    for result in report.results:
        for request in report.samples.get(result.id, ()):
            gaps = " ".join(map(str, request.get("gaps_us", ())))
            yield [result.id, _simulated(result), *(request.get(name) for name in _REQUEST_COLUMNS), gaps]


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Flatten nested mappings to dotted names; a list stays one JSON value."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (Mapping, list, tuple)):
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, value


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_inert(name) for name in head])
    writer.writerows([["" if value is None else _inert(value) for value in row] for row in rows])
    return out.getvalue()


def _inert(value: Any) -> Any:
    """Return a cell without control characters. Text that a spreadsheet would run as a formula gets an apostrophe in
    front."""
    if not isinstance(value, str):
        return value
    value = clean(value, len(value), lines=True)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
