"""Signals that stop a benchmark and keep what it has measured."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from workbench.model.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.session.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def stopped_by_signals(session: Session, received: list[signal.Signals]) -> AsyncIterator[None]:
    """The first Ctrl-C, TERM or HUP cancels the benchmark, which then raises BenchCancelled with what it had measured;
    the second one, or one while nothing is measured, ends the command. Each is appended to `received`."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancelling: list[asyncio.Task[None]] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1 and session.state.bench.running:
            cancelling.append(asyncio.ensure_future(session.cancel_bench()))
        else:
            task.cancel()

    for number in _SIGNALS:
        with suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        raise_for(received)
    finally:
        for number in _SIGNALS:
            with suppress(ValueError, RuntimeError):
                loop.remove_signal_handler(number)


def raise_for(received: list[signal.Signals]) -> None:
    """End the command as the signal would have."""
    if received[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise WorkbenchError(f"ended by {received[0].name}", next_step="nothing was stored; run it again")
