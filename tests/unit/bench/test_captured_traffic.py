"""Rows of captured requests: lengths, shared beginnings and turns, and no text."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from workbench.bench import captured_traffic, trace_file, trace_writer
from workbench.bench.captured_traffic import CapturedRow, CapturedTraffic, LeftOutError
from workbench.bench.proxied_traffic import Exchange

CHAT = "/v1/chat/completions"
Message = dict[str, Any]


def usage(prompt: int, answer: int) -> bytes:
    return json.dumps(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": answer}}
    ).encode()


def words(many: int, seed: int = 0) -> str:
    source = random.Random(seed)
    return " ".join(source.choice(("alpha", "beta", "gamma", "delta")) for _ in range(many))


class Clock:
    """A traffic whose requests come a second apart and last half a second."""

    def __init__(self) -> None:
        self.traffic = CapturedTraffic()
        self.now = 0.0

    def row(self, body: Any, answer: bytes, path: str = CHAT) -> CapturedRow:
        self.now += 1000
        request = body if isinstance(body, bytes) else json.dumps(body).encode()
        made, _ = self.traffic.row_and_usage_of_exchange(
            path, request, answer, at_ms=self.now, end_ms=self.now + 500
        )
        return made

    def chat(self, *messages: Message, tokens: int) -> CapturedRow:
        return self.row({"messages": list(messages)}, usage(tokens, 7))


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def shared(one: CapturedRow, other: CapturedRow) -> int:
    """Return how many blocks two prompts begin with in common."""
    pairs = zip(one.blocks, other.blocks, strict=False)
    many = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    return min(len(one.blocks), len(other.blocks)) if many is None else many


def test_a_conversation_shares_what_was_said_and_knows_its_turns() -> None:
    clock = Clock()
    talk = [said("system", words(200)), said("user", words(50, 1))]
    first = clock.chat(*talk, tokens=260)
    talk += [said("assistant", words(40, 2)), said("user", words(30, 3))]
    second = clock.chat(*talk, tokens=340)
    other = clock.chat(said("system", words(200)), said("user", words(50, 9)), tokens=262)
    assert (first.conversation, first.delay_ms) == (second.conversation, None)
    assert second.delay_ms == 500 and other.conversation != first.conversation
    assert 240 <= second.reused_tokens <= 256 and shared(first, second) in (15, 16)
    assert 190 <= other.reused_tokens <= 210
    for row in (first, second, other):
        assert len(row.blocks) == -(-row.prompt_tokens // 16)


def test_equal_first_questions_are_conversations_of_their_own() -> None:
    clock = Clock()
    hello = said("user", "hello")
    one, two = clock.chat(hello, tokens=9), clock.chat(hello, tokens=9)
    more = [hello, said("assistant", "hi"), said("user", "what now")]
    goes_on, too, new = (clock.chat(*more, tokens=20) for _ in range(3))
    assert {one.conversation, two.conversation} == {goes_on.conversation, too.conversation}
    assert new.conversation not in (one.conversation, two.conversation) and new.delay_ms is None


def test_a_request_that_came_before_the_answer_does_not_continue_it() -> None:
    clock = Clock()
    first = clock.chat(said("user", "a"), tokens=9)
    clock.now -= 900
    talk = [said("user", "a"), said("assistant", "b"), said("user", "c")]
    assert clock.chat(*talk, tokens=20).conversation != first.conversation


EVENT = b'data: {"choices":[{"delta":{"content":"abcdefgh"}}]}\n\n'
ANTHROPIC = (
    b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
    b'{"input_tokens":30,"cache_read_input_tokens":10,"output_tokens":1}}}\n\n'
    b'event: message_delta\ndata: {"usage":{"output_tokens":9}}\n\n'
)
RESPONSES = b'data: {"response":{"usage":{"input_tokens":40,"output_tokens":9}}}\n\n'
USAGE = b"data: " + usage(40, 9) + b"\r\n\r\ndata: [DONE]\n\n"
GENERATE = b'{"text":"x","meta_info":{"prompt_tokens":40,"completion_tokens":9}}'
NATIVE = b'data: {"content":"","stop":true,"tokens_evaluated":40,"tokens_predicted":9}\n\n'
MESSAGES = {"messages": [said("user", "x" * 160)]}
READ = {
    "chat": (CHAT, MESSAGES, EVENT + USAGE, False),
    "whole chat": (CHAT, MESSAGES, usage(40, 9), False),
    "usage in each chunk": (CHAT, MESSAGES, b"data: " + usage(40, 8) + b"\n\n" + USAGE, False),
    "no usage": (CHAT, MESSAGES, b'data: {"usage":null}\n\n' + 4 * EVENT + EVENT[:-20], True),
    "anthropic": ("/v1/messages", {**MESSAGES, "system": "s"}, ANTHROPIC, False),
    "responses": ("/v1/responses", {"input": "hi", "instructions": "do"}, RESPONSES, False),
    "completions": ("/v1/completions", {"prompt": "x" * 160}, USAGE, False),
    "ids": ("/v1/completions", {"prompt": [5, 6, 7]}, USAGE, False),
    "one of a list": ("/v1/completions", {"prompt": ["x"]}, USAGE, False),
    "sglang": ("/generate", {"text": "x" * 160}, GENERATE, False),
    "llama-server": ("/completion", {"prompt": "x" * 160}, NATIVE, False),
}


@pytest.mark.parametrize("name", READ)
def test_lengths_come_from_what_the_answer_reports(name: str) -> None:
    path, body, answer, estimated = READ[name]
    row = Clock().row(body, answer, path)
    expected = (42, 8) if estimated else (40, 9)  # 160 characters and a role, 32 characters
    assert (row.prompt_tokens, row.answer_tokens) == expected
    assert row.estimated == estimated and ('"estimated":true' in row.trace_line()) == estimated


@pytest.mark.parametrize("most", [{"max_tokens": 5}, {"sampling_params": {"max_new_tokens": 5}}])
def test_an_estimated_answer_is_no_longer_than_its_request_allows(most: dict[str, Any]) -> None:
    row = Clock().row({**MESSAGES, **most}, READ["no usage"][2])
    assert row.answer_tokens == 5 and row.estimated


def test_lengths_without_usage_follow_the_prompts_that_have_one() -> None:
    clock = Clock()
    text = words(100)
    clock.row({"prompt": text}, usage(50, 1), "/v1/completions")
    row = clock.row({"prompt": text}, EVENT, "/v1/completions")
    assert row.prompt_tokens == 50 and row.estimated


LEFT = [
    (CHAT, b"\xff{", "whose body is not JSON"),
    (CHAT, b"[" * 100_000, "whose body is not JSON"),
    (CHAT, b"[]", "whose body is not JSON"),
    (CHAT, {"messages": {}}, "without messages"),
    ("/v1/completions", {"prompt": ["a", "b"]}, "with several prompts"),
    ("/v1/completions", {"prompt": 7}, "whose prompt is neither text nor token ids"),
    ("/v1/completions", {}, "without a prompt"),
    ("/v1/responses", {"previous_response_id": "x", "input": "y"}, "that continue an answer"),
    ("/v1/responses", {}, "without an input"),
]


@pytest.mark.parametrize(("path", "body", "why"), LEFT)
def test_a_request_without_a_row_says_why(path: str, body: Any, why: str) -> None:
    with pytest.raises(LeftOutError, match=why):
        Clock().row(body, USAGE, path)


def test_an_answer_without_a_token_has_no_row() -> None:
    for answer in (b"", b"data: {", usage(40, 0), b'data: {"choices":["a"]}'):
        with pytest.raises(LeftOutError, match="ended before the first token"):
            Clock().row(MESSAGES, answer)


def test_a_request_nested_too_deep_is_counted_as_left_out() -> None:
    deep = b"[" * 600 + b"]" * 600
    request = b'{"messages":[{"role":"user","content":' + deep + b"}]}"
    exchange = Exchange(
        begin_s=1.0,
        end_s=2.0,
        path=CHAT,
        request=request,
        status=200,
        encoding="",
        answer=usage(40, 7),
        whole=True,
    )
    totals = trace_writer._Totals()
    assert (
        trace_writer._count_exchange_and_format_line(CapturedTraffic(), totals, exchange, 0.0) == ""
    )
    assert totals.left == {"it could not be read (RecursionError)": 1}


def test_a_length_that_no_trace_may_have_has_no_row() -> None:
    for answer in (usage(2_000_000, 1), usage(1, 10**400)):
        with pytest.raises(LeftOutError, match="that is too long for a trace"):
            Clock().row(MESSAGES, answer)


def test_pictures_count_as_themselves_and_not_by_their_characters() -> None:
    clock = Clock()
    rows = [
        clock.chat(
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:" + kind * 90_000}},
                    {"type": "text", "text": words(100)},
                ],
            },
            tokens=900,
        )
        for kind in "aab"
    ]
    assert shared(rows[0], rows[1]) >= 50 and shared(rows[0], rows[2]) == 0


def test_a_file_of_rows_is_read_back_as_it_was_captured(tmp_path: Path) -> None:
    clock, rows = Clock(), []
    for talk in range(4):
        messages = [said("system", words(150))]
        for turn in range(5):
            messages.append(said("user", words(20 + 7 * turn, 10 * talk + turn)))
            tokens = 12 + sum(len(m["content"].split()) for m in messages)
            rows.append(clock.chat(*messages, tokens=tokens))
            messages.append(said("assistant", words(30, 99 - turn)))
    path = tmp_path / "captured.jsonl"
    path.write_text("".join(row.trace_line() for row in rows))
    read = trace_file.read_trace(path)
    assert len(read.requests) == 20 and read.seconds == 19
    share = sum(row.reused_tokens for row in rows) / sum(row.prompt_tokens for row in rows)
    assert abs(read.reuse - share) < 0.005


def test_the_oldest_beginnings_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_traffic, "MAX_REMEMBERED_PIECES", 40)
    clock = Clock()
    rows = [clock.chat(said("user", words(200, seed)), tokens=210) for seed in (1, 2, 3, 1, 1)]
    assert rows[3].reused_tokens == 0 and rows[4].reused_tokens > 180


def test_no_two_captures_and_no_file_have_the_same_hashes_of_a_text() -> None:
    one, two = CapturedTraffic(), CapturedTraffic()
    for traffic in (one, two):
        body = json.dumps({"prompt": words(100)}).encode()
        row, _ = traffic.row_and_usage_of_exchange(
            "/v1/completions", body, usage(100, 2), at_ms=0, end_ms=1
        )
        assert row.blocks == list(range(7))  # numbers in turn: nothing of the text
    assert not set(one._blocks._known) & set(two._blocks._known)
