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

from workbench.model.run import ServerState
from workbench.tui.shot import plain_fonts, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.pilot import Pilot

    from workbench.session.session import Session

_DEADLINE_S = 90.0
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
        await self.press(*("minus" if c == "-" else "full_stop" if c == "." else c for c in text))

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the scene did not get on: {self.session.state.notice}")
            await asyncio.sleep(0.1)
        await self.pilot.pause()

    async def shot(self, name: str, size: tuple[int, int] | None = None) -> None:
        """Write NAME.svg and NAME.png; `size` resizes the terminal first."""
        if size is not None:
            await self.pilot.resize_terminal(*size)
        await asyncio.sleep(0.6)  # one repaint of everything that paints at its own pace
        await self.pilot.pause()
        svg = self.pilot.app.export_screenshot(title="workbench")
        self.written += write(plain_fonts(svg), self.folder / name)

    async def load(self, letters: str) -> None:
        await self.press("p")
        await self.type(letters)
        await self.press("enter")
        await self.until(lambda: self.session.state.plan is not None and self.session.state.plan.installed is not None)

    async def start(self) -> None:
        before = self.session.state.run_id
        await self.press("s", "enter")
        await self.until(lambda: self.session.state.run_id != before and self._is(ServerState.READY))

    def _is(self, state: ServerState) -> bool:
        server = self.session.state.server
        return server is not None and server.state is state

    async def bench(self) -> None:
        before = self.session.state.bench.last_id
        await self.press("b", "enter")
        await self.until(lambda: self.session.state.bench.last_id != before and not self.session.state.bench.running)


async def _tuning(scene: Scene) -> None:
    """Four GPUs: the guide's baseline against data parallelism."""
    await scene.load("tp4")
    await scene.press("s")
    await scene.shot("start-plan-120x40")
    await scene.press("escape")
    await scene.start()
    await scene.bench()
    await scene.load("dp4")
    await scene.start()
    await scene.press("b", "enter")
    await scene.until(lambda: (p := scene.session.state.bench.progress) is not None and p.done > 8)
    await scene.until(lambda: not scene.session.state.bench.running)
    await scene.press("c")
    await scene.press("2")
    await scene.shot("loop-120x40")
    await scene.shot("loop-200x60", (200, 60))
    await scene.shot("launch-80x24", (80, 24))
    for key, name in (("3", "log"), ("4", "bench"), ("5", "compare")):
        await scene.press(key)
        await scene.shot(f"{name}-80x24")
    await scene.shot("again-120x40", (120, 40))
    await scene.press("slash")
    await scene.type("mns")
    await scene.shot("find-flag-120x40")
    await scene.press("enter")
    await scene.shot("edit-flag-120x40")
    await scene.press("escape", "escape")
    await scene.press("question_mark")
    await scene.shot("help-120x40")
    await scene.press("escape")


async def _settings(scene: Scene) -> None:
    """The passed-through card: settings, the altered state, quitting."""
    await scene.until(lambda: scene.session.state.telemetry is not None)
    await scene.press("g")
    await scene.shot("gpu-settings-120x40")
    await scene.press("escape")
    from workbench.model.settings import ClockRange, GpuSettings

    await scene.session.apply_gpu(GpuSettings(power_limit_w=400.0, gpu_clocks=ClockRange(3000, 3090)))
    await scene.shot("altered-120x40")
    await scene.press("q")
    await scene.shot("quit-120x40")
    await scene.press("escape")
    await scene.session.revert_gpu()


async def _preset(scene: Scene) -> None:
    """What a preset says of its document; a start that fails, with its cause."""
    await scene.until(lambda: bool(scene.session.state.presets))
    await scene.press("p")
    await scene.type("fp8")
    await scene.press("escape", "1", "i")
    await scene.shot("preset-120x40")
    await scene.press("escape")


SCENES: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("four-pcie", _tuning),
    ("rtx-pro-6000-passthrough", _settings),
    ("rtx-5060ti-x2", _preset),
)


def take_all(folder: Path) -> Sequence[Path]:
    """Every picture, as SVG and (with resvg_py) PNG; the paths. The person's own files are not touched."""
    with _own_directories():
        return asyncio.run(_take_all(folder))


async def _take_all(folder: Path) -> list[Path]:
    from workbench.session.session import Session
    from workbench.tui.app import WorkbenchApp

    written: list[Path] = []
    for profile, play in SCENES:
        session = Session.of_host(simulate=profile)
        app = WorkbenchApp(session, None)
        async with app.run_test(size=(120, 40)) as pilot:
            scene = Scene(session, pilot, folder)
            await scene.until(lambda session=session: session.state.host.link == "connected")  # type: ignore[misc]
            try:
                await play(scene)
            finally:
                for status in session.state.servers:
                    if status.state in _ALIVE:
                        await session.stop(status.run_id)
            written += scene.written
    return written


@contextmanager
def _own_directories() -> Iterator[None]:
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="workbench-pictures-") as folder:
        os.environ.update({name: f"{folder}/{name.lower()}" for name in names})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
