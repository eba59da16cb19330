"""Long work on model files (a copy, a check of all hashes, a download) in the background of a
session. Only one such work runs at a time; its progress is in the session's state, and the user can
cancel it."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.model.untrusted_text import clean_text
from workbench.server.model_transfer import TransferSpeed
from workbench.session.state import ModelWorkView

if TYPE_CHECKING:
    from workbench.session.hosts.models import Progress
    from workbench.session.state_holder import StateHolder

T = TypeVar("T")
SHOW_INTERVAL_S = 0.5  # between two changes of the state


class ModelWork:
    """Runs one work on model files at a time, such as a copy, in the background. It runs until it
    ends, is cancelled, or the session leaves its host."""

    def __init__(self, core: StateHolder) -> None:
        self._core = core
        self._task: asyncio.Task[Any] | None = None

    def start_in_background(
        self,
        what: str,
        work: Callable[[Progress], Awaitable[T]],
        then: Callable[[T], object],
        command: Sequence[str] = (),
    ) -> None:
        """Run `work` in the background, and call `then` with its result, unless the work fails or
        is cancelled. `what` describes the work for the user, such as "copying org/model to
        spark-02". `command` is the equivalent command for the activity log, () for work that
        changes no host. Raises InputError if other work is running."""
        running = self._core.state.host.model_work
        if running is not None:
            raise InputError(
                f"{running.what} is not finished",
                next_step="wait until that work has ended, or press K to cancel it",
            )
        self._core.update_host(model_work=ModelWorkView(what))
        self._task = self._core.spawn(self._run_work(work, then, shlex.join(command)))

    async def _run_work(
        self, work: Callable[[Progress], Awaitable[T]], then: Callable[[T], object], command: str
    ) -> None:
        speed, last_s = TransferSpeed(), 0.0

        def report_progress(done: int, total: int, text: str) -> None:
            nonlocal last_s
            bytes_s, now = speed.record_and_get_bytes_per_s(done), time.monotonic()
            view = self._core.state.host.model_work
            if view is not None and now - last_s >= SHOW_INTERVAL_S:
                last_s = now
                self._core.update_host(
                    model_work=replace(
                        view, text=clean_text(text), done=done, total=total, bytes_s=bytes_s
                    )
                )

        began_s, outcome = time.monotonic(), "cancelled"
        try:
            found = await work(report_progress)
            outcome = f"done in {time.monotonic() - began_s:.1f} s"
        except WorkbenchError as error:
            outcome = f"failed: {error.message}"
            raise
        finally:
            if command:
                self._core.record_command(command, outcome)
            self._core.update_host(model_work=None)
        then(found)

    async def cancel(self) -> None:
        """Cancel the work that runs; do nothing if none does. Files that have arrived stay, and the
        same work can continue from there."""
        view = self._core.state.host.model_work
        if self._task is not None and view is not None:
            await cancel_all([self._task])
            self._core.notify(
                Level.INFO,
                f"cancelled: {view.what}",
                "start the same work again to continue where it was cancelled",
            )
