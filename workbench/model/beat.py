"""The moment of each second at which the tasks of a screen that look once a second wake up."""

from __future__ import annotations

import time

_AHEAD_S = 0.015  # before the reading, so that an engine on this machine has answered by then
_AFTER_S = 0.02  # past the whole second, as long as no reading has come
_PERIOD_S = 1.0


class Beat:
    """The moment of each second at which the tasks of a screen wake up together: just before the
    reading of the GPUs with which the screen is drawn.

    A task that wakes the process by itself takes 0.2 to 0.3 ms more CPU time, because its code has
    left the caches. Tasks that wake up together share that.
    """

    def __init__(self) -> None:
        self._heard_s = time.monotonic() - time.time() % _PERIOD_S + _AFTER_S + _AHEAD_S

    def record_gpu_reading(self) -> None:
        """Set the beat by a reading of the GPUs that has come now. Of several readings in a second,
        only the first one counts."""
        now = time.monotonic()
        if now - self._heard_s >= 0.9 * _PERIOD_S:
            self._heard_s = now

    def seconds_until_beat_near_pause_end(self, pause_s: float) -> float:
        """Return for how many seconds a task has to wait that wants to pause for `pause_s` seconds:
        until the beat nearest to the end of this pause. A pause shorter than the time between two
        beats is returned as it is."""
        if pause_s < _PERIOD_S:
            return pause_s
        late_s = (time.monotonic() + pause_s - self._heard_s + _AHEAD_S) % _PERIOD_S
        return pause_s - late_s if late_s < _PERIOD_S / 2 else pause_s + _PERIOD_S - late_s
