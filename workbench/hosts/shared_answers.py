"""Questions to a host whose answer several callers share while it is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from workbench.hosts.task_cancellation import end_all

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """The answer of `ask`, a question to a host. A caller that is cancelled does not cancel it for the others."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the answer. Of several callers at once, the first one asks, and all get the same answer."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
            self._task.add_done_callback(_retrieve)
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        if self._task is not None:
            await end_all([self._task])


def _retrieve(task: asyncio.Task[T]) -> None:
    if not task.cancelled():
        task.exception()  # asyncio logs an exception that nobody retrieves
