"""Fixtures for the application on a scripted session."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.fake_session import FakeSession, walked

from workbench.tui.app import WorkbenchApp


class Driven:
    """The running application, its session, and keys."""

    def __init__(self, app: WorkbenchApp, session: FakeSession, pilot: Any) -> None:
        self.app, self.session, self.pilot = app, session, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        """Wait for a condition with a deadline of 5 s."""
        for _ in range(500):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"did not come true in 5 s: {what or condition}")

    @property
    def text(self) -> str:
        from support.grid import grid

        return grid(self.app)

    def pane(self, name: str) -> Any:
        """Return the pane with this name, such as "presets"."""
        return self.app.main.panes.frames[name].body

    def row(self, number: int) -> str:
        return self.text.splitlines()[number]


@asynccontextmanager
async def driven(
    stage: str | None = None,
    size: tuple[int, int] = (120, 40),
    gpus: int = 1,
    session: FakeSession | None = None,
) -> AsyncIterator[Driven]:
    session = session or FakeSession(gpus)
    if stage:
        await walked(session, stage)
    app = WorkbenchApp(session)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Driven(app, session, pilot)


@pytest.fixture(autouse=True)
def frames_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no frames, which would take half of a test's time. Rows are made nevertheless, and
    `text` draws them all; frames as they go to a terminal are for test_tui_terminal.py, whose
    screens are processes of their own."""

    def nothing(self: Any, *_: Any, **__: Any) -> None:
        self._dirty_regions.clear()

    monkeypatch.setattr("textual._compositor.Compositor.render_update", nothing)


@pytest.fixture
def drive() -> Callable[..., Any]:
    """Return `drive(scenario, **how)`, which runs the coroutine `scenario(driven)` in a loop of its
    own."""

    def run(scenario: Callable[[Driven], Awaitable[None]], **how: Any) -> None:
        async def main() -> None:
            async with driven(**how) as d:
                await scenario(d)

        asyncio.run(main())

    return run
