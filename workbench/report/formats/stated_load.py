"""What an export in the form of another tool may say of a load: nothing that is only a default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workbench import __version__
from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.model.load_spec import OPTIONS
from workbench.model.slo import Limit, parse_slo


def require_exportable_load(result: BenchResult, format_name: str) -> None:
    """Raise InputError if `result` cannot be written in another tool's form, `format_name`: its
    load is not known, or has an option or a limit for which that form has no word."""
    if result.spec.command:
        raise missing_field_error(result, format_name, "its own command decided the load")
    if not any(map(result.conditions.knows_workload_field, ("concurrency", "rate"))):
        raise missing_field_error(result, format_name, "the imported file does not say the load")
    for option in OPTIONS:
        is_given = getattr(result.spec, option.field) != option.default
        if is_given and format_name in option.unknown_to:
            raise missing_field_error(result, format_name, f"it has no word for {option.name}")
    if repeated := _latency_with_two_limits(result.spec.slo):
        why = f"it has one limit of {repeated}, and this SLO has several"
        raise missing_field_error(result, format_name, why)


def _latency_with_two_limits(slo: str) -> str:
    """Return the first latency that an SLO limits at several percentages, "" if there is none."""
    limited = Counter(limit.latency for limit in _parse_given_limits(slo))
    return next((latency for latency, many in limited.items() if many > 1), "")


def _parse_given_limits(slo: str) -> tuple[Limit, ...]:
    if not slo:
        return ()
    return parse_slo(slo)


def slo_limits_ms(slo: str, name_by_latency: Mapping[str, str]) -> dict[str, float]:
    """Return {the other tool's name of a latency: limit in milliseconds} for an SLO, without the
    percentages. `name_by_latency` has these names by those of Workbench."""
    return {name_by_latency[limit.latency]: limit.most_ms for limit in _parse_given_limits(slo)}


def missing_field_error(result: BenchResult, form: str, why: str) -> InputError:
    """Return the error for a result that another tool's `form` cannot describe, for the reason
    `why`."""
    return InputError(
        f"result {result.id} cannot be written in {form}'s form: {why}",
        next_step="export it in Workbench's own form: --format json",
    )


def export_writer_text(result: BenchResult) -> str:
    """Return who wrote the export and, if it was not Workbench, who measured the values."""
    writer = f"Workbench {__version__}"
    if result.conditions.imported:
        writer += f" (measured by {result.conditions.imported})"
    return writer
