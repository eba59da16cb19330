"""The endpoint of the selected server: its address and its entry are copied, and written into a
file on the host."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from support.real_screen import RealScreen, on_free_port, shown


def test_without_a_server_the_key_says_what_is_missing() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        await s.press("3", "E")
        await s.until("no server that is READY is selected")

    shown(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param((120, 40), marks=pytest.mark.long), (80, 24)])
@pytest.mark.long
def test_the_entry_is_copied_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    on_free_port()
    copied: list[str] = []

    async def copy(app: Any, text: str) -> str:
        copied.append(text)
        return "copied"

    monkeypatch.setattr("workbench.tui.controllers.base.copy_to_clipboard_and_describe", copy)
    file = tmp_path / "a directory" / "endpoints.py"

    async def scenario(s: RealScreen) -> None:
        await s.serve()
        await s.press("3", "E")
        await s.until("Endpoint of the server", "copy the address", "configs/endpoints.py")
        await s.press("enter")
        await s.until(lambda: copied == [f"{s.state.server.url}/v1"])
        await s.press("E", "down", "enter")
        await s.until(lambda: len(copied) == 2)
        await s.press("E", "down", "down", "enter")
        await s.until("Write the endpoint on")
        await s.press("ctrl+u", *str(file), "enter")
        await s.until(file.exists)
        found = ast.literal_eval(file.read_text().partition("=")[2].strip())
        ((name, entry),) = found.items()
        assert entry["url"] == f"{s.state.server.url}/v1" and f'"{name}"' in copied[1]

    shown(scenario, size=size)
