"""The same supervisor over a real sshd on loopback, with the link cut in the middle of each step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.fake_runs import READY_S, VLLM, Make, ready
from support.serving import eventually, processes_of, supervised
from support.sshd import Sshd, sshd

from workbench.hosts import detached_process as detached
from workbench.hosts.ssh import SshHost
from workbench.model.server_run import ServerState
from workbench.server.supervisor import ServerEvent, Supervisor


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "ssh") as server:
        yield server


def reach(server: Sshd) -> SshHost:
    return SshHost(server.host_alias, ssh_config=server.ssh_config_path)


def test_start_ready_adopt_and_stop_on_the_other_side(server: Sshd, make: Make) -> None:
    host = reach(server)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("flood=30"))
        assert (status.host, status.run_dir is not None) == ("box", True)
        assert (status.run_dir or "").startswith(f"{server.state_home}/workbench/runs/")
        other_host = reach(server)
        other = Supervisor(other_host)
        try:
            (adopted,) = await other.runs()
            assert (adopted.state, adopted.adopted) == (ServerState.READY, True)
            ring = other.log(status.run_id)
            await eventually(lambda: ring.find("line 29") is not None, what="its log")
            assert (await other.stop(status.run_id)).state is ServerState.STOPPED
        finally:
            await other.close()
            await other_host.close()
        assert processes_of(status.run_dir or "") == []

    supervised(scenario, host)


def test_the_server_lives_on_while_the_link_is_cut(server: Sshd, make: Make) -> None:
    host = reach(server)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make())
        server.cut()
        unknown = await supervisor.wait(
            status.run_id, lambda s: s.state is ServerState.UNKNOWN, READY_S
        )
        assert unknown.reason is not None and "ready)" in unknown.reason
        assert status.pid is not None and psutil.Process(status.pid).is_running()
        server.restore()
        again = await supervisor.wait(
            status.run_id, lambda s: s.state is ServerState.READY, READY_S
        )
        assert again.pid == status.pid
        # Its endpoints answer through a new forward.
        assert (
            "answers HTTP status 404" in (await supervisor.metrics(status.run_id)).absent["running"]
        )

    supervised(scenario, host)


@pytest.mark.parametrize("delivered", [True, False])
def test_a_link_cut_in_the_middle_of_a_start_starts_once_or_not_at_all(
    server: Sshd, make: Make, monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    host = reach(server)
    real_start = detached.start_detached

    async def cut_start(*args: object, **kw: object) -> detached.DetachedProcess:
        if delivered:
            await real_start(*args, **kw)  # type: ignore[arg-type]
        server.cut()
        await eventually(lambda: not host.connected, what="the loss of the link")
        raise host.connection_lost_error()

    monkeypatch.setattr(detached, "start_detached", cut_start)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        starting = asyncio.create_task(supervisor.start(*make(), VLLM))
        await eventually(
            lambda: (server.cutter.accepted and not host.connected) or starting.done(), READY_S
        )
        status = await asyncio.wait_for(starting, READY_S)
        assert status.state is ServerState.UNKNOWN
        server.restore()
        status = await supervisor.wait_ready(status.run_id, READY_S)
        if delivered:
            assert status.state is ServerState.READY, status.reason
            assert len(processes_of(status.run_dir or "")) >= 1
        else:
            assert (status.state, status.reason) == (
                ServerState.FAILED,
                "the server was never started",
            )

    supervised(scenario, host)


@pytest.mark.slow
def test_a_link_cut_in_the_middle_of_a_stop_stops_all_the_same(server: Sshd, make: Make) -> None:
    host = reach(server)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, make("ignore-term worker"))
        stopping = asyncio.create_task(supervisor.stop(status.run_id, grace_s=2))
        await supervisor.wait(status.run_id, lambda s: s.state is ServerState.STOPPING, READY_S)
        server.cut()
        await eventually(lambda: not host.connected, what="the loss of the link")
        server.restore()
        stopped = await asyncio.wait_for(stopping, READY_S)
        assert stopped.state is ServerState.STOPPED
        assert processes_of(status.run_dir or "") == []

    supervised(scenario, host)
