"""The services of the main screen for panes and controllers: messages, background work, and access
to the panes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, overload

from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.session.state import Notice
from workbench.tui.cells import cut_text

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from workbench.session.session import Session
    from workbench.tui.pages.frame import PageFrame
    from workbench.tui.pane_layout import PaneLayout
    from workbench.tui.widgets.bars import NoticeBar
    from workbench.tui.widgets.progress import ProgressRows
    from workbench.tui.widgets.status_bar import StatusBar

D = TypeVar("D")
T = TypeVar("T")
COMMAND_CELLS = 60  # of a command in a message: enough to recognise it
# a message goes after this time; an error stays until esc
SHOWN_S = {Level.WARN: 20.0, Level.HINT: 20.0, Level.ERROR: None}
INFO_SHOWN_S = 8.0


class Services:
    """The main screen's messages, background work, panes and pages, which controllers use. While
    `is_busy` is true, the application ignores all keys except escape."""

    def __init__(
        self,
        screen: Screen[None],
        session: Session,
        panes: PaneLayout,
        notice_bar: NoticeBar,
        status_bar: StatusBar,
        progress: ProgressRows,
    ) -> None:
        self.screen, self.session, self.panes = screen, session, panes
        self.pages: PageFrame = panes.pages
        self.notice_bar, self.status_bar, self.progress = notice_bar, status_bar, progress
        self.is_busy = False
        self._notice_number, self._notice_until = 0, 0.0
        self._waiting: Notice | None = None  # until no other message is shown

    @property
    def app(self) -> App[Any]:
        return self.screen.app

    # messages
    def show_message(
        self, text: str, level: Level = Level.INFO, next_step: str | None = None
    ) -> None:
        self.show_notice(Notice(-1, level, text, next_step))

    def show_notice(self, notice: Notice) -> None:
        """Show a message in the message row."""
        self.notice_bar.show(notice, self.app.size.width)
        seconds = SHOWN_S.get(notice.level, INFO_SHOWN_S)
        self._notice_until = time.monotonic() + seconds if seconds else 0.0

    def show_new_notice(self, notice: Notice | None) -> None:
        """Show a message of the session, unless it is None or was shown before. A message of level
        INFO replaces no message of another level."""
        if notice is None or notice.number == self._notice_number:
            return
        self._notice_number = notice.number
        current = self.notice_bar.notice
        if current is None or notice.level is not Level.INFO or current.level is Level.INFO:
            self.show_notice(notice)

    def show_message_after_others(self, text: str) -> None:
        """Show a message as soon as no other one is shown."""
        self._waiting = Notice(-1, Level.HINT, text, None)
        self._show_postponed_notice_if_free()

    def _show_postponed_notice_if_free(self) -> None:
        if self._waiting is not None and self.notice_bar.notice is None:
            waiting, self._waiting = self._waiting, None
            self.show_notice(waiting)

    def drop_postponed_notice(self) -> None:
        """Do not show the message of `show_message_after_others` any more, because the user has
        seen it."""
        self._waiting = None

    def clear_message(self) -> None:
        """Remove the message from the message row."""
        self._notice_until = 0.0
        self.notice_bar.show(None, self.app.size.width)

    def start_countdown(self, text: str, duration_s: float) -> None:
        """Show `text` in the progress rows, with a bar that fills within `duration_s`. The method
        `stop_countdown` removes text and bar."""
        self.progress.counted = (text, time.monotonic(), duration_s)
        self.progress.show(self.session.state)

    def stop_countdown(self) -> None:
        self.progress.counted = None
        self.progress.show(self.session.state)

    def remove_expired_message(self) -> None:
        """Remove a message whose time is over, unless a form or a question covers the message
        row."""
        if (
            self._notice_until
            and time.monotonic() > self._notice_until
            and self.app.screen is self.screen
        ):
            self.clear_message()
        self._show_postponed_notice_if_free()

    # work
    def run_in_background(
        self,
        work: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]],
        on_result: Callable[[T], None] | None = None,
        *,
        on_error: Callable[[], None] | None = None,
        exclusive_group: str = "",
        outlives_screen: bool = False,
    ) -> None:
        """Run `work` in the background, then call `on_result` with its result. If `work` raises an
        exception, show the error as a message and call `on_error`. Earlier work with the same
        non-empty name `exclusive_group` is cancelled. With `outlives_screen`, work goes on when the
        screen ends."""

        async def run_and_report() -> None:
            try:
                begun = work() if callable(work) else work
                outcome = await (
                    asyncio.shield(self.session.spawn_session_task(begun))
                    if outlives_screen
                    else begun
                )
            except Exception as error:
                self.show_error(error)
                if on_error is not None:
                    on_error()
            else:
                if on_result is not None:
                    on_result(outcome)

        self.screen.run_worker(
            run_and_report(),
            group=exclusive_group or "session",
            exclusive=bool(exclusive_group),
            exit_on_error=False,
        )

    @overload
    def run_or_show_error(self, work: Callable[[], T]) -> T | None: ...

    @overload
    def run_or_show_error(self, work: Callable[[], T], default: D) -> T | D: ...

    def run_or_show_error(self, work: Callable[[], T], default: D | None = None) -> T | D | None:
        """Call `work` now, and return its result. If it raises a WorkbenchError, show the error as
        a message and return `default`."""
        try:
            return work()
        except WorkbenchError as error:
            self.show_error(error)
            return default

    def show_error(self, error: Exception) -> None:
        """Show an error as a message. Any exception but a WorkbenchError is unexpected, and its
        traceback is written to a file."""
        if isinstance(error, WorkbenchError):
            self._show_workbench_error(error)
            return
        from workbench.store.crash_files import internal_error_message_and_details

        text, details = internal_error_message_and_details(error)
        self.show_message(text, Level.ERROR, f"Workbench keeps running; {details}")

    def _show_workbench_error(self, error: WorkbenchError) -> None:
        where = f"{error.host}: " if error.host else ""
        command = f"  ({cut_text(error.command, COMMAND_CELLS)})" if error.command else ""
        # Rejected input changed nothing, so its message may go by itself.
        level = Level.WARN if isinstance(error, InputError) else Level.ERROR
        self.show_message(f"{where}{error.message}{command}", level, error.next_step)
