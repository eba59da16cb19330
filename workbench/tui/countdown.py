"""A countdown of the seconds left. The session reports that number rarely, so the countdown subtracts the time that has
passed since on the clock of this machine."""

from __future__ import annotations

import time


class Countdown:
    def __init__(self) -> None:
        self._source: object = None
        self._at_s = 0.0

    def left(self, source: object, left_s: float | None) -> float | None:
        """Return the seconds left now; None if `left_s` is None. `source` is the object that reported `left_s`. The
        first call with a `source` starts the countdown at `left_s`; each later call with the same `source` returns
        less."""
        if source is not self._source:
            self._source, self._at_s = source, time.monotonic()
        return None if left_s is None else max(0.0, left_s - (time.monotonic() - self._at_s))
