"""Live metrics from readings of the engine's counters: one value per metric and second.

Readings come about once a second, at irregular times. The counters are therefore interpolated to
whole seconds. The values of a rate, added up over some seconds, give the increase of its counter,
and no second has two values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from workbench.model.engine_live import GAUGES, RATES, SHARES
from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import EngineMetrics

# between two readings: after a longer time without one there is a gap, as after an engine's restart
MAX_READING_GAP_S = 5.0
_COUNTER_NAMES = tuple(name for metric in (*RATES, *SHARES) for name in metric.counters)


@dataclass(slots=True)
class _Counter:
    """One counter of an engine, between two readings. `count` is its value at the last reading, at
    the time `unix_s`. `second` is the last whole second before that reading (Unix time, None until
    known), and `count_then` the counter's interpolated value at that second."""

    unix_s: float
    count: int
    second: int | None = None
    count_then: float = 0.0

    def __post_init__(self) -> None:
        if self.unix_s % 1.0 == 0.0:
            self.second, self.count_then = int(self.unix_s), self.count

    def add_count_and_get_increases(self, unix_s: float, count: int) -> dict[int, float]:
        """Add a later reading: the counter has the value `count` at `unix_s`. Return its increase
        in each whole second that has ended since the reading before, as {Unix second: increase}."""
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
    """Converts successive readings of an engine's counters into metric values for each second. It
    begins anew after MAX_READING_GAP_S seconds without a reading, and when a counter has decreased,
    as after an engine's restart. It then has no values until the next whole second has ended."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._last_s = -math.inf  # Unix time of the last reading

    def add_reading_and_get_rates(self, read: EngineMetrics) -> dict[int, dict[str, float]]:
        """Add a reading of the engine's counters. Return the metric values of the seconds that have
        ended since the reading before, as {Unix second: {metric field: value}}; {} if it begins
        anew. Only the last of these seconds has gauges, such as the number of running requests."""
        counts = _known_counts(read)
        fallen = {n for n, c in self._counters.items() if counts.get(n, c.count) < c.count}
        passed_s = read.unix_s - self._last_s
        only_live = fallen == {"live_generation_tokens"}
        if only_live and read.running and passed_s <= MAX_READING_GAP_S:
            # llama.cpp: a request may end between the readings of its two pages, and is then in
            # none of them.
            return {}
        last_s, self._last_s = self._last_s, read.unix_s
        if fallen or not 0.0 < passed_s <= MAX_READING_GAP_S:
            self._counters = {name: _Counter(read.unix_s, count) for name, count in counts.items()}
            return {}
        increases: dict[str, dict[int, float]] = {}
        for name in _COUNTER_NAMES:
            if name in counts and name in self._counters:
                increases[name] = self._counters[name].add_count_and_get_increases(
                    read.unix_s, counts[name]
                )
            elif name in counts:
                self._counters[name] = _Counter(read.unix_s, counts[name])
            else:
                self._counters.pop(name, None)
        seconds = range(math.floor(last_s), math.floor(read.unix_s))
        values = {second: _compute_values_of_second(second, increases) for second in seconds}
        if seconds:
            values[seconds[-1]].update(gauge_values(read))
        return values


def compute_rates(first: EngineMetrics, second: EngineMetrics) -> dict[str, float]:
    """Return the metric values from the reading `first` to the later reading `second`, as {metric
    field: value}: rates per second, shares in %, and the gauges of `second`, such as the number of
    running requests. A counter that is missing in one of them, or has decreased, gives no value."""
    seconds = second.unix_s - first.unix_s
    if seconds <= 0.0:
        return gauge_values(second)
    before, after = _known_counts(first), _known_counts(second)
    grown: dict[str, float] = {}
    for name in before.keys() & after.keys():
        increase = after[name] - before[name]
        if increase >= 0:
            grown[name] = increase / seconds
    return {**_rates_per_s_and_shares_pct(grown), **gauge_values(second)}


def _known_counts(read: EngineMetrics) -> dict[str, int]:
    """Return the values of the counters in the reading, by name, without those that are None."""
    known: dict[str, int] = {}
    for name in _COUNTER_NAMES:
        count = getattr(read, name)
        if count is not None:
            known[name] = count
    return known


def gauge_values(read: EngineMetrics) -> dict[str, float]:
    """Return the gauges of a reading, such as the number of running requests, by metric field.
    Unknown gauges are left out."""
    known: dict[str, float] = {}
    for gauge in GAUGES:
        value = getattr(read, gauge.counters[0])
        if value is not None:
            known[gauge.field] = value
    return known


def _compute_values_of_second(
    second: int, increases: dict[str, dict[int, float]]
) -> dict[str, float]:
    """Return the rates per second and the shares (in %) of the Unix second `second`, as {metric
    field: value}. `increases` has the increase of each counter in each second, as {counter:
    {second: increase}}."""
    return _rates_per_s_and_shares_pct(
        {name: by_second[second] for name, by_second in increases.items() if second in by_second}
    )


def _rates_per_s_and_shares_pct(increases: Mapping[str, float]) -> dict[str, float]:
    """Return rates per second and shares in %, as {metric field: value}. `increases` has the
    increase of each counter within one second; a metric without its counters is left out."""
    values = {m.field: increases[m.counters[0]] for m in RATES if m.counters[0] in increases}
    for metric in SHARES:
        part, whole = (increases.get(name) for name in metric.counters)
        if part is not None and whole:
            values[metric.field] = min(100.0, 100.0 * part / whole)
    return values
