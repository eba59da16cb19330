"""Workbench's own JSON, from another machine: `results export --format json`, `results show --json`, a report's JSON
of one or several results, and the files in which a result waits that no database could take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.model.bench_json import conditions_from_json, spec_from_json, summary_from_json
from workbench.report.imports.checked_fields import Fields, Imported, Told


def fits(document: Mapping[str, Any]) -> bool:
    return {"spec", "conditions"} <= document.keys() or "workbench_report" in document


def read(fields: Fields, told: Told) -> list[Imported]:
    documents = fields.inners("results") if "workbench_report" in fields.data else [fields]
    return [_one(document, told) for document in documents]


def _one(fields: Fields, told: Told) -> Imported:
    # `show --json` has the figures on top, `export` under "summary", a waiting file its samples as "requests".
    summary = fields.inner("summary") or fields
    spec, conditions = fields.inner("spec"), fields.inner("conditions")
    unix_s = fields.number("unix_s")
    samples = fields.inners("samples") or fields.inners("requests")
    if spec is None or conditions is None or unix_s is None:
        raise fields.wrong("unix_s" if unix_s is None else "spec", "a Workbench result")
    try:
        made = conditions_from_json(conditions.data)
        read_spec, figures = spec_from_json(spec.data), summary_from_json(summary.data)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise fields.wrong("conditions", f"a Workbench result ({error})") from None
    uid = fields.text("uid") or ""
    if not uid:  # a waiting file is this person's own; an export may be anyone's
        version = f" {made.workbench_version}" if made.workbench_version else ""
        made = replace(made, imported=made.imported or f"Workbench{version}")
    made = replace(made, model=told.model or made.model, engine=told.engine or made.engine, host=told.host or made.host)
    tags = fields.data.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(t, str) for t in tags):
        raise fields.wrong("tags", "a list of texts")
    return Imported(
        read_spec, made, figures, unix_s, tuple(s.data for s in samples), fields.text("note") or "", tuple(tags), uid
    )
