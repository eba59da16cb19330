"""Reads the keyboard without waking up while no key is pressed, and writes to the terminal without
waking a thread while the terminal takes all.

Textual's thread for keys looks ten times a second whether the application ends, and each frame
wakes its thread for output. This module uses private names of Textual 8.2.8, as textual_private.py
does.
"""

from __future__ import annotations

import contextlib
import os
import select
from codecs import getincrementaldecoder
from threading import Event
from typing import Any, TextIO

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


class _Output:
    """The terminal as an output file. `open` opens the terminal of `file` a second time, so that
    `write_and_return_unwritten`, for the event loop, need not wait. `write` is for Textual's thread
    for output."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._queued = self._written = 0  # pieces for the thread
        self._descriptor: int | None = None

    def open(self) -> None:
        with contextlib.suppress(OSError):  # no terminal, or one of another user
            path = os.ttyname(self._file.fileno())
            self._descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)

    def write_and_return_unwritten(self, text: str) -> bytes:
        """Write as much of `text` as the terminal takes without waiting. Return the rest, which the
        caller must pass to the thread: all of it while the thread has work."""
        rest = text.encode(self._file.encoding, self._file.errors or "strict")
        if self._descriptor is not None and self._queued == self._written:
            with contextlib.suppress(OSError):  # it is full, or gone: the thread finds out
                rest = rest[os.write(self._descriptor, rest) :]
        self._queued += bool(rest)
        return rest

    def write(self, piece: str) -> None:
        """Write a piece whose characters stand for bytes, and wait until the terminal has taken
        it."""
        rest = piece.encode("latin-1")
        while rest:
            rest = rest[os.write(self._file.fileno(), rest) :]
        self._written += 1

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """Close the second opening; the file itself stays open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class QuietDriver(LinuxDriver):
    """The driver of a terminal whose input thread sleeps until a key comes or the application
    ends. Its output thread sleeps unless the terminal takes less than what is written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.exit_event: _WakingEvent = _WakingEvent()
        self._output = _Output(self._file)
        self._file: Any = self._output

    def start_application_mode(self) -> None:
        self._output.open()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def write(self, data: str) -> None:
        """Write to the terminal, as much as it takes now. The thread for output writes the rest."""
        rest = self._output.write_and_return_unwritten(data)
        if rest:
            super().write(rest.decode("latin-1"))  # the queue of the thread is one of texts

    def close(self) -> None:
        super().close()
        self._output.close()

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
                    data = self._read_terminal()
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

    def _read_terminal(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            return b""
