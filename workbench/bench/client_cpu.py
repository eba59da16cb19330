"""CPU time of the load client itself."""

from __future__ import annotations

import time
from bisect import bisect_left


class CpuLog:
    """CPU time of this process, recorded several times a second."""

    def __init__(self) -> None:
        self._at_ns: list[int] = []
        self._cpu_ns: list[int] = []

    def note(self, now_ns: int) -> None:
        self._at_ns.append(now_ns)
        self._cpu_ns.append(time.process_time_ns())

    def pct(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the CPU use in percent of one core between two monotonic times; None if nothing was recorded around
        them."""
        if end_ns <= begin_ns or len(self._at_ns) < 2:
            return None
        return round(100 * (self._at(end_ns) - self._at(begin_ns)) / (end_ns - begin_ns), 2)

    def _at(self, ns: int) -> float:
        """Return the CPU time at `ns`, interpolated linearly between two records."""
        i = min(max(1, bisect_left(self._at_ns, ns)), len(self._at_ns) - 1)
        (a, b), (low, high) = self._at_ns[i - 1 : i + 1], self._cpu_ns[i - 1 : i + 1]
        return low + (high - low) * min(1.0, max(0.0, (ns - a) / (b - a))) if b > a else float(high)
