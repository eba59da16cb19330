"""Real SGLang on the CPU through the supervisor: it becomes ready, counts agree, and nothing is
left."""

from __future__ import annotations

import os
import socket

import engine_cache
import pytest
from support.serving import eventually, free_port, processes_of, supervised

from workbench import engines
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerState
from workbench.server.engine_probe import probe_engine
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
SGLANG = engines.get_engine("sglang")
READY_S = 300.0  # 40 to 60 s on an idle machine with 2 cores


def plan() -> LaunchPlan:
    given = {
        "port": free_port(),
        "served-model-name": "tiny",
        "device": "cpu",
        "attention-backend": "torch_native",
        "mem-fraction-static": 0.05,
        "max-total-tokens": 65536,
        "max-running-requests": 16,
        "context-length": 2048,
        "disable-overlap-schedule": True,
        "enable-metrics": True,
    }
    return LaunchPlan(
        "sglang",
        str(engine_cache.MODEL),
        flags=tuple(FlagSetting(name, value) for name, value in given.items()),
        env=(FlagSetting("HF_HUB_OFFLINE", "1"),),
        executable=(engine_cache.executable("sglang"),),
    )


async def start(supervisor: Supervisor) -> str:
    made = plan()
    return (await supervisor.start(made, SGLANG.command(made), SGLANG)).run_id


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> object:
    before = set(os.listdir("/dev/shm"))
    yield
    assert {
        name for name in os.listdir("/dev/shm") if name.startswith(("sglang", "psm_", "sem.mp-"))
    } - before == set()


def test_start_ready_stream_counts_agree_stop() -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        installed = await probe_engine(supervisor.host, SGLANG, plan().executable)
        assert installed.version == "0.5.23"
        status = await supervisor.wait_ready(await start(supervisor), READY_S)
        assert status.state is ServerState.READY, (
            status.reason,
            supervisor.log(status.run_id).lines()[-20:],
        )
        assert status.served_model == "tiny"
        print(f"SGLang {installed.version}: ready after {status.ready_after_s:.1f} s")

        ring = supervisor.log(status.run_id)
        first = len(ring)

        def asked() -> int:
            return sum(f"GET {SGLANG.alive_path}?" in line for line in ring.lines(first))

        # Lines of the readiness check, which requests a token, may be read only now.
        await eventually(lambda: asked() >= 2, 60.0, "a look at the ready server")
        first = len(ring)
        await eventually(lambda: asked() >= 3, 60.0, "three looks at an idle server")
        assert not any("Prefill batch" in line for line in ring.lines(first))

        before = await engine_cache.counted(supervisor, status.run_id)
        ours = await engine_cache.load(status, [8, 16, 24, 32] * 2)
        # It counts a request's tokens when the request has ended, a moment after the last byte was
        # sent.
        for _ in range(50):
            after = engine_cache.between(
                before, await engine_cache.counted(supervisor, status.run_id)
            )
            if after == ours:
                break
        assert after == ours
        print(f"counted alike: {ours}")

        assert len(processes_of(status.run_dir or "")) >= 3
        assert (await supervisor.stop(status.run_id)).state is ServerState.STOPPED
        assert processes_of(status.run_dir or "") == []
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", status.port or 0))

    supervised(scenario)


def test_stop_while_the_scheduler_starts_leaves_nothing() -> None:
    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        run_id = await start(supervisor)
        ring = supervisor.log(run_id)
        await eventually(
            lambda: ring.find("server_args=") is not None, READY_S, "its arguments in the log"
        )
        stopped = await supervisor.stop(run_id)
        assert stopped.state is ServerState.STOPPED
        assert processes_of(stopped.run_dir or "") == []

    supervised(scenario)
