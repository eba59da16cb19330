"""What a benchmark asks the engine while it measures."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from workbench import engines
from workbench.session.bench.engine_watch import EngineWatch
from workbench.tui.panes.log_lines import is_own_poll


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_readings_of_a_benchmark_are_known_in_the_log(engine: str) -> None:
    """They stood in the Log pane of a real SGLang, one each second, as requests of somebody else."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, text="")

    async def go() -> None:
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url="http://engine", transport=transport) as http:
            await EngineWatch(http, engines.get(engine)).read()

    asyncio.run(go())
    lines = [f'INFO:     127.0.0.1:5000 - "GET {path} HTTP/1.1" 200 OK' for path in asked]
    assert lines and all(map(is_own_poll, lines)), lines
