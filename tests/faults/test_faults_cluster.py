"""A server on two nodes behind two real sshds: links cut, ranks killed at any moment, nodes that
cannot be reached."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from support.clusters import NAMES, READY_S, cluster, clustered, loaded, plan_of, ready, start
from support.serving import eventually
from support.sshd import Sshd, sshd

from workbench.hosts.cluster import ClusterHost
from workbench.hosts.ssh import SshHost
from workbench.model.errors import HostError
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server.cluster_supervisor import ClusterSupervisor
from workbench.server.supervisor import ServerEvent
from workbench.session.session import Session

pytestmark = pytest.mark.slow
Scenario = Callable[[ClusterSupervisor, list[ServerEvent]], Awaitable[None]]
# a rank that hangs when another has gone, as vLLM's do
NEVER = {"WORKBENCH_SIM_PEER_LOST_S": "never"}


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[list[Sshd]]:
    with ExitStack() as stack:
        yield [stack.enter_context(sshd(tmp_path / name)) for name in NAMES]


def behind(boxes: list[Sshd], directory: Path) -> ClusterHost:
    hosts = [SshHost("box", ssh_config=box.ssh_config_path) for box in boxes]
    return cluster(directory, hosts)


def pids(status: ServerStatus) -> list[int]:
    return [rank.pid for rank in status.ranks if rank.pid is not None]


def gone(every: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in every)


async def settled(
    supervisor: ClusterSupervisor, run_id: str, seconds: float = 60.0
) -> ServerStatus:
    """Wait until no process of the server is alive, and return its status."""
    await eventually(
        lambda: not any(r.alive for r in supervisor.status(run_id).ranks),
        seconds,
        "the end of all ranks",
    )
    await supervisor.wait_for_rank_ends()
    return supervisor.status(run_id)


@pytest.mark.long
@pytest.mark.parametrize("cut", [0, 1])
def test_a_cut_link_is_unknown_and_ends_nothing(
    boxes: list[Sshd], tmp_path: Path, cut: int
) -> None:
    host = behind(boxes, tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, **NEVER))
        assert status.state is ServerState.READY, status.reason
        every = pids(status)
        boxes[cut].cut()
        await eventually(lambda: supervisor.status(status.run_id).state is ServerState.UNKNOWN, 20)
        reason = supervisor.status(status.run_id).reason or ""
        assert reason.startswith(f"rank {cut} on {NAMES[cut]}: "), reason
        boxes[cut].restore()
        await eventually(lambda: supervisor.status(status.run_id).state is ServerState.READY, 30)
        assert all(psutil.pid_exists(pid) for pid in every)

    clustered(host, scenario)


@pytest.mark.long
def test_a_stop_without_one_node_says_so_and_is_finished_later(
    boxes: list[Sshd], tmp_path: Path
) -> None:
    host = behind(boxes, tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, **NEVER))
        head, worker = pids(status)
        boxes[1].cut()
        stopped = await supervisor.stop(status.run_id)
        assert stopped.state is ServerState.STOPPING
        assert stopped.reason is not None and stopped.reason.startswith(
            "rank 1 on spark-02 cannot be reached"
        )
        assert gone([head])  # the other rank ends by itself when it has missed the head for long
        boxes[1].restore()
        await eventually(lambda: supervisor.status(status.run_id).state is ServerState.STOPPED, 40)
        assert gone([worker])

    clustered(host, scenario)


@pytest.mark.long
def test_a_stop_without_the_head_is_finished_by_the_next_workbench(
    boxes: list[Sshd], tmp_path: Path
) -> None:
    host = behind(boxes, tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, **NEVER))
        every = pids(status)
        boxes[0].cut()
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPING
        assert gone(every[1:]) and psutil.pid_exists(every[0])
        await supervisor.close()
        boxes[0].restore()
        second = ClusterSupervisor(behind(boxes, tmp_path))
        try:
            await second.host.connect()
            await second.runs()
            await eventually(lambda: second.status(status.run_id).state is ServerState.STOPPED, 30)
            assert gone(every)
        finally:
            await second.close()
            await second.host.close()

    clustered(host, scenario)


@pytest.mark.long
def test_a_node_that_cannot_be_reached_starts_nothing(boxes: list[Sshd], tmp_path: Path) -> None:
    host = behind(boxes, tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        plan = plan_of(host)
        boxes[1].cut()
        with pytest.raises(HostError) as caught:
            await start(supervisor, plan)
        assert caught.value.host == "box"
        assert await supervisor.runs() == ()
        boxes[1].restore()

    clustered(host, scenario)


@pytest.mark.long
def test_a_node_that_is_lost_during_the_start_leaves_nothing(
    boxes: list[Sshd], tmp_path: Path
) -> None:
    host = behind(boxes, tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        for seconds in (0.05, 0.2, 0.35, 0.5, 0.8):
            starting = asyncio.create_task(start(supervisor, plan_of(host, **NEVER)))
            await asyncio.sleep(seconds)
            boxes[1].cut()
            with suppress(HostError):
                await starting
            boxes[1].restore()
            for status in await supervisor.runs():
                await supervisor.stop(status.run_id, grace_s=2)
            found = await supervisor.runs()
            await eventually(
                lambda: not any(s.alive or s.outlived for s in supervisor.statuses()),
                30,
                str(found),
            )

    clustered(host, scenario)


@pytest.mark.parametrize("how", ["cut", pytest.param("silence", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_node_lost_between_the_files_and_the_process_of_its_rank_is_read_again(
    boxes: list[Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The start fails with that node's error, the rank of the head is stopped, the head is read all
    the time, and the other node again once its link is back: in the session in which the start has
    failed, and in the next one."""
    host = behind(boxes, tmp_path)
    lost, write_file = host.nodes[1].host, host.nodes[1].host.write_file

    async def cut_after_the_plan(path: str, data: bytes, *, mode: int = 0o600) -> None:
        await write_file(path, data, mode=mode)
        if path.endswith("/plan.json"):
            getattr(boxes[1], how)()

    def read(session: Session) -> list[bool]:
        return (
            [sample.has_readings for sample in session.state.telemetry.gpus]
            if session.state.telemetry
            else []
        )

    async def scenario() -> None:
        session = Session(host)
        await loaded(session, **NEVER)
        await session.telemetry.start()
        await eventually(lambda: read(session) == [True, True], 20, "a reading of both nodes")
        monkeypatch.setattr(lost, "write_file", cut_after_the_plan)
        with pytest.raises(HostError, match="connection"):
            await session.servers.start()
        monkeypatch.undo()
        await eventually(
            lambda: read(session) == [True, False], 30, "a reading without the node that is lost"
        )
        assert (session.state.host.telemetry_problem or "").startswith(NAMES[1])
        if how == "silence":
            boxes[1].cut()
        boxes[1].restore()
        await eventually(
            lambda: read(session) == [True, True], 30, "a reading of both nodes after the cut"
        )
        # the start had not begun on any node: at most its files are left
        for status in await session.servers.supervisor.runs():
            assert not status.alive and not status.outlived and gone(pids(status)), status
        await session.close()

    asyncio.run(scenario())


def _kill(every: list[int], victim: int, rng: random.Random) -> None:
    """Kill the server process of a rank, or its worker."""
    process = psutil.Process(every[victim])
    children = process.children(recursive=True)
    target = rng.choice([process, *children])
    os.kill(target.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ranks_killed_at_thirty_random_moments(boxes: list[Sshd], tmp_path: Path) -> None:
    """A rank, or its worker, is killed while it starts or serves. All ranks end, and its error is
    the reason."""
    host = behind(boxes, tmp_path)
    rng = random.Random(int(os.environ.get("WORKBENCH_SEED", "12")))
    slowest: list[float] = []

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        for turn in range(30):
            victim, while_starting = rng.randrange(2), rng.random() < 0.3
            lost_s = rng.choice(["never", "0", "0.3"])
            plan = plan_of(host, WORKBENCH_SIM_PEER_LOST_S=lost_s, WORKBENCH_SIM_START_S="1.5")
            status = await start(supervisor, plan)
            if while_starting:
                await asyncio.sleep(rng.uniform(0.05, 1.2))
                status = supervisor.status(status.run_id)
            else:
                status = await supervisor.wait_ready(status.run_id, READY_S)
                assert status.state is ServerState.READY, f"turn {turn}: {status.reason}"
                await asyncio.sleep(rng.uniform(0.0, 1.0))
            every = pids(status)
            assert len(every) == 2, status
            began = time.monotonic()
            _kill(every, victim, rng)
            ended = await settled(supervisor, status.run_id)
            slowest.append(time.monotonic() - began)
            assert gone(every), f"turn {turn}"
            assert ended.state in (ServerState.CRASHED, ServerState.FAILED), (
                f"turn {turn}: {ended.state}"
            )
            wanted = f"rank {victim} on {NAMES[victim]}: "
            assert ended.reason is not None and ended.reason.startswith(wanted), (
                f"turn {turn} ({lost_s}): {ended.reason}"
            )

    clustered(host, scenario)
    print(f"30 kills: all ranks gone after {min(slowest):.2f} to {max(slowest):.2f} s")
