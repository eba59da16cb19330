"""A stopped sweep is resumed, and a lock without proof is probed, on the real session."""

from __future__ import annotations

import asyncio

import pytest
from support.real_screen import crashes, on_free_port, real_screen

from workbench.gpu.settings import journal
from workbench.model.settings import ClockRange, GpuSettings
from workbench.tui.controllers import gpu

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "VERIFY_S", 2.5)
    on_free_port()


@pytest.mark.long
def test_a_sweep_that_k_stopped_goes_on_with_r() -> None:
    async def go() -> None:
        async with real_screen() as s:
            await s.serve()
            shape = {"settle_s": 0, "seconds": 1.0, "concurrency": 4, "max_tokens": 16, "pairs": 0}
            work = asyncio.create_task(
                s.session.sweeps.run_gpu_setting_sweep(
                    "power_limit_w", ["180", "200", "220"], **shape
                )
            )
            await s.until(
                lambda: s.state.sweep and s.state.sweep.measured_value_count == 1, seconds=60
            )
            await s.press("S")
            text = await s.until("K Stop", "1 of 3 points")
            assert "R Resume" not in text
            await s.press("K")
            stopped = await asyncio.wait_for(work, 30)
            await s.until("= stopped", "R Resume")
            await s.press("R")
            await s.until("These commands change the GPUs", "Back at the end")
            await s.press("pagedown", "pagedown", "enter")
            await s.until(
                "done", "3 of 3 points", lambda: s.state.sweep.state == "done", seconds=60
            )
            assert "R Resume" not in s.text and s.state.sweep.points[0] == stopped.points[0]
            assert (await journal.read_journal(s.session.host)).entries == ()

    asyncio.run(go())
    assert not crashes(), crashes()[0].read_text()


@pytest.mark.long
def test_a_lock_of_which_the_load_proved_nothing_is_probed_once_its_commands_were_shown() -> None:
    async def go() -> None:
        async with real_screen() as s:
            await s.serve()
            assert (
                await s.session.gpu.apply_settings(GpuSettings(gpu_clocks=ClockRange(1200, 1200)))
            ).ok
            await s.press("V")
            await s.until("What the load showed", "proves nothing", "p Probe", seconds=60)
            await s.press("p")
            text = await s.until("A probe sets other clocks for a moment", "run them")
            assert text.count("clocks=1200,1200") == 4 and text.count("--lock-gpu-clocks=") == 8, (
                text
            )
            await s.press("enter")
            text = await s.until("What the load showed", "is in force", seconds=60)
            assert "p Probe" not in text and "proves nothing" not in text
            entries = (await journal.read_journal(s.session.host)).entries
            assert {str(e.now) for e in entries} == {"1200,1200"}
            await s.press("escape")
            await s.session.gpu.revert_settings()

    asyncio.run(go())
    assert not crashes(), crashes()[0].read_text()
