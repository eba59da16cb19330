"""Workbench's own JSON files: the output of `results export --format json` and `results show
--json`, reports, and the files with results that could not be written to the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.model.bench import BenchSpec, BenchSummary, Conditions, upgrade_summary
from workbench.model.errors import InputError
from workbench.model.json_records import from_json
from workbench.model.load_spec import OPTIONS
from workbench.model.quality import VERDICTS, QualityResult
from workbench.model.quality_limits import MOST_COMPARISONS, impossible_field_and_reason
from workbench.model.untrusted_numbers import path_and_reason_of_impossible_number
from workbench.report.imports.checked_fields import (
    MOST_CHARS,
    Fields,
    Imported,
    ImportOptions,
    first_field,
)

_UID = re.compile(r"[A-Za-z0-9-]{1,64}")


def recognizes(document: Mapping[str, Any]) -> bool:
    return {"spec", "conditions"} <= document.keys() or "workbench_report" in document


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    documents = [fields]
    if "workbench_report" in fields.data:
        documents = fields.objects("results")
    return [_imported_result(document, options) for document in documents]


def _imported_result(fields: Fields, options: ImportOptions) -> Imported:
    # `show --json` has the metrics at the top, `export` under "summary". A file that keeps an
    # unsaved result calls the samples "requests".
    summary = fields.object("summary") or fields
    spec, conditions = fields.object("spec"), fields.object("conditions")
    unix_s = fields.number("unix_s")
    samples = first_field(fields.objects, "samples", "requests")
    if unix_s is None:
        raise fields.field_error("unix_s", "a Workbench result must have this field")
    if not spec or not conditions:
        raise fields.field_error("spec", "a Workbench result must have this field")
    for part, data in (("spec", spec.data), ("conditions", conditions.data), ("", summary.data)):
        place, _, why = path_and_reason_of_impossible_number(data, part).partition(": ")
        if why:
            raise fields.field_error(place, f"the field has {why}")
    try:
        made = from_json(Conditions, conditions.data)
        read_spec = from_json(BenchSpec, spec.data)
        metrics = upgrade_summary(from_json(BenchSummary, summary.data))
    except ValueError as error:
        text = f"the field is not valid in a Workbench result ({error})"
        raise fields.field_error("conditions", text) from None
    if problem := _impossible_load_field_and_expectation(read_spec, made):
        raise fields.inner_value_error(*problem)
    uid = fields.text_or("uid")
    # only unsaved results have one: these are the user's own, an export may be anyone's
    if not uid:
        writer = f"Workbench {made.workbench_version}".rstrip()
        made = replace(made, imported=made.imported or writer)
    elif not _UID.fullmatch(uid):  # files are named after it
        raise fields.field_error("uid", "the field must be an id of letters, digits and hyphens")
    made = replace(made, **options.stated_conditions)
    return Imported(
        spec=read_spec,
        conditions=made,
        summary=metrics,
        unix_s=unix_s,
        samples=tuple(s.data for s in samples),
        note=fields.text_or("note"),
        tags=_parse_tags(fields),
        uid=uid,
        quality=tuple(_parse_quality_result(one, made) for one in _comparison_objects(fields)),
    )


def _parse_tags(fields: Fields) -> tuple[str, ...]:
    tags = fields.data.get("tags") or []
    if not isinstance(tags, list):
        raise fields.field_error("tags", "the field must be a list of strings")
    for tag in tags:
        if not isinstance(tag, str):
            raise fields.field_error("tags", "the field must be a list of strings")
        if len(tag) > MOST_CHARS:
            raise fields.field_error("tags", f"a tag must have at most {MOST_CHARS:,} characters")
    return tuple(tags)


def _impossible_load_field_and_expectation(
    spec: BenchSpec, conditions: Conditions
) -> tuple[str, str] | None:
    """Return (field, what its value must be) for the first option of the load with a value that no
    benchmark can have; None if there is none. In another tool's result a value 0 passes, because it
    may be the rounded mean of token counts."""
    always_valid = (0,) if conditions.known_workload else ()
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if value in (*always_valid, option.default):
            continue
        if not conditions.knows_workload_field(option.field):
            continue
        try:
            option.require_valid(value)
        except InputError as error:
            return f"spec.{option.field}", error.next_step or error.message
    return None


def _comparison_objects(fields: Fields) -> list[Fields]:
    found = fields.objects("quality_comparisons")
    if len(found) > MOST_COMPARISONS:
        raise fields.inner_value_error(
            "quality_comparisons", f"it has more than {MOST_COMPARISONS} comparisons of answers"
        )
    return found


def _parse_quality_result(fields: Fields, conditions: Conditions) -> QualityResult:
    """Return a comparison of answers of an exported result, marked as imported. `conditions` are
    those of the result. Raises InputError if the comparison is not valid."""
    if why := path_and_reason_of_impossible_number(fields.data):
        place, _, problem = why.partition(": ")
        raise fields.inner_value_error(place, f"it is {problem}")
    try:
        read = from_json(QualityResult, fields.data)
    except ValueError as error:
        said, _, place = str(error).partition(" - at `$")
        found = place.strip("`.") or "verdict"
        raise fields.inner_value_error(found, f"not a comparison of answers ({said})") from None
    if read.verdict not in VERDICTS:
        raise fields.field_error("verdict", f"the field must be one of {', '.join(VERDICTS)}")
    place, problem = impossible_field_and_reason(read)
    if problem:
        raise fields.inner_value_error(place, problem)
    return replace(
        read,
        id=0,
        imported=read.imported or conditions.imported or "Workbench",
        simulated=read.simulated or conditions.simulated,
    )
