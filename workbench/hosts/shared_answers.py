"""One request to a host for several callers at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from workbench.hosts.task_cancellation import cancel_all

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """A request that several callers share while it is under way. `ask` makes it. If one of the
    callers is cancelled, the request continues for the others."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the answer to the request that is under way, or to a new one if there is none.
        Raises the errors of `ask`."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
            self._task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        if self._task is not None:
            await cancel_all([self._task])


def _retrieve_exception(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody retrieves
