"""A helper for work that must end even if its task is cancelled, such as restoring settings and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


async def uninterrupted(work: Awaitable[None]) -> None:
    """Await `work` to its end, even if this task is cancelled meanwhile. A cancellation is raised as CancelledError
    after `work` has ended. An error of `work` propagates if there was no cancellation."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    if cancelled:
        with suppress(Exception):
            task.result()
        raise asyncio.CancelledError
    task.result()
