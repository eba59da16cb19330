"""CPU use of the load client, so that a result can say whether the client limited the load."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable

CpuReading = tuple[int, int]  # the monotonic time and the CPU time, in nanoseconds


class CpuLog:
    """Readings of this process's CPU time, as (monotonic time, CPU time) in nanoseconds.
    `record_reading` adds a reading and must be called several times a second."""

    def __init__(self, readings: Iterable[CpuReading] = ()) -> None:
        self._at_ns: list[int] = []
        self._cpu_ns: list[int] = []
        for at, used in readings:
            self._at_ns.append(at)
            self._cpu_ns.append(used)

    @property
    def cpu_readings(self) -> tuple[CpuReading, ...]:
        return tuple(zip(self._at_ns, self._cpu_ns, strict=True))

    def record_reading(self, now_ns: int) -> None:
        self._at_ns.append(now_ns)
        self._cpu_ns.append(time.process_time_ns())

    def cpu_pct_between(self, begin_ns: int, end_ns: int) -> float | None:
        """Return this process's CPU use between two monotonic times, in percent of one core. None
        if fewer than two readings were made, or if the time span is empty."""
        if end_ns <= begin_ns or len(self._at_ns) < 2:
            return None
        return round(
            100
            * (self._cpu_time_ns_at(end_ns) - self._cpu_time_ns_at(begin_ns))
            / (end_ns - begin_ns),
            2,
        )

    def _cpu_time_ns_at(self, at_ns: int) -> float:
        """Return the CPU time in nanoseconds at the monotonic time `at_ns`, interpolated linearly
        between two readings."""
        i = min(max(1, bisect_left(self._at_ns, at_ns)), len(self._at_ns) - 1)
        (a, b), (low, high) = self._at_ns[i - 1 : i + 1], self._cpu_ns[i - 1 : i + 1]
        if b <= a:
            return float(high)
        return low + (high - low) * min(1.0, max(0.0, (at_ns - a) / (b - a)))
