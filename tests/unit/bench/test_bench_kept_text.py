"""The load client keeps the text of the answers, whatever the pieces in which it arrives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ScriptedServer, chunk, chunked, event, openai, plain, usage

from workbench.bench import records
from workbench.bench.answer_sample import AnswerSample
from workbench.bench.client import Client
from workbench.bench.client_report import summary_message
from workbench.bench.connection import resolve_endpoint
from workbench.bench.exchange import Exchange
from workbench.bench.kept_text import FIRST_CHARACTERS, LAST_CHARACTERS, ShortenedText
from workbench.bench.records import RequestRecord
from workbench.bench.reply import Reply
from workbench.model.answer_text import TextReport
from workbench.model.bench import BenchSpec, BenchSummary
from workbench.model.json_records import from_json

_PIECES = st.lists(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
    | st.sampled_from([" the", '"', "\\", "\n", "\\u", "的", "🍁", "</"]),
    min_size=1,
    max_size=60,
)


def streamed(deltas: list[dict[str, str]], *, ascii_only: bool) -> bytes:
    """Return the bytes of an answer with these deltas, one chunk of HTTP for each."""
    end = [chunk({}, "stop"), {**chunk(), "choices": [], "usage": usage(9, len(deltas))}]
    events = [
        b"data: " + json.dumps(one, ensure_ascii=ascii_only).encode() + b"\n\n"
        for one in (*(chunk(delta) for delta in deltas), *end)
    ]
    return chunked([*events, event(b"[DONE]")])


def kept(reply: Reply) -> tuple[str, str]:
    return reply.reasoning.beginning_end_and_length()[0], reply.text.beginning_end_and_length()[0]


@given(_PIECES, _PIECES, st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_the_text_is_kept_however_it_is_cut(
    thoughts: list[str], words: list[str], ascii_only: bool, data: st.DataObject
) -> None:
    deltas = [{"reasoning_content": one} for one in thoughts] + [{"content": w} for w in words]
    whole = streamed(deltas, ascii_only=ascii_only)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=12)))
    exchange = Exchange(0, False, b"{}")
    for at, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(whole)], strict=True)):
        exchange.receive_bytes(whole[start:end], at + 1)
    exchange.check_reply_and_set_error(None)
    assert exchange.reply.error is None and exchange.reply.model == "m"
    assert kept(exchange.reply) == ("".join(thoughts), "".join(words))


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=3000), max_size=12))
def test_of_a_long_text_the_ends_are_kept(pieces: list[str]) -> None:
    text, kept_text = "".join(pieces), ShortenedText()
    for piece in pieces:
        kept_text.add_text(piece)
        kept_text.drop_middle_of_long_text()
        assert len(kept_text.raw) <= 8192
    first, last, characters = kept_text.beginning_end_and_length()
    assert (first, characters) == (text[:FIRST_CHARACTERS], len(text))
    assert last == text[FIRST_CHARACTERS:][-LAST_CHARACTERS:]


def test_a_sample_is_bounded_and_spread_over_the_run() -> None:
    sample = AnswerSample(10)
    for i in range(1000):
        reply = Reply()
        reply.text.add_text(f"answer {i}")
        sample.add_answer(RequestRecord(i, False, 0.0, 1, output_tokens=2), reply, f"{i}")
    numbers = [int(answer.prompt) for answer in sample.sampled_answers()]
    assert 5 <= len(numbers) <= 10 and sample.seen == 1000
    assert numbers[0] == 0 and numbers[-1] > 800
    assert sample.sampled_answers()[0].text == "answer 0"


def reports(answer: bytes, **fields: Any) -> tuple[list[RequestRecord], TextReport | None]:
    """Return the records and the text of a run against a server that always gives `answer`."""
    given = {"concurrency": 2, "requests": 4, "warmup": 0, "max_tokens": 8, **fields}
    with ScriptedServer(openai(lambda request, n: [answer])) as server:
        spec = BenchSpec(server.url, "m", salt="s", **given)
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    message = summary_message(spec, [client.report()], client.counted, client.warmups)
    stored = from_json(BenchSummary, json.loads(json.dumps(message["summary"])))
    return client.counted, stored.text


def test_a_result_has_the_features_of_its_text() -> None:
    counted, text = reports(streamed([{"content": " the"}] * 40, ascii_only=True), ignore_eos=False)
    assert text is not None and all(r.ok for r in counted)
    load = text.load
    assert (load.answers, load.looked_at, load.collapsed, load.equal) == (4, 4, 4, 4)
    assert load.repeated == " the" and load.finish_reasons == {"stop": 4}
    assert load.characters_per_token == 4.0 and load.models == {"m": 4}
    assert load.excerpts[0].startswith('" the the')


def test_prompts_that_are_equal_may_have_equal_answers() -> None:
    prompts = tuple(json.dumps("How are you?") for _ in range(1))
    answer = streamed([{"content": "I am well."}], ascii_only=True)
    _, text = reports(answer, ignore_eos=False, prompts=prompts)
    assert text is not None and text.load.equal == 0


_EMPTY = [chunk({"role": "assistant", "content": ""})] * 40
_TAIL = [chunk({}, "length"), {**chunk(), "choices": [], "usage": usage(9, 40)}]


@pytest.mark.parametrize("deltas", [_EMPTY, []], ids=["empty deltas", "no delta"])
def test_an_answer_without_content_is_a_failed_request(deltas: list[dict[str, Any]]) -> None:
    answer = chunked([event(one) for one in (*deltas, *_TAIL, b"[DONE]")])
    counted, text = reports(answer, max_tokens=40)
    assert {(r.error, r.detail) for r in counted} == {
        (records.NO_CONTENT, "no content, although usage says 40 tokens")
    }
    assert text is not None and text.load.answers == 0


def test_an_answer_in_one_piece_without_content_is_a_failed_request() -> None:
    message = {"role": "assistant", "content": ""}
    body = {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage(9, 40)}
    counted, _ = reports(plain("200 OK", body), max_tokens=40, stream=False)
    assert {r.error for r in counted} == {records.NO_CONTENT}


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_few_tokens_may_have_no_text(tokens: int) -> None:
    tail = [chunk({}, "length"), {**chunk(), "choices": [], "usage": usage(9, tokens)}]
    counted, _ = reports(chunked([event(one) for one in (*tail, b"[DONE]")]), max_tokens=tokens)
    assert all(r.ok for r in counted)


def test_a_call_of_a_tool_is_content() -> None:
    calls = chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]})
    counted, _ = reports(chunked([event(one) for one in (calls, *_TAIL, b"[DONE]")]), max_tokens=40)
    assert all(r.ok for r in counted)


def test_an_answer_of_reasoning_only_is_counted() -> None:
    deltas = [{"reasoning_content": f" step {i}"} for i in range(8)]
    _, text = reports(streamed(deltas, ascii_only=True))
    assert text is not None
    assert (text.load.reasoning_only, text.load.reasoning_share) == (4, 1.0)
    assert text.load.excerpts[0].startswith('(reasoning) " step 0')


def test_equal_excerpts_are_stored_once() -> None:
    _, text = reports(streamed([{"content": "plain"}], ascii_only=True), ignore_eos=False)
    assert text is not None and text.load.excerpts == ('"plain"',)
