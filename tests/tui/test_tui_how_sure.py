"""A quick A/B experiment from a changed flag or GPU setting, on the real session of a simulated
host."""

from __future__ import annotations

import re

import pytest
from support.real_screen import RealScreen, on_free_port, shown

from workbench.model.settings import GpuSettings

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "8")
    on_free_port()


@pytest.mark.long
def test_a_changed_flag_is_measured_after_one_question() -> None:
    """One pair, which claims nothing, then two more, whose interval narrows in the Compare pane."""

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        s.session.plans.set_flag("max-num-seqs", "64")
        await s.press("X")
        text = await s.until(
            "A/B: how sure?",
            "one pair now",
            "3 pairs",
            "until ± 2 %",
            "shows a change, no interval",
        )
        assert (
            "A -max-num-seqs" in text
            and "B max-num-seqs=64" in text
            and ("time is known after") in text
        )
        await s.press("enter")
        await s.until(
            "A/B experiment 1",
            lambda: re.search(
                r"~ A/B experiment 1  .*K "
                r"stops",
                s.row(-2),
            ),
        )
        await s.until(
            "ok done", "no claim: 1 pair cannot be distinguished", "m Two more pairs", seconds=60
        )
        e = s.state.experiment
        assert (e.spec.pairs, e.spec.a.sets, e.spec.b.sets) == (1, (), ("max-num-seqs=64",))
        assert e.spec.a.unsets == ("max-num-seqs",)
        await s.press("m", "5")
        await s.until(
            "2 pairs",
            "3 pairs",
            "±",
            lambda: s.state.experiment.state == "done" and not s.state.busy,
            seconds=90,
        )
        assert s.state.experiment.spec.pairs == 3
        # whichever arm's server was the last, the plan differs from it
        s.session.plans.set_flag("max-num-seqs", "32")
        await s.press("X")
        await s.until("show experiment 1 instead", "about ")

    shown(scenario, size=(80, 24))


@pytest.mark.long
def test_an_altered_gpu_setting_is_compared_with_the_value_before() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.serve()
        assert (await s.session.gpu.apply_settings(GpuSettings(power_limit_w=170.0))).ok
        await s.press("X")
        await s.until("A/B: how sure?", "B gpu.power-limit=170", "are reverted first")
        await s.press("enter")
        await s.until("These commands change the GPUs", "250 W", "170 W", "-pl 170")
        await s.press("pagedown", "pagedown", "enter")
        await s.until(
            "ok done", lambda: s.state.experiment and s.state.experiment.state == "done", seconds=60
        )
        e = s.state.experiment
        assert (
            e.spec.b.gpu == GpuSettings(power_limit_w=170.0)
            and not e.spec.a.gpu
            and not s.state.alterations
        )
        taken = {
            r.arm: (await s.session.results.get(r.result_id)).conditions.gpu_settings
            for r in e.runs
            if r.pair == 0
        }
        assert (
            taken["B"]["gpu0.power_limit_w"] == 170.0
            and taken["A"].get("gpu0.power_limit_w") != 170.0
        )

    shown(scenario)
