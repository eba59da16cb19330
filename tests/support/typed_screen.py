"""`python -m workbench …` in a pseudo-terminal, used as a user does: keys in, rows of text out."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pexpect
import pyte

KEYS = {
    "enter": "\r",
    "escape": "\x1b",
    "tab": "\t",
    "down": "\x1b[B",
    "up": "\x1b[A",
    "left": "\x1b[D",
    "right": "\x1b[C",
    "space": " ",
    "f1": "\x1bOP",
    "ctrl+p": "\x10",
    "ctrl+u": "\x15",
}
# Private sequences that a terminal answers or ignores, and that pyte would print: keyboard
# protocol, mode reports.
_PRIVATE = re.compile(
    r"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$p|\x1b\[[0-9;]*\$[a-z]|\x1bP[^\x1b]*\x1b\\|\x1b_[^\x1b]*\x1b\\"
)
_UNFINISHED = re.compile(r"\x1b[^a-zA-Z~\\]*$")


class TypedScreen:
    """The program in its terminal. `keys` counts the typed keys; `text` is the current content of
    the terminal."""

    def __init__(
        self, argv: Sequence[str], size: tuple[int, int], env: Mapping[str, str], cwd: Path
    ) -> None:
        columns, rows = size
        self.keys = 0
        self.raw = ""
        self._rest = ""
        self._terminal = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._terminal)
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "workbench", *argv],
            dimensions=(rows, columns),
            cwd=str(cwd),
            env=dict(env),
            encoding="utf-8",
            codec_errors="replace",
            timeout=None,
        )
        self.child.delaybeforesend = None

    # what stands there
    @property
    def text(self) -> str:
        self._read(0.01)
        return "\n".join(line.rstrip() for line in self._terminal.display)

    def row(self, number: int) -> str:
        return self.text.split("\n")[number]

    def _read(self, seconds: float) -> bool:
        """Read the program's output for at most `seconds`. Return False if there was none."""
        try:
            piece = self.child.read_nonblocking(65536, seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.raw += piece
        text = self._rest + piece
        cut = _UNFINISHED.search(text)
        text, self._rest = (text[: cut.start()], text[cut.start() :]) if cut else (text, "")
        self._stream.feed(_PRIVATE.sub("", text))
        return True

    def until(self, *wanted: str | Callable[[str], bool], seconds: float = 40.0) -> str:
        """Wait until the screen shows everything in `wanted` at the same time. Return the text of
        the screen."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.text
            missing = [w for w in wanted if not (w in text if isinstance(w, str) else w(text))]
            if not missing:
                return text
            assert time.monotonic() < deadline and self.child.isalive(), (
                f"{missing} did not come:\n{text}"
            )
            self._read(0.2)

    def settle(self, seconds: float = 0.3) -> str:
        """Return the text once the program has written nothing for a moment, or after 2 s of steady
        output."""
        deadline = time.monotonic() + 2.0
        while self._read(seconds) and time.monotonic() < deadline:
            pass
        return self.text

    # what is done
    def press(self, *names: str) -> None:
        """Press keys, given by name or character, and count each."""
        for name in names:
            self.keys += 1
            self.child.send(KEYS.get(name, name))

    def type(self, text: str) -> None:
        self.press(*text)

    def resize(self, columns: int, rows: int) -> None:
        self._terminal.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def ended(self, seconds: float = 20.0) -> int:
        """Wait for the end. Return the exit status, or 128 + the signal."""
        deadline = time.monotonic() + seconds
        while self.child.isalive():
            assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
            self._read(0.1)
        self.child.close()
        return (
            self.child.exitstatus
            if self.child.exitstatus is not None
            else 128 + (self.child.signalstatus or 0)
        )

    def kill(self) -> None:
        """Kill the program as `kill -9` does: nothing is cleaned up."""
        self.child.kill(signal.SIGKILL)
        self.ended()

    def close(self) -> None:
        self.child.close(force=True)
