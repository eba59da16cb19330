"""The whole loop against a real engine: llama.cpp's own server on a tiny model, from start until
nothing is left."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
from support import llama_server, tiny_gguf
from support.serving import free_port, processes_of, stream, supervised

from workbench import engines
from workbench.hosts.local import LocalHost
from workbench.model.flags import FlagSetting
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import LogBatch, ServerState, ServerStatus
from workbench.server.engine_probe import probe_engine
from workbench.server.supervisor import ServerEvent, Supervisor

READY_S = 60.0  # a second where nothing else runs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def plan(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """A plan as a preset gives it, with llama-server first on PATH."""
    launcher = llama_server.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{launcher.parent}{os.pathsep}{os.environ['PATH']}")
    flags = (
        FlagSetting("port", free_port()),
        FlagSetting("ctx-size", 4096),
        FlagSetting("parallel", 2),
        FlagSetting("alias", "tiny"),
        FlagSetting("metrics", True),
    )
    return LaunchPlan("llamacpp", str(model), flags=flags)


@pytest.mark.slow
def test_start_ready_stream_count_stop_and_nothing_left(plan: LaunchPlan) -> None:
    engine = engines.get_engine("llamacpp")
    shm_before = set(os.listdir("/dev/shm"))

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        installed = await probe_engine(supervisor.host, engine)
        assert installed.path is not None
        assert installed.version is not None and installed.version.startswith("b")

        started = await supervisor.start(
            plan, engine.command(plan), engine, engine_version=installed.version
        )
        assert started.state is ServerState.STARTING
        ready = await supervisor.wait_ready(started.run_id, READY_S)
        assert ready.state is ServerState.READY, (
            ready.reason,
            supervisor.log(started.run_id).lines(),
        )
        assert ready.served_model == "tiny"
        assert ready.url is not None and ready.run_dir is not None
        assert ready.ready_after_s is not None and 0 < ready.ready_after_s < READY_S
        assert ready.engine_version == installed.version
        alive = processes_of(ready.run_dir)
        assert ready.pid in {p.pid for p in alive}

        before = await supervisor.metrics(ready.run_id)
        counted = [await stream(ready.url, "tiny", n) for n in (4, 9, 16)]
        after = await supervisor.metrics(ready.run_id)
        assert after.absent.get("generation_tokens") is None
        assert after.generation_tokens is not None and before.generation_tokens is not None
        assert [completion for _, completion in counted] == [4, 9, 16]
        assert after.generation_tokens - before.generation_tokens == 29
        assert after.running == 0

        states = [e.state for e in events if isinstance(e, ServerStatus)]
        assert [s for i, s in enumerate(states) if i == 0 or s != states[i - 1]] == [
            ServerState.STARTING,
            ServerState.READY,
        ]
        lines = [line for e in events if isinstance(e, LogBatch) for line in e.lines]
        assert any("model loaded" in line or "listening" in line for line in lines)
        found = await supervisor.search_log(ready.run_id, "LISTENING")
        assert found and "listening" in found[0].line

        stopped = await supervisor.stop(ready.run_id)
        assert (stopped.state, stopped.reason) == (ServerState.STOPPED, None)
        assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in alive)
        assert processes_of(ready.run_dir) == []
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", ready.port or 0))
        assert (await supervisor.stop(ready.run_id)).state is ServerState.STOPPED

    supervised(scenario)
    assert set(os.listdir("/dev/shm")) <= shm_before


def test_the_engine_s_own_error_is_the_reason(plan: LaunchPlan) -> None:
    engine = engines.get_engine("llamacpp")
    broken = Path(plan.model).with_name("broken.gguf")
    broken.write_bytes(b"GGUF, but not really")
    plan = LaunchPlan("llamacpp", str(broken), flags=plan.flags)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        started = await supervisor.start(plan, engine.command(plan), engine)
        failed = await supervisor.wait_ready(started.run_id, READY_S)
        assert (failed.state, failed.exit_code) == (ServerState.FAILED, 1)
        assert failed.reason is not None and failed.reason != (
            "the server's process exited with code 1"
        )
        assert any(failed.reason in line for line in supervisor.log(started.run_id).lines())

    supervised(scenario)


@pytest.mark.slow
def test_a_server_with_a_key_becomes_ready_and_the_key_is_nowhere(plan: LaunchPlan) -> None:
    engine = engines.get_engine("llamacpp")
    secret = "geheim-4711-geheim"
    plan = plan.with_flag("api-key", secret)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        started = await supervisor.start(plan, engine.command(plan), engine)
        ready = await supervisor.wait_ready(started.run_id, READY_S)
        assert ready.state is ServerState.READY, ready.reason
        assert supervisor.api_key(started.run_id) == secret
        assert secret not in repr(events) and secret not in repr(supervisor.record(started.run_id))
        assert ready.run_dir is not None
        for file in Path(ready.run_dir).iterdir():
            assert secret.encode() not in file.read_bytes(), file
        other = Supervisor(LocalHost())  # adopts it, and can still ask it
        try:
            await other.runs()
            await other.wait(
                started.run_id, lambda _: other.api_key(started.run_id) is not None, 10
            )
            assert (await other.metrics(started.run_id)).running == 0
        finally:
            await other.close()

    supervised(scenario)
