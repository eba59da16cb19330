"""The change of a result's tokens per second against another one, for lists and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow


def comparable(row: BenchRow, other: BenchRow) -> bool:
    """Return whether the speeds of two results may be compared: both are valid, and of the same
    engine, model and number of streams."""
    if row.refused or other.refused or row.requests_failed or other.requests_failed:
        return False
    return (row.engine, row.model, row.concurrency) == (
        other.engine,
        other.model,
        other.concurrency,
    )


def change_pct(row: BenchRow, base: BenchRow | None) -> float | None:
    """Return by how many percent the tokens per second of `row` differ from those of `base`; None
    if they may not be compared."""
    if base is None or base.id == row.id or not comparable(row, base):
        return None
    if row.output_tok_s is None or not base.output_tok_s:
        return None
    return (row.output_tok_s / base.output_tok_s - 1.0) * 100.0


def row_before(row: BenchRow, rows: Sequence[BenchRow]) -> BenchRow | None:
    """Return the result from which the label of `row` names the differences: the next older one of
    the same engine and model. None if there is none."""
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
