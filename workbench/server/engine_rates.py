"""Live metrics from readings of the engine's counters: one value per metric and second.

Readings come about once a second, at irregular times. The counters are therefore interpolated to whole seconds. The
values of a rate, added up over some seconds, give the increase of its counter, and no second has two values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.model.engine_live import GAUGES, RATES, SHARES
from workbench.model.server_run import EngineMetrics

MOST_S = 5.0  # between two readings: after a longer time without one there is a gap, as after an engine's restart
_COUNTERS = tuple(name for metric in (*RATES, *SHARES) for name in metric.counters)


@dataclass(slots=True)
class _Counter:
    """The state of one counter: its count at the last reading, and its interpolated count `count_then` at the last
    whole second before that reading. `second` is that second in Unix time, None until it is known."""

    unix_s: float
    count: int
    second: int | None = None
    count_then: float = 0.0

    def __post_init__(self) -> None:
        if self.unix_s % 1.0 == 0.0:
            self.second, self.count_then = int(self.unix_s), self.count

    def advance(self, unix_s: float, count: int) -> dict[int, float]:
        """Add a later reading, and return the increase of the counter in each whole second that has ended since the
        previous reading, by Unix second."""
        slope = (count - self.count) / (unix_s - self.unix_s)
        ended: dict[int, float] = {}
        for second in range(math.floor(self.unix_s) + 1, math.floor(unix_s) + 1):
            then = self.count + slope * (second - self.unix_s)
            if self.second is not None:
                ended[self.second] = then - self.count_then
            self.second, self.count_then = second, then
        self.unix_s, self.count = unix_s, count
        return ended


class RateMeter:
    """Converts successive counter readings into metric values per second. After a gap of more than MOST_S seconds or a
    counter that decreased, as after an engine's restart, it discards its state and yields no values until the next
    whole second has ended."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._last_s = -math.inf  # Unix time of the last reading

    def take(self, read: EngineMetrics) -> dict[int, dict[str, float]]:
        """Add a reading, and return the metric values of the seconds that have ended since the previous reading: {Unix
        second: {metric field: value}}. Gauges are in the last of these seconds only."""
        counts = {name: count for name in _COUNTERS if (count := getattr(read, name)) is not None}
        fallen = {n for n, c in self._counters.items() if n in counts and counts[n] < c.count}
        if fallen == {"live_generation_tokens"} and read.running and read.unix_s - self._last_s <= MOST_S:
            # llama.cpp: a request may end between the readings of its two pages, and is then in none of them.
            return {}
        last_s, self._last_s = self._last_s, read.unix_s
        if fallen or not 0.0 < read.unix_s - last_s <= MOST_S:
            self._counters = {name: _Counter(read.unix_s, count) for name, count in counts.items()}
            return {}
        increases: dict[str, dict[int, float]] = {}
        for name in _COUNTERS:
            if name in counts and name in self._counters:
                increases[name] = self._counters[name].advance(read.unix_s, counts[name])
            elif name in counts:
                self._counters[name] = _Counter(read.unix_s, counts[name])
            else:
                self._counters.pop(name, None)
        seconds = range(math.floor(last_s), math.floor(read.unix_s))
        values = {second: _values(second, increases) for second in seconds}
        if seconds:
            values[seconds[-1]].update(gauges(read))
        return values


def between(first: EngineMetrics, second: EngineMetrics) -> dict[str, float]:
    """Return the metric values between two readings, by metric field: rates per second, shares in %, and the gauges of
    the second reading. A counter that decreased, as after an engine's restart, has no value."""
    seconds = second.unix_s - first.unix_s
    if seconds <= 0.0:
        return gauges(second)
    grown: dict[str, float] = {}
    for name in _COUNTERS:
        was, now = getattr(first, name), getattr(second, name)
        if was is not None and now is not None and now >= was:
            grown[name] = (now - was) / seconds
    return {**_valued(grown), **gauges(second)}


def gauges(read: EngineMetrics) -> dict[str, float]:
    """Return the gauges of a reading, such as the number of running requests, by metric field. Unknown gauges are left
    out."""
    return {m.field: value for m in GAUGES if (value := getattr(read, m.counters[0])) is not None}


def _values(second: int, increases: dict[str, dict[int, float]]) -> dict[str, float]:
    """Return the rates and shares (in %) of the Unix second `second`, by metric field. `increases` has the increase of
    each counter in each second."""
    return _valued({name: by_second[second] for name, by_second in increases.items() if second in by_second})


def _valued(inside: Mapping[str, float]) -> dict[str, float]:
    """Return rates and shares (in %), by metric field. `inside` has the increase of each counter in one second."""
    values = {m.field: inside[m.counters[0]] for m in RATES if m.counters[0] in inside}
    for metric in SHARES:
        part, whole = (inside.get(name) for name in metric.counters)
        if part is not None and whole:
            values[metric.field] = min(100.0, 100.0 * part / whole)
    return values
