"""Two ranks of real vLLM on two hosts behind real sshds, with real Gloo between them: one server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from engine_cache import MODEL, executable
from support.serving import eventually, free_port
from support.sshd import Sshd, sshd

from workbench.hosts.cluster import ClusterHost
from workbench.hosts.ssh import SshHost
from workbench.model.host_entry import ClusterEntry, ClusterNode
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.session import Session

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
NAMES = ("node-a", "node-b")
READY_S = 300.0


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[list[Sshd]]:
    with ExitStack() as stack:
        yield [stack.enter_context(sshd(tmp_path / name)) for name in NAMES]


def plan() -> LaunchPlan:
    made = LaunchPlan("vllm", str(MODEL), executable=(executable("vllm"),), executable_from="given")
    flags = {
        "served-model-name": "tiny",
        "port": free_port(),
        "dtype": "bfloat16",
        "max-model-len": 512,
        "max-num-seqs": 4,
        "enforce-eager": True,
        "tensor-parallel-size": 2,
        "distributed-executor-backend": "mp",
        "master-port": free_port(),
    }
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in flags.items():
        made = made.with_flag(name, value)  # type: ignore[arg-type]
    for name, text in env.items():
        made = made.with_env(name, text)
    return made


async def serving(session: Session) -> ServerStatus:
    session.plans.edit_plan(plan(), "two ranks of real vLLM")
    editor = session.plans.editor
    assert [node.name for node, _ in editor.node_commands()] == list(NAMES)
    run_id = await session.servers.start()
    status = await session.servers.wait_ready(run_id, READY_S)
    log = "\n".join(session.servers.supervisor.log(run_id).lines()[-30:])
    assert status.state is ServerState.READY, f"{status.reason}\n{log}"
    return status


def test_real_ranks_serve_are_benchmarked_and_end_together(boxes: list[Sshd]) -> None:
    nodes = tuple(ClusterNode(name, "127.0.0.1", "lo") for name in NAMES)
    hosts = [SshHost("box", ssh_config=box.ssh_config_path) for box in boxes]

    async def scenario() -> None:
        session = Session(ClusterHost(ClusterEntry("pair", nodes), hosts))
        try:
            await session.link.connect()
            began = time.monotonic()
            status = await serving(session)
            print(f"READY after {time.monotonic() - began:.0f} s")
            result = await session.results.get(
                await session.bench.benchmark_selected_run(
                    requests=24, max_tokens=64, input_tokens=32, warmup=2, concurrency=4
                )
            )
            summary = result.summary
            print(
                f"{summary.output_tok_s} tok/s, {summary.requests_ok} requests, "
                f"{result.conditions.nodes}"
            )
            assert summary.requests_ok == 24 and summary.requests_failed == 0
            assert result.conditions.nodes == ("node-a (rank 0)", "node-b (rank 1)")
            began = time.monotonic()
            await session.servers.stop(status.run_id)
            stopped = session.servers.supervisor.status(status.run_id)
            print(f"stopped after {time.monotonic() - began:.1f} s: {stopped.state}")
            assert stopped.state is ServerState.STOPPED, stopped.reason
            await killed(session)
        finally:
            for each in await session.servers.supervisor.runs():
                await session.servers.supervisor.stop(each.run_id, grace_s=2)
            await session.close()

    asyncio.run(scenario())


async def killed(session: Session) -> None:
    """Kill the second rank of a new server. The first one ends within 10 s, with the error of the
    second."""
    status = await serving(session)
    supervisor = session.servers.supervisor
    pids = [rank.pid for rank in status.ranks if rank.pid]
    every = [
        p
        for pid in pids
        for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    ]
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    await eventually(
        lambda: not any(p.is_running() and p.status() != "zombie" for p in every),
        30,
        "the end of all",
    )
    took = time.monotonic() - began
    await eventually(lambda: not supervisor.status(status.run_id).outlived, 10)
    ended = supervisor.status(status.run_id)
    print(
        f"all {len(every)} processes gone {took:.1f} s after the kill: {ended.state}: "
        f"{ended.reason}"
    )
    assert took < 10 and ended.state is ServerState.CRASHED
    assert ended.reason == "rank 1 on node-b: the server's process was killed by SIGKILL"
