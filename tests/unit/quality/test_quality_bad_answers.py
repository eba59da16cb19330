"""Answers of a server that cannot be right: each ends the measurement with what was measured so far
and one sentence."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.model.quality import ScoredPosition
from workbench.quality.instrument import Instrument
from workbench.quality.lanes import interface_class
from workbench.quality.lanes.llama_server import _align_scores_to_tokens
from workbench.quality.texts import Text
from workbench.quality.verdict import compute_quality_result
from workbench.server.small_requests import Reply, make_reply

WORDS = [f"w{number}" for number in range(40)]
TEXTS = tuple(Text(name, "prose", " ".join((name, *WORDS))) for name in ("one", "two", "three"))
VOCABULARY = 50
FLAT = -math.log(VOCABULARY)

Change = Callable[[str, Mapping[str, Any], dict[str, Any]], Any]


def unchanged(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
    return reply


class Scripted:
    """A server with a flat distribution, which answers as vLLM and llama-server do. `change` gets the
    path, the request and the right answer, and returns the answer."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.sent = 0
        self.limits_s: list[float] = []  # of each request

    async def send(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        self.sent += 1
        self.limits_s.append(timeout_s)
        changed = self._change(path, body, self._right(path, body))
        if isinstance(changed, Reply):
            return changed
        return make_reply(200, json.dumps(changed).encode())

    def _right(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            text = body.get("prompt", body.get("content"))
            return {
                "tokens": [
                    int(word.strip("w") or 0) if word[0] == "w" else 49 for word in text.split()
                ]
            }
        if path == "/completion":
            [[forced, _]] = body.get("logit_bias") or [[7, 0]]
            entries = [{"id": one, "logprob": FLAT} for one in range(20)]
            entry = {"id": forced, "logprob": FLAT, "top_logprobs": entries}
            made = body["n_predict"]
            answer = {"tokens": [forced] * made, "tokens_evaluated": len(body["prompt"])}
            return {**answer, "completion_probabilities": [entry] * made}
        ids = body["prompt"]
        choice: dict[str, Any] = {"text": ""}
        if "prompt_logprobs" in body:
            choice["prompt_token_ids"] = ids
            choice["prompt_logprobs"] = [None, *(self._entries(token) for token in ids[1:])]
        if "logprobs" in body:
            wanted = body.get("logprob_token_ids", [7])
            tops = [{f"token_id:{one}": FLAT for one in wanted}] * body["max_tokens"]
            names = [f"token_id:{wanted[0]}"] * body["max_tokens"]
            choice["logprobs"] = {
                "tokens": names,
                "top_logprobs": tops,
                "token_logprobs": [FLAT] * len(names),
            }
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def _entries(self, token: int) -> dict[str, Any]:
        return {str(one): {"logprob": FLAT} for one in {*range(20), token}}


def instrument(change: Change, name: str = "prompt_logprobs") -> Instrument:
    return Instrument(interface_class(name)(Scripted(change).send, "model"))


def of_second_text(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Return a change of the answer to the second text that is scored."""
    seen = []

    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        if "prompt_logprobs" not in body:
            return reply
        seen.append(path)
        return change(reply) if len(seen) == 2 else reply

    return changed


def entries_of(reply: dict[str, Any]) -> list[Any]:
    entries: list[Any] = reply["choices"][0]["prompt_logprobs"]
    return entries


def with_logprob(value: Any) -> Callable[[dict[str, Any]], Any]:
    def changed(reply: dict[str, Any]) -> Any:
        entries_of(reply)[5]["3"]["logprob"] = value
        return reply

    return changed


def without_position(reply: dict[str, Any]) -> Any:
    entries_of(reply).pop()
    return reply


def with_usage(reply: dict[str, Any]) -> Any:
    return {**reply, "usage": {"prompt_tokens": 7}}


def without_scores(reply: dict[str, Any]) -> Any:
    del reply["choices"][0]["prompt_logprobs"]
    return reply


def with_other_ids(reply: dict[str, Any]) -> Any:
    reply["choices"][0]["prompt_token_ids"] = [1]
    return reply


def test_a_healthy_server_is_scored_and_its_instrument_is_proven() -> None:
    for name in ("prompt_logprobs", "completion"):
        proof = asyncio.run(instrument(unchanged, name).check_scores_agree(TEXTS, "A"))
        assert proof.usable, proof.reason
        scores = asyncio.run(instrument(unchanged, name).score_texts(TEXTS))
        assert not scores.problem and len(scores.texts) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_logprob(float("nan")), "a log probability that is not a number (NaN)"),
        (with_logprob(0.5), "a log probability above 0 (0.5)"),
        (with_logprob(None), "a log probability that is not a number"),
        (with_logprob("-1"), "a log probability that is not a number"),
        (with_logprob(-1e300), "an impossible number (-1e+300)"),
        (with_logprob(0.0), "add up to 1.38"),
        (without_position, "the server gave 40 positions, and 41 were asked for"),
        (with_usage, "the server has read 7 prompt tokens, and 41 were sent"),
        (without_scores, "the server does not give the log probabilities of a prompt"),
        (with_other_ids, "the server has read other tokens than were sent"),
        (lambda reply: [], "is not a JSON object"),
        (lambda reply: {"choices": []}, "no usage"),
        (lambda reply: {"usage": {"prompt_tokens": 41}, "choices": [3]}, "no choices"),
        (
            lambda reply: Reply(400, {"error": {"message": "max allowed: \x1b[31m5"}}),
            "HTTP status 400: max allowed",
        ),
        (
            lambda reply: Reply(None, problem="connection refused"),
            "gave no answer to /v1/completions: connection refused",
        ),
    ],
)
def test_a_wrong_answer_ends_the_scoring_with_what_was_measured_and_one_sentence(
    change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    scores = asyncio.run(instrument(of_second_text(change)).score_texts(TEXTS))
    assert [text.name for text in scores.texts] == ["one"]
    assert scores.problem.startswith("1 of 3 texts scored: ")
    assert said in scores.problem
    assert "\x1b" not in scores.problem and "\n" not in scores.problem


def test_a_server_that_ends_while_answers_are_written_keeps_those_that_it_has_written() -> None:
    sent = []

    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        sent.append(path)
        gone = path != "/tokenize" and sent.count("/v1/completions") > 2
        return Reply(None, problem="the server closed the connection") if gone else reply

    written = asyncio.run(instrument(changed).write_answers(TEXTS, concurrency=1))
    assert len(written.answers) == 2
    assert "2 of 3 answers written: the server gave no answer" in written.problem


def test_a_context_that_is_too_short_for_every_text_is_said_before_a_text_is_sent() -> None:
    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        assert path == "/tokenize"
        return {**reply, "max_model_len": 32}

    scores = asyncio.run(instrument(changed).score_texts(TEXTS))
    assert not scores.texts
    assert scores.problem == (
        "0 of 3 texts scored: the context of the server has 32 tokens, and 42 are needed"
    )


def test_a_server_without_log_probabilities_is_not_usable_and_says_so() -> None:
    """A server that ignores the fields it does not know answers as if they were not there."""

    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return reply
        reply.pop("completion_probabilities", None)
        for choice in reply.get("choices", ()):
            choice.pop("prompt_logprobs", None)
            choice["logprobs"] = None
        return reply

    for name, said in (
        ("prompt_logprobs", "the server does not give the log probabilities of a prompt"),
        ("completion", "the server's answer has no positions"),
    ):
        proof = asyncio.run(instrument(changed, name).check_scores_agree(TEXTS, "A"))
        assert not proof.usable and proof.reason == said


@pytest.mark.parametrize(
    ("one_token_s", "limit_s"),
    [(0.001, 120.0), (0.5, 384.0), (60.0, 1800.0)],  # 2 x 128 tokens x 3 answers together
)
def test_answers_of_a_slow_server_are_waited_for(
    one_token_s: float, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(0.0, one_token_s)  # each look at the clock is one request later
    clock = SimpleNamespace(monotonic=lambda: next(looks))
    monkeypatch.setattr("workbench.quality.instrument.time", clock)
    server = Scripted(unchanged)
    slow = Instrument(interface_class("prompt_logprobs")(server.send, "model"))

    async def measure() -> None:
        await slow.write_answers(TEXTS, concurrency=3)
        assert set(server.limits_s) == {120.0}, "nothing is known of its speed yet"
        assert (await slow.check_scores_agree(TEXTS, "A")).usable
        server.limits_s.clear()
        await slow.write_answers(TEXTS, concurrency=3)

    asyncio.run(measure())
    assert set(server.limits_s) == {limit_s}


def test_two_ways_that_differ_make_the_instrument_unusable_and_name_the_defect() -> None:
    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        if "logprob_token_ids" in body:
            [token] = body["logprob_token_ids"]
            reply["choices"][0]["logprobs"]["top_logprobs"] = [{f"token_id:{token}": FLAT - 0.2}]
        return reply

    proof = asyncio.run(instrument(changed).check_scores_agree(TEXTS, "B"))
    assert not proof.usable and proof.side == "B" and proof.positions == 64
    assert "differ by 0.19" in proof.reason and "#53488" in proof.defect
    assert proof.largest == pytest.approx(0.2)


def test_probabilities_that_are_all_1_make_the_instrument_unusable() -> None:
    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        for entry in reply.get("completion_probabilities", ()):
            for one in (entry, *entry["top_logprobs"]):
                one["logprob"] = 0.0
        return reply

    proof = asyncio.run(instrument(changed, "completion").check_scores_agree(TEXTS, "A"))
    assert not proof.usable and "add up to 20" in proof.reason and "#27972" in proof.defect


def test_llama_server_scores_a_part_of_a_character_by_the_most_probable_tokens() -> None:
    """Real llama-server leaves the probabilities out if the token is no complete character."""

    def changed(path: str, body: Mapping[str, Any], reply: dict[str, Any]) -> Any:
        if path == "/completion" and body["logit_bias"][0][0] in (3, 33):
            return {**reply, "completion_probabilities": []}
        return reply

    scores = asyncio.run(instrument(changed, "completion").score_texts(TEXTS[:1]))
    assert not scores.problem
    found = {one.token: one for one in scores.texts[0].positions}
    assert found[3].logprob == FLAT and found[33].logprob is None
    assert len(found[33].top) == 20


def test_scores_of_an_answer_belong_to_the_tokens_whose_ids_they_have() -> None:
    one, two = ScoredPosition(1, -1.0), ScoredPosition(2, -2.0)
    assert _align_scores_to_tokens([1, 9, 2], [one, two]) == (one, ScoredPosition(9, None), two)
    # one score for two tokens with this id: it could belong to either
    assert [each.logprob for each in _align_scores_to_tokens([1, 1, 2], [one, two])] == [
        None,
        None,
        -2.0,
    ]


def test_a_text_that_does_not_come_back_from_tabbyapi_is_said() -> None:
    async def send(path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        answer = {"tokens": [1, 2]} if path.endswith("encode") else {"text": "other"}
        return make_reply(200, json.dumps(answer).encode())

    tabby = Instrument(interface_class("text")(send, "model"))
    proof = asyncio.run(tabby.check_scores_agree(TEXTS, "A"))
    said = "the server's tokenizer does not give back the text"
    assert not proof.usable and proof.reason == f"text three cannot be scored: {said}"
    scores = asyncio.run(tabby.score_texts(TEXTS))
    assert [text.problem for text in scores.texts] == [said] * 3 and not scores.problem


def test_a_text_that_cannot_be_scored_is_left_out_and_the_others_are_compared() -> None:
    """One word of the user's own texts ended the whole comparison."""
    one_word = Text("word", "prose", "w1")
    mixed = (one_word, *TEXTS)
    server = instrument(unchanged)

    async def measure() -> tuple[Any, Any, Any]:
        proof = await server.check_scores_agree(mixed, "A")
        return (
            proof,
            await server.score_texts(mixed),
            await server.write_answers(mixed, concurrency=2),
        )

    proof, scores, written = asyncio.run(measure())
    assert proof.usable, proof.reason
    assert not scores.problem and not written.problem
    assert [text.problem for text in scores.texts] == ["it has fewer than two tokens", "", "", ""]
    assert [one.problem for one in written.answers] == ["it has fewer than two tokens", "", "", ""]
    result = compute_quality_result(scores.texts, scores.texts, floors=[scores.texts])
    assert "A left out 1 text (word): it has fewer than two tokens" in result.notes
    assert len(result.texts) == 3


def test_tabbyapi_is_asked_only_where_its_tokenizer_cuts_the_text_as_the_whole() -> None:
    """Here, "an apple" is one token more than "an app" and "le", so the text is not cut there."""
    tokens = {"an": (1,), "an app": (1, 2), "an apple": (1, 3, 4), "an apple x": (1, 3, 4, 5)}
    texts = {(1,): "an", (1, 3): "an app", (1, 3, 4): "an apple", (1, 3, 4, 5): "an apple x"}

    async def send(path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        answer: dict[str, Any] = {"usage": {"prompt_tokens": 4}}
        if path.endswith("encode"):
            answer = {"tokens": list(tokens[body["text"]])}
        elif path.endswith("decode"):
            answer = {"text": texts[tuple(body["tokens"])]}
        else:
            top = [{" x": -0.1, "\N{REPLACEMENT CHARACTER}": -3.0}]
            scores = {"tokens": [" x"], "token_logprobs": [-0.1], "top_logprobs": top}
            answer["choices"] = [{"logprobs": scores}]
        return make_reply(200, json.dumps(answer).encode())

    async def measure() -> list[Any]:
        tabby = interface_class("text")(send, "model")
        prompt = await tabby.tokenize("an apple x")
        return [await tabby.score_next(prompt, place) for place in (1, 2, 3)]

    found = asyncio.run(measure())
    assert found[:2] == [None, None]
    assert found[2] == ScoredPosition(" x", -0.1, ((" x", -0.1),))


def test_tabbyapi_is_asked_for_usage_and_for_a_token_where_its_answer_would_end_at_once() -> None:
    """TabbyAPI of April 2026 and later gives no usage to a request that does not want it, streamed or
    not, and no log probabilities (null) of an answer whose first token ends it."""

    async def send(path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        if path.endswith("encode"):
            return make_reply(200, json.dumps({"tokens": [1, 2][: len(body["text"])]}).encode())
        if path.endswith("decode"):
            return make_reply(200, json.dumps({"text": "ab"[: len(body["tokens"])]}).encode())
        scores = {"tokens": ["b"], "token_logprobs": [-3.0], "top_logprobs": [{"</s>": -0.1}]}
        wanted = (body.get("stream_options") or {}).get("include_usage")
        answer = {
            "choices": [{"text": "b", "logprobs": scores if body.get("min_tokens") else None}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1} if wanted else None,
        }
        return make_reply(200, json.dumps(answer).encode())

    async def measure() -> list[Any]:
        tabby = interface_class("text")(send, "model")
        prompt = await tabby.tokenize("ab")
        return [await tabby.score_next(prompt, 1), await tabby.generate_answer(prompt, 8)]

    scored, written = asyncio.run(measure())
    assert scored == ScoredPosition("b", None, (("</s>", -0.1),))
    assert [one.token for one in written] == ["b"]
