"""The page that shows what of the loaded model fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_cache import in_hub
from support.real_screen import RealScreen, shown

from workbench.session.session import Session


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


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_page_says_where_the_host_has_the_model(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = in_hub(tmp_path / "hub")

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: s.state.presets_read)
        await s.session.plans.load_preset("vllm-any", {"model": "org/tiny"})
        await s.press("M")
        text = await s.until("Model files", "local: org/tiny  600 kB, 5 files  complete")
        assert snapshot.name[:12] in text
        await s.press("escape")
        (snapshot / "model-00001-of-00002.safetensors").unlink()
        await s.press("M")
        await s.until("PARTIAL: 1 of 2 weight files missing")

    shown(scenario, size=size, session=Session.of_host())
