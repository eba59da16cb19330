"""Live metrics from readings of the engine's counters: one value per metric and second.

A reading comes about once a second, but never exactly. The counters are interpolated to whole seconds, so that the sum
of the values of a rate over some seconds is the increase of the counter, and no second has two values.
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
    """A counter at its last reading, and at the last whole second before it if that is known."""

    unix_s: float
    count: int
    second: int | None = None
    count_then: float = 0.0

    def __post_init__(self) -> None:
        if self.unix_s % 1.0 == 0.0:
            self.second, self.count_then = int(self.unix_s), self.count

    def advance(self, unix_s: float, count: int) -> dict[int, float]:
        """Use a later reading of the counter. Return the increase in each second that has ended since the reading
        before, by Unix second."""
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
    """Turns readings into the values of each second. After a gap, a restart of the engine or a counter that fell, it
    begins anew: the first whole second after that has the next values."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._last_s = -math.inf  # Unix time of the last reading

    def take(self, read: EngineMetrics) -> dict[int, dict[str, float]]:
        """Return the values of the seconds that have ended since the last reading, by Unix second and field. Gauges are
        those of this reading, at the end of the last of these seconds."""
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
    """Return the values of the time between two readings by field, each rate per second. A counter that fell, as after
    an engine's restart, has no value."""
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
    """Return the values that follow from one reading alone, by field. These are gauges; rates need two readings."""
    return {m.field: value for m in GAUGES if (value := getattr(read, m.counters[0])) is not None}


def _values(second: int, increases: dict[str, dict[int, float]]) -> dict[str, float]:
    """Return the rates and shares of a second from the increases of the counters in each second."""
    return _valued({name: by_second[second] for name, by_second in increases.items() if second in by_second})


def _valued(inside: Mapping[str, float]) -> dict[str, float]:
    """Return the rates and shares from the increases of the counters in one second."""
    values = {m.field: inside[m.counters[0]] for m in RATES if m.counters[0] in inside}
    for metric in SHARES:
        part, whole = (inside.get(name) for name in metric.counters)
        if part is not None and whole:
            values[metric.field] = min(100.0, 100.0 * part / whole)
    return values
