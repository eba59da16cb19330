"""A countdown of seconds that the session reported once, on the clock of this machine."""

from __future__ import annotations

import time


class Countdown:
    def __init__(self) -> None:
        self._source: object = None
        self._at_s = 0.0

    def left(self, source: object, left_s: float | None) -> float | None:
        """Return `left_s` less the time since the first call with this `source`; None if `left_s` is None."""
        if source is not self._source:
            self._source, self._at_s = source, time.monotonic()
        return None if left_s is None else max(0.0, left_s - (time.monotonic() - self._at_s))
