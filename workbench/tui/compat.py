"""Every private name of Textual 8.2.8 that this front end touches, each with a test (tests/tui/test_tui_compat.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App


def frames_waiting(app: App[Any]) -> int:
    """Frames queued for a terminal that does not read; 0 where the driver has no such queue (tests, Windows).

    The driver's queue holds 30 frames and its `put` blocks the whole event loop when it is full.
    """
    writer = getattr(getattr(app, "_driver", None), "_writer_thread", None)
    queue = getattr(writer, "_queue", None)
    return int(queue.qsize()) if queue is not None else 0


async def run_bindings(app: App[Any], key: str, *, priority: bool = False) -> bool:
    """Run the action bound to `key` for the focused widget now, instead of after the event has bubbled up."""
    return bool(await app._check_bindings(key, priority=priority))
