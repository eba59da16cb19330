"""Random keys at random sizes never end the screen, on hosts with many GPUs and with MIG instances."""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pyte
import pytest
from support.made_results import experiment, sweep
from support.real_screen import PROFILE, RealScreen, crashes, on_free_port, real_screen
from test_tui_sizes import stored
from textual._compositor import Compositor
from textual.drivers.headless_driver import HeadlessDriver

from workbench.model.gpu import Telemetry
from workbench.session.history.telemetry_watch import TelemetryWatch
from workbench.session.session import Session
from workbench.store import paths
from workbench.tui.cells import width_of

# Keys that leave the screen or this machine: O opens the fleet, D the demo, q asks whether to leave.
LEAVING = "qOD"
NAMES = {"/": "slash", "?": "question_mark", ".": "full_stop", ":": "colon", "-": "minus"}
NAMES |= {"+": "plus", "[": "left_square_bracket", "]": "right_square_bracket"}
NAMES |= {"{": "left_curly_bracket", "<": "less_than_sign", "!": "exclamation_mark"}
MOVES = ("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "tab", "shift+tab")
OTHERS = ("enter", "escape", "escape", "backspace", "space", "ctrl+p", "ctrl+u", "f1")
KEYS = (
    *(key for key in string.ascii_letters + string.digits if key not in LEAVING),
    *NAMES.values(),
    *MOVES,
    *OTHERS,
)
COLUMNS, ROWS = (10, 300), (3, 80)
ANSWER_S = 30.0  # in which the screen answers a key, also on a busy machine
# One alert is there all the time: no GPU has 99 % of its memory free while a server runs.
ALERTS = """[alerts]
bell = ["all"]
mark = ["all"]
title = ["all"]
desktop = ["all"]
limits.gpu-memory = { begin = 99.9, end = 100, for_s = 0 }
limits.queue = { begin = 1, end = 0, for_s = 0 }
"""
DRAWN_S = 10.0  # in which the terminal shows what the screen has, also on a busy machine
LEAST_LOOKS = 100  # and as often it is looked at: a machine may stand still for half of the time
RENDER_UPDATE = Compositor.render_update  # conftest.py replaces it, because frames take time
USUAL = ((80, 24), (120, 40), (200, 60), (53, 24), (60, 15))


def widened(reading: Telemetry, count: int) -> Telemetry:
    """Return a reading of `count` GPUs, made of those of `reading`, which do not all do the same."""
    infos = tuple(
        replace(reading.infos[n % len(reading.infos)], index=n, uuid=f"GPU-{n:02d}")
        for n in range(count)
    )
    gpus = tuple(
        replace(reading.gpus[n % len(reading.gpus)], index=n, gpu_util_pct=float(n * 97 % 101))
        for n in range(count)
    )
    return replace(reading, infos=infos, gpus=gpus)


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    take: Callable[[Any, Telemetry], None] = TelemetryWatch._publish_reading
    monkeypatch.setattr(
        TelemetryWatch,
        "_publish_reading",
        lambda self, reading: take(self, widened(reading, count)),
    )


def size_of(dice: random.Random) -> tuple[int, int]:
    return (
        dice.choice(USUAL) if dice.random() < 0.3 else (dice.randint(*COLUMNS), dice.randint(*ROWS))
    )


async def pressed(s: RealScreen, key: str) -> list[Any]:
    """Press a key. Return the parts of the screen that have not answered after ANSWER_S. The pilot
    itself also waits for parts that the key has closed, which never answer."""
    await s.app._press_keys([key])
    waiting = {s.app, *s.app.screen.walk_children(with_self=True)}
    for one in tuple(waiting):
        one.call_later(lambda one=one: waiting.discard(one))
    deadline = time.monotonic() + ANSWER_S
    while True:
        left = [one for one in waiting if one is s.app or one.is_attached]
        if not left or not s.app.is_running or time.monotonic() > deadline:
            return left if s.app.is_running else []
        await asyncio.sleep(0.005)


class Terminal:
    """The terminal that the frames are written to. They contain only cells that have changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._screen = pyte.Screen(120, 40)
        self._stream = pyte.Stream(self._screen)
        monkeypatch.setattr(Compositor, "render_update", RENDER_UPDATE)
        monkeypatch.setattr(HeadlessDriver, "is_headless", property(lambda _: False))
        monkeypatch.setattr(HeadlessDriver, "write", lambda _, text: self._stream.feed(text))

    def resize(self, columns: int, rows: int) -> None:
        """Fill the terminal with a sign, so that a cell that is not drawn again is found."""
        if (columns, rows) == (self._screen.columns, self._screen.lines):
            return
        self._screen.resize(rows, columns)
        for row in range(rows):
            self._stream.feed(f"\x1b[{row + 1};1H{'?' * columns}")

    def wrong_rows(self, s: RealScreen) -> list[tuple[int, str, str]]:
        """Return the rows in which the terminal differs from the screen drawn as a whole."""
        shown = [row.rstrip() for row in self._screen.display]
        drawn = [row.rstrip() for row in s.text.splitlines()]
        # a question that opens meanwhile has no rows before it is laid out
        pairs = enumerate(zip_longest(shown, drawn, fillvalue=""))
        return [(row, here, there) for row, (here, there) in pairs if here != there]


async def walk(
    s: RealScreen, dice: random.Random, steps: int, terminal: Terminal | None = None
) -> int:
    """Press random keys at random sizes. Return how many of `steps` are left if a key has ended the
    screen, as the palette can."""
    done: list[str] = []
    for step in range(steps):
        if dice.random() < 0.25:
            size = size_of(dice)
            done.append(f"{size[0]}x{size[1]}")
            if terminal is not None:
                terminal.resize(*size)
            await s.resize(*size)
        key = dice.choice(KEYS)
        done.append(key)
        silent = await pressed(s, key)
        assert not silent, f"after {' '.join(done[-30:])}: no answer of {silent}"
        if not s.app.is_running:
            return steps - step - 1
        columns, rows = s.app.size
        last = " ".join(done[-30:])
        # a question that a key has opened has no rows before it is laid out
        await s.until(lambda rows=rows: len(s.text.splitlines()) == rows, seconds=ANSWER_S)
        text = s.text
        assert not crashes(), f"after {last}\n{crashes()[0].read_text()}"
        assert "a defect in Workbench" not in text, f"after {last}\n{text}"
        assert len(text.splitlines()) == rows, f"after {last} at {columns}x{rows}"
        too_wide = [line for line in text.splitlines() if width_of(line) > columns]
        assert not too_wide, f"after {last} at {columns}x{rows}: {too_wide}"
        if terminal is not None:
            deadline, looks = time.monotonic() + DRAWN_S, 0
            while s.app.is_running and (wrong := terminal.wrong_rows(s)):
                looks += 1
                in_time = looks < LEAST_LOOKS or time.monotonic() < deadline
                assert in_time, f"after {last} at {columns}x{rows}: {wrong}"
                await asyncio.sleep(0.02)
    return 0


def walked(
    profile: str, gpus: int, steps: int, serve: bool, terminal: Terminal | None = None
) -> None:
    async def go() -> None:
        dice, left = random.Random(100 + gpus), steps
        while left:
            session = Session.of_host(None, profile)
            if terminal is not None:
                terminal.resize(120, 40)
            async with real_screen(session=session) as s:
                await s.until(lambda: s.state.telemetry is not None and s.state.presets_read)
                if gpus:
                    await s.until(lambda: len(s.state.telemetry.gpus) == gpus)
                if serve:
                    await s.serve()
                e = experiment()
                session.core.update(experiment=e, sweep=replace(sweep(), host=session.host.name))
                left = await walk(s, dice, left, terminal)

    asyncio.run(go())


@pytest.mark.slow
def test_random_keys_on_sixteen_gpus_do_not_end_the_screen(
    monkeypatch: pytest.MonkeyPatch, clean_environment: None
) -> None:
    with_gpus(monkeypatch, 16)
    walked(PROFILE, 16, 25, serve=False)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("profile", "gpus", "serve"),
    [(PROFILE, 4, True), (PROFILE, 8, True), (PROFILE, 16, True), ("h100-mig", 0, False)],
    ids=["ready", "8-gpus", "16-gpus", "mig"],
)
def test_750_random_keys_do_not_end_the_screen(
    monkeypatch: pytest.MonkeyPatch,
    clean_environment: None,
    profile: str,
    gpus: int,
    serve: bool,
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.1")
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(ALERTS)
    stored()
    on_free_port()
    if gpus:
        with_gpus(monkeypatch, gpus)
    walked(profile, gpus, 750, serve, Terminal(monkeypatch))
