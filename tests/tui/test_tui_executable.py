"""Choosing the program that starts the engine, on the real session."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.real_screen import RealScreen, real_screen

from workbench.session.session import Session
from workbench.store.config import ConfigStore


async def choose(screen: RealScreen) -> None:
    await screen.press("2", "slash", *"execut")
    await screen.until("/execut", lambda: screen.pane("launch").current_item.name == "executable")
    await screen.press("enter")
    await screen.until("Engine executable")


@pytest.mark.slow
def test_a_host_without_the_engine_says_so_everywhere_and_takes_another_program(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title showed the catalog's version as if it were installed, and no field accepted a path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program = tmp_path / "venv-vllm" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)

    async def go() -> None:
        async with real_screen(size=(120, 40), session=Session.of_host()) as screen:
            await screen.load("vllm-any")
            await screen.until("vllm (not found)", "! 1 warning", "! vllm not found on local")
            await screen.press("v")
            await screen.until("searched PATH=", "venv-vllm/bin/vllm")
            await screen.press("escape")
            await screen.until(lambda: "searched PATH=" not in screen.text)
            await choose(screen)
            await screen.until("/venv-vllm/bin/vllm ")
            await screen.press(*"venv", "enter")
            await screen.until("every plan")
            await screen.press("y")
            await screen.until(
                f"$ {program} serve", "0 warnings", lambda: "vllm not found" not in screen.text
            )
            assert screen.session.plans.editor.plan.executable == (str(program),)
            assert not (tmp_path / "started").exists()
        assert ConfigStore().executable_of_engine("local", "vllm") == str(program)

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.slow
def test_this_plan_only(clean_environment: None) -> None:
    async def scenario(screen: RealScreen) -> None:
        await screen.load("vllm-any")
        await choose(screen)
        await screen.press(*"/opt/other/vllm", "enter")
        await screen.until("every plan")
        await screen.press("n")
        await screen.until("$ /opt/other/vllm serve", "(not found)")
        await screen.press("u")
        await screen.until("$ vllm serve")
        # the engine is looked up again, or its error would stay
        await screen.until("vLLM 0.", lambda: "(not found)" not in screen.text)

    async def go() -> None:
        async with real_screen() as screen:
            await scenario(screen)
        assert not Path(os.environ["XDG_CONFIG_HOME"], "workbench", "config.toml").exists()

    asyncio.run(asyncio.wait_for(go(), 60))
