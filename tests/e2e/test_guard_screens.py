"""What the guard does when the screen that changed a GPU's settings is killed, stopped, or its
terminal is not read any more: settings come back when the heartbeat is missed and when the trial is
over, and what heats a GPU when it is too hot."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support import changing_screen
from support.guarded import WITHIN_S, GuardedHost, guarded, run
from support.procs import alive, eventually, state_of

import workbench

ROOT = Path(workbench.__file__).parents[1]  # it may not be installed
ON = (450.0, (1000, 2000))
HEARTBEAT_S = 3.0
# for a pty that nobody reads to be full, and the screen to take it for stalled (2.5 s)
STALL_S = 10.0
OPEN_S = 60.0


class Screen:
    """The screen in a pty that is read until `unread`."""

    def __init__(self, directory: Path, trial: str) -> None:
        self.master, slave = pty.openpty()
        self.size(40, 120)
        self.done = directory / "done"
        argv = [
            sys.executable,
            changing_screen.__file__,
            str(directory / "host"),
            trial,
            str(self.done),
        ]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self.reading = True
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while self.reading:
            try:
                os.read(self.master, 65536)
            except OSError:
                return

    def unread(self) -> None:
        """From now on nobody reads; a few full repaints fill what the kernel takes in between."""
        self.reading = False
        for turn in range(12):
            self.size(40 - turn % 2, 120)
            os.kill(self.process.pid, signal.SIGWINCH)
            time.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.master)


Fate = Callable[[Screen], None]


def killed(screen: Screen) -> None:
    screen.process.kill()


def stopped(screen: Screen) -> None:
    os.kill(screen.process.pid, signal.SIGSTOP)
    eventually(lambda: state_of(screen.process.pid) == "T", "SIGSTOP")


def stalled(screen: Screen) -> None:
    screen.unread()


def fates(*in_ci: Fate) -> pytest.MarkDecorator:
    """All three, of which the others are run in the long version only."""
    every = (killed, stopped, stalled)
    return pytest.mark.parametrize(
        "fate",
        [fate if fate in in_ci else pytest.param(fate, marks=pytest.mark.long) for fate in every],
    )


@pytest.fixture
def box(tmp_path: Path) -> Iterator[GuardedHost]:
    with guarded(tmp_path / "host") as made:
        yield made


def opened(box: GuardedHost, tmp_path: Path, heartbeat_s: float, trial: str = "-") -> Screen:
    config = tmp_path / "xdg-config" / "workbench" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"[gpu]\nheartbeat_s = {heartbeat_s}\n")
    screen = Screen(tmp_path, trial)
    try:
        eventually(
            lambda: screen.done.exists() or not alive(screen.process.pid),
            "the screen to change them",
            OPEN_S,
        )
        assert screen.done.read_text() == "ok" and box.in_force() == ON
    except BaseException:
        screen.end()
        raise
    return screen


def given_back(
    box: GuardedHost,
    fate: Fate,
    what: str,
    due_unix_s: Callable[[], float],
    within_s: float,
    back: tuple[float | None, tuple[int, int] | None] = (None, None),
    left: Sequence[tuple[str, Any]] = (),
) -> None:
    """Not later than 5 s after it was due. `due_unix_s` is asked as long as the settings are on;
    `back`: what is in force then, `left`: what the guard goes on watching."""
    due = due_unix_s()
    until = time.monotonic() + within_s
    while box.in_force() != back or box.altered != list(left):
        assert time.monotonic() < until, f"{what}, {fate.__name__}: not given back"
        with suppress(FileNotFoundError):  # the guard forgets heartbeats when it ends
            due = due_unix_s()
        time.sleep(0.02)
    late_s = time.time() - due
    print(f"{what}, screen {fate.__name__}: given back {late_s:.1f} s after")
    assert late_s < WITHIN_S
    if left:
        assert alive(box.pid)
    else:
        box.ended()


@pytest.mark.long
@pytest.mark.slow
@fates(killed)
def test_a_missed_heartbeat(box: GuardedHost, tmp_path: Path, fate: Fate) -> None:
    screen = opened(box, tmp_path, HEARTBEAT_S)
    try:
        box.stays(HEARTBEAT_S + 1.5, lambda: box.in_force() == ON)  # it gives signs of life
        fate(screen)
        (beat,) = (box.gpu / "guard" / "beats").iterdir()
        given_back(
            box,
            fate,
            "missed heartbeat",
            lambda: beat.stat().st_mtime + HEARTBEAT_S,
            HEARTBEAT_S + STALL_S + 15,
        )
        assert f"no heartbeat for {HEARTBEAT_S:g} s" in box.log
        assert (run(box.look()).view.did or "").endswith(f"no heartbeat for {HEARTBEAT_S:g} s")
    finally:
        screen.end()


@pytest.mark.slow
@fates(stopped)
def test_the_end_of_a_trial(box: GuardedHost, tmp_path: Path, fate: Fate) -> None:
    screen = opened(box, tmp_path, 600.0, "8")
    try:
        fate(screen)
        assert box.in_force() == ON
        (ends,) = box.state["trials_until_unix_s"].values()
        given_back(box, fate, "end of the trial", lambda: float(ends), 20)
        assert "not confirmed within 8 s" in box.log
    finally:
        screen.end()


@pytest.mark.long
@pytest.mark.slow
@fates(stalled)
def test_too_hot(box: GuardedHost, tmp_path: Path, fate: Fate) -> None:
    """The raised limit is reverted; the lock, which keeps the GPU cooler than the driver's default,
    stays watched."""
    box.sim.change_setting(0, limit_w=400.0)  # by hand, before Workbench
    screen = opened(box, tmp_path, 600.0)
    lock = ON[1]
    try:
        fate(screen)
        box.stays(0.5, lambda: box.in_force() == ON)
        box.sim.set_faults(celsius={"0": 93})
        hot = time.time()
        given_back(
            box, fate, "too hot", lambda: hot, 15, (400.0, lock), [("gpu_clocks", "1000,2000")]
        )
        assert "GPU0 reached 93 °C, its limit is 92 °C" in box.log
        box.stays(1.0, lambda: box.in_force() == (400.0, lock))
        assert "GPU0 GPU clocks kept, because a revert could make the GPU hotter" in box.log
    finally:
        screen.end()
