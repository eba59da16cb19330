"""The holder of a session's state. Every part of the session changes the state through the holder,
and listeners are called after each change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

from workbench.hosts.base import Host
from workbench.model.beat import Beat
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Level
from workbench.model.untrusted_text import clean_text
from workbench.session.state import Activity, HostView, Notice, SessionState

MAX_KEPT_ACTIVITY = 500


T = TypeVar("T")
StateListener = Callable[[SessionState, frozenset[str]], None]


class StateHolder:
    """Holds the frozen `SessionState` and the host. Each change replaces the state and calls the
    listeners."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.beat = Beat()
        self._state = SessionState(host=host_view(host))
        self._listeners: list[StateListener] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.kept: set[asyncio.Task[Any]] = set()  # that a screen leaves to the session
        self._defects: set[str] = set()  # texts of the exceptions that were shown
        self._recorded: WorkbenchError | None = None  # the last failure in the activity log

    @property
    def state(self) -> SessionState:
        return self._state

    def subscribe(self, listener: StateListener) -> Callable[[], None]:
        """Call `listener(state, changed field names)` after each change, on the thread of the event
        loop. Return a function that unsubscribes the listener."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def update(self, **changes: Any) -> None:
        """Replace fields of the state. The listeners get the names of those fields whose value has
        changed."""
        changed = frozenset(
            name for name, value in changes.items() if getattr(self._state, name) != value
        )
        if not changed:
            return
        self._state = replace(self._state, **changes)
        for listener in list(self._listeners):
            listener(self._state, changed)

    def update_host(self, **changes: Any) -> None:
        """Replace fields of `state.host`."""
        host = self._state.host
        if any(getattr(host, name) != value for name, value in changes.items()):
            self.update(host=replace(host, **changes))

    def notify(self, level: Level, text: str, next_step: str | None = None) -> None:
        """Show a message to the user, with its secrets masked. `next_step` says what the user can
        do."""
        number = self._state.notice.number + 1 if self._state.notice else 1
        from workbench.model.secrets import mask_text, remembered_secrets

        shown = mask_text(clean_text(text, lines=True), remembered_secrets())
        self.update(notice=Notice(number, level, shown, next_step))

    def notify_error(self, error: WorkbenchError) -> None:
        where = f"{error.host}: " if error.host else ""
        command = f" ({error.command})" if error.command else ""
        self.notify(Level.ERROR, f"{where}{error.message}{command}", error.next_step)

    def notify_internal_error(self, error: Exception) -> None:
        """Show an unexpected exception to the user, and write its traceback to a file. One that
        recurs, for example with each reading, is shown once."""
        from workbench.store.crash_files import internal_error_message_and_details

        text, details = internal_error_message_and_details(error)
        if text not in self._defects:
            self._defects.add(text)
            self.notify(Level.ERROR, text, details)

    def record_command(self, command: str, outcome: str = "") -> None:
        """Add an action and its outcome to the activity log, in the state and on disk. `command` is
        the command that a user could have run."""
        # not for the first frame, with what it imports
        from workbench.model.secrets import mask_text, remembered_secrets
        from workbench.store import activity_log

        masked = (mask_text(clean_text(text), remembered_secrets()) for text in (command, outcome))
        entry = Activity(time.time(), self.host.name, *masked)
        activity_log.append_activity_entry(asdict(entry))
        self.update(activity=(*self._state.activity, entry)[-MAX_KEPT_ACTIVITY:])

    @contextmanager
    def show_as_busy(self, what: str) -> Iterator[None]:
        """List the work `what` in `state.busy` while the block runs. A WorkbenchError of the block
        is recorded in the activity log and raised."""
        self.update(busy=(*self._state.busy, what))
        try:
            yield
        except WorkbenchError as error:
            if error is not self._recorded:  # an inner block has recorded it already
                self._recorded = error
                self.record_command(f"# {what}", f"failed: {error.message}")
            raise
        finally:
            left = list(self._state.busy)
            with suppress(ValueError):
                left.remove(what)
            self.update(busy=tuple(left))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in the background. A WorkbenchError is shown to the user. The traceback of any
        other exception is written to a crash file."""
        task = asyncio.get_running_loop().create_task(self._run_and_report_error(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step never begins `work`.
        task.add_done_callback(lambda _: work.close())
        return task

    def spawn_session_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task that belongs to the session and not to the screen: it goes on if the
        screen ends first. The caller handles its errors."""
        task = asyncio.get_running_loop().create_task(work)
        self.kept.add(task)
        task.add_done_callback(self._discard_ended_task)
        return task

    def _discard_ended_task(self, task: asyncio.Task[Any]) -> None:
        self.kept.discard(task)
        if not task.cancelled():
            task.exception()  # is read here too, because the caller may have ended before

    async def _run_and_report_error(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except WorkbenchError as error:
            self.notify_error(error)
        except Exception as error:
            from workbench.store.crash_files import internal_error_message_and_details

            self.notify(Level.ERROR, *internal_error_message_and_details(error))

    async def cancel_and_await_tasks(self) -> None:
        """Cancel all background tasks except the current one, and wait for them up to 5 s."""
        running = (self._tasks | self.kept) - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=5)


def host_view(host: Host) -> HostView:
    """Return the state of a host to which no connection has been made yet."""
    return HostView(name=host.name, kind=host.kind, simulated=host.simulated)
