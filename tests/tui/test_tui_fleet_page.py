"""The fleet over the main screen: it is opened by a key, read only while it is shown, and opens
another host."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support.real_screen import RealScreen, shown


@pytest.fixture(autouse=True)
def two_hosts() -> None:
    file = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "hosts.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[hosts.here]\nssh = "local"\nlabel = "my machine"\n')


def agents() -> int:
    """Return the number of processes that read GPUs for this one."""
    return len(psutil.Process().children(recursive=True))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_the_fleet_opens_and_comes_back(size: tuple[int, int]) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(
            "4 x A100" if size[0] > 100 else "SIMULATED", lambda: s.state.telemetry is not None
        )
        before = agents()
        await s.press("O")
        await s.until("hosts live", "sim:four-pcie", "here", "q Leave", seconds=40)
        await s.press("slash", *"here", "q", "s")  # letters of the filter
        await s.until("no host matches")
        await s.press("escape")
        await s.until("sim:four-pcie")
        await s.press("ctrl+q", "escape")
        await s.until("^p palette", lambda: s.app.screen is s.app.main)
        await s.until(lambda: agents() <= before)
        await s.press("2")
        await s.until(lambda: s.app.main.panes.active == "launch")

    shown(scenario, size=size)


@pytest.mark.slow
def test_enter_works_on_the_host_under_the_cursor() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.press("O")
        await s.until("hosts live", seconds=40)
        await s.press("enter")  # the present host is under the cursor
        await s.until(lambda: s.app.screen is s.app.main)
        assert s.state.host.name == "sim:four-pcie"
        await s.press("O", "down", "enter")
        await s.until(lambda: s.state.host.name == "here" and s.state.host.link == "connected")
        await s.press("O")
        await s.until("q Leave", "here")
        await s.press("q")
        await s.until(lambda: s.app.screen is s.app.main)

    shown(scenario)
