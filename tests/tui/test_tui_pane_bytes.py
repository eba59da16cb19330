"""What a repaint sends to the terminal, after a change of the pane and after a reading: little, and
everything that changed."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 120, 40
MOST_BYTES = 8_000  # for a change of the pane; the whole screen takes 24,000
MOST_BYTES_OF_A_BOX = 8_000  # to open it, and to close it again
MOST_BYTES_A_READING = 700  # of four idle GPUs; about 220
QUIET_S = 0.7


Cells = list[list[tuple[str, str, str, bool]]]


def differing(before: Cells, after: Cells) -> list[object]:
    """Return the first cells that differ, each as (row, column, before, after)."""
    found: list[object] = []
    for y, (old, new) in enumerate(zip(before, after, strict=True)):
        for x, (was, now) in enumerate(zip(old, new, strict=True)):
            if was != now:
                found.append((y, x, was, now))
    return found[:5]


class Screen:
    """A screen in a terminal of 120x40 that reads its GPUs every `interval_s` seconds. If that is a
    minute, it does not change by itself."""

    def __init__(self, tmp_path: Path, interval_s: int) -> None:
        self.master, slave = pty.openpty()
        self._resize(COLUMNS)
        names = ("CONFIG", "STATE", "DATA")
        env = {
            **os.environ,
            "TERM": "xterm-256color",
            **{f"XDG_{name}_HOME": str(tmp_path / name) for name in names},
        }
        argv = [sys.executable, "-m", "workbench", "demo", "--interval", str(interval_s)]
        self.child = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=env, start_new_session=True
        )
        os.close(slave)
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.first_row = 0
        self.stream = pyte.ByteStream(self.screen)

    def _resize(self, columns: int) -> None:
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))

    def settle(self) -> int:
        """Read until nothing has come for a while, and return the number of bytes. The clock ticks
        each second."""
        count, end = 0, time.monotonic() + QUIET_S
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                data = os.read(self.master, 65536)
                self.stream.feed(data.replace(b"\x1b[?1u", b""))
                count += len(data)
        return count

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while not any(text in line for line in self.screen.display):
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.settle()

    def line_of(self, text: str) -> int:
        """Return the first line that has `text`."""
        return next(y for y, line in enumerate(self.screen.display) if text in line)

    def until_line(self, line: int, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in self.screen.display[line]:
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            self.settle()

    def press_until(self, key: str, text: str, shown: bool) -> int:
        """Press a key, wait until `text` is on the screen, or no longer, and return the number of
        bytes that came."""
        os.write(self.master, key.encode())
        count, deadline = self.settle(), time.monotonic() + 30
        while any(text in line for line in self.screen.display) is not shown:
            assert time.monotonic() < deadline, "\n".join(self.screen.display)
            count += self.settle()
        return count

    def press(self, key: str) -> int:
        os.write(self.master, key.encode())
        return self.settle()

    def _corner_is_at(self, column: int) -> bool:
        """Return whether the right corner of the panes is in this column."""
        return self.screen.buffer[self.first_row][column].data == "╮"

    def cells(self) -> Cells:
        """Return the cells from the panes on. The rows above them change with time."""
        rows = self.screen.buffer
        return [
            [(c.data, c.fg, c.bg, c.bold) for c in (rows[y][x] for x in range(COLUMNS))]
            for y in range(self.first_row, ROWS)
        ]

    def drawn_again(self) -> Cells:
        """Return the cells after everything was drawn from the start."""
        for columns in (COLUMNS - 1, COLUMNS):
            self._resize(columns)
            os.killpg(self.child.pid, signal.SIGWINCH)
            deadline = time.monotonic() + 30
            while self._corner_is_at(COLUMNS - 2) is (columns == COLUMNS):
                assert time.monotonic() < deadline, "\n".join(self.screen.display)
                self.settle()
            self.settle()
        return self.cells()


@contextmanager
def opened(tmp_path: Path, interval_s: int = 60) -> Iterator[Screen]:
    screen = Screen(tmp_path, interval_s)
    try:
        screen.until("^p palette")
        screen.until("1 Presets")
        screen.settle()
        lines = screen.screen.display
        screen.first_row = next(y for y, line in enumerate(lines) if "1 Presets" in line)
        yield screen
    finally:
        screen.child.kill()
        screen.child.wait()
        os.close(screen.master)


@pytest.mark.long
@pytest.mark.slow
def test_a_change_of_the_pane_sends_what_changed(tmp_path: Path) -> None:
    with opened(tmp_path) as screen:
        screen.press("1")
        sent = {key: screen.press(key) for key in "234512"}
        assert max(sent.values()) <= MOST_BYTES, sent
        before = screen.cells()
        assert differing(before, screen.drawn_again()) == []


@pytest.mark.long
@pytest.mark.slow
def test_a_reading_sends_what_changed(tmp_path: Path) -> None:
    readings = 8
    with opened(tmp_path, interval_s=1) as screen:
        sent = sum(screen.settle() for _ in range(round(readings / QUIET_S)))
        assert 0 < sent / readings <= MOST_BYTES_A_READING, sent


BOXES = {  # name: key, the title of the box
    "palette": ("\x10", "Actions"),
    "hosts": ("h", "Work on another host"),
    "terms": ("?", "Terms on the screen"),
    "GPU settings": ("g", "GPU settings"),
}


@pytest.mark.long
@pytest.mark.slow
def test_a_box_sends_what_changed_when_it_opens_and_closes(tmp_path: Path) -> None:
    with opened(tmp_path) as screen:
        sent = {}
        for name, (key, text) in BOXES.items():
            sent[f"{name} opens"] = screen.press_until(key, text, shown=True)
            sent[f"{name} closes"] = screen.press_until("\x1b", text, shown=False)
        assert max(sent.values()) <= MOST_BYTES_OF_A_BOX, sent
        assert differing(screen.cells(), screen.drawn_again()) == []


@pytest.mark.long
@pytest.mark.slow
def test_what_a_box_covers_is_right_while_it_is_open(tmp_path: Path) -> None:
    with opened(tmp_path) as screen:
        screen.press_until("\x10", BOXES["palette"][1], shown=True)
        first = screen.line_of("Preset (p)")
        screen.press("be")
        # a busy machine draws the two letters, or the list of their actions, after a pause
        screen.until_line(first, "Bench (4)")
        screen.settle()
        shown = screen.cells()
        assert differing(shown, screen.drawn_again()) == []
