"""Warnings before a scheduler ends a server, because the walltime of its job is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.model.findings import Level

if TYPE_CHECKING:
    from workbench.model.server_run import ServerStatus
    from workbench.session.state_holder import StateHolder

WARN_BEFORE_END_S = (600.0, 120.0)  # before the end
# by which the end may move without another warning: clocks and walltimes are in whole seconds
_SAME_END_TOLERANCE_S = 5.0


class WalltimeWarnings:
    """Warns the user 10 and 2 minutes before a scheduler ends a server. `now_unix_s` returns, for a
    run id, the time of the clock of the run's host."""

    def __init__(self, core: StateHolder, now_unix_s: Callable[[str], float]) -> None:
        self._core, self._now_unix_s = core, now_unix_s
        self._ends: dict[str, float] = {}  # by run id: the end for which warnings are set
        self._timers: dict[str, list[asyncio.TimerHandle]] = {}

    def schedule_warnings(self, status: ServerStatus) -> None:
        """Schedule the warnings before the end of the server with this status. If the time of the
        end has changed, or the server has ended, cancel the warnings scheduled before."""
        ends = status.ends_unix_s if status.alive else None
        before = self._ends.get(status.run_id)
        if _is_same_end(ends, before):
            return
        for timer in self._timers.pop(status.run_id, ()):
            timer.cancel()
        self._ends.pop(status.run_id, None)
        if ends is None:
            return
        self._ends[status.run_id] = ends
        left_s = ends - self._now_unix_s(status.run_id)
        # one warning now if it is late for both
        waits_s = {max(0.0, left_s - warn_s) for warn_s in WARN_BEFORE_END_S}
        loop = asyncio.get_running_loop()
        self._timers[status.run_id] = [
            loop.call_later(wait_s, self._warn_before_walltime_end, status) for wait_s in waits_s
        ]

    def close(self) -> None:
        for timers in self._timers.values():
            for timer in timers:
                timer.cancel()
        self._timers.clear()
        self._ends.clear()

    def _warn_before_walltime_end(self, status: ServerStatus) -> None:
        left_s = max(0.0, self._ends.get(status.run_id, 0.0) - self._now_unix_s(status.run_id))
        minutes, seconds = divmod(round(left_s), 60)
        left = f"{minutes} min" if minutes else f"{seconds} s"
        job = f"{status.run_as} job {status.handle}"
        text = f"{status.title} ends in {left}, when the walltime of {job} is over"
        self._core.notify(
            Level.WARN,
            text,
            "ask the scheduler for more time, or start the server again in a new job",
        )


def _is_same_end(ends_unix_s: float | None, before_unix_s: float | None) -> bool:
    """Return whether two times at which a server will end are the same, within the resolution of
    walltimes. None stands for a server that nothing will end."""
    if ends_unix_s is None or before_unix_s is None:
        return ends_unix_s == before_unix_s
    return abs(ends_unix_s - before_unix_s) <= _SAME_END_TOLERANCE_S
