"""The key that applies a preset whole, with the real session of a simulated host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.real_screen import RealScreen, shown
from support.serving import free_port

PRESET = """
schema = 1
id = "whole"
title = "All that a preset can carry"
summary = "For tests."

[hardware]

[engine]
name = "vllm"
open_files = 256

[model]
id = "Qwen/Qwen3-0.6B"

[flags]
port = {port}

[[gpu_settings]]
gpu = 0
power_limit_w = 200.0
governor = "powersave"
c_states = "off"

[warm_up]
requests = 2
input_tokens = [8, 16]
max_tokens = 4

[provenance]
document = "none"
status = "untested"
"""


def write_preset() -> None:
    presets = Path(os.environ["XDG_CONFIG_HOME"], "workbench", "presets")
    presets.mkdir(parents=True)
    (presets / "whole.toml").write_text(PRESET.format(port=free_port()))


@pytest.mark.slow
def test_the_key_answers_before_the_host_does_and_the_screen_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host answers the look-up only when it is let: the message is there, and other keys work."""
    write_preset()

    async def scenario(s: RealScreen) -> None:
        let = asyncio.Event()
        plan_each = s.session.gpu.plan_changes_by_gpu

        async def later(*given: object, **options: object) -> object:
            await let.wait()
            return await plan_each(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(s.session.gpu, "plan_changes_by_gpu", later)
        await s.until(lambda: any(p.id == "whole" for p in s.state.presets))
        await s.session.plans.load_preset("whole")
        await s.press("A")
        await s.until("looking up what whole changes on", "nothing is changed yet")
        await s.press("6")
        await s.until("clocks to lock: SM")
        let.set()
        text = await s.until("Apply whole whole", "apply all of it")
        assert "looking up" not in text and not s.state.servers

    shown(scenario)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_one_key_and_one_confirmation_apply_the_preset(size: tuple[int, int]) -> None:
    write_preset()

    async def scenario(s: RealScreen) -> None:
        await s.until(lambda: any(p.id == "whole" for p in s.state.presets))
        await s.session.plans.load_preset("whole")
        await s.until(lambda: len(s.state.unapplied) == 3)
        await s.press("A")
        text = await s.until(
            "Apply whole whole",
            "CPU C-states",
            "on -> off",
            "250 W -> 200 W",
            "already ",
            "apply all of it",
        )
        assert not s.state.servers
        if size == (80, 24):
            await s.until("apply all of it: after the last line (pgdn)")
        await s.press("y", "pageup")  # which agrees to nothing that was not to be seen
        text += s.text
        while "after the last line (pgdn)" in s.text:
            await s.press("pagedown")
            text += s.text
        assert "performance -> powersave" in text and "-pl 200" in text
        await s.press("enter")
        await s.until("whole: 6 parts applied, and checked", seconds=60.0)
        await s.until(lambda: s.state.unapplied == ())
        assert s.state.server.preset_id == "whole"
        assert {a.setting for a in s.state.alterations} == {"power_limit_w", "governor", "c_states"}
        await s.press("r")
        await s.until(lambda: not s.state.alterations)
        await s.until(lambda: len(s.state.unapplied) == 3)

    shown(scenario, size=size)
