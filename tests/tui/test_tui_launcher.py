"""A server that a launcher runs, from the keys to the status bar: a real session on a simulated
host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support import standin_launcher
from support.real_screen import crashes, real_screen
from support.sshd import free_port

from workbench.model.job import Job
from workbench.model.server_run import ServerState
from workbench.server import jobs

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_server_is_queued_ready_restarted_and_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin = standin_launcher.registered(monkeypatch, tmp_path / "scheduler")
    queued = standin.directory / "queued"
    queued.touch()

    async def scenario() -> None:
        async with real_screen() as screen:
            await screen.load()
            screen.session.plans.set_flag("port", str(free_port()))
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


@pytest.mark.long
def test_a_unit_that_a_start_has_installed_is_removed_with_its_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standin = standin_launcher.registered(monkeypatch, tmp_path / "scheduler")

    async def scenario() -> None:
        async with real_screen(size=(80, 24)) as screen:
            await screen.press("3", "d")
            await screen.until("no run is selected")
            await screen.load()
            screen.session.plans.set_flag("port", str(free_port()))
            screen.session.plans.set_flag("run-as", "standin")
            await screen.press("s", "enter")
            await screen.until("READY vllm")
            await screen.press("3", "d")
            await screen.until("has installed no unit")
            standin.unit = tmp_path / "standin.service"
            standin.unit.write_text("")
            await screen.press("x")
            await screen.until("stays installed: d in the Log pane")
            await screen.press("escape", "d")
            await screen.until(
                "Stop the server and remove its unit", "Workbench stops standin.service"
            )
            await screen.press("enter")  # the cursor is on "leave it"
            assert standin.unit.exists() and screen.state.server.state is ServerState.READY
            await screen.press("d", "y")
            await screen.until("stopped vllm", "removed ")
            assert not standin.unit.exists()
            await screen.press("d")
            await screen.until("Remove the unit", "Workbench disables standin.service")
            await screen.press("y")
            await screen.until("the unit was removed already")

    asyncio.run(scenario())
    assert not crashes()


@pytest.mark.long
def test_the_jobs_of_the_user_are_listed_and_enter_selects_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Job] = []

    async def read(host: object, runs: object) -> list[Job]:
        return found

    monkeypatch.setattr(jobs, "read_jobs", read)

    async def scenario() -> None:
        async with real_screen(size=(80, 24)) as screen:
            await screen.load()
            screen.session.plans.set_flag("port", str(free_port()))
            await screen.press("s", "enter")
            await screen.until("READY vllm")
            run_id = screen.state.run_id
            found.append(Job("slurm", "7", "theirs", "PENDING", "gpu", "Resources", left_s=86400))
            found.append(
                Job("slurm", "8", "wb", "RUNNING", "gpu", node="c01", left_s=3600, run_id=run_id)
            )
            screen.session.core.update(run_id=None)
            await screen.press("3", "J")
            await screen.until(
                "Your jobs", "PENDING   (Resources)", "1d00h left", "not of Workbench: theirs"
            )
            await screen.until("RUNNING   c01", "1h00m left")
            await screen.press("end", "enter")
            await screen.until(lambda: screen.state.run_id == run_id)
            await screen.press("J", "enter")
            await screen.until("Workbench did not start job 7")

    asyncio.run(scenario())
    assert not crashes()
