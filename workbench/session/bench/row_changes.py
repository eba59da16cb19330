"""The change of a result's tokens per second against another one, for lists and graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.known_values import values_if_all_known

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow

EXPERIMENT_KIND = "A/B"  # kind of the series of an experiment
_SURE_STANDARD_ERRORS = 2.2  # standard errors at the 95 % level, for the few parts of two runs


def are_comparable(row: BenchRow, other: BenchRow) -> bool:
    """Return whether the speeds of two results may be compared: both are valid, without failed
    requests, and of the same engine, model and number of streams."""
    for one in (row, other):
        if one.refused or one.requests_failed:
            return False
    return (row.engine, row.model, row.concurrency) == (
        other.engine,
        other.model,
        other.concurrency,
    )


def throughput_change_pct(row: BenchRow, base: BenchRow | None) -> float | None:
    """Return by how many percent the tokens per second of `row` differ from those of `base`; None
    if they may not be compared."""
    if base is None or base.id == row.id or not are_comparable(row, base):
        return None
    if row.output_tok_s is None or not base.output_tok_s:
        return None
    return (row.output_tok_s / base.output_tok_s - 1.0) * 100.0


def noise_pct_hiding_throughput_change(row: BenchRow, base: BenchRow | None) -> float | None:
    """Return the change in percent that two runs may show by chance, as far as each of them varies
    by itself, if their change is not larger. None if it is larger, if one of them does not say how
    much it varies, or if they may not be compared."""
    change = throughput_change_pct(row, base)
    if change is None or base is None:
        return None
    return noise_pct_hiding_change(change, row.rate_error_pct, base.rate_error_pct)


def noise_pct_hiding_change(change_pct: float, *standard_errors_pct: float | None) -> float | None:
    """Return by how many percent the ratio of two rates may be wrong at the 95 % level. None if
    `change_pct` is larger, or if a standard error is not known. `standard_errors_pct` are the
    standard errors of the rates in percent."""
    known = values_if_all_known(standard_errors_pct)
    if known is None:
        return None
    noise = _SURE_STANDARD_ERRORS * math.sqrt(sum(error**2 for error in known))
    return noise if abs(change_pct) <= noise else None


def row_compared_in_label(row: BenchRow, rows: Sequence[BenchRow]) -> BenchRow | None:
    """Return the result from which the label of `row` names the differences: the next older one of
    the same engine and model. None if there is none, and for a run of an experiment, whose order is
    random: the experiment compares its arms."""
    if row.series is not None and row.series.kind == EXPERIMENT_KIND:
        return None
    older = (
        one
        for one in rows
        if one.id < row.id and (one.engine, one.model) == (row.engine, row.model)
    )
    return max(older, key=lambda one: one.id, default=None)


def change_text(pct: float | None) -> str:
    """Return a change as text, such as "+230 %" or "-0.4 %"; "" for None."""
    if pct is None:
        return ""
    text = f"{pct:+.0f} %" if abs(pct) >= 10.0 else f"{pct:+.1f} %"
    return "0.0 %" if text in ("-0.0 %", "+0.0 %") else text
