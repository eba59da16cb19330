"""Asked against in force, and known lines, with real vLLM and llama.cpp on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import llama_server, tiny_gguf
from support.serving import free_port
from test_engine_live import watched, yield_cores
from test_sglang import plan as sglang_plan
from test_vllm import plan as vllm_plan

from workbench.model.findings import Level
from workbench.model.flags import FlagSetting
from workbench.model.in_force import InForceRow
from workbench.model.plan import LaunchPlan
from workbench.model.server_run import ServerStatus
from workbench.server.explained_log import ExplainedLog
from workbench.session.session import Session

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]


async def table(session: Session) -> dict[str, InForceRow]:
    report = await session.servers.read_settings_in_force()
    for row in report.rows:
        print("!" if row.differs else " ", row.name, row.asked, row.in_force, row.where, sep=" | ")
    print(report.notes)
    return {row.name: row for row in report.rows}


async def unknown_warnings(session: Session, status: ServerStatus) -> list[tuple[int, str]]:
    explained = ExplainedLog(status.engine)
    async for batch in session.servers.supervisor.read_log(status.run_id):
        explained.add(batch.lines)
    return [(one["line"], one["text"]) for one in explained.as_json()["unknown"]]


def test_vllm() -> None:
    async def scenario(session: Session, status: ServerStatus) -> None:
        yield_cores(status)
        rows = await table(session)
        assert (rows["max model length"].asked, rows["max model length"].in_force) == (
            "2048",
            "2048",
        )
        assert rows["version"].in_force and rows["version"].where == "/version"
        assert (
            int(rows["KV cache, tokens"].in_force or 0) > 2048
            and rows["KV cache, tokens"].where == "/metrics"
        )
        assert rows["KV block size"].in_force and rows["prefix caching"].in_force == "on"
        assert (
            rows["CUDA graphs"].in_force == ("none: eager mode")
            and rows["enforce-eager"].in_force == "on"
        )
        assert rows["model name"].in_force == "tiny" and rows["dtype"].in_force == "torch.bfloat16"
        assert rows["VLLM_BLOCK_SIZE"].differs and rows["VLLM_BLOCK_SIZE"].where == "log"
        assert rows["VLLM_CPU_KVCACHE_SPACE"].in_force == "1"
        assert [name for name, row in rows.items() if row.differs] == ["VLLM_BLOCK_SIZE"]
        known = {f.code: f for f in session.state.server.findings} if session.state.server else {}
        assert known["log.unknown-env"].level is Level.INFO and "log.eager" in known
        assert await unknown_warnings(session, status) == []

    watched(vllm_plan().with_env("VLLM_BLOCK_SIZE", "16"), scenario)


def test_sglang() -> None:
    async def scenario(session: Session, status: ServerStatus) -> None:
        yield_cores(status)
        rows = await table(session)
        assert rows["version"].in_force and rows["version"].where == "server's answer"
        assert (rows["max model length"].asked, rows["max model length"].in_force) == (
            "2048",
            "2048",
        )
        assert (rows["KV cache, tokens"].in_force, rows["KV cache, tokens"].where) == (
            "65536",
            "server's answer",
        )
        assert (
            rows["requests at once"].in_force == "16"
            and rows["attention backend"].in_force == "torch_native"
        )
        assert rows["weights, GiB"].in_force and rows["mem-fraction-static"].in_force == "0.05"
        assert [name for name, row in rows.items() if row.differs] == []

    watched(sglang_plan(), scenario)


def test_llamacpp(tmp_path: Path) -> None:
    flags = {"port": free_port(), "parallel": 2, "ctx-size": 8192, "threads": 1, "metrics": True}
    model = str(tiny_gguf.write(tmp_path / "tiny.gguf"))
    made = LaunchPlan(
        "llamacpp",
        model,
        flags=tuple(FlagSetting(name, value) for name, value in flags.items()),
        env=(FlagSetting("OMP_NUM_THREADS", "1"),),
        executable=(str(llama_server.install(tmp_path / "bin")),),
    )

    async def scenario(session: Session, status: ServerStatus) -> None:
        rows = await table(session)
        assert (rows["slots"].asked, rows["slots"].in_force, rows["slots"].where) == (
            "2",
            "2",
            "/props",
        )
        assert (
            rows["context of a slot, tokens"].in_force == "4096"
            and rows["model file"].in_force == model
        )
        assert rows["threads"].in_force == "1" and rows["version"].in_force
        assert rows["OMP_NUM_THREADS"].in_force == "1"
        assert [name for name, row in rows.items() if row.differs] == []
        assert await unknown_warnings(session, status) == []

    watched(made, scenario)
