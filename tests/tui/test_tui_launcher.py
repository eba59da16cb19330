"""A server that a launcher runs, from the keys to the status bar: a real session on a simulated host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support import standin_launcher
from support.real_screen import crashes, real_screen

from workbench.model.server_run import ServerState

pytestmark = pytest.mark.slow


def test_a_server_is_queued_ready_restarted_and_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    standin = standin_launcher.registered(monkeypatch, tmp_path / "scheduler")
    queued = standin.directory / "queued"
    queued.touch()

    async def scenario() -> None:
        async with real_screen() as screen:
            await screen.load()
            await screen.press("2", "L")
            await screen.until("What runs the server on its host", "systemd", "standin")
            await screen.press("end", "enter")
            await screen.until(lambda: screen.state.plan.plan.run_as == "standin", "run-as.queue")
            await screen.press("s")
            await screen.until("Command, run by standin", "$ standin run RUN vllm serve")
            await screen.press("enter")
            await screen.until("STARTING vllm", "standin PENDING (Resources)", "nothing in the log")
            queued.unlink()
            await screen.until("READY vllm", "standin 1h59m left")
            run_id = screen.state.run_id
            await screen.press("3", "t")
            await screen.until(f"$ standin restart {run_id}", "loads its model again")
            before = screen.state.server.pid
            await screen.press("y")
            await screen.until(lambda: screen.state.server.pid not in (None, before))
            await screen.until(lambda: screen.state.server.state is ServerState.READY)
            await screen.press("o")
            await screen.until("Server runs", "Instruct  standin")
            await screen.press("escape", "x")
            await screen.until("Workbench asks standin to stop the server: ")
            await screen.press("y")
            await screen.until("stopped vllm")

    asyncio.run(scenario())
    assert not crashes()
