"""An open screen and servers that it did not start, on the real session."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import fake_engine
from support.fake_canned import canned_result
from support.real_screen import on_free_port, real_screen
from support.serving import free_port

from workbench import engines
from workbench.gpu.measurement_lock import locked_for_measurement
from workbench.hosts.local import LocalHost
from workbench.model.plan import LaunchPlan
from workbench.server import supervisor
from workbench.server.supervisor import Supervisor
from workbench.session.session import Session
from workbench.store import paths
from workbench.store.results_db import ResultsDb


@pytest.mark.slow
def test_a_server_started_elsewhere_appears_and_one_by_hand_can_be_read(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen listed a run of the command line after minutes, and a server started by hand
    never."""
    monkeypatch.setattr("workbench.session.session._OTHERS_LOOK_INTERVAL_S", 0.1)
    monkeypatch.setenv("FAKE_ENGINE", "")
    launcher, port, other_port = fake_engine.install(tmp_path / "bin"), free_port(), free_port()
    vllm = engines.get_engine("vllm")
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
                    if any(
                        o.port == other_port
                        for o in await screen.session.servers.find_external_servers()
                    ):
                        break
                await screen.press("3", "o")
                await screen.until("by hand", f"pid {by_hand.pid}, port {other_port}", run.run_id)
                await screen.press("end", "enter")
                shown = await screen.until("Not started by Workbench", "bench --url http://")
                while f"127.0.0.1:{other_port}" not in shown:  # the servers of other tests
                    await screen.press("escape", "up", "enter")
                    shown = await screen.until("Not started by Workbench", "bench --url http://")
                assert "org/by-hand" in shown
                await screen.press("escape")
            finally:
                by_hand.kill()
                by_hand.wait()
        await elsewhere.close()

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.long
@pytest.mark.slow
def test_a_frozen_server_is_not_ready_on_the_screen(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_HEALTH_TIMEOUT_S", 0.3)
    monkeypatch.setattr(supervisor, "_READY_ASK_INTERVAL_S", 0.2)
    monkeypatch.setenv("FAKE_ENGINE", "")
    launcher = fake_engine.install(tmp_path / "bin")
    plan = LaunchPlan("vllm", "org/m", executable=(str(launcher),)).with_flag("port", free_port())

    async def go() -> None:
        async with real_screen(session=Session.of_host()) as screen:
            await screen.until(lambda: screen.state.host.link == "connected")
            screen.session.plans.edit_plan(plan, "mine")
            await screen.session.servers.start()
            await screen.until("READY vllm")
            pid = screen.state.server.pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await screen.press("3", "z")  # zoomed: the pane breaks the sentence otherwise
                await screen.until("UNRESPONSIVE", "not answered for")
            finally:
                os.kill(pid, signal.SIGCONT)
            await screen.until("READY vllm")

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.slow
def test_another_workbenchs_measurement_is_shown_as_progress_and_before_a_disturbance(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen looked idle, and s and g said nothing, while another Workbench swept."""
    monkeypatch.setattr("workbench.session.session._OTHERS_LOOK_INTERVAL_S", 0.1)
    on_free_port()

    async def go() -> None:
        async with real_screen() as screen:
            await screen.load()
            await screen.until(lambda: screen.session.gpu.alterations.register_dir is not None)
            warning = "This host is being measured: a sweep of power limits, by"
            async with locked_for_measurement(
                screen.session.host, "a sweep of power limits", report=print
            ):
                await screen.until(
                    f"{getpass.getuser()} measures  since", "a sweep of power limits"
                )
                await screen.press("s")
                await screen.until("enter start", warning)
                await screen.press("escape", "g")
                await screen.until("power limit")
                await screen.press("tab", *"200", "enter")
                await screen.until("These commands change the GPUs", warning)
                await screen.press("enter")  # cancel is chosen
                await screen.until(lambda: len(screen.app.screen_stack) == 1)
                assert not screen.state.alterations
            await screen.until(
                lambda: (
                    screen.state.host.measured_by is None and "measures  since" not in screen.text
                )
            )
            async with screen.session.measurement_lock.hold_lock("ours"):
                await screen.session.measurement_lock.refresh_other_lock_owner()
                assert screen.state.host.measured_by is None, "our own measurement is shown as that"

    asyncio.run(asyncio.wait_for(go(), 60))


def test_an_open_screen_shows_results_that_a_command_has_stored(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open screen listed them only after its next own benchmark."""
    monkeypatch.setattr("workbench.session.session._OTHERS_LOOK_INTERVAL_S", 0.1)

    async def go() -> None:
        async with real_screen() as screen:
            await screen.until(
                lambda: screen.state.host.link == "connected" and screen.state.presets_read
            )
            elsewhere, known = ResultsDb(paths.results_db()), canned_result(1)
            number = elsewhere.add(
                known.spec, replace(known.conditions, host=screen.state.host.name), known.summary
            )
            await screen.until(lambda: [row.id for row in screen.state.results] == [number])
            elsewhere.set_note(number, "seen at once")
            await screen.until(
                lambda: [row.note for row in screen.state.results] == ["seen at once"]
            )

    asyncio.run(asyncio.wait_for(go(), 60))
