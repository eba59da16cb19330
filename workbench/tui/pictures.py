"""The pictures of the README: the real screen and session on simulated hosts, driven by keys as a person would.

Nothing is drawn by hand: servers are started, benchmarked and stopped; only the host is simulated, and says so.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.errors import ServerError
from workbench.model.findings import Level
from workbench.model.server_run import ServerState
from workbench.tui.shot import plain_fonts, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.pilot import Pilot

    from workbench.session.session import Session

_DEADLINE_S = 480.0  # a power sweep: every value settles first
_ALIVE = frozenset({ServerState.STARTING, ServerState.READY})


class Scene:
    """One run of the screen on one simulated host."""

    def __init__(self, session: Session, pilot: Pilot[int], folder: Path) -> None:
        self.session, self.pilot, self.folder = session, pilot, folder
        self.written: list[Path] = []

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        names = {"-": "minus", ".": "full_stop", ",": "comma", ":": "colon"}
        await self.press(*(names.get(c, c) for c in text))

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            notice = self.session.state.notice
            if notice is not None and notice.level is Level.ERROR:
                raise ServerError(f"the scene cannot go on: {notice.text}", next_step=notice.next_step)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the scene did not get on: {self.session.state.notice}")
            await asyncio.sleep(0.1)
        await self.pilot.pause()

    async def shot(self, name: str, size: tuple[int, int] | None = None) -> None:
        """Write NAME.png, or NAME.svg without resvg_py; `size` resizes the terminal first."""
        if size is not None:
            await self.pilot.resize_terminal(*size)
        await asyncio.sleep(0.6)  # one repaint of everything that paints at its own pace
        await self.pilot.pause()
        svg = self.pilot.app.export_screenshot(title="workbench")
        self.written.append(write(plain_fonts(svg), self.folder / name))

    async def load(self, letters: str) -> None:
        await self.press("p")
        await self.type(letters)
        await self.press("enter")
        await self.until(lambda: self.session.state.plan is not None and self.session.state.plan.installed is not None)

    async def start(self) -> None:
        before = self.session.state.run_id
        await self.press("s", "enter")
        await self.until(lambda: self.session.state.run_id != before and self.is_(ServerState.READY))

    def is_(self, state: ServerState) -> bool:
        server = self.session.state.server
        return server is not None and server.state is state

    @property
    def page(self) -> str:
        """What lies on top."""
        return type(self.pilot.app.screen).__name__

    async def sweep_ends(self) -> None:
        await self.until(lambda: (s := self.session.state.sweep) is not None and s.state != "running")

    async def bench(self, *form: str) -> None:
        """Run a benchmark; `form`: keys for its form, from its number of streams on."""
        before = self.session.state.bench.last_id
        await self.press("b", "tab", *form, "enter")
        await self.until(lambda: self.session.state.bench.last_id != before and not self.session.state.bench.running)


async def _tuning(scene: Scene) -> None:
    """Four GPUs: the guide's eager baseline, one change, and the comparison."""
    await scene.load("tp4")
    await scene.press("s")
    await scene.shot("start-plan-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.is_(ServerState.READY))
    await scene.bench("1", "tab", "4")  # one stream: how near the limit of the memory is
    await scene.bench("8", "tab", "4", "8")
    await scene.press("slash")
    await scene.type("eag")
    await scene.shot("find-flag-120x40")
    await scene.press("enter")
    await scene.shot("edit-flag-120x40")
    await scene.press("down", "enter", "full_stop")
    await scene.shot("again-120x40")
    before = scene.session.state.bench.last_id
    await scene.press("enter")
    await scene.until(lambda: scene.session.state.bench.last_id != before and not scene.session.state.busy)
    await scene.press("2")
    await scene.shot("loop-120x40")
    await _sizes(scene)


async def _sizes(scene: Scene) -> None:
    """The same state at other sizes, and the pages that can be opened on it."""
    await scene.shot("loop-200x60", (200, 60))
    for key, name in (("2", "launch"), ("3", "log"), ("4", "bench"), ("5", "compare")):
        await scene.press(key)
        await scene.shot(f"{name}-80x24", (80, 24))
    await scene.press("question_mark")
    await scene.shot("help-120x40", (120, 40))
    await scene.press("escape", "S", "c", "tab")
    await scene.type("1,2,4,8,16,32,64")
    await scene.press("enter")
    await scene.sweep_ends()
    await scene.shot("concurrency-sweep-120x40")
    await scene.press("escape")


async def _settings(scene: Scene) -> None:
    """The passed-through card: a lock that the driver accepts and that changes nothing, as a load shows; quitting."""
    await scene.load("sglopt")
    await scene.start()
    await scene.press("g")
    await scene.shot("gpu-settings-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.page == "ConfirmSettings")
    await scene.shot("gpu-commands-120x40")
    await scene.press("enter")
    await scene.until(lambda: scene.page == "Page" and not scene.session.state.busy)
    await scene.press("V")
    await scene.until(lambda: scene.page == "MainScreen" and bool(scene.session.state.busy))
    await scene.until(lambda: scene.page == "Page")
    await scene.shot("no-effect-120x40")
    await scene.press("escape")
    await scene.bench("1", "tab", "4")
    await scene.shot("altered-120x40")
    await scene.press("q")
    await scene.shot("quit-120x40")
    await scene.press("escape", "r")
    await scene.until(lambda: not scene.session.state.alterations)


async def _preset(scene: Scene) -> None:
    """What a preset says of its document."""
    await scene.until(lambda: bool(scene.session.state.presets))
    await scene.press("p")
    await scene.type("fp8")
    await scene.press("escape", "1", "i")
    await scene.shot("preset-120x40")


async def _measuring(scene: Scene) -> None:
    """The bare card: what a power limit costs and saves at each value, and an A/B experiment on the one at the knee."""
    await scene.load("sglopt")
    await scene.start()
    await scene.bench("8", "tab", "1", "6")
    await scene.press("S", "tab")
    await scene.type("200,300,400,500,600")
    await scene.press("enter")
    await scene.sweep_ends()
    await scene.shot("power-sweep-120x40")
    await scene.press("escape", "X")
    await scene.until(lambda: scene.page == "Form")
    await scene.press("tab")
    await scene.type("gpu.power=400")
    await scene.shot("experiment-form-120x40")
    await scene.press("enter")
    await scene.until(lambda: (e := scene.session.state.experiment) is not None and e.pairs_done >= 2)
    await scene.until(lambda: scene.session.state.bench.running)
    await scene.shot("experiment-running-120x40")
    await scene.until(lambda: (e := scene.session.state.experiment) is not None and e.state != "running")
    await scene.shot("experiment-120x40")
    await scene.press("escape")


SCENES: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("four-pcie", _tuning),
    ("rtx-pro-6000-passthrough", _settings),
    ("rtx-pro-6000", _measuring),
    ("rtx-5060ti-x2", _preset),
)


def take_all(folder: Path) -> Sequence[Path]:
    """Every picture, as PNG (SVG without resvg_py); the paths. The person's own files are not touched."""
    with _own_directories():
        return asyncio.run(_take_all(folder))


async def _take_all(folder: Path) -> list[Path]:
    from workbench.session.session import Session
    from workbench.tui.app import WorkbenchApp

    written: list[Path] = []
    for profile, play in SCENES:
        session = Session.of_host(simulate=profile)
        app = WorkbenchApp(session)
        async with app.run_test(size=(120, 40)) as pilot:
            scene = Scene(session, pilot, folder)
            await scene.until(lambda session=session: session.state.host.link == "connected")  # type: ignore[misc]
            try:
                await play(scene)
            finally:
                for status in session.state.servers:
                    if status.state in _ALIVE:
                        await session.servers.stop(status.run_id)
            written += scene.written
    return written


@contextmanager
def _own_directories() -> Iterator[None]:
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "WORKBENCH_SIM_START_S")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="workbench-pictures-") as folder:
        os.environ.update({name: f"{folder}/{name.lower()}" for name in names[:-1]})
        os.environ["WORKBENCH_SIM_START_S"] = "5"  # long enough for a picture of it
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
