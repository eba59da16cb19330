"""Ending a task of our own."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 1.0


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait for its end; what it raised instead is raised here.

    A cancellation may be lost where it meets the end of what the task awaits (asyncio.wait_for up to 3.11, cancel
    scopes): a loop would go on for ever, so it is told again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN_S)
    if not task.cancelled():
        task.result()
