"""Tests of the engine's counters around a run, and of the tokenizer endpoints of the engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from workbench import engines
from workbench.model.bench import EngineDuring
from workbench.model.server_run import EngineMetrics
from workbench.server import engine_counters, metrics
from workbench.server.small_requests import make_asker
from workbench.server.tokenizer import Tokenizer

BEFORE = EngineMetrics(
    running=0,
    waiting=0,
    kv_use_pct=0.0,
    prompt_tokens=100,
    generation_tokens=50,
    requests_finished=5,
    prefix_hit_tokens=10,
    prefix_query_tokens=100,
    preemptions=1,
)
AFTER = EngineMetrics(
    running=0,
    waiting=0,
    kv_use_pct=0.0,
    prompt_tokens=1100,
    generation_tokens=650,
    requests_finished=25,
    prefix_hit_tokens=60,
    prefix_query_tokens=1100,
    preemptions=4,
    spec_draft_tokens=80,
    spec_accepted_tokens=60,
)
DURING = [
    EngineMetrics(running=r, waiting=w, kv_use_pct=k)
    for r, w, k in ((4, 0, 10.0), (8, 6, 30.5), (6, 3, 20.0))
]


def test_differences_means_and_maxima() -> None:
    e = engine_counters.summarize_counters(BEFORE, DURING, AFTER)
    assert (e.requests_finished, e.prompt_tokens, e.generation_tokens, e.preemptions) == (
        20,
        1000,
        600,
        3,
    )
    assert (e.running_mean, e.running_max, e.waiting_mean, e.waiting_max, e.kv_use_max_pct) == (
        6.0,
        8,
        3.0,
        6,
        30.5,
    )
    assert (e.prefix_hit_pct, e.prefix_hit_tokens, e.samples) == (5.0, 50, 3)
    assert e.spec_accepted_pct == 75.0  # a counter that appeared with its first use began at 0
    assert e.absent == {}


def test_an_unread_counter_is_absent_with_the_reason() -> None:
    e = engine_counters.summarize_counters(
        metrics.metrics_without_values("/metrics answers 404"), [], AFTER
    )
    assert e.prompt_tokens is None and e.absent["prompt_tokens"] == "/metrics answers 404"
    assert e.running_mean is None and "shorter than the time" in e.absent["running_mean"]
    back = engine_counters.summarize_counters(AFTER, DURING, BEFORE)
    assert back.prompt_tokens is None and "decreased" in back.absent["prompt_tokens"]
    nothing = engine_counters.counters_without_values("no page")
    assert all(
        (getattr(nothing, name) is None) == (name in nothing.absent) for name in nothing.absent
    )


def test_disagreements_name_both_counts() -> None:
    e = engine_counters.summarize_counters(BEFORE, DURING, AFTER)
    assert engine_counters.describe_count_differences(e, 20, 1000, 600) == ()
    assert engine_counters.describe_count_differences(e, 19, 1000, None) == (
        "requests: the engine counted 20, this benchmark 19",
    )


def test_foreign_requests_are_more_than_other_counts() -> None:
    e = engine_counters.summarize_counters(BEFORE, DURING, AFTER)
    e = replace(e, requests_finished=60, prompt_tokens=3000, generation_tokens=1000, running_max=4)
    e = replace(e, in_flight_median=4.0)
    said = engine_counters.describe_load_of_other_clients(e, 20, 1500, 700, 4)
    assert said is not None and said.startswith("somebody else's requests were 50 % of the tokens")
    assert "requests: the engine counted 60, this benchmark 20" in said
    assert engine_counters.describe_load_of_other_clients(e, 59, 2900, 960, 4) is None, (
        "4 % is a health check"
    )
    same = replace(e, requests_finished=20)
    assert engine_counters.describe_load_of_other_clients(same, 20, 1500, 700, 4) is None, (
        "it counts tokens otherwise"
    )
    beside = replace(same, running_max=12)  # requests of others that have not finished yet
    assert engine_counters.describe_load_of_other_clients(beside, 20, 3000, 700, 4) is not None
    unknown = replace(e, requests_finished=None, running_max=None)
    assert engine_counters.describe_load_of_other_clients(unknown, 20, 1500, 700, 4) is None
    assert engine_counters.describe_load_of_other_clients(e, 20, None, None, 4) is None, (
        "no usage to compare with"
    )
    assert (
        engine_counters.describe_load_of_other_clients(
            engine_counters.counters_without_values("no page"), 20, 1, 1, 4
        )
        is None
    )


def test_foreign_requests_beside_a_failed_one_are_foreign() -> None:
    """One failed request of 200 is accepted, and had hidden any traffic of other clients."""
    e = engine_counters.summarize_counters(BEFORE, DURING, AFTER)
    e = replace(e, requests_finished=900, prompt_tokens=90_000, generation_tokens=26_000)
    e = replace(e, running_max=4, in_flight_median=4.0)
    said = engine_counters.describe_load_of_other_clients(
        e, 200, 20_000, 6_000, 4, uncounted_prompt_and_output_tokens=(200, 40)
    )
    assert said is not None and said.startswith("somebody else's requests were 78 % of the tokens")
    own = replace(e, requests_finished=210, prompt_tokens=22_000, generation_tokens=6_390)
    assert engine_counters.describe_load_of_other_clients(own, 200, 20_000, 6_000, 4) is not None
    failed = {"uncounted_prompt_and_output_tokens": (2_000, 400)}
    assert (
        engine_counters.describe_load_of_other_clients(own, 200, 20_000, 6_000, 4, **failed) is None
    )


def test_foreign_requests_that_outlast_the_run_are_foreign() -> None:
    """SGLang and llama.cpp count tokens when a request ends, so a long answer to another client had
    no token; and llama.cpp never runs more requests than it has slots."""

    def seen(*readings: tuple[int, int]) -> str | None:
        during = [EngineMetrics(running=running, waiting=waiting) for running, waiting in readings]
        e = engine_counters.summarize_counters(BEFORE, during, AFTER)
        e = replace(e, requests_finished=None, prompt_tokens=2_000, generation_tokens=800)
        return engine_counters.describe_load_of_other_clients(e, 20, 2_000, 800, 4)

    said = seen((6, 0), (6, 0), (5, 0), (6, 0))
    assert said is not None and "33 % of those that the engine had at a time (6 in the" in said
    slots = seen((4, 3), (4, 4), (4, 4))
    assert slots is not None and "50 % of those" in slots
    assert seen((4, 0), (3, 1), (4, 0)) is None, "its own requests"
    assert seen((12, 0), (4, 0), (4, 0)) is None, "a reading from before the run"
    assert seen((6, 0), (6, 0)) is None, "too few readings"


# -- pages -----------------------------------------------------------------------------------------

LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 700
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 300
"""


def test_llama_cpp_counts_cached_tokens_beside_the_prompts() -> None:
    read = metrics.parse_metrics(LLAMA, engines.get_engine("llamacpp"))
    assert (read.prompt_tokens, read.prefix_hit_tokens, read.prefix_hit_pct) == (1000, 300, 30.0)


def test_sglang_looks_every_prompt_token_up() -> None:
    page = 'sglang:prompt_tokens_total{is_streaming="true"} 90.0\n'
    page += 'sglang:prompt_tokens_total{is_streaming="false"} 10.0\n'
    page += 'sglang:cached_tokens_total{cache_source="device"} 25.0\n'
    read = metrics.parse_metrics(page, engines.get_engine("sglang"))
    assert (read.prompt_tokens, read.prefix_hit_pct) == (
        100,
        25.0,
    ) and "prefix_query_tokens" not in read.absent


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (LLAMA, "llamacpp"),
        ('# HELP x\nvllm:num_requests_running{engine="0"} 0.0\n', "vllm"),
        ("sglang:num_running_reqs 0.0\n", "sglang"),
        ("# vllm: mentioned only\nprocess_cpu_seconds_total 1\n", None),
        ("<html>vllm:</html>", None),
        ("", None),
    ],
)
def test_whose_page_it_is(page: str, engine: str | None) -> None:
    found = metrics.engine_of_metrics_page(page)
    assert (found.name if found else None) == engine


# -- tokenizer endpoints ---------------------------------------------------------------------------

MESSAGES = {"messages": [{"role": "user", "content": "a b"}]}
TEXT = {"prompt": "a b"}


def ask(
    engine: str, asked: Mapping[str, Any], replies: Mapping[str, Any]
) -> tuple[int | None, Tokenizer, list[Any]]:
    """Return the count and the requests made. `replies` are answers by path; a number is a status."""
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.path, json.loads(request.content)))
        reply = replies.get(request.url.path, 404)
        return httpx.Response(reply) if isinstance(reply, int) else httpx.Response(200, json=reply)

    async def go() -> tuple[int | None, Tokenizer]:
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(answer), base_url="http://h"
        ) as http:
            tokenizer = Tokenizer(make_asker(http), engines.get_engine(engine), "m")
            return await tokenizer.count_tokens(asked), tokenizer

    return (*asyncio.run(go()), sent)


def test_vllm_counts_messages_with_their_template() -> None:
    reply = {"count": 9, "max_model_len": 2048, "tokens": [1] * 9}
    count, tokenizer, sent = ask("vllm", MESSAGES, {"/tokenize": reply})
    assert (count, tokenizer.max_model_len) == (9, 2048) and sent == [
        ("/tokenize", {"model": "m", **MESSAGES})
    ]


def test_llama_cpp_writes_messages_as_a_text_first() -> None:
    replies = {"/apply-template": {"prompt": "<|user|>a b"}, "/tokenize": {"tokens": [1, 2, 3]}}
    count, _, sent = ask("llamacpp", MESSAGES, replies)
    assert count == 3
    assert sent[1] == (
        "/tokenize",
        {"content": "<|user|>a b", "add_special": True, "parse_special": True},
    )


def test_tabbyapi_gives_a_length() -> None:
    assert ask("tabbyapi", TEXT, {"/v1/token/encode": {"tokens": [], "length": 4}})[0] == 4


def test_sglang_counts_texts_only() -> None:
    assert (
        ask("sglang", TEXT, {"/tokenize": {"tokens": [1, 2], "count": 2, "max_model_len": -1}})[0]
        == 2
    )
    usage = {"usage": {"prompt_tokens": 15}}
    replies = {"/tokenize": {"count": 2}, "/v1/chat/completions": usage}
    count, _, sent = ask("sglang", MESSAGES, replies)
    assert count == 2 + 13  # the template is 13 tokens: 15 less those of the text
    assert [path for path, _ in sent] == ["/v1/chat/completions", "/tokenize", "/tokenize"]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (404, "/tokenize answers HTTP status 404"),
        (401, "/tokenize answers HTTP status 401"),
        ([1], "not a JSON object"),
        ({}, "returned no token count"),
        ({"count": 0}, "returned no token count"),
        ({"tokens": "abc"}, "returned no token count"),
    ],
)
def test_a_server_that_does_not_say(reply: Any, problem: str) -> None:
    count, tokenizer, _ = ask("vllm", TEXT, {"/tokenize": reply})
    assert count is None and problem in str(tokenizer.problem)


def test_waiting_ends_when_no_count_is_below_the_benchmarks() -> None:
    e = EngineDuring(requests_finished=20, prompt_tokens=1000, generation_tokens=600)
    assert engine_counters.has_engine_counted_all(e, 20, 1000, 600)
    # others asked too: more waiting would not make them agree
    assert engine_counters.has_engine_counted_all(e, 19, None, 600)
    assert not engine_counters.has_engine_counted_all(e, 20, 1000, 601)
    assert engine_counters.has_engine_counted_all(
        engine_counters.counters_without_values("no page"), 20, 1000, 600
    )
