"""Tests of the content of a streamed reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import chunk, usage

from workbench.bench import records
from workbench.bench import reply as reply_module
from workbench.bench.reply import Reply, error_message_from_body

TEXT = st.text(max_size=20)


def fed(*events: Any, asked: int | None = None) -> Reply:
    """Return a reply that got one event per nanosecond, the first at 1."""
    reply = Reply()
    for at, data in enumerate(events, start=1):
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        reply.feed([(b"", raw)], at)
    reply.check_answer_and_set_error(asked)
    return reply


def compact(event: dict[str, Any]) -> bytes:
    """Return an event as engines write it."""
    return json.dumps(event, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"role": "assistant", "content": "a"},
        {"reasoning_content": "a", "content": None},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_any_kind_of_content_counts(delta: dict[str, Any]) -> None:
    assert list(fed(chunk({"role": "assistant"}), chunk(delta)).stamps_ns) == [2]


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"content": None, "tool_calls": []},
    ],
)
def test_chunks_without_content_do_not_count(delta: dict[str, Any]) -> None:
    assert list(fed(chunk(delta), chunk({"content": "x"})).stamps_ns) == [2]


def test_completions_text_counts() -> None:
    choice = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
    reply = fed({"choices": [{"index": 0, "text": ""}]}, choice, choice)
    assert list(reply.stamps_ns) == [2, 3] and reply.finish_reason == "stop" and reply.error is None


@given(
    texts=st.lists(TEXT, max_size=12),
    ascii_only=st.booleans(),
    key=st.sampled_from(["content", "reasoning_content", "text"]),
    spaced=st.booleans(),
)
def test_the_fast_path_gives_the_results_of_parsing(
    texts: list[str], ascii_only: bool, key: str, spaced: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")

    def line(text: str) -> bytes:
        choice = {"index": 0, "text": text} if key == "text" else {"index": 0, "delta": {key: text}}
        data = {"id": "1", "choices": [{**choice, "finish_reason": None}], "usage": None}
        return json.dumps(data, ensure_ascii=ascii_only, separators=separators).encode(
            "utf-8", "surrogatepass"
        )

    reply = fed(*[line(t) for t in texts])
    broken = next(
        (
            i
            for i, t in enumerate(texts)
            if not ascii_only and any("\ud800" <= c <= "\udfff" for c in t)
        ),
        None,
    )
    before = texts[:broken]
    assert [s for s in reply.stamps_ns if s <= len(before)] == [
        i for i, t in enumerate(before, start=1) if t
    ]


def test_bytes_after_a_known_chunk_are_still_checked() -> None:
    good = json.dumps(chunk({"content": "a"}), separators=(",", ":")).encode()
    for bad in (
        good.replace(b'"a"', b'"a\n"'),
        good.replace(b'"a"', b'"\\x"'),
        good.replace(b'"a"', b'"\xff"'),
    ):
        assert fed(good, good, bad).error == records.MALFORMED
    other = good.replace(b'"a"', b'"a","finish_reason":"stop","x":"b"')
    assert list(fed(good, other).stamps_ns) == [1, 2]
    with_error = good.replace(b'"a"', b'"","y":"b"')
    assert list(fed(good, with_error).stamps_ns) == [1]


def test_usage_is_counted_once_and_the_last_one_counts() -> None:
    reply = fed(
        {**chunk({"content": "a b"}), "usage": usage(9, 2)},
        {**chunk({"content": "c"}, "length"), "usage": usage(9, 3)},
        {"choices": [], "usage": usage(9, 3, cached=4)},
        b"[DONE]",
        asked=3,
    )
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens, reply.first_tokens) == (
        9,
        3,
        4,
        2,
    )
    assert reply.error is None and reply.done


def test_usage_beside_choices_as_tabbyapi_and_transformers_give_it() -> None:
    reply = fed(chunk({"content": "a"}), {**chunk({}, "stop"), "usage": usage(5, 1)})
    assert (reply.output_tokens, reply.finish_reason, reply.error) == (1, "stop", None)


def test_no_usage_is_unknown_not_zero() -> None:
    reply = fed(chunk({"content": "a"}), chunk({}, "stop"), asked=5)
    assert (reply.output_tokens, reply.prompt_tokens, reply.cached_tokens) == (None, None, None)
    assert reply.error is None


@pytest.mark.parametrize("value", ["7", True, -1, 1.5, None])
def test_a_token_count_that_is_no_count_is_unknown(value: Any) -> None:
    assert fed({"choices": [], "usage": {"completion_tokens": value}}).output_tokens is None


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (
            [chunk({"content": "a"}), {"error": {"message": "out of memory", "code": 500}}],
            records.STREAM_ERROR,
        ),
        ([chunk({"content": "a"}), {"object": "error", "error": "boom"}], records.STREAM_ERROR),
        ([chunk({"content": "a"}), b'{"choices": [{"del'], records.MALFORMED),
        ([chunk({"content": "a"}), b"null"], records.MALFORMED),
        ([b'{"choices": [7]}'], records.MALFORMED),
        ([b'{"choices": {"a": 1}}'], records.MALFORMED),
        ([b'{"usage": 7}'], records.MALFORMED),
        ([chunk({"content": "a"})], records.TRUNCATED),
        ([chunk({"content": "a"}), b"[DONE]"], records.TRUNCATED),
        ([], records.TRUNCATED),
        ([chunk({"content": "a"}, "abort"), b"[DONE]"], records.STREAM_ERROR),
        (
            [chunk({"content": "a"}, "stop"), {"choices": [], "usage": usage(5, 1)}],
            records.SHORT_ANSWER,
        ),
        (
            [chunk({"content": "a"}, "stop"), {"choices": [], "usage": usage(5, 3)}],
            records.LONG_ANSWER,
        ),
        ([chunk({"content": "a"}, "length"), {"choices": [], "usage": usage(5, 2)}], None),
    ],
)
def test_faults_that_make_a_request_fail(events: list[Any], kind: str | None) -> None:
    assert fed(*events, asked=2).error == kind


def test_error_events_of_other_forms() -> None:
    for event in ((b"error", b'{"message": "slot gone"}'), (b"error", b"slot gone")):
        reply = Reply()
        reply.feed([event], 1)
        assert (reply.error, reply.detail) == (records.STREAM_ERROR, "slot gone")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "bad  model", "type": "x"}}',
        b'{"object": "error", "message": "bad model"}',
        b'{"detail": "bad\\nmodel"}',
        b"bad model\n",
        b'"bad model"',
    ],
)
def test_error_text(body: bytes) -> None:
    assert error_message_from_body(body) == "bad model"


def test_error_text_of_anything_is_one_short_line() -> None:
    assert (
        "\n" not in error_message_from_body(b"\xff\n" * 500)
        and len(error_message_from_body(b"x" * 5000)) == 300
    )
    assert "ignore_eos" in error_message_from_body(
        b'{"detail": [{"loc": ["body", "ignore_eos"], "msg": "extra"}]}'
    )


def test_events_without_text_are_parsed_once_whatever_their_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The chunk with the role, and the one with the usage. The one with the text is always parsed,
    because another one may have another text."""
    parsed: list[bytes] = []
    decode = reply_module._parse_json
    monkeypatch.setattr(
        reply_module, "_parse_json", lambda data: parsed.append(data) or decode(data)
    )
    monkeypatch.setattr(reply_module, "_KNOWN_EVENTS", {})
    for number in range(3):
        own = {"id": f"chatcmpl-{number}"}
        events = (
            {**chunk({"role": "assistant", "content": ""}), **own},
            {**chunk({"content": "yes"}, "length"), **own},
            {**chunk(), "choices": [], "usage": usage(150, 1), **own},
        )
        reply = fed(*map(compact, events), asked=1)
        assert reply.error is None and len(reply.stamps_ns) == 1
        said = reply.prompt_tokens, reply.output_tokens, reply.finish_reason, reply.model
        assert said == (150, 1, "length", "m")
    assert len(parsed) == 5


@pytest.mark.parametrize("broken", [b'a"b', b"a\\", b"\xff", b"a\n"])
def test_an_event_with_an_invalid_id_is_not_taken_for_a_known_one(
    broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_module, "_KNOWN_EVENTS", {})
    form = b'{"id":"%b","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    for good in (b"a", b"c", b'a\\"b'):
        assert fed(form % good).error is None
    assert fed(form % broken).error == records.MALFORMED


def test_known_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "_KNOWN_EVENTS", {})
    for tokens in range(3 * reply_module._MAX_KNOWN_EVENTS):
        assert fed({**chunk(), "choices": [], "usage": usage(1, tokens)}).output_tokens == tokens
    assert 0 < len(reply_module._KNOWN_EVENTS) <= reply_module._MAX_KNOWN_EVENTS
    fed({**chunk(), "usage": usage(1, 7), "more": "x" * reply_module._MAX_KNOWN_EVENT_BYTES})
    assert max(map(len, reply_module._KNOWN_EVENTS)) <= reply_module._MAX_KNOWN_EVENT_BYTES


def test_random_weights_may_choose_bytes_that_are_no_characters() -> None:
    """An engine sends no text of such tokens."""
    events = (chunk({"content": ""}), chunk(finish="length", usage=usage(8, 64)))
    for may_be_empty, error in ((False, records.NO_CONTENT), (True, None)):
        reply = Reply()
        for at, event in enumerate(events, start=1):
            reply.feed([(b"", json.dumps(event).encode())], at)
        reply.check_answer_and_set_error(64, may_be_empty=may_be_empty)
        assert reply.error == error
        assert not reply.stamps_ns and reply.output_tokens == 64
