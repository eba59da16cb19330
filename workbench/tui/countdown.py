"""A countdown of the seconds left. The session seldom reports how many seconds are left, so the
countdown subtracts the seconds that have passed since the last report."""

from __future__ import annotations

import time


class Countdown:
    def __init__(self) -> None:
        self._source: object = None
        self._at_s = 0.0

    def remaining_s_now(self, report: object, reported_left_s: float | None) -> float | None:
        """Return the seconds left now; None if `reported_left_s` is None. `reported_left_s` is the
        number of seconds that were left when `report` was made. The first call with a `report`
        counts as the time of the report."""
        if report is not self._source:
            self._source, self._at_s = report, time.monotonic()
        if reported_left_s is None:
            return None
        passed_s = time.monotonic() - self._at_s
        return max(0.0, reported_left_s - passed_s)
