"""A helper for work that must be completed even if its task is cancelled, such as restoring
settings and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def finish_despite_cancellation(work: Awaitable[T]) -> T:
    """Await `work` until it is completed, even if this task is cancelled meanwhile, and return its
    result. If the task was cancelled, raise CancelledError after that, and ignore an error of
    `work`. Otherwise raise the error of `work`, if there is one."""
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
    return task.result()
