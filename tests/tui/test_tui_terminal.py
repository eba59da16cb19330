"""The screen in a real pseudo-terminal: signals, a terminal that stops reading, NO_COLOR, keys
under a log flood."""

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
from fcntl import ioctl
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PROGRAM = """
import asyncio, os, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
os.environ.update(TEXTUAL_FPS="40", TEXTUAL_ANIMATIONS="none")
from support.fake_session import FakeSession, walked
import workbench.tui
class Live(FakeSession):
    gap = 0.0
    async def open(self, before_screen=False):
        if before_screen:
            return
        self.tasks = [asyncio.create_task(self.tick_for_ever({interval})), asyncio.create_task(self.watch())]
        if {flood}:
            self.tasks.append(asyncio.create_task(self.pour()))
    async def watch(self):
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            Live.gap, last = max(Live.gap, now - last), now
    async def pour(self):
        n = 0
        while True:
            await asyncio.sleep(0.05)
            self.log_lines([f"INFO 12:00:00 line {{n + i}} of a server that talks a lot" for i in range(100)])
            n += 100
session = Live(4)
asyncio.run(walked(session, "compare"))
try:
    code = workbench.tui.run_screen(session, mouse=False)
finally:
    open({marker!r}, "w").write(f"{{Live.gap:.3f}}")
sys.exit(code)
"""


class Terminal:
    """A child in a pty of 120x40, and its output."""

    def __init__(
        self,
        tmp_path: Path,
        interval: float = 0.1,
        flood: bool = False,
        program: str = "",
        **env: str,
    ) -> None:
        """`program`: another one than the scripted session."""
        self.marker = tmp_path / "ended"
        text = program or PROGRAM.format(
            tests=str(TESTS),
            root=str(TESTS.parent),
            interval=interval,
            flood=flood,
            marker=str(self.marker),
        )
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.child = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=TESTS.parent,
            env={**os.environ, "TERM": "xterm-256color", **env},
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, wanted: bytes, seconds: float = 30.0) -> float:
        """Seconds until `wanted` stood in what was written since the last call."""
        begin, self.seen = time.monotonic(), b""
        while wanted not in self.seen:
            left = begin + seconds - time.monotonic()
            assert left > 0, f"{wanted!r} did not come; the end: {self.seen[-300:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536)
        return time.monotonic() - begin

    def drain(self, seconds: float) -> int:
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                try:
                    count += len(os.read(self.master, 65536))
                except OSError:
                    break
        return count

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self, seconds: float = 15.0) -> int:
        """Read on until it has ended; its exit code."""
        end = time.monotonic() + seconds
        while self.child.poll() is None and time.monotonic() < end:
            self.drain(0.05)
        return self.child.wait(1)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """As a terminal window that is closed."""
        if self.master >= 0:
            os.close(self.master)
        self.master = -1


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for t in opened:
        t.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, terminals: list[Terminal], number: int) -> None:
    t = Terminal(tmp_path)
    terminals.append(t)
    t.read_until(b"Compare")
    t.child.send_signal(number)
    assert t.end() == 128 + number
    assert t.marker.exists()  # `finally` ran


REAL = "import sys; from workbench.__main__ import main; sys.argv[1:] = ['demo']; sys.exit(main())"
BROKEN = """
from workbench.tui.screen import MainScreen
def broken(self, event):
    raise IndexError("--api-key sesame-" + "9" * 20)
MainScreen.on_descendant_focus = broken
"""


@pytest.mark.slow
def test_the_real_screen_ends_with_its_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    """Without a controlling terminal nobody sends SIGHUP: it read the end of its input for ever, at
    a whole core, and went on to tell the guard that it lives."""
    t = Terminal(tmp_path, program=REAL)
    terminals.append(t)
    t.read_until(b"Compare")
    t.hang_up()
    assert t.child.wait(15) == 128 + signal.SIGHUP


@pytest.mark.slow
def test_a_terminal_that_hangs_up_while_it_is_not_read_ends_the_screen(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    """Frames that the terminal does not take fill a queue, on which the event loop would wait for
    ever."""
    t = Terminal(tmp_path, interval=0.02)
    terminals.append(t)
    t.read_until(b"Compare")
    t.type("\x1bOPq" * 40)  # F1 and q
    t.drain(0.2)
    t.hang_up()
    assert t.child.wait(15) == 128 + signal.SIGHUP
    assert t.marker.exists()


@pytest.mark.slow
def test_a_defect_ends_in_words_and_a_file(tmp_path: Path, terminals: list[Terminal]) -> None:
    t = Terminal(tmp_path, program=BROKEN + REAL)
    terminals.append(t)
    t.read_until(b"please report the details")
    said = t.seen.decode(errors="replace")
    said = said[said.rindex("workbench: the screen ended") :]
    assert t.end() == 1
    assert "IndexError" in said and "Servers keep running" in said and "(`workbench sim:" in said
    (kept,) = Path(os.environ["XDG_STATE_HOME"], "workbench", "crashes").glob("*")
    assert str(kept) in said and "sesame" not in said + kept.read_text()
    assert "on_descendant_focus" in kept.read_text() or "broken" in kept.read_text()


@pytest.mark.slow
@pytest.mark.long
def test_a_terminal_that_stops_reading_does_not_stop_the_loop(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    t = Terminal(tmp_path, interval=0.05)
    terminals.append(t)
    t.read_until(b"Compare")
    # nobody reads: 100 ticks, three times what the driver's queue holds
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.2)
    t.child.send_signal(signal.SIGTERM)
    t.end()
    assert float(t.marker.read_text()) < 1.0


@pytest.mark.long
@pytest.mark.slow
def test_a_key_is_answered_while_the_log_floods(tmp_path: Path, terminals: list[Terminal]) -> None:
    t = Terminal(tmp_path, interval=1.0, flood=True)
    terminals.append(t)
    t.read_until(b"Compare")
    t.drain(1.0)
    for _ in range(7):
        t.type("\x1bOP")
        t.read_until(b"pick a preset", 5)  # fails if the page does not come
        t.drain(0.2)
        t.type("q")
        t.drain(0.4)


@pytest.mark.slow
def test_a_burst_of_keys_reaches_the_page_that_the_first_key_opens(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    t = Terminal(tmp_path, interval=1.0)
    terminals.append(t)
    t.read_until(b"Compare")
    t.drain(0.3)
    t.type("/mns\r")
    t.read_until(b"remove from the plan")
    t.type("77\r")
    t.read_until(b"77")
    t.child.send_signal(signal.SIGTERM)
    t.end()


@pytest.mark.slow
def test_no_color_has_no_colour_and_does_not_crash(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    t = Terminal(tmp_path, NO_COLOR="1")
    terminals.append(t)
    t.read_until(b"SIMULATED")
    t.type("\x1bOP")
    t.read_until(b"pick a preset")
    t.drain(0.3)
    t.child.send_signal(signal.SIGTERM)
    assert t.end() == 128 + signal.SIGTERM
    assert t.marker.exists()


@pytest.mark.slow
@pytest.mark.long
def test_bytes_for_four_gpus_stay_small(tmp_path: Path, terminals: list[Terminal]) -> None:
    t = Terminal(tmp_path, interval=0.5)
    terminals.append(t)
    t.read_until(b"Compare")
    t.drain(1.5)
    assert t.drain(4.0) / 4.0 < 5000  # half of what is allowed at 0.5 s


def test_a_terminal_without_abilities_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import workbench.tui
    from workbench.model.errors import InputError

    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(InputError, match="needs a terminal"):
        workbench.tui.run_screen(None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_screen_loads_nothing_heavy() -> None:
    heavy = "{'pydantic', 'httpx', 'sqlite3', 'plotext', 'asyncssh'}"
    text = f"import sys, workbench.tui.app; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=TESTS.parent
    )
    assert done.stdout.strip() == "[]"
