"""Servers that a launcher runs: waiting, ready, keepers that are killed, restarts from outside,
adoption, stops."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import standin_launcher
from support.fake_runs import READY_S, VLLM, Made, Make
from support.procs import alive
from support.serving import eventually, processes_of, supervised
from support.standin_launcher import WORD, Standin

from workbench.hosts.local import LocalHost
from workbench.model.errors import PlanError, ServerError
from workbench.model.findings import Finding, Level
from workbench.model.run_options import OPTIONS
from workbench.model.server_run import ServerState, ServerStatus, launcher_and_state_text
from workbench.server.launchers import MODULE_OF_LAUNCHER, launcher_of
from workbench.server.launchers.launcher import (
    LaunchedServer,
    Launcher,
    encode_launched,
    parse_launched,
)
from workbench.server.preflight import uses_host_files
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = pytest.mark.usefixtures("standin")


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Standin:
    return standin_launcher.registered(monkeypatch, tmp_path / "scheduler")


async def start(
    supervisor: Supervisor, made: Made, ready_timeout_s: float = READY_S
) -> ServerStatus:
    plan, command = made
    return await supervisor.start(
        replace(plan, run_as=WORD), command, VLLM, ready_timeout_s=ready_timeout_s
    )


async def ready(supervisor: Supervisor, made: Made) -> ServerStatus:
    status = await supervisor.wait_ready((await start(supervisor, made)).run_id, READY_S)
    assert status.state is ServerState.READY, status.reason
    return status


def keeper_of(supervisor: Supervisor, run_id: str) -> int:
    run = supervisor._runs[run_id]
    assert run.facts.pid is not None
    return run.facts.pid


async def until(supervisor: Supervisor, run_id: str, wanted: ServerState) -> ServerStatus:
    return await supervisor.wait(run_id, lambda status: status.state is wanted, READY_S)


def test_every_launcher_has_options_and_a_module() -> None:
    assert set(OPTIONS) == {"process", WORD, *MODULE_OF_LAUNCHER}


def test_every_launcher_can_do_all_that_the_protocol_names() -> None:
    """Launchers of jobs had no `restart`, and `installed_unit_name` under another name: mypy does not
    see launchers, because their modules are imported by name."""
    members = {*vars(Launcher), *Launcher.__annotations__}
    public = {name for name in members if not name.startswith("_")}
    missing = {word: public.difference(dir(launcher_of(word))) for word in MODULE_OF_LAUNCHER}
    assert not any(missing.values()), missing


def test_a_server_in_an_image_or_on_a_node_does_not_use_the_files_of_the_host() -> None:
    """The check of the disk and of the engine's packages had a list of launchers of its own."""
    words = [word for word in OPTIONS if word != WORD]
    assert [word for word in words if uses_host_files(word)] == ["process", "systemd"]


def test_a_queued_server_waits_without_a_time_limit_and_is_not_asked(
    make: Make, standin: Standin
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        queued = standin.directory / "queued"
        queued.touch()
        status = await start(supervisor, make(), ready_timeout_s=3.0)
        waiting = "PENDING (Resources)"
        status = await supervisor.wait(status.run_id, lambda s: s.phase == waiting, READY_S)
        assert (status.state, status.launcher_state, status.pid) == (
            ServerState.STARTING,
            waiting,
            None,
        )
        assert [finding.code for finding in status.findings] == ["standin.note"]
        run = supervisor._runs[status.run_id]
        # longer than the time limit
        run.facts = replace(run.facts, started_unix_s=run.now_unix_s - 60)
        run.refresh_and_check_status_change()
        assert run.status.state is ServerState.STARTING
        assert run.task is None  # nobody asked the port, on which another server may listen
        queued.unlink()
        status = await supervisor.wait_ready(status.run_id, READY_S)
        assert status.state is ServerState.READY, status.reason
        assert status.pid == standin.pid(status.run_id)
        text = launcher_and_state_text(
            status, status.ends_unix_s - 3600 if status.ends_unix_s else 0
        )
        assert text == f"standin {status.run_id}, RUNNING, 1 h 0 min left"

    supervised(scenario)


def test_a_queued_server_is_stopped(make: Make, standin: Standin) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        (standin.directory / "queued").touch()
        status = await start(supervisor, make())
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert standin.pid(status.run_id) is None

    supervised(scenario)


def test_a_unit_is_removed_only_when_none_of_its_runs_lives(
    make: Make, standin: Standin, tmp_path: Path
) -> None:
    standin.unit = tmp_path / "standin.service"
    standin.unit.touch()

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        first = await ready(supervisor, make())
        assert supervisor.installed_unit_name(first.run_id) == "standin.service"
        with pytest.raises(ServerError, match="is alive"):
            await supervisor.uninstall_and_list_removed(first.run_id)
        await supervisor.stop(first.run_id)
        second = await ready(supervisor, make())
        with pytest.raises(
            ServerError, match=f"runs the server of run {second.run_id} now"
        ) as caught:
            await supervisor.uninstall_and_list_removed(first.run_id)
        assert f"workbench stop {second.run_id} --uninstall" in (caught.value.next_step or "")
        assert standin.unit is not None and standin.unit.exists()
        await supervisor.stop(second.run_id)
        assert await supervisor.uninstall_and_list_removed(first.run_id) == (str(standin.unit),)

    supervised(scenario)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow
def test_a_server_whose_keeper_is_killed_goes_on_in_the_same_run(
    make: Make, number: int, standin: Standin
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        keeper = keeper_of(supervisor, status.run_id)
        os.kill(keeper, number)
        await eventually(
            lambda: supervisor._runs[status.run_id].facts.pid not in (keeper, None),
            what="a new keeper",
        )
        await until(supervisor, status.run_id, ServerState.READY)
        assert {e.state for e in events if isinstance(e, ServerStatus)} <= {
            ServerState.STARTING,
            ServerState.READY,
        }
        again = supervisor.status(status.run_id)
        assert (again.pid, again.started_unix_s) == (status.pid, status.started_unix_s)
        lines = supervisor.log(status.run_id).lines()
        assert len([line for line in lines if "listening" in line]) <= 1
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert status.pid is not None
        assert not alive(status.pid)
        assert not processes_of(status.run_dir or "")

    supervised(scenario)


@pytest.mark.slow
def test_another_workbench_keeps_a_server_whose_keeper_was_lost(
    make: Make, standin: Standin
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        keeper = keeper_of(supervisor, status.run_id)
        await supervisor.close()
        # as a reboot of the machine does it, but for the server
        os.killpg(os.getsid(keeper), signal.SIGKILL)
        others = [Supervisor(LocalHost()) for _ in range(3)]
        try:
            for listed in await asyncio.gather(*(other.runs() for other in others)):
                assert [run.state for run in listed] == [ServerState.READY], listed[0].reason
            await others[0].runs()
            assert others[0].status(status.run_id).pid == status.pid
            stopped = await others[1].stop(status.run_id)
            assert stopped.state is ServerState.STOPPED
        finally:
            for other in others:
                await other.close()
        assert status.pid is not None
        assert not alive(status.pid)

    supervised(scenario)


@pytest.mark.slow
def test_the_launcher_says_how_a_server_ended_whose_keeper_was_lost(
    make: Make, standin: Standin
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        keeper = keeper_of(supervisor, status.run_id)
        await supervisor.close()
        os.killpg(os.getsid(keeper), signal.SIGKILL)
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        code = standin.directory / f"{status.run_id}.code"
        await eventually(lambda: code.exists() and code.read_text().strip())
        for _ in range(2):  # the answer is kept: the second Workbench does not ask
            other = Supervisor(LocalHost())
            (listed,) = await other.runs()
            assert (listed.state, listed.exit_code, listed.exit_signal) == (
                ServerState.CRASHED,
                137,
                "SIGKILL",
            )
            assert f"standin: {status.run_id} has ended" in (listed.reason or "")
            await other.close()
            standin.ask = None  # type: ignore[method-assign, assignment]

    supervised(scenario)


def test_a_stop_without_a_keeper_stops_the_server(make: Make, standin: Standin) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        keeper = keeper_of(supervisor, status.run_id)
        await supervisor.close()
        os.killpg(os.getsid(keeper), signal.SIGKILL)
        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPED
        assert status.pid is not None
        assert not alive(status.pid)

    supervised(scenario)


def test_a_server_that_was_restarted_from_outside_is_ready_after_another_token(
    make: Make, standin: Standin
) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        made = make()
        status = await ready(supervisor, made)
        ready_file = Path(status.run_dir or "", "ready.json")
        before = ready_file.read_bytes()
        environment = {**os.environ, **made[1].env, "WORKBENCH_RUN": "another"}
        os.kill(status.pid or 0, signal.SIGSTOP)  # its port stays taken, and nobody answers on it
        other = subprocess.Popen(["sleep", "60"], env=environment)
        try:
            (standin.directory / f"{status.run_id}.pid").write_text(str(other.pid))
            await until(supervisor, status.run_id, ServerState.STARTING)
            os.kill(status.pid or 0, signal.SIGCONT)
            again = await until(supervisor, status.run_id, ServerState.READY)
            assert again.pid == other.pid
            await eventually(lambda: ready_file.read_bytes() != before, what="a new ready.json")
        finally:
            (standin.directory / f"{status.run_id}.pid").write_text(str(status.pid))
            other.kill()
            other.wait()

    supervised(scenario)


def test_a_stop_of_an_adopted_server_leaves_it(make: Make, standin: Standin) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan, command = make()
        log = (standin.directory / "theirs.log").open("wb")
        server = subprocess.Popen(command.argv, stdout=log, env={**os.environ, **command.env})
        try:
            (standin.directory / "theirs.pid").write_text(str(server.pid))
            status = await supervisor.start(
                replace(plan, run_as=WORD), command, VLLM, adopts="theirs"
            )
            status = await supervisor.wait_ready(status.run_id, READY_S)
            assert (status.state, status.pid, status.others) == (
                ServerState.READY,
                server.pid,
                True,
            )
            stopped = await supervisor.stop(status.run_id)
            assert (stopped.state, stopped.reason) == (
                ServerState.STOPPED,
                "no longer followed; theirs was left as it is",
            )
            assert server.poll() is None
            assert not standin.stopped
            assert not processes_of(status.run_dir or "")
        finally:
            server.kill()
            server.wait()
            log.close()

    supervised(scenario)


def test_a_launcher_refuses_a_start(make: Make, standin: Standin) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        standin.against = [
            Finding(Level.ERROR, "standin.closed", "the queue is closed", fix="use another queue")
        ]
        with pytest.raises(PlanError, match="the queue is closed") as refused:
            await start(supervisor, make())
        assert refused.value.next_step == "use another queue"
        assert not await supervisor.runs()

    supervised(scenario)


def test_a_server_without_a_launcher_cannot_be_restarted_in_place(make: Make) -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        plan, command = make()
        status = await supervisor.start(plan, command, VLLM)
        with pytest.raises(ServerError, match="cannot be restarted in place"):
            await supervisor.restart_and_return_command(status.run_id)

    supervised(scenario)


def test_the_file_launched_survives_damage() -> None:
    whole = LaunchedServer(
        "h", "s", "10.0.0.2", 7, 2, 100.0, "i@sha256:1", ("0", "1"), 50.0, "COMPLETED", 3
    )
    assert parse_launched(encode_launched(whole)) == whole
    assert parse_launched(b"") is None
    damaged = b"pid x\nrestarts -1\nends_unix_s soon\nexit_code \xff\nstate a\x1b[31mb\nhandle\n"
    assert parse_launched(damaged) == LaunchedServer(state="ab")


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000, "1e400", "-5", "²", "٣"])
@pytest.mark.parametrize("key", ["pid", "restarts", "ends_unix_s", "began_unix_s", "exit_code"])
def test_a_number_that_is_no_time_and_no_process_is_left_out(key: str, digits: str) -> None:
    assert parse_launched(f"handle x\n{key} {digits}\n".encode()) == LaunchedServer("x")
