"""Draws the main screen again after changes of the session's state.

Telemetry is drawn when it arrives. The log is drawn at most twice a second, and only while it is
visible. All other changes are drawn at once, but those of one iteration of the event loop in one
drawing. Ages and elapsed times are drawn once a second, with a reading of the GPUs if one comes, so
that a second has one frame. Nothing is drawn while earlier frames still wait to be sent to the
terminal.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from workbench.session.session import Session
from workbench.session.state import SessionState
from workbench.tui.textual_private import count_waiting_frames

if TYPE_CHECKING:
    from workbench.tui.services import Services

LOG_PERIOD_S = 0.5
CLOCK_PERIOD_S = 1.0
CLOCK_LATE_S = 0.2  # by which a reading may be late before the clock is drawn without one
MOST_FRAMES_WAITING = 2
RETRY_S = 0.25
LOG = frozenset({"log_revision"})
TELEMETRY = frozenset({"telemetry", "telemetry_monotonic_s", "engine"})
READING = frozenset({"telemetry"})
ENGINE = frozenset({"engine"})  # drawn with the next reading of the GPUs, or with the clock


class Viewer(Protocol):
    """The part of the main screen that `Bridge` uses."""

    @property
    def app(self) -> Any: ...
    @property
    def display(self) -> bool: ...  # False while the screen is being removed
    @property
    def is_log_visible(self) -> bool: ...
    def draw_changes(self, state: SessionState, changed_fields: frozenset[str]) -> None: ...
    def draw_elapsed_times(
        self, state: SessionState, readings_already_drawn: bool = False
    ) -> None: ...
    @property
    def services(self) -> Services: ...


class Bridge:
    def __init__(self, session: Session, viewer: Viewer) -> None:
        self.session, self.viewer = session, viewer
        self._changed: set[str] = set()
        self._draw_timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._log_timer: asyncio.TimerHandle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._last_tick_s = self._last_log_s = self._last_reading_s = 0.0
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Repaints need the context of the app, whichever task of the session reports the change.
        self._context = contextvars.copy_context()
        self._unsubscribe = self.session.subscribe(self._schedule_drawing)
        self._schedule_clock_drawing(CLOCK_PERIOD_S)

    def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        for handle in (self._draw_timer, self._log_timer, self._clock):
            if handle is not None:
                handle.cancel()

    def _schedule_drawing(self, state: SessionState, changed_fields: frozenset[str]) -> None:
        if changed_fields & LOG:
            self._schedule_log_drawing()
            changed_fields = changed_fields - LOG
        if changed_fields:
            self._changed |= changed_fields
            if self._draw_timer is None and not changed_fields <= ENGINE:
                self._draw_timer = self._loop.call_soon(
                    self._draw_collected_changes, context=self._context
                )

    def _schedule_log_drawing(self) -> None:
        if self._log_timer is None:
            wait = max(0.0, self._last_log_s + LOG_PERIOD_S - self._loop.time())
            self._log_timer = self._loop.call_later(wait, self._draw_log, context=self._context)

    def _is_terminal_behind(self) -> bool:
        return count_waiting_frames(self.viewer.app) > MOST_FRAMES_WAITING

    def _draw_collected_changes(self) -> None:
        self._draw_timer = None
        if self._is_terminal_behind():
            self._draw_timer = self._loop.call_later(
                RETRY_S, self._draw_collected_changes, context=self._context
            )
            return
        changed, self._changed = frozenset(self._changed), set()
        ticks = changed >= READING and self._reschedule_clock_and_return_due()
        if ticks:
            self._record_clock_drawing()
        with self.viewer.app.batch_terminal_writes():
            self._draw_or_show_error(self.viewer.draw_changes, self.session.state, changed)
            if ticks:
                self._draw_or_show_error(self.viewer.draw_elapsed_times, self.session.state, True)

    def _draw_or_show_error(self, draw: Callable[..., None], *arguments: Any) -> None:
        """Call `draw(*arguments)`, unless the screen is being removed or the application is ending.
        If drawing raises an exception, show it as a message."""
        # Textual removes the panes before the screen
        if not (self.viewer.display and self.viewer.app.is_running):
            return
        try:
            draw(*arguments)
        except Exception as error:
            self.viewer.services.show_error(error)

    def _draw_log(self) -> None:
        self._log_timer = None
        if self._is_terminal_behind():
            self._log_timer = self._loop.call_later(
                LOG_PERIOD_S, self._draw_log, context=self._context
            )
            return
        self._last_log_s = self._loop.time()
        if self.viewer.is_log_visible:
            self._draw_or_show_error(self.viewer.draw_changes, self.session.state, LOG)

    def _draw_clock(self) -> None:
        """Draw ages and elapsed times without a reading, because none has come in time."""
        self._schedule_clock_drawing(CLOCK_PERIOD_S)
        if self._is_terminal_behind():
            return
        self._record_clock_drawing()
        with self.viewer.app.batch_terminal_writes():
            self._draw_or_show_error(self.viewer.draw_elapsed_times, self.session.state)

    def _reschedule_clock_and_return_due(self) -> bool:
        """Return whether ages and elapsed times must be drawn with the reading that is drawn now,
        and schedule their next drawing. While readings come about once a second or more often, that
        drawing leaves time for the next reading to come first."""
        now = self._loop.time()
        often = now - self._last_reading_s <= CLOCK_PERIOD_S + CLOCK_LATE_S
        self._last_reading_s = now
        due = now - self._last_tick_s >= 0.9 * CLOCK_PERIOD_S
        if often:
            self._schedule_clock_drawing(CLOCK_PERIOD_S + CLOCK_LATE_S)
        elif due:
            self._schedule_clock_drawing(CLOCK_PERIOD_S)
        return due

    def _record_clock_drawing(self) -> None:
        """Record the present time as that of the last drawing of ages and elapsed times."""
        self._last_tick_s = self._loop.time()
        self.session.gpu.guard.record_screen_drawn()  # a dead terminal must not keep GPU settings in force

    def _schedule_clock_drawing(self, next_s: float) -> None:
        """Schedule the drawing of ages and elapsed times in `next_s` seconds, in place of the
        drawing that was scheduled before."""
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self._loop.call_later(next_s, self._draw_clock, context=self._context)
