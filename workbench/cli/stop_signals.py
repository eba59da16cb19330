"""Handlers for signals that end a command. Before the command ends, GPU settings are reverted and
the results measured so far are stored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from workbench.cli.end_signals import exit_with_signal_message
from workbench.model.errors import WorkbenchError
from workbench.model.interrupted import Interrupted

if TYPE_CHECKING:
    from workbench.session.session import Session


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(WorkbenchError):
    """Raised if a signal has ended the command. The exit code is 128 plus the number of the signal,
    as in a shell. `outcome` says what the command has reverted and what it leaves; "" if nothing is
    to say."""

    def __init__(
        self, number: signal.Signals, outcome: str = "", *, next_step: str | None = None
    ) -> None:
        super().__init__(format_termination_message(number, outcome), next_step=next_step)
        self.exit_code = 128 + number


def format_termination_message(signal_number: signal.Signals, outcome: str) -> str:
    """Return the message that a signal has ended the command, such as "interrupted" for Ctrl-C.
    `outcome` follows it: what the command has left, or "" for nothing."""
    ended = "interrupted" if signal_number == signal.SIGINT else f"ended by {signal_number.name}"
    return ": ".join(filter(None, (ended, outcome)))


@asynccontextmanager
async def cancel_on_signals(outcome: str = "") -> AsyncIterator[list[signal.Signals]]:
    """While this context manager is open, cancel the command when Ctrl-C, SIGTERM or SIGHUP
    arrives. Yield the list of the signals that have arrived.

    The cancelled work reverts its settings. Then EndedBySignal is raised, which says what the
    command has left: the words of the cancelled work if it has some, otherwise `outcome`.
    """
    received: list[signal.Signals] = []
    cancel = _current_task().cancel

    def record_signal_and_cancel(number: signal.Signals) -> None:
        received.append(number)
        cancel()

    with _install_signal_handlers(_STOPPING, record_signal_and_cancel):
        try:
            yield received
        except asyncio.CancelledError as cut:
            if not received:
                raise
            said = cut.left if isinstance(cut, Interrupted) else outcome
            raise EndedBySignal(received[0], said) from None


@asynccontextmanager
async def stop_benchmark_on_signals(
    session: Session, received: list[signal.Signals]
) -> AsyncIterator[None]:
    """While this context manager is open, cancel the running benchmark at the first Ctrl-C, SIGTERM
    or SIGHUP, and the whole command at the next one. Every signal is appended to `received`.

    A cancelled benchmark raises BenchCancelled, which has the result so far. A cancelled command
    raises EndedBySignal.
    """
    cancel = _current_task().cancel
    cancelling: list[asyncio.Task[None]] = []

    def record_signal_and_cancel_benchmark(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1 and session.state.bench.running:
            cancelling.append(asyncio.ensure_future(session.bench.cancel()))
        else:
            cancel()

    with _install_signal_handlers(_STOPPING, record_signal_and_cancel_benchmark):
        try:
            yield
        except asyncio.CancelledError:
            if not received:
                raise
            raise_ended_by_signal(received)


@contextmanager
def queue_termination_signals() -> Iterator[asyncio.Queue[signal.Signals]]:
    """While this context manager is open, put Ctrl-C, SIGTERM and SIGHUP into the queue that it
    yields, instead of ending the command."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    with _install_signal_handlers(_STOPPING, received.put_nowait):
        yield received


async def wait_for_termination_signal(seconds: float) -> signal.Signals | None:
    """Wait for Ctrl-C, SIGTERM or SIGHUP, which do not end the command meanwhile. Return the
    signal, or None after the time."""
    with queue_termination_signals() as received, suppress(TimeoutError):
        return await asyncio.wait_for(received.get(), seconds)
    return None


def raise_ended_by_signal(received: list[signal.Signals]) -> None:
    """End the command because of the first received signal. Raises EndedBySignal."""
    raise EndedBySignal(received[0], next_step="no result was stored; run the command again")


def _current_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


@contextmanager
def _install_signal_handlers(
    numbers: tuple[signal.Signals, ...], handler: Callable[[signal.Signals], None]
) -> Iterator[None]:
    """Call `handler` for each of these signals while the context manager is open. Outside the main
    thread, signals are not handled."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    with suppress(ValueError, RuntimeError):
        for number in numbers:
            loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for number in numbers:
                loop.remove_signal_handler(number)
                if before[number] is exit_with_signal_message:
                    signal.signal(number, exit_with_signal_message)
