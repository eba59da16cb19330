"""One server on two simulated nodes, with real processes: start, state, log, stop, and a rank that
ends."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.clusters import NAMES, VLLM, cluster, clustered, commands_of, plan_of, ready, start
from support.fake_host import FakeHost
from support.serving import eventually, free_port

from workbench.engines import ray
from workbench.engines.cluster import spread_plan_over_nodes
from workbench.hosts.cluster import ClusterHost
from workbench.hosts.local import LocalHost
from workbench.model.errors import ServerError
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server import ray_cluster
from workbench.server.cluster_supervisor import ClusterSupervisor
from workbench.server.supervisor import ServerEvent, Supervisor


def _pids(status: ServerStatus) -> list[int]:
    return [rank.pid for rank in status.ranks if rank.pid is not None]


@pytest.mark.slow
def test_one_start_one_state_one_log_and_one_stop(tmp_path: Path) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host))
        assert status.state is ServerState.READY, status.reason
        assert [(r.label, r.host, r.alive) for r in status.ranks] == [
            ("rank 0", NAMES[0], True),
            ("rank 1", NAMES[1], True),
        ]
        assert len(supervisor.statuses()) == 1
        lines = (await supervisor.load_log(status.run_id)).lines()
        assert any(
            line.startswith("[rank 0] ") and "Application startup complete" in line
            for line in lines
        )
        assert any(line.startswith("[rank 1] ") and "headless" in line for line in lines)
        whole = [line async for batch in supervisor.read_log(status.run_id) for line in batch.lines]
        assert sorted(whole) == sorted(lines)
        # its screen draws the log while it is read
        late = ClusterSupervisor(host, lambda event: None)
        await late.runs()
        await eventually(
            lambda: len(late.log(status.run_id)) == len(whole), 10, "the log of both ranks"
        )
        assert list(late.log(status.run_id).lines()) == whole
        await late.close()
        assert all(
            line.startswith("[rank ") for e in events if isinstance(e, LogBatch) for line in e.lines
        )
        pids = _pids(status)
        assert len(pids) == 2 and not [f for f in status.findings if f.code == "cluster.rank"]
        alone = Supervisor(host.nodes[1].host)  # a Workbench on the second node only
        (seen,) = await alone.runs()
        await alone.close()
        assert [f.fix for f in seen.findings] == [f"workbench cluster stop sparks {status.run_id}"]
        stopped = await supervisor.stop(status.run_id)
        assert (stopped.state, stopped.reason) == (ServerState.STOPPED, None)
        assert not any(psutil.pid_exists(pid) for pid in pids)

    clustered(host, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_an_ended_server_stays_ended_while_a_node_is_down(tmp_path: Path) -> None:
    host = cluster(tmp_path)
    down = FakeHost(name=NAMES[1])
    down.link(False)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        stopped = await ready(supervisor, plan_of(host))
        await supervisor.stop(stopped.run_id)
        crashed = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="never"))
        os.kill(_pids(crashed)[1], signal.SIGKILL)
        await supervisor.wait(crashed.run_id, lambda status: status.state.has_ended, 10)
        await eventually(lambda: not supervisor.status(crashed.run_id).outlived, 10)
        await supervisor.wait_for_rank_ends()
        reason = supervisor.status(crashed.run_id).reason
        later = ClusterSupervisor(cluster(tmp_path, (LocalHost(), down)))
        seen = {status.run_id: status for status in await later.runs()}
        await later.close()
        assert seen[stopped.run_id].state is ServerState.STOPPED, seen[stopped.run_id].reason
        assert seen[crashed.run_id].state is ServerState.CRASHED
        assert seen[crashed.run_id].reason == reason

    clustered(host, scenario)


@pytest.mark.long
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.slow
def test_the_end_of_a_rank_ends_the_others_and_is_the_reason(tmp_path: Path, killed: int) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="never"))
        pids = _pids(status)
        os.kill(pids[killed], signal.SIGKILL)
        await eventually(
            lambda: not any(psutil.pid_exists(pid) for pid in pids), 30, "the end of all ranks"
        )
        await supervisor.wait_for_rank_ends()
        await eventually(lambda: not supervisor.status(status.run_id).outlived, 30)
        ended = supervisor.status(status.run_id)
        assert ended.state is ServerState.CRASHED and ended.exit_signal == "SIGKILL"
        assert ended.reason == (
            f"rank {killed} on {NAMES[killed]}: the server's process was killed by SIGKILL"
        )

    clustered(host, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_node_that_is_restarted_ends_the_server_and_is_the_reason(tmp_path: Path) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="never"))
        pids = _pids(status)
        (run,) = (tmp_path / NAMES[1]).glob("**/runs/*")
        (run / "boot_id").write_text("the boot before\n")
        _kill_all_that_carry((run / "token").read_text().strip())
        await eventually(
            lambda: not any(psutil.pid_exists(pid) for pid in pids), 10, "the end of all ranks"
        )
        await supervisor.wait_for_rank_ends()
        ended = supervisor.status(status.run_id)
        assert ended.state in (ServerState.CRASHED, ServerState.FAILED)
        assert ended.reason is not None and ended.reason.startswith("rank 1 on spark-02: ")
        assert "restarted" in ended.reason

    clustered(host, scenario)


def _kill_all_that_carry(token: str) -> None:
    """Send SIGKILL to every process that has `token` in its environment, as a power cut would."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(token in value for value in process.environ().values()):
                process.kill()


@pytest.mark.long
@pytest.mark.slow
def test_errors_that_follow_are_not_the_reason(tmp_path: Path) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="0"))
        os.kill(_pids(status)[1], signal.SIGKILL)  # rank 0 reports the lost rank by itself, at once
        await eventually(
            lambda: not any(r.alive for r in supervisor.status(status.run_id).ranks), 10
        )
        ended = supervisor.status(status.run_id)
        assert ended.reason is not None and ended.reason.startswith(
            "rank 1 on spark-02: the server's process was killed"
        )
        log = (await supervisor.load_log(status.run_id)).lines()
        assert any("[rank 0] torch.distributed.DistBackendError" in line for line in log)

    clustered(host, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_second_workbench_adopts_the_server_and_ends_what_must_not_live_on(
    tmp_path: Path,
) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await ready(supervisor, plan_of(host, WORKBENCH_SIM_PEER_LOST_S="never"))
        await supervisor.close()  # the screen was closed
        pids = _pids(status)
        os.kill(pids[1], signal.SIGKILL)
        second = ClusterSupervisor(host)
        try:
            await second.runs()
            await second.wait_for_rank_ends()
            await eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)
            await second.runs()
            seen = second.status(status.run_id)
            assert seen.state is ServerState.CRASHED
            assert seen.reason == "rank 1 on spark-02: the server's process was killed by SIGKILL"
            third_events: list[ServerEvent] = []
            # shows at once how it ended, and nothing else before
            third = ClusterSupervisor(host, third_events.append)
            await third.runs()
            await third.close()
            assert {e.state for e in third_events if isinstance(e, ServerStatus)} == {
                ServerState.CRASHED
            }
        finally:
            await second.close()
        await supervisor.runs()

    clustered(host, scenario)


def test_a_start_that_fails_on_one_node_starts_nothing(tmp_path: Path) -> None:
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        plan = plan_of(host)
        (head, first), (worker, second) = commands_of(plan)
        missing = replace(second, argv=("/nowhere/vllm", *second.argv[1:]))
        with pytest.raises(ServerError, match="/nowhere/vllm does not exist"):
            await supervisor.start_ranks(
                plan, [(head, first), (worker, missing)], VLLM, simulated=True
            )
        assert await supervisor.runs() == ()
        late = replace(second, files={"../outside": ""})  # is found when the files are written
        with pytest.raises(Exception, match="outside the run directory"):
            await supervisor.start_ranks(
                plan, [(head, first), (worker, late)], VLLM, simulated=True
            )
        assert await supervisor.runs() == ()  # no rank has been started

    clustered(host, scenario)


@pytest.mark.slow
def test_the_memory_guard_stops_the_server_and_says_why(tmp_path: Path) -> None:
    host = cluster(tmp_path, reserve_gib=100_000.0)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        status = await start(supervisor, plan_of(host))
        ended = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.FAILED, 20)
        assert (
            ended.reason is not None
            and ("stopped the server:") in ended.reason
            and "reserve is" in ended.reason
        )
        assert ended.findings[0].code == "log.memory-guard"
        await eventually(
            lambda: not any(r.alive for r in supervisor.status(status.run_id).ranks), 10
        )

    clustered(host, scenario)


def _with_ray(plan: LaunchPlan, host: ClusterHost) -> LaunchPlan:
    whole = replace(plan, nodes=()).with_flag("distributed-executor-backend", "ray")
    return spread_plan_over_nodes(whole, VLLM, host.places)


@pytest.mark.long
@pytest.mark.slow
def test_ray_is_started_counted_and_stopped_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "PORT", free_port())
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        plan = _with_ray(plan_of(host), host)
        status = await ready(supervisor, plan)
        assert status.state is ServerState.READY, status.reason
        assert [(rank.label, rank.host) for rank in status.ranks] == [
            ("rank 0", NAMES[0]),
            ("ray 0", NAMES[0]),
            ("ray 1", NAMES[1]),
        ]
        assert await ray_cluster.count_ray_gpus(host, plan, "127.0.0.1", {}) == 2
        pids = _pids(status)
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert not any(psutil.pid_exists(pid) for pid in pids)

    clustered(host, scenario)


@pytest.mark.long
@pytest.mark.slow
def test_a_ray_that_was_running_is_used_and_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "PORT", free_port())
    host = cluster(tmp_path)

    async def scenario(supervisor: ClusterSupervisor, events: list[ServerEvent]) -> None:
        plan = _with_ray(plan_of(host), host)
        theirs = [
            await node.host.stream(VLLM.command(plan, each).argv)
            for node, each in zip(host.nodes, plan.nodes[1:], strict=True)
        ]
        try:
            await ray_cluster.wait_for_gpus(host, plan, "127.0.0.1", {}, 2)
            status = await ready(supervisor, plan)
            assert [rank.label for rank in status.ranks] == ["rank 0"]
            await supervisor.stop(status.run_id)
            assert await ray_cluster.count_ray_gpus(host, plan, "127.0.0.1", {}) == 2
            await theirs.pop().close()
            with pytest.raises(ServerError, match="has 1 GPUs, and the plan needs 2"):
                await start(supervisor, plan)
        finally:
            for stream in theirs:
                await stream.close()

    clustered(host, scenario)
