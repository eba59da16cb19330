"""The end of a command by a signal before the command handles signals itself, or after that. It is
imported first of all, so it imports nothing that takes time."""

from __future__ import annotations

import os
import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def exit_with_signal_message(signal_number: int, _: FrameType | None = None) -> None:
    """End the process at once with a message on stderr, and with 128 plus `signal_number` as the
    exit code, as a shell does."""
    words = f"workbench: ended by {signal.Signals(signal_number).name}\n"
    try:
        os.write(2, words.encode())
    finally:
        os._exit(128 + signal_number)


def install_termination_signal_handlers() -> None:
    """Let SIGTERM and SIGHUP end the process with a message on stderr. A signal that is ignored, as
    under nohup, stays ignored. A handler that is installed later replaces this one."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, exit_with_signal_message)
