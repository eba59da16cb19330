"""The thread that reads the keyboard sleeps while no key is pressed, and still tells Escape from the
start of a sequence."""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import pytest

from workbench.tui import quiet_driver
from workbench.tui.quiet_driver import QuietDriver, _WakingEvent

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
