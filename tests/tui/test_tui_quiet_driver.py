"""The thread that reads the keyboard sleeps while no key is pressed, and still tells Escape from the
start of a sequence. Output goes to the terminal without a thread while the terminal takes all."""

from __future__ import annotations

import os
import pty
import select
import threading
import time
import tty
from collections.abc import Iterator
from typing import Any

import pytest
from textual.drivers._writer_thread import WriterThread

from workbench.tui import quiet_driver
from workbench.tui.quiet_driver import QuietDriver, _Output, _WakingEvent

WAIT_S = 10.0


class Keyboard:
    """A driver whose keyboard is a pipe."""

    def __init__(self) -> None:
        self.driver = object.__new__(QuietDriver)
        self.driver.fileno, self._keys = os.pipe()
        self.driver.exit_event = _WakingEvent()
        self.driver._debug = False
        self.heard: list[str] = []
        self._changed = threading.Condition()
        self.driver.process_message = self._hear  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.driver.run_input_thread, daemon=True)

    def _hear(self, event: Any) -> None:
        with self._changed:
            self.heard.append(event.key)
            self._changed.notify()

    def press(self, data: bytes) -> None:
        os.write(self._keys, data)

    def wait_for(self, keys: list[str]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.heard == keys, WAIT_S), self.heard

    def hang_up(self) -> None:
        os.close(self._keys)

    def end(self) -> None:
        self.driver.exit_event.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return the list of the timeouts with which the thread has waited."""
    found: list[float | None] = []

    class Counted:
        @staticmethod
        def select(*args: Any) -> Any:
            if len(args[0]) > 1 or args[3] != 0:
                found.append(args[3])
            return select.select(*args)

    monkeypatch.setattr(quiet_driver, "select", Counted)
    return found


def test_the_thread_sleeps_until_a_key_comes(waits: list[float | None]) -> None:
    keyboard = Keyboard()
    keyboard.thread.start()
    keyboard.press(b"a")
    keyboard.wait_for(["a"])
    keyboard.press(b"\x1b[A")
    keyboard.wait_for(["a", "up"])
    keyboard.end()
    assert None in waits
    assert len(waits) <= 6  # one for each packet, and those of a sequence that is not complete


def test_an_escape_that_nothing_follows_is_the_key(waits: list[float | None]) -> None:
    keyboard = Keyboard()
    keyboard.thread.start()
    keyboard.press(b"\x1b")
    keyboard.wait_for(["escape"])
    keyboard.end()
    assert quiet_driver._ESCAPE_S in waits


def test_a_terminal_that_is_gone_is_read_once(waits: list[float | None]) -> None:
    keyboard = Keyboard()
    keyboard.thread.start()
    keyboard.hang_up()
    deadline = time.monotonic() + WAIT_S
    while len(waits) < 2:
        assert time.monotonic() < deadline
        keyboard.thread.join(0.01)
    keyboard.end()
    assert len(waits) == 2


def test_the_thread_starts_again_after_the_application_was_stopped() -> None:
    keyboard = Keyboard()
    keyboard.thread.start()
    keyboard.end()
    keyboard.driver.exit_event.clear()
    keyboard.thread = threading.Thread(target=keyboard.driver.run_input_thread, daemon=True)
    keyboard.thread.start()
    keyboard.press(b"b")
    keyboard.wait_for(["b"])
    keyboard.end()


class Screen:
    """A driver whose terminal is a pseudo-terminal. Its thread for output starts with `start`."""

    def __init__(self) -> None:
        self.reader, terminal = pty.openpty()
        tty.setraw(terminal)
        self.file = os.fdopen(terminal, "w", encoding="utf-8")
        self.driver = object.__new__(QuietDriver)
        output = _Output(self.file)
        output.open()
        self.driver._output = self.driver._file = output
        self.thread = self.driver._writer_thread = WriterThread(output)  # type: ignore[arg-type]

    @property
    def waiting(self) -> int:
        return self.thread._queue.qsize()

    def read(self, count: int) -> str:
        """Return the next bytes that reach the terminal, `count` of them."""
        data = b""
        while len(data) < count:
            assert select.select([self.reader], [], [], WAIT_S)[0], len(data)
            data += os.read(self.reader, count - len(data))
        return data.decode()


@pytest.fixture
def screen() -> Iterator[Screen]:
    screen = Screen()
    yield screen
    if screen.thread.is_alive():
        screen.thread.stop()
    screen.driver._output.close()
    screen.file.close()
    os.close(screen.reader)


def test_a_frame_reaches_the_terminal_without_the_thread(screen: Screen) -> None:
    screen.driver.write("frame é")
    assert screen.read(8) == "frame é"
    assert screen.waiting == 0


def test_a_full_terminal_delays_the_rest_and_what_comes_after_it(screen: Screen) -> None:
    pieces = ["é" * 50_000, "second", "third"]
    for piece in pieces:
        screen.driver.write(piece)
    assert screen.waiting == 3
    screen.thread.start()
    assert screen.read(100_011) == "".join(pieces)
    deadline = time.monotonic() + WAIT_S
    while screen.driver._output._written < 3:
        assert time.monotonic() < deadline
        screen.thread.join(0.01)
    screen.driver.write("without the thread again")
    assert screen.waiting == 0
    assert screen.read(24) == "without the thread again"


def test_without_a_second_opening_the_thread_writes_all(screen: Screen) -> None:
    screen.driver._output.close()
    screen.driver.write("frame é")
    assert screen.waiting == 1
    screen.thread.start()
    assert screen.read(8) == "frame é"
