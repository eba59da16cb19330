"""Quantiles and summary statistics of measured values."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

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
    return distribution_of_counts(Counter(values), unit)


def distribution_of_counts(counts: Mapping[float, int], unit: float = 1.0) -> Distribution | None:
    """Return what `distribution` returns for values that occur so often: {value: its count}."""
    ordered = _Ordered(counts)
    if not ordered:
        return None
    p50, p90, p95, p99 = (round(quantile(ordered, p) / unit, 4) for p in (0.5, 0.9, 0.95, 0.99))
    mean = round(ordered.total / len(ordered) / unit, 4)
    low, high = round(ordered[0] / unit, 4), round(ordered[-1] / unit, 4)
    return Distribution(
        mean=mean, p50=p50, p90=p90, p99=p99, min=low, max=high, count=len(ordered), p95=p95
    )


class _Ordered(Sequence[float]):
    """Values in ascending order, of which each is stored once, with the number of values up to it."""

    def __init__(self, counts: Mapping[float, int]) -> None:
        both = sorted(counts.items())
        self._values = [value for value, _ in both]
        self._until = list(accumulate(count for _, count in both))
        self.total = sum(value * count for value, count in both)

    def __len__(self) -> int:
        return self._until[-1] if self._until else 0

    def __getitem__(self, place: Any) -> Any:
        place = place if place >= 0 else len(self) + place
        return self._values[bisect_right(self._until, place)]
