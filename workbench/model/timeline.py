"""The history of a host: one value per metric and second, and the events that explain them.

All times are Unix seconds by the clock of the machine that runs Workbench. A chart draws cells of
equal length, each the mean over its seconds. A cell begins at a multiple of its length, so the
cells of all metrics are aligned and a drawn cell no longer changes when its time is over.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from workbench.model.lazy_dataclass import dataclass

# Slot length in seconds and number of slots of a series' rings: one hour, eight hours, one day.
RINGS = ((1, 3600), (10, 2880), (60, 1440))
FINE_S = RINGS[0][0] * RINGS[0][1]  # how far back the history knows each second
ENGINE = -1  # stands for the GPU index in the key of a metric of the engine
MOST_EVENTS = 2000
SAME_EVENT_S = 5.0  # the same event, told twice: by two Workbenches, or by a file and the host
_GROWTH = 60  # slots by which a ring that is not full grows
_MOST_COUNTED = 65_535

Key = tuple[int, str]  # GPU index or ENGINE, and the metric's field name, such as (0, "power_w")

# output tokens per second that the benchmark's client received
CLIENT_TOK_S: Key = (ENGINE, "client_tok_s")
OWN_BENCHMARK = "benchmark of "  # begins the text of an event of this Workbench's benchmark

# Reasons for lower clocks that say nothing about a problem: the GPU is idle, or the user set the
# clocks.
QUIET_REASONS = frozenset({"GPU idle", "idle", "applications clocks setting", "none"})


class EventKind(StrEnum):
    SERVER_START = "server start"
    SERVER_READY = "server ready"
    SERVER_END = "server end"
    BENCH_BEGIN = "benchmark begin"
    BENCH_END = "benchmark end"
    QUALITY_BEGIN = "comparison of answers begin"
    QUALITY_END = "comparison of answers end"
    SETTING_MADE = "setting made"
    SETTING_TRIAL = "setting on trial"
    SETTING_REVERTED = "setting reverted"
    THROTTLE = "throttle"
    QUEUEING = "queueing"
    PREEMPTION = "preemption"
    ALERT = "alert"
    LINK_LOST = "link lost"
    LINK_BACK = "link back"


@dataclass(frozen=True, slots=True)
class Event:
    """A moment that explains a change of the metrics, such as the start of a server. `text` is the
    sentence for the user."""

    unix_s: float
    kind: EventKind
    text: str
    gpu_index: int | None = None  # None: the whole host, or several GPUs
    result_id: int | None = None  # of a benchmark's end

    def is_same_event(self, other: Event) -> bool:
        """Return whether both events are one event that was reported twice: equal kind, text and
        GPU within 5 seconds."""
        same = (self.kind, self.text, self.gpu_index) == (other.kind, other.text, other.gpu_index)
        return same and abs(self.unix_s - other.unix_s) <= SAME_EVENT_S


class _Ring:
    """The newest `slots` time slots of a metric, each `slot_s` seconds long. A newer slot
    overwrites the oldest one. Each slot stores the sum and the number of its values.

    To save memory, the arrays are short at first and grow as slots are added. `origin` is the slot
    at their first position.
    """

    __slots__ = ("counts", "last", "last_at", "origin", "slot_s", "slots", "sums")

    def __init__(self, slot_s: int, slots: int) -> None:
        self.slot_s, self.slots = slot_s, slots
        self.origin = 0  # number of the slot at position 0: its Unix time divided by slot_s
        self.last = -1  # number of the newest slot
        self.last_at = -1  # its position, if it has been written
        self.sums, self.counts = array("f"), array("H")

    def add(self, second: int, value: float) -> None:
        """Add a value to the slot of the Unix second `second`. A value older than the ring is
        dropped."""
        slot = second // self.slot_s
        if slot == self.last and self.last_at >= 0:  # most values of the two coarser rings
            if self.counts[self.last_at] < _MOST_COUNTED:
                self.sums[self.last_at] += value
                self.counts[self.last_at] += 1
            return
        if slot > self.last:
            self._advance_to_slot(slot)
        elif slot <= self.last - self.slots:
            return  # older than the ring
        at = (slot - self.origin) % self.slots
        if at >= len(self.sums) or (at != slot - self.origin and len(self.sums) < self.slots):
            wanted = at + _GROWTH if at == slot - self.origin else self.slots
            more = min(wanted, self.slots) - len(self.sums)
            self.sums.frombytes(bytes(4 * more))
            self.counts.frombytes(bytes(2 * more))
        if slot == self.last:
            self.last_at = at
        if self.counts[at] < _MOST_COUNTED:
            self.sums[at] += value
            self.counts[at] += 1

    def _advance_to_slot(self, slot: int) -> None:
        """Make `slot` the newest time slot. Remove old values from it and from the slots between it
        and the previous newest one."""
        self.last_at = -1
        if slot == self.last + 1 and self.last >= 0:
            at = (slot - self.origin) % self.slots
            if at < len(self.sums):
                self.sums[at] = self.counts[at] = 0
        elif self.last < 0 or slot - self.last >= self.slots:
            self.origin = slot
            del self.sums[:], self.counts[:]
        else:
            for emptied in range(max(self.last + 1, slot - self.slots + 1), slot + 1):
                at = (emptied - self.origin) % self.slots
                if at < len(self.sums):
                    self.sums[at] = self.counts[at] = 0
        self.last = slot

    def values(self) -> Iterator[tuple[int, float]]:
        """Yield (Unix second, mean) of each time slot of the metric that has a value, oldest
        first."""
        for slot in range(self.last - self.slots + 1, self.last + 1):
            at = (slot - self.origin) % self.slots
            if at < len(self.sums) and self.counts[at]:
                yield slot * self.slot_s, self.sums[at] / self.counts[at]

    def covers_second(self, unix_s: float) -> bool:
        return self.last >= 0 and unix_s // self.slot_s > self.last - self.slots

    def means(self, start: int, cell_s: int, count: int) -> list[float | None]:
        """Return the means of the metric in `count` consecutive cells of `cell_s` seconds, the
        first beginning at the Unix second `start`. `cell_s` and `start` must be multiples of
        `slot_s`, and the slots from `start` on must still be stored. A cell without a value is
        None."""
        first, each = start // self.slot_s, cell_s // self.slot_s
        end = first + count * each
        known, until = first, min(end, self.last + 1)
        if len(self.sums) < self.slots:
            known = max(known, self.origin)  # no earlier slot has been written
        at, number = (known - self.origin) % self.slots, until - known
        if number <= 0:
            return [None] * count
        sums, counts = self.sums[at : at + number], self.counts[at : at + number]
        if (wrapped := at + number - self.slots) > 0:
            sums, counts = sums + self.sums[:wrapped], counts + self.counts[:wrapped]
        if each == 1:
            values = list(map(_mean_or_none, sums, counts))
            return [None] * (known - first) + values + [None] * (end - until)
        lead = [0] * (known - first)
        totals, numbers = [*lead, *sums], [*lead, *counts]
        means: list[float | None] = []
        for at in range(0, count * each, each):
            means.append(_mean_or_none(sum(totals[at : at + each]), sum(numbers[at : at + each])))
        return means

    def mean(self, start: int, cell_s: int) -> float | None:
        """Return the mean of all values of the metric in the time slots that overlap the `cell_s`
        seconds from the Unix second `start` on. None if these slots have no value."""
        total, count = 0.0, 0
        first = max(start // self.slot_s, self.last - self.slots + 1)
        for slot in range(first, min((start + cell_s - 1) // self.slot_s, self.last) + 1):
            at = (slot - self.origin) % self.slots
            if at < len(self.sums):
                total += self.sums[at]
                count += self.counts[at]
        return _mean_or_none(total, count)


def _mean_or_none(total: float, count: int) -> float | None:
    return total / count if count else None


class Series:
    """The values of one metric in three resolutions: each second of the last hour, means of ten
    seconds for eight hours, and means of one minute for a day. It takes at most 48 KB."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings = tuple(_Ring(*ring) for ring in RINGS)

    def add(self, unix_s: float, value: float) -> None:
        second = int(unix_s)
        for ring in self._rings:
            ring.add(second, value)

    @property
    def newest_second(self) -> int:
        """The newest Unix second that was added or loaded as a second; below 0 if there is none."""
        return self._rings[0].last * self._rings[0].slot_s

    def add_stored_mean(self, unix_s: float, value: float, step_s: int) -> None:
        """Add a mean from a file: `value` is the mean of the `step_s` seconds that begin at
        `unix_s`. If `step_s` is below ten, it is added as a value of a second, otherwise to the
        means of ten seconds and of a minute."""
        for ring in self._rings[:1] if step_s < self._rings[1].slot_s else self._rings[1:]:
            ring.add(int(unix_s), value)

    def append_series(self, newer: Series) -> None:
        """Add the values of a later series of the same metric, second by second. That series spans
        at most an hour."""
        for second, value in newer._rings[0].values():
            self.add(second, value)

    def cell_means(self, end_unix_s: float, cell_s: int, count: int) -> list[float | None]:
        """Return the means of the metric in `count` consecutive cells of `cell_s` seconds, oldest
        first. The last cell contains the Unix second `end_unix_s`. A cell without a value is None.
        """
        end = (int(end_unix_s // cell_s) + 1) * cell_s
        start = end - cell_s * count
        fine, middle, coarse = self._rings
        ring = middle if cell_s % middle.slot_s == 0 else fine
        if cell_s % coarse.slot_s == 0:
            ring = coarse
        if ring.covers_second(start):
            return ring.means(start, cell_s, count)
        return [self._mean(cell, cell_s) for cell in range(start, end, cell_s)]

    def value_at(self, unix_s: float) -> float | None:
        """Return the value of the metric in the second that contains the Unix time `unix_s`. None
        if there is no value."""
        return self._mean(int(unix_s), 1)

    def _mean(self, start: int, cell_s: int) -> float | None:
        """Return the mean of the metric in the `cell_s` seconds from the Unix second `start` on;
        None without a value. It is computed from the coarsest resolution that is not coarser than
        `cell_s` and reaches back to `start`, otherwise from the finest coarser one."""
        fitting = [ring for ring in self._rings if ring.slot_s <= cell_s]
        for ring in (*reversed(fitting), *self._rings[len(fitting) :]):
            if ring.covers_second(start):
                return ring.mean(start, cell_s)
        return None


class ReadingIntervals:
    """The intervals between readings of a host, used to store a reading for each second. Readings
    can come a little more than a second apart. A reading then also counts for the second before it,
    so that the history has no gap."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def seconds_covered_by_reading(self, unix_s: float, interval_s: float) -> range:
        """Return the Unix seconds for which a new reading counts: its own second, and the seconds
        since the previous reading. If the previous reading is older than 1.75 times `interval_s`,
        only the reading's own second counts."""
        first, last = int(unix_s), self._last_s
        if last is not None and last < unix_s <= last + 1.75 * max(interval_s, 1.0):
            first = min(first, int(last) + 1)
        self._last_s = unix_s
        return range(first, int(unix_s) + 1)


class History:
    """The series of all metrics of a host, and its events in time order. `clock` returns the
    present Unix time: that of this machine, or while a recording is replayed, the time in the
    recording."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._series: dict[Key, Series] = {}
        self.events: list[Event] = []
        self.revision = 0  # grows when values of the past are added or removed
        self.events_revision = 0  # grows when events are added or removed

    def add(self, key: Key, unix_s: float, value: float | None) -> None:
        """Add a value of the metric `key` at the Unix time `unix_s`. None, NaN and infinity add
        nothing, which leaves a gap: the mean of a cell could not contain them."""
        if value is None or not math.isfinite(value):
            return
        series = self._series_to_extend(key)
        if unix_s < series.newest_second:  # the clock was set back
            self.revision += 1
        series.add(unix_s, value)

    def add_reading_to_seconds(self, values: Mapping[Key, float | None], seconds: range) -> None:
        """Add the values of one reading, given by metric, to each of the Unix seconds in `seconds`.
        A value of None is left out."""
        for key, value in values.items():
            if value is not None:
                for second in seconds:
                    self.add(key, second, value)

    def add_stored_mean(self, key: Key, unix_s: float, value: float, step_s: int) -> None:
        """Add a stored mean of a metric: `value` is the mean of the `step_s` seconds that begin at
        `unix_s`."""
        self.revision += 1
        self._series_to_extend(key).add_stored_mean(unix_s, value, step_s)

    def _series_to_extend(self, key: Key) -> Series:
        """Return the series of a metric; a new one if the metric has none yet."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series()
        return series

    def prepend_history(self, older: History) -> None:
        """Add the values and events of `older`, a history that ends before this one begins. Do not
        use `older` afterwards."""
        self.revision += 1
        for key, series in self._series.items():
            if key in older:
                older._series[key].append_series(series)
            else:
                older._series[key] = series
        self._series = older._series
        for event in older.events:
            self.add_event_if_new(event)

    def add_event_if_new(self, event: Event) -> bool:
        """Insert an event in time order, and drop the oldest event if there are more than 2,000.
        Return False if the event is already in the history."""
        near = bisect_left(self.events, event.unix_s - SAME_EVENT_S, key=_unix_s_of_event)
        at = bisect_right(self.events, event.unix_s, key=_unix_s_of_event)
        until = bisect_right(self.events, event.unix_s + SAME_EVENT_S, key=_unix_s_of_event)
        if any(known.is_same_event(event) for known in self.events[near:until]):
            return False
        self.events_revision += 1
        self.events.insert(at, event)
        del self.events[:-MOST_EVENTS]
        return True

    def cell_means(
        self, key: Key, end_unix_s: float, cell_s: int, count: int
    ) -> list[float | None]:
        """Return the means of a metric in `count` cells of `cell_s` seconds, oldest first. The last
        cell contains `end_unix_s`. A cell without a value is None."""
        series = self._series.get(key)
        return series.cell_means(end_unix_s, cell_s, count) if series else [None] * count

    def value_at(self, key: Key, unix_s: float) -> float | None:
        """Return the value of the metric in the second that contains the Unix time `unix_s`; None
        if there is no value."""
        series = self._series.get(key)
        return series.value_at(unix_s) if series else None

    def newest_second(self, key: Key) -> int:
        """Return the newest Unix second for which the metric has a value; below 0 without one."""
        series = self._series.get(key)
        return series.newest_second if series else -1

    def __contains__(self, key: Key) -> bool:
        return key in self._series

    def __iter__(self) -> Iterator[Key]:
        return iter(self._series)

    def clear(self) -> None:
        self.revision += 1
        self.events_revision += 1
        self._series.clear()
        self.events.clear()


def _unix_s_of_event(event: Event) -> float:
    return event.unix_s
