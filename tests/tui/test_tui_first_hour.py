"""The first hour: presets that fit come first, the others say what they need, and a host without
GPUs is no wall."""

from __future__ import annotations

import asyncio

import pytest
from support.real_screen import RealScreen, on_free_port, real_screen, shown

from workbench.session.bench.row import BenchRow
from workbench.session.session import Session
from workbench.tui.bindings import suggest_next_keys


def test_presets_that_do_not_fit_come_last_with_the_reason() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100", lambda: any(p.fits is False for p in s.pane("presets").items))
        listed = [(p.id, p.fits) for p in s.pane("presets").items]
        general = [i for i, (name, _) in enumerate(listed) if name.endswith("-any")]
        impossible = [i for i, (_, fits) in enumerate(listed) if fits is False]
        assert general and impossible and max(general) < min(impossible)
        lacks = {p.id: p.lacks for p in s.state.presets}
        assert lacks["vllm-any"] == "" == lacks["vllm-qwen3-vl-2b-tp4-eager"]
        assert lacks["vllm-qwen2.5-7b-awq-2x-5060ti"].startswith("needs 2 x RTX 5060 Ti")
        await s.resize(80, 24)
        await s.press("1", "end")
        await s.until("does not fit the GPUs here: needs ")
        await s.session.plans.load_preset("vllm-any")
        await s.until(lambda: s.pane("presets").current_item.id == "vllm-any")

    shown(scenario)


def test_a_preset_that_does_not_fit_is_loaded_with_a_word_about_it() -> None:
    """Enter after a filter loaded the best name for other GPUs, though one that fits was listed."""

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100", lambda: any(p.fits is False for p in s.pane("presets").items))
        await s.press("1", "/", *"fp8")
        await s.until(lambda: "fp8" in s.pane("presets").query_text)
        best = s.pane("presets").current_item
        fitting = next(p for p in s.pane("presets").items if p.fits)
        assert best.fits is False
        await s.press("enter")
        await s.until(f"{best.id} does not fit the GPUs here: needs", f"{fitting.id} fits")
        assert s.state.plan.plan.preset_id == best.id

    shown(scenario)


def test_a_host_without_gpus_leads_to_the_demo(clean_environment: None) -> None:
    async def go() -> None:
        async with real_screen(size=(80, 24), session=Session.of_host()) as s:
            await s.until(lambda: s.state.presets_read and s.state.telemetry is not None)
            if s.state.telemetry.gpus:
                pytest.skip("this machine has a GPU")
            await s.until("D demo without a GPU", "D Demo  h Host  p Preset")
            assert [p.fits for p in s.state.presets if p.id == "vllm-any"] == [None]
            await s.press("2")
            await s.until("No GPU can be read on local", "try everything on simulated GPUs")
            assert [key.name_on_keyboard for key in suggest_next_keys(s.state)] == ["D", "h", "p"]
            await s.press("D")
            await s.until("sim:four-pcie", "SIMULATED", "pick a preset")

    asyncio.run(asyncio.wait_for(go(), 60))


def test_the_key_of_the_engine_opens_its_picker() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("2", "e")
        await s.until("Engine executable", "as PATH finds it")

    shown(scenario)


@pytest.mark.long
@pytest.mark.slow
def test_the_first_comparison_is_in_sight_on_a_small_terminal() -> None:
    """At 80 x 24 the screen stayed at the list of results after the benchmark of `.`."""
    on_free_port()

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("b")
        await s.until("enter run")
        await s.press("enter")
        await s.until(lambda: len(s.state.results) == 1 and not s.state.bench.running, seconds=60)
        await s.press("slash", *"eager", "enter")
        await s.until("document: partly")
        await s.press("down", "enter")
        await s.until(lambda: s.state.plan.edit_count == 1)
        await s.press("full_stop")
        await s.until("enforce-eager: on → off", "a leave out answers")
        await s.press("a", "enter")
        await s.until("A #1 vs B #2", "tok/J", seconds=90)

    shown(scenario, size=(80, 24))


def test_results_are_sorted_by_a_click_on_a_columns_head() -> None:
    rows = [
        BenchRow(id=n, unix_s=0.0, label=f"run {n}", model="m", engine="vllm", concurrency=8, output_tok_s=speed,
                 ttft_p50_ms=80.0 + n, ttft_p90_ms=90.0, itl_mean_ms=5.0, power_w=100.0, tok_per_joule=1.0,
                 requests_ok=8, requests_failed=0, simulated=True)
        for n, speed in ((1, 400.0), (2, 900.0), (3, None), (4, 500.0))
    ]  # fmt: skip

    async def scenario(s: RealScreen) -> None:
        pane = s.pane("results")
        await s.until(lambda: s.state.presets_read)
        await s.press("4")
        s.session.core.update(results=tuple(rows))
        await s.until("run 4")
        assert [row.id for row in pane.items] == [4, 3, 2, 1]
        head = next(line for line in s.text.splitlines() if "tok/s" in line and "ITL" in line)
        pane.handle_head_click(head.index("tok/s") - pane.content_region.x + 2)
        await s.until(
            "by tok/s, highest first", lambda: [row.id for row in pane.items] == [2, 4, 1, 3]
        )
        pane.handle_head_click(head.index("tok/s") - pane.content_region.x + 2)
        await s.until(
            "by tok/s, lowest first", lambda: [row.id for row in pane.items] == [1, 4, 2, 3]
        )
        for letters in ("TTFT", "50"):
            pane.handle_head_click(head.index("change") - pane.content_region.x + 1)
            await s.until("by change")
            pane.handle_head_click(head.index(letters) - pane.content_region.x + 1)
            await s.until("by TTFT", lambda: [row.id for row in pane.items] == [1, 2, 3, 4])
        pane.handle_head_click(head.index("change") - pane.content_region.x + 1)
        await s.until("by change")
        await s.press("o")
        await s.until("by tok/s, highest first")

    shown(scenario, size=(120, 40))
