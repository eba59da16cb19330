"""The advice on the screen: beside a result, as a page, and one finding measured in an A/B
experiment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.real_screen import RealScreen, on_free_port, shown

from workbench.model.findings import Finding, Level
from workbench.model.settings import GpuSettings

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "8")
    on_free_port()


@pytest.mark.long
def test_a_finding_is_measured_and_keeps_its_verdict() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.session.bench.benchmark_selected_run(
            concurrency=8, requests=16, max_tokens=16, warmup=8
        )
        await s.press("4")
        await s.until(
            "i advice #1 up to +127 % tok/s (transferred from", "the model fits on one GPU"
        )
        await s.press("enter")
        await s.until(
            "Result #1",
            "advice",
            "1 enforce-eager turns torch.compile",
            "i Advice",
            "t Test a change",
        )
        await s.press("i")
        await s.until("Advice on result #1", "measured", "source", "eager.cost; https://")
        await s.press("t")
        await s.until("Test which change?", "--unset enforce-eager")
        await s.press("enter")
        await s.until(
            "A/B: how sure?",
            "A as it is now",
            "B -enforce-eager",
            "Expected: up to +127 % tok/s",
        )
        await s.press("down", "down", "down", "enter")  # the form keeps the load of the result
        await s.until("decided by", "6 runs of 16 requests at 8 streams")
        await s.press("enter")
        await s.until("ok done", "the advice: expected up to +127 % tok/s", "measured ", seconds=90)
        e = s.state.experiment
        assert (e.advice.code, e.advice.result_id, e.spec.b.unsets) == (
            "eager.cost",
            1,
            ("enforce-eager",),
        )
        assert e.measured and (await s.session.experiments.get(e.id)).measured == e.measured
        assert dict(e.spec.bench)["concurrency"] == 8
        await s.press("escape", "escape", "escape", "4")
        s.pane("results").select_item(1)
        await s.press("enter")
        await s.until("Result #1", f"measured {e.measured} (experiment 1)")

    shown(scenario, size=(120, 40))


@pytest.mark.long
def test_a_setting_is_not_tested_while_settings_are_altered() -> None:
    """The advice to raise a limit that binds comes most often while the user's own limit is on."""

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        assert (await s.session.gpu.apply_settings(GpuSettings(power_limit_w=150.0))).ok
        await s.session.bench.benchmark_selected_run(
            concurrency=8, requests=24, max_tokens=32, warmup=8
        )
        advised = await s.session.advisor.advise_on_result(1)
        binding = Finding(
            Level.HINT, "power.binding", "the power limit binds", settings=("power-limit=250",)
        )
        advised = replace(advised, findings=(binding,))
        s.app.main.controllers.advice.open_advice_page(advised)
        await s.until("Advice on result #1", "power-limit=250")
        await s.press("t")
        await s.until(
            "GPU settings are altered, and this experiment begins without altered settings",
            "press r",
        )
        assert "how sure?" not in s.text
        await s.session.gpu.revert_settings()

    shown(scenario, size=(120, 40))
