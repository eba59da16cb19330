"""Reads the keyboard without waking up while no key is pressed.

Textual's thread looks ten times a second whether the application ends. It uses private names of
Textual 8.2.8, as textual_private.py does.
"""

from __future__ import annotations

import contextlib
import os
import select
from codecs import getincrementaldecoder
from threading import Event
from typing import Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

_READ_BYTES = 4096
_ESCAPE_S = 0.1  # until an escape that nothing follows is the key


class _WakingEvent(Event):
    """An event that also makes the pipe `wakes` readable while it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def set(self) -> None:
        super().set()
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def clear(self) -> None:
        super().clear()
        while select.select([self.wakes], [], [], 0)[0]:
            os.read(self.wakes, _READ_BYTES)


class QuietDriver(LinuxDriver):
    """The driver of a terminal whose input thread sleeps until a key comes or the application
    ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.exit_event: _WakingEvent = _WakingEvent()

    def run_input_thread(self) -> None:
        """Wait for keys, and pass them on as events."""
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")().decode
        waited_for = [self.fileno, self.exit_event.wakes]
        try:
            while not self.exit_event.is_set():
                begun = parser._timeout_time is not None  # an escape, or the start of a sequence
                ready = select.select(waited_for, [], [], _ESCAPE_S if begun else None)[0]
                if self.fileno in ready:
                    data = self._read()
                    if not data:  # the terminal is gone: only the end of the application is left
                        waited_for.remove(self.fileno)
                    if text := decode(data):
                        for event in parser.feed(text):
                            self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)
        finally:
            with contextlib.suppress(EOFError, ParseError):
                for _ in parser.feed(""):
                    pass

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            return b""
