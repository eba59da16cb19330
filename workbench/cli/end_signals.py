"""The end of a command by a signal before the command handles signals itself, or after that. It is
imported first of all, so it imports nothing that takes time."""

from __future__ import annotations

import os
import signal
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def exit_with_signal_message(signal_number: int, _: FrameType | None = None) -> None:
    """End the process at once, as the signal `signal_number` does by itself, but say so on stderr,
    and with the exit code of a shell."""
    words = f"workbench: ended by {signal.Signals(signal_number).name}\n"
    try:
        os.write(2, words.encode())
    finally:
        os._exit(128 + signal_number)


def install_termination_signal_handlers() -> None:
    """From now on, SIGTERM and SIGHUP end the process with words, unless they are ignored, as under
    nohup. What handles them later takes their place."""
    for number in _ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, exit_with_signal_message)
