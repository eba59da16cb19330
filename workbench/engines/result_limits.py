"""A result compared with the speed limit of the hardware and with the nearest speed that others
measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engines.model_facts import estimate_weight_parts
from workbench.engines.references import nearest_reference_text
from workbench.model.counts import format_four_digits

if TYPE_CHECKING:
    from workbench.model.bench import BenchResult

_ABOVE = 1.005  # a share that rounds to more than 100 %


def titles_and_speed_comparisons(result: BenchResult) -> tuple[tuple[str, str], ...]:
    """Return (title, text) of each available comparison of a result. The title is "limit" (one
    stream and its speed limit), "all streams" (their total and its speed limit) or "reference" (the
    nearest published speed)."""
    found = {
        "limit": stream_limit_comparison_text(result),
        "all streams": total_limit_comparison_text(result),
        "reference": nearest_reference_text(result),
    }
    return tuple((title, text) for title, text in found.items() if text)


def pct_of_speed_limit(result: BenchResult) -> float | None:
    """Return the measured speed in percent of the speed limit. For a result with one stream both
    are per stream, otherwise both are totals of all streams. None if the limit or the speed is
    unknown."""
    conditions, summary = result.conditions, result.summary
    limit, measured = conditions.ceiling_tok_s, summary.per_stream_tok_s
    if result.spec.concurrency > 1:
        limit, measured = conditions.ceiling_total_tok_s, summary.output_tok_s
        if result.spec.has_schedule:
            return None
    if not limit or measured is None:
        return None
    return 100 * measured / limit


def stream_limit_comparison_text(result: BenchResult) -> str | None:
    """Return how close the speed of a stream came to its limit, such as "81 % of 27.96 tok/s per
    stream (nominal bandwidth, 1,792 GB/s)". None if the limit is unknown."""
    limit = result.conditions.ceiling_tok_s
    if not limit:
        return None
    label = result.conditions.ceiling_basis or "its bandwidth was not recorded"
    return _format_fraction_of_limit(
        result.summary.per_stream_tok_s, limit, f"tok/s per stream ({label})"
    )


def total_limit_comparison_text(result: BenchResult) -> str | None:
    """Return how close the total speed of all streams came to its limit, as text. None if the
    result has only one stream or if the limit is unknown."""
    limit, streams = result.conditions.ceiling_total_tok_s, result.spec.concurrency
    if not limit or streams < 2 or result.spec.has_schedule:
        return None
    bound = "memory bandwidth"
    if result.conditions.ceiling_total_bound == "compute":
        bound = "computing"
    routed = _is_total_limit_an_expectation(result)
    label = bound
    if routed:
        label += ", expected at uniform routing"
    what = f"tok/s for {streams} streams together ({label})"
    return _format_fraction_of_limit(result.summary.output_tok_s, limit, what, routed)


def _is_total_limit_an_expectation(result: BenchResult) -> bool:
    """Return whether the limit of all streams is an expectation: each token of a model with experts
    reads some of them, and how many different ones a step reads depends on the text."""
    model = result.conditions.model_facts
    if model is None or result.conditions.ceiling_total_bound == "compute":
        return False
    parts = estimate_weight_parts(model)
    return parts is not None and parts.experts > 0


def _format_fraction_of_limit(
    measured: float | None, limit: float, what: str, routed: bool = False
) -> str:
    if measured is None:
        return f"{format_four_digits(limit)} {what}"
    text = f"{100 * measured / limit:.0f} % of {format_four_digits(limit)} {what}"
    if measured <= _ABOVE * limit:
        return text
    if routed:
        return (
            f"{text}: this text may use the same experts more often, and so reads less per step, or "
            "the usage counts too many tokens"
        )
    return (
        f"{text}: more than is possible, so suspect the usage first (does the server count tokens "
        "that it did not send?), then the bytes per token of this model"
    )
