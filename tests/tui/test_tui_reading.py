"""Pages and progress on the real session of a simulated host: what is read lies inside the frame,
and what takes long has one place."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from support.real_screen import RealScreen, on_free_port, shown
from textual import events

from workbench.model.settings import GpuSettings


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.slow
def test_a_trial_is_kept_and_reverted_while_a_page_is_read(size: tuple[int, int]) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until(
            lambda: s.state.telemetry, lambda: s.session.gpu.alterations.register_dir is not None
        )
        await s.session.gpu.apply_settings(GpuSettings(power_limit_w=200.0), 0, trial_s=60)
        await s.press("f1")
        await s.until("Everywhere", lambda: s.state.alterations, lambda: "GPU trial" in s.row(0))
        await s.press("T")
        await s.until(
            "the trial is over and the GPU settings stay",
            "Everywhere",
            lambda: "power limit 250 → 200 W" in s.row(0),
        )
        await s.press("r")
        await s.until(
            "Reverted: GPU0: power limit 200 W", "Everywhere", lambda: not s.state.alterations
        )
        await s.press("escape")
        await s.until("Presets", lambda: "Everywhere" not in s.text)

    shown(scenario, size=size)


def test_pages_lie_over_each_other_and_make_room_for_a_pane() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        pages = s.app.main.panes.pages
        await s.press("v")
        await s.until("The full command", "y Copy", lambda: s.app.focused is pages.visible_page)
        await s.press("f1", "f1")
        assert [page.title for page in pages.pages] == ["The full command", "Keys"]
        await s.resize(80, 24)
        await s.until("GPU", lambda: pages.visible_page.content_size.height >= 10)
        await s.press("down", "down", "q")  # q closes the page and asks nothing
        await s.until(
            "The full command",
            lambda: pages.visible_page.title == "The full command" and s.app.screen is s.app.main,
        )
        await s.press("4")
        await s.until(
            "No results yet", lambda: not pages.pages and s.app.focused is s.pane("results")
        )
        await s.press("v")
        footer = s.app.main.footer
        at = footer.region.x + s.row(-1).index("Close")
        await footer.on_click(_click(footer, at))
        await s.until("No results yet", lambda: s.app.focused is s.pane("results"))

    shown(scenario, size=(120, 40))


def _click(widget: Any, x: int) -> events.Click:
    return events.Click(
        widget, x, 0, 0, 0, 1, False, False, False, screen_x=x, screen_y=widget.region.y
    )


def test_a_page_about_a_host_closes_with_it() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("l")
        await s.until("Done to sim:four-pcie")
        await s.session.switch_host("sim:gb10")
        await s.until("sim:gb10", lambda: not s.app.main.panes.pages.pages)

    shown(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.long)])
@pytest.mark.long
def test_progress_has_one_row_that_says_what_it_waits_for(
    size: tuple[int, int], monkeypatch: Any
) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "3")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "1")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("s")
        await s.until("enter start")
        await s.press("enter")
        await s.until(
            lambda: re.search(
                r"~ vllm starts  .*, \ds .*time left: after a first start  "
                r"x stops",
                s.row(-2),
            )
        )
        await s.press("b", "enter")
        await s.until(lambda: re.search(r"~ benchmark  waits for READY: .* K cancels", s.row(-2)))
        assert "x stops" not in s.text  # one row for both
        await s.until(
            lambda: re.search(
                r"~ benchmark  measuring \d+/48 .*about .* left  K "
                r"cancels",
                s.row(-2),
            )
        )
        await s.press("K")
        await s.until(lambda: "~ benchmark" not in s.text)
        await s.session.servers.start()
        # as the first one
        await s.until(lambda: re.search(r"~ vllm starts  .*about \d+ s left  x stops", s.row(-2)))

    shown(scenario, size=size)


@pytest.mark.long
@pytest.mark.slow
def test_b_right_after_s_waits_for_the_server_that_is_not_listed_yet(monkeypatch: Any) -> None:
    """It said that there is no server."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.5")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "4")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        held, launch = asyncio.Event(), s.session.servers.launch_unchecked_plan

        async def slow(*words: Any) -> Any:
            await held.wait()
            return await launch(*words)

        monkeypatch.setattr(s.session.servers, "launch_unchecked_plan", slow)
        await s.load()
        await s.press("s", "enter")
        await s.until(lambda: "starting" in s.state.busy)
        await s.press("b")
        await s.until("Benchmark", "starts when the server is READY")
        await s.press("enter")
        await s.until(lambda: "~ benchmark  waits for READY" in s.row(-2))
        held.set()
        await s.until(lambda: re.search(r"~ benchmark  measuring", s.row(-2)))
        await s.press("s")
        await s.until("Restart vllm", "! a benchmark is running: this ends the benchmark")
        await s.press("escape")
        await s.until(lambda: len(s.state.results) == 1 and "~ benchmark" not in s.text, seconds=60)

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_again_ends_at_the_comparison(monkeypatch: Any) -> None:
    """At 80x24 it ended in the list of results, and the comparison was out of sight."""
    monkeypatch.setenv("WORKBENCH_SIM_START_S", "0.2")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "4")
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("b", "enter")
        await s.until(
            lambda: s.state.bench.last_id is not None and not s.state.bench.running, seconds=60
        )
        await s.press("full_stop")
        await s.until("Again", "0 changes against the running server")
        await s.press("enter")
        await s.until("A #1 vs B #2", seconds=40)

    shown(scenario, size=(80, 24))
