"""The page that examines the host, with the real session of a simulated host."""

from __future__ import annotations

import re

import pytest
from support.real_screen import RealScreen, shown


@pytest.mark.slow
@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_page_says_what_to_do(size: tuple[int, int]) -> None:
    async def work(screen: RealScreen) -> None:
        await screen.press("H")
        text = await screen.until(
            "Doctor: sim:rtx-5060ti-old-stack", "driver 560.35.03 is older than sm_120"
        )
        assert re.search(r"next +install driver 570 or newer", text) and "R examine again" in text
        assert "workbench gpu" not in text, "copied, it would change this machine"
        await screen.press("end")
        await screen.until("torch 2.5.1+cu121 (CUDA 12.1)")
        await screen.press("home", "R")
        await screen.until("examining the host")
        await screen.until("driver 560.35.03 is older")

    shown(work, size=size, profile="rtx-5060ti-old-stack")


@pytest.mark.slow
def test_the_page_offers_the_copies_between_gpus_and_shows_their_matrix() -> None:
    async def work(screen: RealScreen) -> None:
        await screen.press("H")
        await screen.until("Doctor: sim:rtx-5060ti-x2", "m copies between GPUs")
        await screen.press("m")
        await screen.until("Try the paths between the GPUs", "A small program copies 64 MiB")
        await screen.press("y")
        await screen.until("peer-to-peer copies are off between GPUs 0-1", seconds=40)
        await screen.press("end")
        await screen.until("Paths between GPUs, tried", "GPU 1     9.0", "torch SIMULATED")
        await screen.press("t")
        await screen.until("124 published traps: Workbench sees")

    shown(work, size=(120, 40), profile="rtx-5060ti-x2")


@pytest.mark.slow
def test_a_proposed_command_names_the_host() -> None:
    async def work(screen: RealScreen) -> None:
        await screen.press("H")
        await screen.until("workbench --simulate four-pcie gpu set --persistence on")

    shown(work, size=(120, 40), profile="four-pcie")
