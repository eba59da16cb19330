"""The holder of the state: changes go through here, listeners hear of them, background errors become notices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from workbench.hosts.base import Host
from workbench.model.errors import WorkbenchError
from workbench.model.findings import Level
from workbench.model.untrusted_text import clean
from workbench.session.state import Activity, HostView, Notice, SessionState

ACTIVITY_KEPT = 500


class SessionCore:
    """`host` is where everything happens; `state` is replaced, never changed in place."""

    def __init__(self, host: Host) -> None:
        self.host = host
        simulated = host.simulated
        self._state = SessionState(host=HostView(name=host.name, kind=host.kind, simulated=simulated))
        self._listeners: list[Callable[[SessionState, frozenset[str]], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._recorded: WorkbenchError | None = None  # the last failure in the activity log

    @property
    def state(self) -> SessionState:
        return self._state

    def subscribe(self, listener: Callable[[SessionState, frozenset[str]], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def update(self, **changes: Any) -> None:
        """Replace fields of the state and tell the listeners which of them really changed."""
        changed = frozenset(name for name, value in changes.items() if getattr(self._state, name) != value)
        if not changed:
            return
        self._state = replace(self._state, **changes)
        for listener in list(self._listeners):
            listener(self._state, changed)

    def update_host(self, **changes: Any) -> None:
        self.update(host=replace(self._state.host, **changes))

    def notify(self, level: Level, text: str, next_step: str | None = None) -> None:
        number = self._state.notice.number + 1 if self._state.notice else 1
        from workbench.model.secrets import mask_text, seen_secrets

        shown = mask_text(clean(text, lines=True), seen_secrets())
        self.update(notice=Notice(number, level, shown, next_step))

    def notify_error(self, error: WorkbenchError) -> None:
        where = f"{error.host}: " if error.host else ""
        command = f" ({error.command})" if error.command else ""
        self.notify(Level.ERROR, f"{where}{error.message}{command}", error.next_step)

    def record(self, command: str, outcome: str = "") -> None:
        """Add to the activity log, also on disk: what was done, as the command that a person could have typed."""
        from workbench.model.secrets import mask_text, seen_secrets  # not for the first frame, with what it imports
        from workbench.store import activity_log

        masked = (mask_text(clean(text), seen_secrets()) for text in (command, outcome))
        entry = Activity(time.time(), self.host.name, *masked)
        activity_log.keep(asdict(entry))
        self.update(activity=(*self._state.activity, entry)[-ACTIVITY_KEPT:])

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        self.update(busy=(*self._state.busy, what))
        try:
            yield
        except WorkbenchError as error:
            if error is not self._recorded:  # of what is under way inside something else it has been said
                self._recorded = error
                self.record(f"# {what}", f"failed: {error.message}")
            raise
        finally:
            left = list(self._state.busy)
            with suppress(ValueError):
                left.remove(what)
            self.update(busy=tuple(left))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in the background; a WorkbenchError becomes a notice, anything else too (with a kept traceback)."""
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except WorkbenchError as error:
            self.notify_error(error)
        except Exception as error:
            from workbench.store.crash_files import defect_text

            self.notify(Level.ERROR, *defect_text(error))

    async def end_tasks(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)
