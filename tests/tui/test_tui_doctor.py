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
        await screen.press("end")
        await screen.until("torch 2.5.1+cu121 (CUDA 12.1)")
        await screen.press("home", "R")
        await screen.until("examining the host")
        await screen.until("driver 560.35.03 is older")

    shown(work, size=size, profile="rtx-5060ti-old-stack")
