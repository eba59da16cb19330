"""Reliable cancellation of asyncio tasks, and whether one still runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

AGAIN_S = 1.0  # between two cancellations of a task that has not ended


def is_running(task: asyncio.Task[Any] | None) -> TypeGuard[asyncio.Task[Any]]:
    """Return whether `task` was begun and has not ended. None stands for a task never begun."""
    return task is not None and not task.done()


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel `tasks`, and wait until each has ended. None stands for a task never begun. Errors of
    the tasks are ignored. The cancellation is repeated: a task can miss one that arrives together
    with the result that it awaits (asyncio.wait_for up to Python 3.11)."""
    begun = [task for task in tasks if task is not None]
    left = {task for task in begun if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    for task in begun:
        if not task.cancelled():
            task.exception()  # asyncio logs an exception that nobody retrieves


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel `task`, and wait for its end. Raises the error with which it ended, if any."""
    await cancel_all([task])
    if not task.cancelled():
        task.result()
