"""Answers that arrive in one read: those that are like one before give the same records as if they
were parsed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import (
    Request,
    ScriptedServer,
    Step,
    chat_events,
    chunk,
    chunked,
    event,
    plain,
    sized,
    usage,
)

from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.exchange import Exchange
from workbench.bench.http1 import HttpError
from workbench.bench.records import RequestRecord
from workbench.bench.sse import SseError
from workbench.bench.whole_answer import WholeAnswers
from workbench.model.bench import BenchSpec

ASKED = 1


def one_token(text: str, own_id: str, **fields: Any) -> list[bytes]:
    """Return the events of an answer with one token, the finish reason in its event as in vLLM."""
    part = {"content": text} if fields.get("reasoning") is None else fields["reasoning"]
    end = {**chunk(), "choices": [], "usage": usage(150, fields.get("tokens", 1))}
    events = [chunk({"role": "assistant", "content": ""}), chunk(part, fields.get("finish")), end]
    if fields.get("finish") is None:
        events.insert(2, chunk({}, "length"))
    return [*(event({**each, "id": own_id}) for each in events), event(b"[DONE]")]


def embedding(text: str, own_id: str) -> bytes:
    data = [{"object": "embedding", "index": 0, "embedding": text}]
    return plain("200 OK", {"id": own_id, "data": data, "model": "m", "usage": usage(9, 0)})


def message(text: str, own_id: str) -> bytes:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "length"}
    return plain("200 OK", {"id": own_id, "choices": [choice], "usage": usage(9, 1)})


STREAMED: list[Callable[[str, str], bytes]] = [
    lambda text, own_id: chunked(one_token(text, own_id)),
    lambda text, own_id: sized(one_token(text, own_id)),
    lambda text, own_id: chunked(one_token(text, own_id, finish="length")),
    lambda text, own_id: chunked(one_token(text, own_id, tokens=2)),
    lambda text, own_id: chunked(one_token(text, own_id, reasoning={"reasoning": text})),
    lambda text, own_id: chunked(
        one_token(text, own_id, reasoning={"tool_calls": [{"text": text}]})
    ),
    lambda text, own_id: chunked(one_token(text, own_id), extra=b"Connection: close\r\n"),
    lambda text, own_id: chunked([*one_token(text, own_id), event({"error": {"message": text}})]),
    lambda text, own_id: chunked([event({**chunk({"content": text}), "id": own_id})] * 2),
    lambda text, own_id: chunked(one_token(text, own_id)[:-1]),
    lambda text, own_id: chunked(one_token(text, own_id)) + b"more",
]
WHOLE: list[Callable[[str, str], bytes]] = [
    embedding,
    message,
    lambda text, own_id: plain("500 Internal Server Error", {"error": text, "id": own_id}),
]
TEXT = st.sampled_from(["a", "b", "ab", " t0", '"', "\\", "é", "\n", "", "id", "1"])
OWN_ID = st.sampled_from(["1", "2", "a", "id", "c-1", "c-2", 'a"b', "\\"])


def parsed(data: bytes, stream: bool) -> tuple[Exchange, str | None]:
    """Return the exchange that parsed this answer, and how it failed."""
    exchange = sent(stream)
    try:
        exchange.receive_bytes(data, 5_000_000)
        if not exchange.response.complete:
            return exchange, "open"
    except (HttpError, SseError):
        return exchange, records.MALFORMED
    refused = exchange.http_error()
    if refused is not None:
        return exchange, refused[0]
    exchange.check_reply_and_set_error(ASKED if stream else None)
    return exchange, exchange.reply.error


def sent(stream: bool) -> Exchange:
    exchange = Exchange(7, False, b"{}", stream=stream)
    exchange.began_ns = exchange.sent_ns = exchange.last_byte_ns = 1_000_000
    return exchange


def told(exchange: Exchange) -> tuple[Any, ...]:
    record = exchange.make_record(0, None, None)
    kept = exchange.can_reuse_connection
    reply = exchange.parsed_reply()
    return (
        record,
        kept,
        reply.text.beginning_end_and_length(),
        reply.reasoning.beginning_end_and_length(),
        reply.model,
    )


def changed(draw: Callable[..., Any], data: bytes) -> bytes:
    """Return bytes with one of them replaced, so that the length stays the same."""
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + draw(st.sampled_from([b"0", b'"', b"\n", b"x", b"{"])) + data[at + 1 :]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), stream=st.booleans())
def test_known_answers_are_what_the_parsers_find(data: st.DataObject, stream: bool) -> None:
    forms = data.draw(st.lists(st.sampled_from(STREAMED if stream else WHOLE), max_size=2))
    known = WholeAnswers()
    for make in forms * 5:
        answer = make(data.draw(TEXT), data.draw(OWN_ID))
        answer = changed(data.draw, answer) if data.draw(st.integers(0, 3)) == 0 else answer
        exchange, error = parsed(answer, stream)
        whole = known.find_answer(answer)
        if whole is not None:
            assert error is None or whole.output_tokens != ASKED
            quick = sent(stream)
            quick.accept_answer_like_earlier(whole, answer, 5_000_000)
            assert told(quick) == told(exchange)
        elif error is None:
            known.store_answer(answer, exchange)


def test_ids_and_texts_of_equal_length_are_known_and_other_bytes_are_not() -> None:
    known = WholeAnswers()
    make = STREAMED[0]
    exchange, _ = parsed(make("abc", "chat-1"), True)
    known.store_answer(make("abc", "chat-1"), exchange)
    assert known.find_answer(make("xyz", "chat-2")) is not None
    for other in (
        make("x\\n", "chat-2"),  # a text that needs escapes
        make("xyz", 'a":"b"'),
        make("xyz", "chat-2").replace(b'"completion_tokens":1', b'"completion_tokens":2'),
        make("xyz", "chat-2").replace(b'"created":1', b'"created":2', 1),
        make("xyz", "chat-2").replace(b"200 OK", b"201 OK"),
    ):
        assert known.find_answer(other) is None


@pytest.mark.parametrize("form", [0, 2, 3])
def test_runs_have_the_same_records_with_and_without_the_fast_path(
    form: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requested lengths differ from request to request, so answers like one before are wrong."""

    def answer(request: Request, n: int) -> list[Step]:
        return [STREAMED[form](f"t{n % 10}", f"chat-{n % 10}")]

    quick = run(answer)
    monkeypatch.setattr(WholeAnswers, "find_answer", lambda self, data: None)
    slow = run(answer)
    assert quick.counted == slow.counted
    assert {None, records.SHORT_ANSWER} <= {r.error for r in quick.counted}
    assert quick.answers.sampled_answers() == slow.answers.sampled_answers()


def run(answer: Callable[[Request, int], list[Step]]) -> Client:
    """Return the client after a run with requests of one to three tokens, its records without
    times."""
    with ScriptedServer(answer) as server:
        spec = BenchSpec(server.url, "m", 1, 40, 2, warmup=0, salt="s", length_spread=0.5)
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    client.counted = [
        replace(r, start_s=0, end_us=0, ttft_us=0, send_us=0, gaps_us=(), unsure=())
        for r in client.counted
    ]
    return client


def test_few_answers_of_one_token_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    find = WholeAnswers.find_answer

    def counted(self: WholeAnswers, data: bytes) -> Any:
        whole = find(self, data)
        found.append(whole is not None)
        return whole

    monkeypatch.setattr(WholeAnswers, "find_answer", counted)
    with ScriptedServer(lambda request, n: [chunked(chat_events(1))]) as server:
        spec = BenchSpec(server.url, "m", 4, 200, 1, warmup=0, salt="s")
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    assert all(r.ok for r in client.counted)
    # an answer that arrives in two pieces on a busy machine is parsed without a look
    assert found.count(True) >= 150 and found.count(False) <= 10


RECORD = st.builds(
    RequestRecord,
    index=st.integers(0, 10**6),
    warmup=st.booleans(),
    start_s=st.floats(0, 10**5).map(lambda s: round(s, 6)),
    end_us=st.integers(0, 10**9),
    error=st.sampled_from([None, records.SHORT_ANSWER]),
    ttft_us=st.none() | st.integers(0, 10**9),
    gaps_us=st.sampled_from([(), (1, 2)]),
    output_tokens=st.none() | st.integers(0, 9),
    finish_reason=st.sampled_from([None, "length", "%d", 'a"b%']),
    due_s=st.none() | st.floats(0, 9),
    unsure=st.sampled_from([(), ((0, 1, 5),)]),
    send_us=st.integers(0, 3),
)


@settings(deadline=None)
@given(record=RECORD)
def test_the_text_of_a_record_is_its_json(record: RequestRecord) -> None:
    expected = json.dumps(record.as_json(), separators=(",", ":"))
    assert record.json_text() == record.json_text() == expected
