"""One result as JSON, CSV, Markdown or HTML: figures with their full conditions, SIMULATED marked, secrets masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.report import Reported, json_and_csv, report

FORMATS = ("json", "csv", "md", "html")


def export(result: BenchResult, form: str, samples: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of an export. `form` is one of FORMATS; `samples`: the raw requests, whole in JSON, drawn in HTML.
    Raises InputError."""
    if form == "json":
        return json_and_csv.text_of(json_and_csv.one_json(result, samples))
    if form == "csv":
        return json_and_csv.pairs_csv(result)
    if form not in FORMATS:
        raise InputError(f"unknown export format {form!r}", next_step=f"use one of {', '.join(FORMATS)}")
    return report(Reported((result,), {result.id: samples}), form)
