"""An open screen and servers that it did not start, on the real session."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support import fake_engine
from support.real_screen import real_screen
from support.serving import free_port

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.plan import LaunchPlan
from workbench.server import supervisor
from workbench.server.supervisor import Supervisor
from workbench.session import serving
from workbench.session.session import Session


@pytest.mark.slow
def test_a_server_started_elsewhere_appears_and_one_by_hand_can_be_read(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the command line was not seen for minutes, a server by hand never."""
    monkeypatch.setattr(serving, "RUNS_S", 0.1)
    monkeypatch.setenv("FAKE_ENGINE", "")
    launcher, port, other_port = fake_engine.install(tmp_path / "bin"), free_port(), free_port()
    vllm = engines.get("vllm")
    plan = LaunchPlan("vllm", "org/elsewhere", executable=(str(launcher),)).with_flag("port", port)

    async def go() -> None:
        elsewhere = Supervisor(LocalHost())
        async with real_screen(session=Session.of_host()) as screen:
            await screen.until("no server", lambda: screen.state.host.link == "connected")
            run = await elsewhere.start(plan, vllm.command(plan), vllm)
            await screen.until("READY vllm", lambda: screen.state.run_id == run.run_id)
            assert screen.state.server.adopted
            argv = fake_engine.by_hand(tmp_path, "org/by-hand", "--port", str(other_port))
            by_hand = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=dict(os.environ))
            try:
                while True:
                    if any(o.port == other_port for o in await screen.session.other_servers()):
                        break
                await screen.press("3", "o")
                await screen.until("by hand", f"pid {by_hand.pid}, port {other_port}", run.run_id)
                await screen.press("end", "enter")
                await screen.until(
                    "Not started by Workbench", f"bench --url http://127.0.0.1:{other_port}", "org/by-hand"
                )
                await screen.press("escape")
            finally:
                by_hand.kill()
                by_hand.wait()
        await elsewhere.close()

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.slow
def test_a_frozen_server_is_not_ready_on_the_screen(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_HEALTH_S", 0.3)
    monkeypatch.setattr(supervisor, "_ASK_READY_S", 0.2)
    monkeypatch.setenv("FAKE_ENGINE", "")
    launcher = fake_engine.install(tmp_path / "bin")
    plan = LaunchPlan("vllm", "org/m", executable=(str(launcher),)).with_flag("port", free_port())

    async def go() -> None:
        async with real_screen(session=Session.of_host()) as screen:
            await screen.until(lambda: screen.state.host.link == "connected")
            screen.session.take_plan(plan, "mine")
            await screen.session.start()
            await screen.until("READY vllm")
            pid = screen.state.server.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await screen.press("3")
                await screen.until("UNRESPONSIVE", "not answering for")
            finally:
                os.kill(pid, signal.SIGCONT)
            await screen.until("READY vllm")

    asyncio.run(asyncio.wait_for(go(), 60))
