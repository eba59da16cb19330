"""Recipes on the screen: `I` makes a preset of a pasted command line, `Y` copies the plan in
another tool's form."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.real_screen import RealScreen, shown
from textual import events


@pytest.mark.slow
def test_a_pasted_command_line_is_shown_and_saved() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100", lambda: s.state.presets_read)
        await s.press("1", "I")
        await s.until("Import a recipe", "Nothing")
        await s.press(*"ollama run", "enter")
        await s.until("starts no server")
        await s.press("ctrl+u", *"vllm serve org/m -O3", "tab", *"mine", "enter")
        await s.until("Import mine", "not understood and left out: -O3")
        await s.press("y")
        await s.until(lambda: any(p.id == "mine" and p.own for p in s.state.presets), "saved: ")

    shown(scenario)


def test_a_pasted_text_keeps_its_lines() -> None:
    """Only the first line of a command over several lines was taken."""
    text = (
        "model: org/m\nruntime: vllm\ncontainer: c\ndefaults:\n  port: 8111\n"
        "command: |\n  vllm serve {model} \\\n  --port {port}\n"
    )

    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100", lambda: s.state.presets_read)
        await s.press("1", "I")
        await s.until("Import a recipe")
        entry = s.app.screen.focused
        assert entry is not None
        entry.post_message(events.Paste(text))
        await s.until("model: org/m")
        await s.press("enter")
        await s.until("Import org-m", "--port 8111")

    shown(scenario)


def test_the_plan_is_copied_in_the_form_that_is_chosen(tmp_path: Path) -> None:
    async def scenario(s: RealScreen) -> None:
        await s.load()
        await s.press("Y")
        await s.until("Copy the plan as", "systemd unit", "Slurm job script")
        await s.press(*"compose", "enter")
        await s.until("the plan as compose file", "is not pinned")

    shown(scenario, size=(120, 40))
