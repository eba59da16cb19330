"""Handlers for signals that end a command. Before the command ends, GPU settings are reverted and
the results measured so far are stored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from workbench.model.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.session.session import Session


@asynccontextmanager
async def cancelled_by_signals() -> AsyncIterator[None]:
    """While this context manager is open, cancel the command when SIGTERM or SIGHUP arrives. Before
    the command ends, it reverts its settings, as after Ctrl-C."""
    received: list[signal.Signals] = []
    cancel = _current_task().cancel

    def stop(number: signal.Signals) -> None:
        received.append(number)
        cancel()

    with _handled((signal.SIGTERM, signal.SIGHUP), stop):
        try:
            yield
        except asyncio.CancelledError:
            if received:
                raise WorkbenchError(f"ended by {received[0].name}") from None
            raise


@asynccontextmanager
async def benchmark_stopped_by_signals(
    session: Session, received: list[signal.Signals]
) -> AsyncIterator[None]:
    """While this context manager is open, cancel the running benchmark at the first Ctrl-C, SIGTERM
    or SIGHUP, and the whole command at the next one.

    A cancelled benchmark raises BenchCancelled, which has the result so far. Every signal is
    appended to `received`.
    """
    cancel = _current_task().cancel
    cancelling: list[asyncio.Task[None]] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1 and session.state.bench.running:
            cancelling.append(asyncio.ensure_future(session.bench.cancel()))
        else:
            cancel()

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop):
        try:
            yield
        except asyncio.CancelledError:
            if not received:
                raise
            raise_for(received)


@contextmanager
def counted_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """While this context manager is open, put Ctrl-C, SIGTERM and SIGHUP into the queue that it
    yields, instead of ending the command."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), received.put_nowait):
        yield received


def raise_for(received: list[signal.Signals]) -> None:
    """End the command because of the first received signal: raise KeyboardInterrupt for SIGINT and
    WorkbenchError for any other signal."""
    if received[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise WorkbenchError(
        f"ended by {received[0].name}", next_step="no result was stored; run the command again"
    )


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call `handler` for each of these signals while the context manager is open. Outside the main
    thread, signals are not handled."""
    loop = asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):
        for number in numbers:
            loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for number in numbers:
                loop.remove_signal_handler(number)
