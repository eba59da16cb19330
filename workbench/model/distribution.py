"""Quantiles and summary statistics of measured values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from workbench.model.bench import Distribution


def quantile(ordered: Sequence[float], p: float) -> float:
    """Return the p-quantile (p from 0 to 1) of an ascending, non-empty sequence, interpolated
    linearly as numpy does by default."""
    at = p * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution(values: Iterable[float], unit: float = 1.0) -> Distribution | None:
    """Return the statistics of `values`, divided by `unit` and rounded to four decimals; None if
    there are no values."""
    # gaps occur often: to sort each of a million takes three times as long
    counts = sorted(Counter(values).items())
    ordered = list(chain.from_iterable(repeat(value, count) for value, count in counts))
    if not ordered:
        return None
    p50, p90, p95, p99 = (round(quantile(ordered, p) / unit, 4) for p in (0.5, 0.9, 0.95, 0.99))
    mean = round(sum(ordered) / len(ordered) / unit, 4)
    low, high = round(ordered[0] / unit, 4), round(ordered[-1] / unit, 4)
    return Distribution(
        mean=mean, p50=p50, p90=p90, p99=p99, min=low, max=high, count=len(ordered), p95=p95
    )
