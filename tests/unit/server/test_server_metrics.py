"""Tests of engine counters: matched by name, summed over labels, absent with a reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from support.scripted_server import FIN, RST, SILENCE, ScriptedServer

from workbench import engines
from workbench.model.server_run import EngineMetrics
from workbench.server import metrics
from workbench.server.kept_connection import KeepAliveConnection
from workbench.server.small_requests import make_asker, make_get_without_body

# The shape of vLLM's page with two data-parallel engines: same names, one series per engine and per
# finish reason.
TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 100.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 28.0
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="tiny"} 1.7952168756696875e+09
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 4.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="tiny"} 2.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 200.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 50.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 7.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 0.5
"""


def test_series_are_summed_over_engines_and_shares_averaged() -> None:
    read = metrics.parse_metrics(TWO_ENGINES, engines.get_engine("vllm"))
    assert (read.running, read.kv_use_pct, read.generation_tokens, read.requests_finished) == (
        7,
        50.0,
        128,
        7,
    )
    assert read.prefix_hit_pct == 25.0
    assert read.waiting is None
    assert read.absent["waiting"] == (
        "the engine's metrics page does not contain vllm:num_requests_waiting"
    )


def test_older_names_are_known() -> None:
    page = '# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc{model_name="m"} 0.5\n'
    assert metrics.parse_metrics(page, engines.get_engine("vllm")).kv_use_pct == 50.0


def test_a_quantity_that_an_engine_does_not_count_is_absent_not_zero() -> None:
    page = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\n"
    read = metrics.parse_metrics(page, engines.get_engine("llamacpp"))
    assert read.running == 2
    assert read.kv_use_pct is None
    assert "llama.cpp does not report" in read.absent["kv_use_pct"]
    assert read.prefix_hit_pct is None


@pytest.mark.parametrize("share", ["1.05", "42"])
def test_a_share_of_the_cache_above_all_of_it_is_not_shown(share: str) -> None:
    page = (
        f'# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{{engine="0"}} {share}\n'
    )
    read = metrics.parse_metrics(page, engines.get_engine("vllm"))
    assert read.kv_use_pct is None and "at most 100 %" in read.absent["kv_use_pct"]


def test_not_a_number_is_not_counted() -> None:
    page = "# TYPE sglang:token_usage gauge\nsglang:token_usage NaN\n"
    assert metrics.parse_metrics(page, engines.get_engine("sglang")).kv_use_pct is None


@pytest.mark.parametrize(
    ("engine", "status", "body", "reason"),
    [
        (
            "llamacpp",
            501,
            "",
            "the metrics page /metrics answers HTTP status 501; the server was started without "
            "--metrics",
        ),
        ("vllm", 500, "", "the metrics page /metrics answers HTTP status 500"),
        ("vllm", 200, "<html>\x00{{{ 1 2 3", "/metrics is not a Prometheus page"),
    ],
)
def test_a_page_that_cannot_be_had_gives_reasons(
    engine: str, status: int, body: str, reason: str
) -> None:
    read = _fetch(engine, httpx.MockTransport(lambda _: httpx.Response(status, text=body)))
    assert read.running is None
    assert reason in read.absent["running"]
    assert set(read.absent) >= {"running", "waiting", "prompt_tokens", "requests_finished"}


def test_an_engine_without_a_page_and_a_dead_server_give_reasons() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("All connection attempts failed", request=request)

    assert (
        "All connection attempts failed"
        in _fetch("vllm", httpx.MockTransport(refuse)).absent["running"]
    )
    assert _fetch("tabbyapi", httpx.MockTransport(refuse)).absent["running"] == (
        "TabbyAPI has no metrics page"
    )


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def endless() -> Iterator[bytes]:
    yield HEAD
    while True:
        yield b"# TYPE vllm:num_requests_running gauge\n" * 2000


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request, n: endless(), "no complete answer within 0.5 s|larger than 16 MiB"),
        (lambda request, n: [HEAD, b"# TYPE", SILENCE], "no complete answer within 0.5 s"),
        (lambda request, n: [SILENCE], "no complete answer within 0.5 s"),
        (lambda request, n: [RST], "cannot be read"),
        (lambda request, n: [HEAD, bytes(range(256)) * 50, FIN], "is not a Prometheus page"),
    ],
)
def test_a_page_that_does_not_end_or_is_garbage_gives_the_reason(answer: Any, reason: str) -> None:
    async def go(url: str) -> EngineMetrics:
        with closing(KeepAliveConnection(url)) as kept:
            return await metrics.fetch_metrics(kept.get, engines.get_engine("vllm"), timeout_s=0.5)

    with ScriptedServer(answer) as server:
        read = asyncio.run(go(server.url))
        assert read.generation_tokens is None and read.live_generation_tokens is None
        assert re.search(reason, read.absent["live_generation_tokens"]), read.absent


@pytest.mark.parametrize("charset", ["hex", "zlib", "undefined", "idna", "utf-16"])
def test_a_page_is_utf_8_whatever_codec_the_server_names(charset: str) -> None:
    page = b"vllm:num_requests_running 1\n"
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset={charset}\r\nContent-Length: "
        f"{len(page)}\r\n\r\n"
    )

    async def go(url: str) -> EngineMetrics:
        with closing(KeepAliveConnection(url)) as kept:
            return await metrics.fetch_metrics(kept.get, engines.get_engine("vllm"), timeout_s=5.0)

    with ScriptedServer(lambda request, n: [head.encode(), page, FIN]) as server:
        assert asyncio.run(go(server.url)).running == 1


def test_more_series_than_an_engine_has_are_not_added_up() -> None:
    read = metrics.parse_metrics(
        "vllm:num_requests_running 1\n" * 100_000, engines.get_engine("vllm")
    )
    assert read.running is None and "running" in read.absent


LLAMA = "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 500\n"
SLOTS = [
    {"id": 0, "is_processing": True, "next_token": [{"n_decoded": 30}]},
    {"id": 1, "is_processing": False, "next_token": [{"n_decoded": 99}]},
    {"id": 2, "is_processing": True, "next_token": [{"n_decoded": 12}]},
]


@pytest.mark.parametrize(
    ("slots", "live", "reason"),
    [
        (httpx.Response(200, json=SLOTS), 542, None),
        (
            httpx.Response(501, text="no"),
            None,
            "when a request ends, and /slots answers HTTP status 501",
        ),
        (httpx.Response(200, json={"error": 1}), None, "/slots answers HTTP status 200"),
        *(
            (httpx.Response(200, text=text), None, "/slots answers HTTP status 200")
            for text in (
                '[{"is_processing": true, "next_token": [{"n_decoded": Infinity}]}]',
                f'[{{"is_processing": true, "next_token": [{{"n_decoded": 1{"0" * 400}}}]}}]',
                '[{"is_processing": true, "next_token": [{"n_decoded": -5}]}]',
                "[" * 100_000,
            )
        ),
    ],
)
def test_tokens_of_running_requests_of_llama_cpp_come_from_its_slots(
    slots: httpx.Response, live: int | None, reason: str | None
) -> None:
    pages = {"/metrics": httpx.Response(200, text=LLAMA), "/slots": slots}
    read = _fetch("llamacpp", httpx.MockTransport(lambda request: pages[request.url.path]))
    assert (read.generation_tokens, read.live_generation_tokens) == (500, live)
    assert reason is None or reason in read.absent["live_generation_tokens"]


def test_sglang_counts_running_requests_in_its_realtime_series() -> None:
    page = """# TYPE sglang:realtime_tokens_total counter
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",tp_rank="0"} 180.0
sglang:realtime_tokens_total{engine_type="unified",mode="decode",tp_rank="0"} 37.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_cache",tp_rank="0"} 95.0
sglang:generation_tokens_total{is_streaming="true"} 20.0
sglang:prompt_tokens_total{is_streaming="true"} 100.0
sglang:time_to_first_token_seconds_count{is_streaming="true"} 4.0
sglang:time_to_first_token_seconds_count{is_streaming="false"} 1.0
"""
    read = metrics.parse_metrics(page, engines.get_engine("sglang"))
    assert (read.generation_tokens, read.live_generation_tokens) == (20, 42)
    assert (read.prompt_tokens, read.live_prompt_tokens) == (100, 275)
    assert "does not report" in read.absent["preemptions"]


def _fetch(engine: str, transport: httpx.MockTransport) -> EngineMetrics:
    async def go() -> EngineMetrics:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as http:
            return await metrics.fetch_metrics(
                make_get_without_body(make_asker(http)), engines.get_engine(engine)
            )

    return asyncio.run(go())
