"""The screen with the real session of a simulated host, in the process of the test: keys in, rows
of text out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.grid import grid
from support.serving import free_port

from workbench.session.session import Session
from workbench.tui.app import WorkbenchApp

ROOT = Path(__file__).resolve().parents[2]
PROFILE, PRESET = "four-pcie", "vllm-qwen3-vl-2b-tp4-eager"


class RealScreen:
    """The running application with its session, controlled by keys."""

    def __init__(self, app: WorkbenchApp, session: Session, pilot: Any) -> None:
        self.app, self.session, self.pilot = app, session, pilot

    @property
    def state(self) -> Any:
        return self.session.state

    @property
    def text(self) -> str:
        return grid(self.app)

    def pane(self, name: str) -> Any:
        """Return the pane with this name, such as "presets"."""
        return self.app.main.panes.frames[name].body

    def row(self, number: int) -> str:
        return self.text.splitlines()[number]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal, and wait until the screen is drawn at its new height."""
        await self.pilot.resize_terminal(columns, rows)
        await self.until(lambda: len(self.text.splitlines()) == rows)

    async def until(self, *wanted: str | Callable[[], Any], seconds: float = 20.0) -> str:
        """Wait until the screen shows each text and each condition is true. Return the text of the
        screen."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            text = self.text
            missing = [w for w in wanted if not (w in text if isinstance(w, str) else w())]
            if not missing:
                return text
            assert asyncio.get_running_loop().time() < deadline, f"{missing} did not come:\n{text}"
            await asyncio.sleep(0.02)

    async def load(self, preset: str = PRESET) -> None:
        await self.until(lambda: any(p.id == preset for p in self.state.presets))
        await self.session.plans.load_preset(preset)
        await self.until("$ vllm serve")

    async def serve(self) -> None:
        """Load the preset and start its server with keys."""
        await self.load()
        await self.press("s")
        await self.until("enter start")
        await self.press("enter")
        await self.until("READY vllm :", seconds=120.0)


def crashes() -> list[Path]:
    """Return the defects that the screen has recorded."""
    return sorted(Path(os.environ["XDG_STATE_HOME"], "workbench", "crashes").glob("*"))


def shown(scenario: Callable[[RealScreen], Awaitable[None]], **how: Any) -> None:
    """Run `scenario` on a real screen. Fails if the screen kept a crash file."""

    async def main() -> None:
        async with real_screen(**how) as screen:
            await scenario(screen)

    asyncio.run(main())
    assert not crashes(), crashes()[0].read_text()


def on_free_port(preset: str = PRESET) -> None:
    """Save a copy of the preset with a free port as one of the user's presets, so that tests can
    run side by side."""
    own = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets", f"{preset}.toml")
    own.parent.mkdir(parents=True, exist_ok=True)
    shipped = (ROOT / "presets" / own.name).read_text()
    assert "port = 8004" in shipped
    own.write_text(shipped.replace("port = 8004", f"port = {free_port()}"))


@asynccontextmanager
async def real_screen(
    profile: str = PROFILE, size: tuple[int, int] = (120, 40), session: Session | None = None
) -> AsyncIterator[RealScreen]:
    """Open the screen; servers that were started are stopped at the end of the block."""
    session = session or Session.of_host(None, profile)
    app = WorkbenchApp(session)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        screen = RealScreen(app, session, pilot)
        try:
            yield screen
        finally:
            for status in session.state.servers:
                if status.ended_unix_s is None:
                    await session.servers.supervisor.stop(status.run_id, grace_s=1)
