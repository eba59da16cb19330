"""Notices that this process stood still during a change of GPU settings, because a signal stopped
it or because the machine starved it. The guard gets no heartbeat meanwhile. It reverts the change,
and other users may set the same settings then."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

# The guard counts a change as cut off 30 s after its last heartbeat (CUT_OFF_AFTER_S of guard.py),
# which can be 5 s older than the standstill.
LIMIT_S = 25.0
_LOOK_INTERVAL_S = 1.0


class StandstillWatch:
    """An async context manager that looks at the clock every second. `longest_s` is the longest
    time between two looks so far."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_look_s = time.monotonic()

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._record_pauses_until_cancelled())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking

    def was_paused_too_long(self) -> bool:
        """Return whether this process stood still for at least LIMIT_S seconds since the start, so
        that the guard may have reverted the change."""
        self._record_time_since_check()
        return self.longest_s >= LIMIT_S

    def _record_time_since_check(self) -> None:
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._last_look_s)
        self._last_look_s = now_s

    async def _record_pauses_until_cancelled(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            self._record_time_since_check()
