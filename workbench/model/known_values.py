"""Values of which some may not be known: None stands for a value that is not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def known_values(values: Iterable[T | None]) -> list[T]:
    """Return the values without those that are None."""
    return [value for value in values if value is not None]


def values_if_all_known(values: Iterable[T | None]) -> list[T] | None:
    """Return the values; None if one of them is not known."""
    listed = list(values)
    known = known_values(listed)
    return known if len(known) == len(listed) else None


def sum_or_none(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values; None if one of them is not known. The sum of no values is 0."""
    known = values_if_all_known(values)
    return None if known is None else sum(known)


def mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean of the values; None if there are none."""
    return math.fsum(values) / len(values) if values else None


def round_or_none(value: float | None, digits: int) -> float | None:
    """Return a rounded value; None if it is not known."""
    return None if value is None else round(value, digits)


def ratio_or_none(part: float | None, whole: float | None, digits: int) -> float | None:
    """Return part / whole, rounded; None if one of them is not known or 0, or if `whole` is below
    0."""
    if not part or not whole or whole <= 0:
        return None
    return round(part / whole, digits)
