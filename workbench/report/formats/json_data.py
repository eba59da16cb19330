"""A report as JSON. It contains every result with all its conditions and the records of its
requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.model.bench import BenchResult
from workbench.model.json_records import to_json
from workbench.model.untrusted_numbers import finite
from workbench.model.untrusted_text import escaped
from workbench.report.content import Layout, Report

FORMAT = 1


def render(report: Report) -> str:
    """Return the report as one JSON object. In Layout.RESULT, the object is the result itself.
    Otherwise, the results are in a list under "results".
    """
    results = [_result(result, report.samples.get(result.id, ())) for result in report.results]
    if report.layout is Layout.RESULT:
        return _text(results[0])
    simulated = any(result["simulated"] for result in results)
    document: dict[str, Any] = {
        "workbench_report": FORMAT,
        "simulated": simulated,
        "results": results,
    }
    for name in ("comparison", "experiment", "sweep", "quality"):
        record = getattr(report, name)
        if record is not None:
            document[name] = to_json(record)
    return _text(document)


def _result(result: BenchResult, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    requests = {"samples": list(samples)} if samples else {}
    return {**to_json(result), "simulated": result.conditions.simulated, **requests}


def _text(document: Mapping[str, Any]) -> str:
    return escaped(json.dumps(finite(document), indent=2, ensure_ascii=False)) + "\n"
