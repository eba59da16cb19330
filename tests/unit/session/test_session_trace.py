"""Benchmarks that replay a trace, on simulated servers whose prefix cache counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.serving import free_port

from workbench.bench.compare import compare
from workbench.model.bench import BenchResult
from workbench.model.errors import BenchError
from workbench.model.server_run import ServerState
from workbench.report.result_blocks import command_to_repeat_result, workload_facts
from workbench.session.session import Session

Scenario = Callable[[Session, str], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_engines(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SIM_NOISE", "0")
    monkeypatch.setenv("WORKBENCH_SIM_SPEEDUP", "20")


def on_vllm(scenario: Scenario, **flags: str) -> None:
    async def go() -> None:
        session = Session.of_host(None, "rtx-pro-6000")
        try:
            await session.link.connect()
            await session.plans.load_preset("vllm-any")
            set_flags = {"port": str(free_port()), "max-model-len": "16384", **flags}
            for name, value in set_flags.items():
                session.plans.set_flag(name, value)
            run_id = await session.servers.start()
            status = await session.servers.wait_ready(run_id, 30)
            assert status.state is ServerState.READY
            await asyncio.wait_for(scenario(session, run_id), 60)
        finally:
            for status in await session.servers.supervisor.runs():
                await session.servers.supervisor.stop(status.run_id, grace_s=1)
            await session.close()

    asyncio.run(go())


def conversations(path: Path, many: int = 5, turns: int = 3) -> Path:
    """Write a trace in which each conversation grows by a block of 512 tokens for each turn, all with
    the same first block, and the turns of all of them come one after the other."""
    rows = []
    for turn in range(turns):
        for one in range(many):
            hashes = [0, *(100 * one + n + 1 for n in range(turn + 1))]
            tokens = 512 * (len(hashes) - 1) + 200
            row = {"timestamp": 60 * len(rows), "input_length": tokens, "output_length": 8}
            rows.append(row | {"hash_ids": hashes})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


async def replayed(session: Session, run_id: str, **options: Any) -> BenchResult:
    return await session.results.get(await session.bench.benchmark_run(run_id, warmup=2, **options))


def of_reuse(texts: tuple[str, ...]) -> list[str]:
    return [text for text in texts if text.startswith("a prefix cache without limit")]


@pytest.mark.slow
def test_a_trace_is_replayed_and_stored_by_its_name(tmp_path: Path) -> None:
    path = conversations(tmp_path / "talks.jsonl")

    async def scenario(session: Session, run_id: str) -> None:
        # one at a time, so that each prompt is in the cache before the next one comes
        result = await replayed(session, run_id, trace_file=str(path), concurrency=1)
        spec, summary = result.spec, result.summary
        assert summary.requests_ok == 15 and spec.requests == 15
        assert summary.output_tokens == 15 * 8 and spec.max_tokens == 8
        assert summary.prompt_tokens == pytest.approx(15 * spec.input_tokens, rel=0.02)
        assert spec.trace == () and spec.trace_name.startswith("talks.jsonl (15 requests, Mooncake")
        assert spec.has_schedule and summary.in_flight_nominal is None
        assert summary.queue_ms is not None and summary.queue_ms.count == 15
        assert spec.trace_reuse is not None and summary.engine is not None
        hits = summary.engine.prefix_hit_tokens
        assert hits is not None and summary.prompt_tokens is not None
        assert hits / summary.prompt_tokens == pytest.approx(spec.trace_reuse, abs=0.02)
        assert not of_reuse(summary.marked) and len(of_reuse(summary.notes)) == 1
        assert not [reason for reason in summary.refused if "cache" in reason]

        assert "--trace talks.jsonl" in command_to_repeat_result(result)
        assert "--requests" not in command_to_repeat_result(result)
        assert dict(workload_facts(result))["trace name"] == spec.trace_name

        faster = replace(spec, speed=2.0, trace_s=spec.trace_s / 2 if spec.trace_s else None)
        comparison = compare(result, replace(result, spec=faster))
        assert not comparison.like_for_like
        named = {one["name"] for one in comparison.differences}
        assert named == {"speed"}
        other = replace(result, spec=replace(spec, trace_name="other.jsonl (15 requests)"))
        assert not compare(result, other).like_for_like

    on_vllm(scenario)


@pytest.mark.slow
@pytest.mark.long
def test_a_cache_that_is_off_is_marked(tmp_path: Path) -> None:
    path = conversations(tmp_path / "talks.jsonl", many=4, turns=2)
    large = tmp_path / "large.jsonl"
    large.write_text('{"timestamp": 0, "input_length": 16300, "output_length": 100}')

    async def scenario(session: Session, run_id: str) -> None:
        result = await replayed(session, run_id, trace_file=str(path), concurrency=1)
        (mark,) = of_reuse(result.summary.marked)
        assert "and the engine reused 0.0 %" in mark and "off or too small" in mark
        with pytest.raises(BenchError, match=r"16,400 tokens .* context of 16,384"):
            await replayed(session, run_id, trace_file=str(large))

    on_vllm(scenario, **{"enable-prefix-caching": "false"})


@pytest.mark.slow
@pytest.mark.long
def test_conversations_reuse_what_was_said_before(tmp_path: Path) -> None:
    talks = tmp_path / "talks.json"
    said = [
        part
        for turn in range(4)
        for part in (
            {"from": "human", "value": f"what about number {turn} of the list " * 40},
            {"from": "gpt", "value": f"number {turn} is fine"},
        )
    ]
    talks.write_text(json.dumps([{"conversations": said}] * 3))

    async def scenario(session: Session, run_id: str) -> None:
        talked = await replayed(session, run_id, trace_file=str(talks), concurrency=2)
        assert talked.summary.requests_ok == 12 and talked.spec.has_conversations
        assert "content" not in dict(workload_facts(talked))
        assert not of_reuse(talked.summary.marked), talked.summary.marked
        (note,) = of_reuse(talked.summary.notes)
        assert "would reuse 59.9 %" in note

    on_vllm(scenario)
