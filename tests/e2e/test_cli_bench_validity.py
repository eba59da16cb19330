"""Benchmarks of faulty servers, and their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_server import RST, ScriptedServer, chat_events, chunked, openai

from workbench.session.session import Session

Cli = Callable[..., Any]
# Below four requests per stream the client's own lateness on a busy machine rejects nothing.
SMALL = ("--requests", "8", "--concurrency", "4", "--max-tokens", "3", "--warmup", "0")


@pytest.fixture(autouse=True)
def without_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.session.bench.gpu_meter.IDLE_BEFORE_RUN_S", 0.0)


def whole(*_: object) -> list[bytes | str]:
    time.sleep(0.05)  # the server's pace: what is answered at once measures the client
    return [chunked(chat_events(3))]


def mostly_dead(_: object, n: int) -> list[bytes | str]:
    answer = whole()
    return answer if n % 8 == 0 else [RST]


@pytest.mark.slow
def test_a_run_in_which_most_requests_failed_is_rejected(cli: Cli) -> None:
    with ScriptedServer(openai(mostly_dead)) as server:
        ran = cli("bench", "--url", server.url, *SMALL, "--json")
        text = cli("bench", "--url", server.url, *SMALL)
    assert ran.code == text.code == 3
    (why,) = ran.document["refused"]
    assert "requests failed at the server" in why and "reset" in why and "client" not in why
    assert "REJECTED: " in text.out and "requests failed at the server" in text.out


def test_a_rejected_benchmark_is_neither_the_last_one_nor_a_default() -> None:
    async def go() -> None:
        session = Session.of_host()
        await session.link.connect()
        usual = session.bench.default_spec()
        with ScriptedServer(openai(mostly_dead)) as server:
            bad = await session.bench.benchmark_url(
                server.url, concurrency=4, requests=8, max_tokens=3, warmup=0
            )
        assert (session.state.results[0].id, session.state.bench.last_id) == (bad, None)
        assert session.state.results[0].refused and session.bench.default_spec() == usual
        with ScriptedServer(openai(whole)) as server:
            good = await session.bench.benchmark_url(
                server.url, concurrency=4, requests=8, max_tokens=3, warmup=0
            )
            worse = await session.bench.benchmark_url(
                f"{server.url}/nothing", model="m", concurrency=4, requests=8, warmup=0
            )
        assert (session.state.results[0].id, session.state.bench.last_id) == (worse, good)
        await session.close()

    asyncio.run(go())


def test_the_shape_of_a_rejected_benchmark_is_not_suggested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        session = Session.of_host()
        await session.link.connect()
        for answer, kept in ((mostly_dead, False), (whole, True)):
            with ScriptedServer(openai(answer)) as server:
                asked = {"concurrency": 4, "requests": 8, "max_tokens": 3, "warmup": 0}

                async def run(run_id: str, url: str = server.url, **overrides: Any) -> int:
                    return await session.bench.benchmark_url(url, **overrides)

                monkeypatch.setattr(session.bench, "benchmark_run", run)
                await session.bench.run_requested_benchmark(
                    "run", session.server_load.make_spec(None, asked), asked
                )
            assert (session.bench.default_spec().concurrency == 4) is kept
        await session.close()

    asyncio.run(go())
