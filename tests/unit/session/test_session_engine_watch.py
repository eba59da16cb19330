"""What a benchmark asks the engine while it measures."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from support.scripted_server import ScriptedServer, plain

from workbench import engines
from workbench.server.small_requests import make_asker
from workbench.session.bench.engine_watch import EngineWatch
from workbench.tui.panes.log_lines import is_workbench_poll


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
            await EngineWatch(make_asker(http), engines.get_engine(engine)).read_counters()

    asyncio.run(go())
    lines = [f'INFO:     127.0.0.1:5000 - "GET {path} HTTP/1.1" 200 OK' for path in asked]
    assert lines and all(map(is_workbench_poll, lines)), lines


ASKED = """
import asyncio, sys
from workbench import engines
from workbench.model.bench import BenchSpec
from workbench.server.kept_connection import open_keep_alive_connection
from workbench.server.tokenizer import Tokenizer
from workbench.session.bench import bench
from workbench.session.bench.engine_watch import EngineWatch
from workbench.session.servers import server_address

async def go(url):
    served = await server_address.read_served_models(url, BenchSpec(url, ""))
    async with open_keep_alive_connection(url, None, None) as ask:
        watch = EngineWatch(ask, None)
        await watch.read_counters_before_load()
        await Tokenizer(ask, engines.get_engine("vllm"), served.model).count_tokens({"prompt": "one"})
        print(served.model, watch.engine, "httpx" in sys.modules)

asyncio.run(go(sys.argv[1]))
"""


def test_a_benchmark_of_a_server_without_tls_does_not_load_httpx() -> None:
    """It takes 0.1 s of CPU time of the start of `bench`."""
    models = plain("200 OK", {"object": "list", "data": [{"id": "m", "object": "model"}]})
    with ScriptedServer(lambda request, n: [models]) as server:
        done = subprocess.run(
            [sys.executable, "-c", ASKED, server.url], capture_output=True, text=True, check=True
        )
    assert done.stdout.split() == ["m", "None", "False"]
    assert [request.line.split()[1] for request in server.requests] == [
        "/v1/models",
        "/metrics",
        "/tokenize",
    ]
