"""The history of a host: one value per metric and second, and the events that explain them.

All times are Unix seconds of this machine. A cell covers the seconds from a multiple of its length to the next one, so
that the cells of all metrics begin together and a drawn cell never changes once its time is over.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum

FINE_S, COARSE_S = 1, 10  # lengths of a slot in the two rings of a series
FINE_SLOTS, COARSE_SLOTS = 3600, 8640  # one hour, and one day
ENGINE = -1  # stands for the GPU index in the key of a metric of the engine
MOST_EVENTS = 2000

Key = tuple[int, str]  # GPU index or ENGINE, and the metric's field name, such as (0, "power_w")


class EventKind(StrEnum):
    SERVER_START = "server start"
    SERVER_READY = "server ready"
    SERVER_END = "server end"
    BENCH_BEGIN = "benchmark begin"
    BENCH_END = "benchmark end"
    SETTING_MADE = "setting made"
    SETTING_TRIAL = "setting on trial"
    SETTING_REVERTED = "setting reverted"
    THROTTLE = "throttle"
    QUEUEING = "queueing"
    PREEMPTION = "preemption"
    LINK_LOST = "link lost"
    LINK_BACK = "link back"


@dataclass(frozen=True, slots=True)
class Event:
    """A moment that explains a change of the metrics. `text` is the sentence that the cursor shows."""

    unix_s: float
    kind: EventKind
    text: str
    gpu_index: int | None = None  # None: the whole host
    result_id: int | None = None  # of a benchmark's end


@dataclass(slots=True)
class _Ring:
    """The newest `slots` time slots of `slot_s` seconds each, with the sum and the number of the values in each
    slot."""

    slot_s: int
    slots: int
    last: int = -1  # number of the newest slot: its Unix time divided by slot_s
    sums: array[float] = field(default_factory=lambda: array("d"))
    counts: array[int] = field(default_factory=lambda: array("H"))

    def add(self, unix_s: float, value: float) -> None:
        slot = int(unix_s // self.slot_s)
        if self.last >= 0 and slot <= self.last - self.slots:
            return  # older than the ring
        if not self.sums:
            self.sums, self.counts = array("d", bytes(8 * self.slots)), array("H", bytes(2 * self.slots))
        if slot > self.last:
            for emptied in range(max(self.last + 1, slot - self.slots + 1), slot + 1) if self.last >= 0 else ():
                self.sums[emptied % self.slots] = self.counts[emptied % self.slots] = 0
            self.last = slot
        at = slot % self.slots
        self.sums[at] += value
        self.counts[at] = min(self.counts[at] + 1, 65535)

    def covers(self, unix_s: float) -> bool:
        return self.last >= 0 and unix_s // self.slot_s > self.last - self.slots

    def mean(self, from_s: float, to_s: float) -> float | None:
        """Return the mean of the values between two Unix times, or None if there are none."""
        total, count = 0.0, 0
        first = max(int(from_s // self.slot_s), self.last - self.slots + 1)
        for slot in range(first, min(math.ceil(to_s / self.slot_s) - 1, self.last) + 1):
            total += self.sums[slot % self.slots]
            count += self.counts[slot % self.slots]
        return total / count if count else None


class Series:
    """The values of one metric: the last hour by the second, and the last day by ten seconds."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine, self._coarse = _Ring(FINE_S, FINE_SLOTS), _Ring(COARSE_S, COARSE_SLOTS)

    def add(self, unix_s: float, value: float) -> None:
        self._fine.add(unix_s, value)
        self._coarse.add(unix_s, value)

    def cells(self, end_unix_s: float, cell_s: int, count: int) -> list[float | None]:
        """Return the means of `count` cells of `cell_s` seconds, oldest first. The last cell contains `end_unix_s`.
        A cell without a value is None."""
        end = (int(end_unix_s // cell_s) + 1) * cell_s
        starts = [end - cell_s * back for back in range(count, 0, -1)]
        return [self._ring(start, cell_s).mean(start, start + cell_s) for start in starts]

    def at(self, unix_s: float) -> float | None:
        """Return the value of the second that contains `unix_s`, or None."""
        start = int(unix_s)
        ring = self._ring(start, 1)
        return ring.mean(start, start + 1)

    def _ring(self, start: float, cell_s: int) -> _Ring:
        fine = self._fine.covers(start) and cell_s < 6 * COARSE_S
        return self._fine if fine else self._coarse


class History:
    """The series of all metrics of a host, and its events in the order of their times."""

    def __init__(self) -> None:
        self._series: dict[Key, Series] = {}
        self.events: list[Event] = []

    def add(self, key: Key, unix_s: float, value: float | None) -> None:
        """Add a value of a metric. None adds nothing, which leaves a gap."""
        if value is not None:
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = Series()
            series.add(unix_s, value)

    def add_event(self, event: Event) -> None:
        """Insert an event by its time, and forget the oldest one beyond 2,000."""
        at = len(self.events)
        while at and self.events[at - 1].unix_s > event.unix_s:
            at -= 1
        self.events.insert(at, event)
        del self.events[:-MOST_EVENTS]

    def cells(self, key: Key, end_unix_s: float, cell_s: int, count: int) -> list[float | None]:
        """Return the newest `count` cells of a metric up to `end_unix_s`, as `Series.cells` does; all None if the
        metric has no value."""
        series = self._series.get(key)
        return series.cells(end_unix_s, cell_s, count) if series else [None] * count

    def at(self, key: Key, unix_s: float) -> float | None:
        series = self._series.get(key)
        return series.at(unix_s) if series else None

    def __contains__(self, key: Key) -> bool:
        return key in self._series

    def clear(self) -> None:
        self._series.clear()
        self.events.clear()
