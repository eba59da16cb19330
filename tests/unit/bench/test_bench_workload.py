"""Tests of the content of requests: lengths, marks, the user's own prompts, the body."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import Request, ScriptedServer, chat_events, chunked, plain

from workbench.bench import prompt_length
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.result_validity import ClientFacts
from workbench.bench.summary import summarize
from workbench.bench.workload import Workload, unique_prompt_mark
from workbench.model.bench import BenchSpec

SPEC = BenchSpec("http://127.0.0.1:1", "m", salt="ab", input_tokens=50, max_tokens=100)
TEXT, TALK = (
    json.dumps("tell me [of] ways"),
    json.dumps([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]),
)


def body(spec: BenchSpec, index: int = 0, *, warmup: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(Workload(spec).request_body(index, warmup=warmup))
    return fields


# -- synthetic prompts -----------------------------------------------------------------------------


def test_marks_are_as_long_in_every_prompt() -> None:
    marks = {unique_prompt_mark("ab", f"r/{i}") for i in range(2000)}
    assert len(marks) == 2000 and all(re.fullmatch(r"\d{12}", mark) for mark in marks)


def test_the_tokenizers_number_of_words_is_not_changed_by_calibration() -> None:
    workload = Workload(replace(SPEC, prompt_words=17))
    before = workload.synthetic_prompt(0, warmup=False)
    workload.calibrate_words([(0, 5000)])
    assert workload.synthetic_prompt(0, warmup=False) == before and not workload.calibrated
    assert len(before.partition(": ")[2].split()) == 17


def test_the_same_words_for_a_and_b_and_another_front() -> None:
    a, b = (
        Workload(replace(SPEC, salt=salt)).synthetic_prompt(3, warmup=False) for salt in ("a", "b")
    )
    assert a != b and a.partition("] ")[2] == b.partition("] ")[2]


def test_lengths_spread_around_the_requested_one_and_depend_on_the_seed() -> None:
    spec = replace(SPEC, length_spread=0.2)
    lengths = [body(spec, i)["max_tokens"] for i in range(400)]
    assert {min(lengths), max(lengths)} == {80, 120} and 98 < sum(lengths) / 400 < 102
    assert lengths == [body(replace(spec, salt="other"), i)["max_tokens"] for i in range(400)]
    assert lengths != [body(replace(spec, seed=1), i)["max_tokens"] for i in range(400)]
    one = body(spec, 7)
    assert one["min_tokens"] == one["max_tokens"] == Workload(spec).asked_tokens(7, warmup=False)


def test_no_length_is_demanded_where_the_engine_may_end_earlier() -> None:
    workload = Workload(replace(SPEC, ignore_eos=False))
    assert workload.asked_tokens(0, warmup=False) is None
    assert not {"ignore_eos", "min_tokens"} & set(
        json.loads(workload.request_body(0, warmup=False))
    )


def test_without_a_stream_no_stream_options_are_sent() -> None:
    fields = body(replace(SPEC, stream=False))
    assert fields["stream"] is False and "stream_options" not in fields


@pytest.mark.parametrize("texts", [(), ("One text. Another one.",)])
def test_usage_is_asked_for_once_an_answer_without_a_stream_lacks_it(
    texts: tuple[str, ...],
) -> None:
    """TabbyAPI gave no token counts at all, and vLLM rejects the option."""
    content = "text" if texts else SPEC.content
    workload = Workload(replace(SPEC, stream=False, content=content, texts=texts))
    workload.request_body(0, warmup=False)
    workload.request_body(1, warmup=False)
    assert workload.request_usage_from_now_on() and not workload.request_usage_from_now_on()
    sent = json.loads(workload.request_body(1, warmup=False))
    assert sent["stream_options"] == {"include_usage": True}
    refusal = "Stream options can only be defined when `stream=True`."
    assert workload.drop_rejected_fields(400, refusal, sent)
    assert "stream_options" not in json.loads(workload.request_body(1, warmup=False))
    assert not Workload(SPEC).request_usage_from_now_on(), "a stream always asks"


# -- the person's own prompts ----------------------------------------------------------------------


def test_own_prompts_are_used_in_turn_with_a_mark_at_the_front_of_all_text() -> None:
    spec = replace(SPEC, prompts=(TEXT, TALK))
    first, second, third = (body(spec, i)["messages"] for i in range(3))
    assert first == [
        {"role": "user", "content": f"[{unique_prompt_mark('ab', 'r/0')}] tell me [of] ways"}
    ]
    assert second[0] == {
        "role": "system",
        "content": f"[{unique_prompt_mark('ab', 'r/1')}] be kind",
    }
    assert second[1] == {"role": "user", "content": "hi"}
    assert third[0]["content"].endswith("tell me [of] ways") and third != first


def test_own_prompts_go_as_they_are_where_the_cache_is_to_stay_in_play() -> None:
    assert body(replace(SPEC, prompts=(TALK,), shared_prefix=True))["messages"] == json.loads(TALK)


def test_an_own_text_for_completions() -> None:
    assert body(replace(SPEC, prompts=(TEXT,), endpoint="completions"))["prompt"].endswith(
        "] tell me [of] ways"
    )


def test_a_picture_keeps_its_place_behind_the_mark() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    sent = body(replace(SPEC, prompts=(json.dumps([{"role": "user", "content": [picture]}]),)))[
        "messages"
    ]
    assert sent[0]["content"][1:] == [picture] and sent[0]["content"][0]["type"] == "text"


# -- the length by the server's tokenizer ----------------------------------------------------------


def counted(per_word: float, template: int) -> prompt_length.CountTokens:
    async def count(asked: Mapping[str, Any]) -> int | None:
        text = asked["prompt"] if "prompt" in asked else asked["messages"][0]["content"]
        return round(template + per_word * len(text.split()))

    return count


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9000), st.sampled_from([1.0, 1.3, 3.0]), st.integers(0, 60))
def test_the_length_is_met_as_closely_as_a_word_allows(
    wanted: int, per_word: float, template: int
) -> None:
    found = asyncio.run(
        prompt_length.measure_prompt_length(
            replace(SPEC, input_tokens=wanted), counted(per_word, template)
        )
    )
    assert found is not None
    shortest = round(template + per_word * 7)  # mark, five words of the task, one word
    assert abs(found.tokens - max(wanted, shortest)) <= per_word + 1
    assert (
        len(
            Workload(replace(SPEC, prompt_words=found.words))
            .synthetic_prompt(0, warmup=False)
            .split()
        )
        == found.words + 6
    )


def test_a_server_that_does_not_count() -> None:
    async def none(asked: Mapping[str, Any]) -> int | None:
        return None

    assert asyncio.run(prompt_length.measure_prompt_length(SPEC, none)) is None


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_counted_prompts_equal_sent_prompts(endpoint: str) -> None:
    seen: list[Mapping[str, Any]] = []

    async def count(asked: Mapping[str, Any]) -> int | None:
        seen.append(asked)
        return 10

    asyncio.run(prompt_length.measure_prompt_length(replace(SPEC, endpoint=endpoint), count))
    assert {name for asked in seen for name in asked} == {
        "prompt" if endpoint == "completions" else "messages"
    }


@pytest.mark.parametrize(
    ("fields", "exact"),
    [
        ({}, True),
        ({"ignore_eos": False}, False),
        ({"extra_body": {"ignore_eos": False}}, False),
        ({"ignore_eos": False, "extra_body": {"ignore_eos": True}}, True),
        ({"extra_body": {"ignore_eos": False, "min_tokens": 0}}, False),
    ],
)
def test_a_length_is_exact_if_the_server_counts_tokens(fields: dict[str, Any], exact: bool) -> None:
    workload = Workload(BenchSpec("u", "m", max_tokens=8, salt="ab", **fields))
    sent = json.loads(workload.request_body(0, warmup=False))
    assert bool(sent.get("ignore_eos")) == exact and (sent.get("min_tokens") == 8) == exact
    assert workload.asked_tokens(0, warmup=False) == (8 if exact else None)


def test_natural_lengths_end_where_the_model_ends_them() -> None:
    """Answers of two to five tokens, although eight were allowed: all succeed, and a note says so."""
    spec_fields = {
        "concurrency": 1,
        "requests": 4,
        "warmup": 0,
        "max_tokens": 8,
        "ignore_eos": False,
    }
    with ScriptedServer(lambda request, n: [chunked(chat_events(2 + n))]) as server:
        spec = BenchSpec(server.url, "m", **spec_fields)
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    assert [r.error for r in client.counted] == [None] * 4
    notes = summarize(spec, client.counted, (), ClientFacts()).notes
    assert any(
        n.startswith(
            "natural lengths: the token limit ended all answers, after 2 to 5 tokens, 4 on average"
        )
        for n in notes
    )


def test_a_server_that_knows_max_completion_tokens_only() -> None:
    said = {
        "error": {
            "message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        }
    }

    def answer(request: Request, n: int) -> list[bytes | str]:
        known = "max_completion_tokens" in request.body and "max_tokens" not in request.body
        return [chunked(chat_events(3))] if known else [plain("400 Bad Request", said)]

    with ScriptedServer(answer) as server:
        spec = BenchSpec(server.url, "m", concurrency=1, requests=4, warmup=0, max_tokens=3)
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    assert [r.error for r in client.counted] == [None] * 4


# -- bodies are made from the form of an earlier one -----------------------------------------------


def test_bodies_differ_only_in_their_prompt() -> None:
    workload = Workload(replace(SPEC, prompts=('"say \\"a\\" \\\\ \\u00e9"', '"b"')))
    for index in (0, 1, 0):
        asked = json.loads(workload.request_body(index, warmup=False))
        assert asked["messages"] == workload.prompt_fields(index, warmup=False)["messages"]
    assert "\u00e9".encode() in workload.request_body(0, warmup=False)


def test_a_rejected_field_is_missing_from_the_next_body() -> None:
    workload = Workload(SPEC)
    before = json.loads(workload.request_body(0, warmup=False))
    assert workload.drop_rejected_fields(400, "unknown field min_tokens", before)
    after = json.loads(workload.request_body(0, warmup=False))
    assert before.keys() - after.keys() == {"min_tokens"}


def test_the_users_own_messages_replace_the_prompt() -> None:
    own = [{"role": "user", "content": "mine"}]
    for index in range(2):
        assert body(replace(SPEC, extra_body={"messages": own}), index)["messages"] == own
