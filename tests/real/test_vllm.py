"""Real vLLM on the CPU through the supervisor: it becomes ready, counts agree, and nothing is left
however it ends."""

from __future__ import annotations

import os
import signal
import socket

import engine_cache
import pytest
from support.serving import eventually, free_port, processes_of, supervised

from workbench import engines
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.server import idle_start
from workbench.server.engine_probe import probe_engine
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
VLLM = engines.get_engine("vllm")
READY_S = 300.0  # 30 s on an idle machine with 2 cores
ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "2",
}


def plan(**flags: object) -> LaunchPlan:
    given = {
        "port": free_port(),
        "served-model-name": ["tiny"],
        "dtype": "bfloat16",
        "max-model-len": 2048,
        "max-num-seqs": 16,
        "enforce-eager": True,
        **flags,
    }
    return LaunchPlan(
        "vllm",
        str(engine_cache.MODEL),
        flags=tuple(FlagSetting(name, value) for name, value in given.items()),
        env=tuple(FlagSetting(name, value) for name, value in ENV.items()),
        executable=(engine_cache.executable("vllm"),),
    )


async def start(supervisor: Supervisor, made: LaunchPlan) -> str:
    return (await supervisor.start(made, VLLM.command(made), VLLM)).run_id


def test_a_start_that_a_signal_has_stopped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of a real start, while it loads: nothing else tells that it will never end."""
    monkeypatch.setattr(idle_start, "QUIET_LOG_S", 1.0)
    monkeypatch.setattr(idle_start, "READ_INTERVAL_S", 0.5)
    monkeypatch.setattr(idle_start, "HANGING_AFTER_S", 3.0)
    monkeypatch.setattr("workbench.server.watched_run.STUCK_AFTER_S", 1.0)

    def stopped(status: ServerStatus) -> bool:
        return any(
            one.code == "start.idle" and "kill -CONT" in (one.fix or "") for one in status.findings
        )

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, plan())
        await supervisor.wait(run_id, lambda now: now.phase is not None, READY_S)
        processes = processes_of(supervisor.status(run_id).run_dir or "")
        for process in processes:
            process.suspend()
        try:
            now = await supervisor.wait(run_id, stopped, READY_S)
        finally:
            for process in processes:
                process.resume()
        assert now.state is ServerState.STARTING
        await supervisor.stop(run_id)

    supervised(scenario)


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> object:
    before = set(os.listdir("/dev/shm"))
    yield
    left = {
        name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.mp-", "torch_"))
    } - before
    assert left == set()


def test_start_ready_stream_counts_agree_stop() -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        made = plan()
        installed = await probe_engine(supervisor.host, VLLM, made.executable)
        assert installed.version == "0.32.0+cpu"
        status = await supervisor.wait_ready(await start(supervisor, made), READY_S)
        assert status.state is ServerState.READY, (
            status.reason,
            supervisor.log(status.run_id).lines()[-20:],
        )
        assert status.served_model == "tiny"
        print(f"vLLM {status.engine_version}: ready after {status.ready_after_s:.1f} s")

        before = await engine_cache.counted(supervisor, status.run_id)
        ours = await engine_cache.load(status, [8, 16, 24, 32, 40, 48] * 4)
        assert (
            engine_cache.between(before, await engine_cache.counted(supervisor, status.run_id))
            == ours
        )
        print(f"counted alike: {ours}")

        assert len(processes_of(status.run_dir or "")) >= 3
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert processes_of(status.run_dir or "") == []
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", status.port or 0))

    supervised(scenario)


def test_stop_while_the_engine_core_starts_leaves_nothing() -> None:
    """TERM then ends the engine core while the main process hangs, until KILL ends it after the
    grace period."""

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor, plan())
        ring = supervisor.log(run_id)
        await eventually(
            lambda: ring.find("(EngineCore") is not None, READY_S, "the engine core's first line"
        )
        stopped = await supervisor.stop(run_id, grace_s=5)
        assert stopped.state is ServerState.STOPPED
        print(f"stopped by {stopped.exit_signal}, exit code {stopped.exit_code}")
        assert processes_of(stopped.run_dir or "") == []

    supervised(scenario)


def test_orphans_of_a_killed_server_are_seen_and_ended() -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, plan()), READY_S)
        assert status.state is ServerState.READY and status.pid is not None, status.reason
        os.kill(status.pid, signal.SIGKILL)
        crashed = await supervisor.wait(status.run_id, lambda s: s.state is ServerState.CRASHED, 60)
        assert crashed.exit_signal == "SIGKILL"
        await supervisor.stop(status.run_id, grace_s=5)
        assert processes_of(status.run_dir or "") == []

    supervised(scenario)


def test_an_unknown_flag_is_the_reason() -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(
            await start(supervisor, plan(**{"no-such-flag": 1})), READY_S
        )
        assert (status.state, status.exit_code) == (ServerState.FAILED, 2)
        assert (
            status.reason is not None
            and ("unrecognized arguments: --no-such-flag") in status.reason
        )

    supervised(scenario)
