"""A report as JSON. It contains every result with all its conditions and the records of its
requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    results = [
        _result_json(result, report.samples.get(result.id, ()), report.answers.get(result.id, ()))
        for result in report.results
    ]
    if report.layout is Layout.RESULT:
        return _json_text(results[0])
    document: dict[str, Any] = {
        "workbench_report": FORMAT,
        **_simulated(any(result["simulated"] for result in results)),
        "results": results,
    }
    for name in ("comparison", "experiment", "sweep", "quality"):
        record = getattr(report, name)
        if record is not None:
            document[name] = to_json(record)
    return _json_text(document)


def _result_json(
    result: BenchResult, samples: Sequence[Mapping[str, Any]], answers: Answers
) -> dict[str, Any]:
    requests = {"samples": list(samples)} if samples else {}
    compared = {"quality_comparisons": answers_json(answers)} if answers else {}
    simulated = _simulated(result.conditions.simulated)
    return {**to_json(result), **simulated, **compared, **requests}


def _simulated(simulated: bool) -> dict[str, Any]:
    """Return the fields that say whether values are of a model: for programs, and in words."""
    return {"simulated": simulated, **({"simulation": SIMULATED} if simulated else {})}


def answers_json(answers: Answers) -> list[dict[str, Any]]:
    """Return the comparisons of answers of a result, each with the side that the result was."""
    return [{"side": side, **to_json(one)} for side, one in answers]


def _json_text(document: Mapping[str, Any]) -> str:
    return (
        escape_control_characters(
            json.dumps(replace_non_finite(document), indent=2, ensure_ascii=False)
        )
        + "\n"
    )
