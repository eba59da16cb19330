"""Real vLLM and SGLang of which one process is killed: the process that ended first is named."""

from __future__ import annotations

import os
import signal

import engine_cache
import psutil
import pytest
import test_sglang
import test_vllm
from support.serving import supervised

from workbench.model.server_run import ServerState
from workbench.server.supervisor import ServerEvent, Supervisor

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(1200)]


async def start(supervisor: Supervisor, engine: str) -> str:
    if engine == "vllm":
        return await test_vllm.start(supervisor, test_vllm.plan())
    return await test_sglang.start(supervisor)


@pytest.mark.parametrize(
    ("engine", "title", "reason"),
    [
        ("vllm", "VLLM::EngineCore", "EngineCore (pid PID) ended first: vLLM does not log"),
        # Whether vLLM logs the code depends on who notices the end first.
        ("vllm", "VLLM::Worker", "Worker (pid PID) ended first: "),
        ("sglang", "sglang::scheduler", "scheduler_0 (pid PID) ended first: SIGKILL killed it"),
        ("sglang", "sglang::detokenizer", "detokenizer (pid PID) ended first: SIGKILL killed it"),
    ],
)
def test_the_killed_part_is_named(engine: str, title: str, reason: str) -> None:
    engine_cache.executable(engine)

    async def scenario(supervisor: Supervisor, events: list[ServerEvent]) -> None:
        status = await supervisor.wait_ready(await start(supervisor, engine), 600.0)
        assert status.state is ServerState.READY, status.reason
        assert status.pid is not None
        parts = psutil.Process(status.pid).children(recursive=True)
        pid = next(part.pid for part in parts if " ".join(part.cmdline()).startswith(title))
        os.kill(pid, signal.SIGKILL)
        # SGLang waits for 60 s for a dump of its memory before it ends.
        ended = await supervisor.wait(status.run_id, lambda now: not now.alive, 120.0)
        assert ended.state is ServerState.CRASHED
        assert ended.reason is not None
        assert ended.reason.replace(str(pid), "PID").startswith(reason)
        assert "exit.process" in {finding.code for finding in ended.findings}

    supervised(scenario)
