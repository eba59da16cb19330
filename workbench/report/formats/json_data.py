"""A report as JSON. It contains every result with all its conditions and the records of its
requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchResult
from workbench.model.json_records import to_json
from workbench.model.untrusted_numbers import replace_non_finite
from workbench.model.untrusted_text import escape_control_characters
from workbench.report.content import Answers, Layout, Report
from workbench.report.formats.csv_tables import SIMULATED

FORMAT = 1


def render(report: Report) -> str:
    """Return the report as one JSON object. In Layout.RESULT, the object is the result itself.
    Otherwise, the results are in a list under "results".
    """
    results = [_result_json(report, result) for result in report.results]
    if report.layout is Layout.RESULT:
        return json_text(results[0])
    document: dict[str, Any] = {
        "workbench_report": FORMAT,
        **simulated_fields(any(result["simulated"] for result in results)),
        "results": results,
    }
    for name in ("comparison", "experiment", "sweep", "quality"):
        record = getattr(report, name)
        if record is not None:
            document[name] = to_json(record)
    return json_text(document)


def _result_json(report: Report, result: BenchResult) -> dict[str, Any]:
    document = {**to_json(result), **simulated_fields(result.conditions.simulated)}
    if answers := report.answers.get(result.id):
        document["quality_comparisons"] = answers_json(answers)
    if samples := report.samples.get(result.id):
        document["samples"] = list(samples)
    return document


def simulated_fields(simulated: bool) -> dict[str, Any]:
    """Return the fields of an export that say whether its values are simulated, and if they are,
    also a field that says it in words."""
    if not simulated:
        return {"simulated": False}
    return {"simulated": True, "simulation": SIMULATED}


def answers_json(answers: Answers) -> list[dict[str, Any]]:
    """Return the comparisons of answers of a result as JSON, each with the side, "A" or "B", that
    the result was."""
    return [{"side": side, **to_json(one)} for side, one in answers]


def json_text(document: Mapping[str, Any]) -> str:
    """Return a JSON object as the text of a file."""
    text = json.dumps(replace_non_finite(document), indent=2, ensure_ascii=False)
    return f"{escape_control_characters(text)}\n"
