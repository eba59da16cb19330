"""Work that a cancellation must not interrupt: what restores settings and servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


async def uninterrupted(work: Awaitable[None]) -> None:
    """Await `work` to its end, even if this task is cancelled meanwhile; then raise the CancelledError."""
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
