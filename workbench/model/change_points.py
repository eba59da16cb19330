"""Change points of a series of measurements, such as the speed of each night. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from workbench.model.lazy_dataclass import dataclass
from workbench.model.student_t import t_cdf

LEAST = 3  # measurements on each side of a change point
ERROR = 0.01  # chance of a change point in a series without one, at most


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place at which a series changes. `index` is that of the first measurement after the change.
    `change_pct` is how much higher the measurements from there to the next change point are than
    those before it, back to the previous change point; below 0 if they are lower."""

    index: int
    change_pct: float


def find_change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Return the change points of a series of positive values, in the order of time; [] if there
    are none.

    The series is split at the index at which Student's t between the logarithms of both sides is
    largest, if its p value, times the number of possible indexes (Bonferroni), is below `ERROR`.
    Both parts are then split in the same way. The values are taken as independent, so a slow drift
    is split too."""
    logs = [math.log(value) for value in values]
    places = sorted(_find_split_indexes(logs, 0, len(logs), max(1, len(logs) - 2 * LEAST + 1)))
    ends = [0, *places, len(logs)]
    found = []
    for place, before, after in zip(places, ends, ends[2:], strict=False):
        step = fmean(logs[place:after]) - fmean(logs[before:place])
        found.append(ChangePoint(place, 100 * math.expm1(step)))
    return found


def _find_split_indexes(
    logs: Sequence[float], begin: int, end: int, possible_splits: int
) -> list[int]:
    """Return the indexes, in any order, at which the series from `begin` to before `end` is split;
    [] if it is not. `possible_splits` is the number of possible indexes in the whole series."""
    possible = range(begin + LEAST, end - LEAST + 1)
    if not possible:
        return []
    place = max(possible, key=lambda at: _t_statistic(logs[begin:at], logs[at:end]))
    t = _t_statistic(logs[begin:place], logs[place:end])
    p = 2 * (1 - t_cdf(t, end - begin - 2))
    if p * possible_splits >= ERROR:
        return []
    return [
        place,
        *_find_split_indexes(logs, begin, place, possible_splits),
        *_find_split_indexes(logs, place, end, possible_splits),
    ]


def _t_statistic(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the absolute value of Student's t with one variance for both sides."""
    count = len(before) + len(after)
    means = fmean(before), fmean(after)
    squares = sum((value - means[0]) ** 2 for value in before)
    squares += sum((value - means[1]) ** 2 for value in after)
    step = abs(means[1] - means[0])
    # equal values have no spread; a step between them is certain
    spread = math.sqrt(squares / (count - 2) * (1 / len(before) + 1 / len(after)))
    return step / max(spread, 1e-9)
