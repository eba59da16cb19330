"""Quantiles and summary statistics of measured values, and the table of the percentiles.

A percentile is declared at its field of Distribution. Results, tables, plots, comparisons, the
names of metrics, imports and exports take it from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from itertools import accumulate
from typing import Any

from workbench.model.lazy_dataclass import dataclass

_DECLARED = "percentile"


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of a latency. `name` is its field of Distribution. With fewer than
    `least_values` values it is absent, because a handful of them would decide it. If it is
    `compared`, comparisons, experiments, plots and narrow tables have it; all others only complete
    tables."""

    name: str
    percent: float
    least_values: int = 0
    compared: bool = True

    @property
    def title(self) -> str:
        """The percentile as people write it, such as "p99" or "p99.9"."""
        return f"p{self.percent:g}"

    @property
    def least_values_sentence(self) -> str:
        """How many values it needs, such as "p99 needs 1,000 values"."""
        return f"{self.title} needs {self.least_values:,} values"


def _percentile_metadata(
    percent: float, *, least_values: int = 0, compared: bool = True
) -> Mapping[str, Any]:
    return {_DECLARED: {"percent": percent, "least_values": least_values, "compared": compared}}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Statistics of one metric over `count` values. The unit is milliseconds unless the field that
    contains the distribution names another unit. Percentiles are interpolated linearly, as numpy
    does by default.

    A percentile is None if there are fewer values than it needs. This holds for all distributions,
    also for those of other tools and earlier versions. Declare a new percentile after `count`, with
    None as its default, because earlier results do not have it.
    """

    mean: float
    p50: float = field(metadata=_percentile_metadata(50))
    p90: float = field(metadata=_percentile_metadata(90))
    # ten of 1,000 values are above it
    p99: float | None = field(metadata=_percentile_metadata(99, least_values=1_000))
    min: float
    max: float
    count: int
    p95: float | None = field(default=None, metadata=_percentile_metadata(95, compared=False))

    def __post_init__(self) -> None:
        for name, least_values in _NEEDS:
            if self.count < least_values:
                object.__setattr__(self, name, None)


def _declared_percentiles() -> Iterator[Percentile]:
    for each in fields(Distribution):
        if _DECLARED in each.metadata:
            yield Percentile(each.name, **each.metadata[_DECLARED])


# by the name of the field, the lowest first
PERCENTILES: Mapping[str, Percentile] = {
    each.name: each for each in sorted(_declared_percentiles(), key=lambda each: each.percent)
}
COMPARED_PERCENTILES = tuple(each for each in PERCENTILES.values() if each.compared)
_NEEDS = tuple((each.name, each.least_values) for each in PERCENTILES.values() if each.least_values)
# without one of these there is no Distribution
REQUIRED_PARTS = frozenset(
    each.name for each in fields(Distribution) if each.default is MISSING and each.name != "count"
)


def distribution_part_title(part: str) -> str:
    """Return the name of a field of Distribution as people write it, such as "mean" or "p99.9"."""
    if part not in PERCENTILES:
        return part
    return PERCENTILES[part].title


def highest_shared_percentile(distributions: Sequence[Distribution]) -> Percentile:
    """Return the highest percentile of COMPARED_PERCENTILES that all of `distributions` have: the
    others have too few values for it, or were stored before it was declared. If `distributions` is
    empty, return the highest one that is known for any number of values."""
    for percentile in reversed(COMPARED_PERCENTILES):
        values = [getattr(one, percentile.name) for one in distributions]
        if None not in values and (distributions or not percentile.least_values):
            return percentile
    raise AssertionError("a percentile that needs no number of values is always known")


def quantile(ordered: Sequence[float], p: float) -> float:
    """Return the p-quantile (p from 0 to 1) of an ascending, non-empty sequence, interpolated
    linearly as numpy does by default."""
    at = p * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def distribution_of(values: Iterable[float], unit: float = 1.0) -> Distribution | None:
    """Return the statistics of `values`, divided by `unit` and rounded to four decimals; None if
    there are no values."""
    # gaps occur often: to sort each of a million takes three times as long
    return distribution_of_counts(Counter(values), unit)


def distribution_of_counts(counts: Mapping[float, int], unit: float = 1.0) -> Distribution | None:
    """Return what `distribution_of` returns, for values that are given with their counts: {value:
    how often it occurs}. None if there are no values."""
    ordered = _Ordered(counts)
    if not ordered:
        return None
    percentiles = {
        each.name: round(quantile(ordered, each.percent / 100) / unit, 4)
        for each in PERCENTILES.values()
    }
    mean = round(ordered.total / len(ordered) / unit, 4)
    low, high = round(ordered[0] / unit, 4), round(ordered[-1] / unit, 4)
    return Distribution(mean=mean, min=low, max=high, count=len(ordered), **percentiles)


class _Ordered(Sequence[float]):
    """Values in ascending order, of which each is stored once, with the number of values up to
    it."""

    def __init__(self, counts: Mapping[float, int]) -> None:
        both = sorted(counts.items())
        self._values = [value for value, _ in both]
        self._until = list(accumulate(count for _, count in both))
        self.total = sum(value * count for value, count in both)

    def __len__(self) -> int:
        return next(reversed(self._until), 0)

    def __getitem__(self, place: Any) -> Any:
        if place < 0:
            place += len(self)
        return self._values[bisect_right(self._until, place)]
