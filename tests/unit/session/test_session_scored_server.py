"""A server whose answers are compared: whether it is known what else it serves, and which engine it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from workbench import engines
from workbench.model.errors import BenchError
from workbench.model.load_spec import BenchSpec
from workbench.model.server_run import EngineMetrics
from workbench.session.bench.benchmark_load import BenchmarkLoad, ServerUnderTest
from workbench.session.quality.scored_server import ScoredServer, open_scored_server

ADDRESS = "http://box:8000"


class Watch:
    """An engine with these counts of finished requests, one after the other; None: it does not say."""

    def __init__(self, *counts: int | None) -> None:
        self._counts = iter(counts)

    async def read_counters(self) -> EngineMetrics:
        count = next(self._counts)
        absent = {"requests_finished": "llama.cpp does not report this metric"} if not count else {}
        return EngineMetrics(requests_finished=count, absent=absent)


def server(watch: Any, address: str = ADDRESS) -> ScoredServer:
    load: Any = SimpleNamespace(server=SimpleNamespace(status=None, address=address))
    return ScoredServer(load, SimpleNamespace(), watch, engines.get_engine("llamacpp"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((5, 5), ""),
        ((5, 8), f"{ADDRESS} served 3 requests of others meanwhile"),
        (
            (None, None),
            f"whether {ADDRESS} served others meanwhile is not known: llama.cpp does not report "
            "this metric",
        ),
        (
            (None, 5),
            f"whether {ADDRESS} served others meanwhile is not known: its counter could not be "
            "read at first",
        ),
    ],
)
async def test_requests_of_others_are_counted_or_it_is_said_that_they_are_not(
    counts: tuple[int | None, ...], said: str
) -> None:
    measured = server(Watch(*counts))
    await measured.start_counting_requests()
    assert await measured.describe_other_clients_requests() == said


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"requests_total 7\n")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def other_server() -> Iterator[str]:
    """Return the URL of a server of no engine that Workbench knows."""
    with HTTPServer(("127.0.0.1", 0), _Page) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.mark.anyio
async def test_an_engine_that_is_not_known_is_one_sentence(other_server: str) -> None:
    spec = BenchSpec(url=other_server, model="m")
    measured = ServerUnderTest("127.0.0.1", address=other_server)
    load = BenchmarkLoad(spec, measured, {}, asyncio.Event())
    with pytest.raises(BenchError) as refused:
        async with open_scored_server(load):
            pass
    assert refused.value.message == (
        f"the engine of {other_server} is not known: /metrics is not the page of an engine that "
        "Workbench knows"
    )
    assert refused.value.next_step


@pytest.mark.anyio
async def test_an_engine_without_log_probabilities_is_one_sentence() -> None:
    engine: Any = SimpleNamespace(score_interface=None, title="Some engine")
    load: Any = SimpleNamespace()
    with pytest.raises(BenchError, match="Some engine gives no log probabilities of a text"):
        ScoredServer(load, SimpleNamespace(), Watch(), engine).make_instrument(lambda *words: None)
