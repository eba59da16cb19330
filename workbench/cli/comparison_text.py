"""A comparison of two sides as terminal text: differences in the configuration, changes in metrics, warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.model.bench import half_width

if TYPE_CHECKING:
    from workbench.model.bench import Comparison


def difference_lines(comparison: Comparison, between: str) -> Iterator[str]:
    """Yield "name: value of A, `between`, value of B" for each difference in the configuration."""
    for one in comparison.differences:
        name = one["name"] if one["kind"] == one["name"] else f"{one['kind']} {one['name']}"
        yield f"  {name}: {one['a']}{between}{one['b']}"


def metric_lines(comparison: Comparison) -> Iterator[str]:
    """Yield one line per metric: value of A, value of B, change, interval and verdict."""
    for change in comparison.metrics:
        moved = "" if change.change_pct is None else f"{change.change_pct:+.1f} %"
        interval = "" if change.interval_pct is None else f" ± {half_width(change.interval_pct)}"
        yield (
            f"  {change.metric:<18} {number(change.a):>12} {number(change.b):>12} {change.unit:<6} "
            f"{moved:>9}{interval:<8}  {change.verdict}"
        )


def warning_lines(comparison: Comparison) -> Iterator[str]:
    for warning in comparison.warnings:
        yield f"  not like for like: {warning}"


def number(value: Any) -> str:
    return "n/a" if value is None else f"{value:,.2f}"
