"""The page that shows what of the loaded model fits."""

from __future__ import annotations

import pytest
from support.real_screen import RealScreen, shown


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_page_shows_which_quantizations_and_contexts_fit(size: tuple[int, int]) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("M")
        text = await s.until("What fits", "weights", "BF16", "4,096")
        assert "A100-PCIE-40GB" in text and "452.1" in text  # the limit of one GPU
        await s.press("escape")
        await s.until(lambda: not s.app.main.panes.pages.pages)

    shown(scenario, size=size)
