"""Tests of the probe of a server's text, against real HTTP servers with each kind of text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
from support.text_engine import TextEngine

from workbench import engines
from workbench.server import readiness, text_probe
from workbench.server.readiness import ReadinessResult
from workbench.server.small_requests import Reply

SOUND = {
    "good": ("chat", "The code word is maple."),
    "base": ("completions", "The code word is"),
    "reasoning": ("chat", ""),
    "reasoning-only": ("chat", "(reasoning)"),
    "thinking": ("chat", ""),  # it shows no text within the tokens of a first answer
    "vectors": ("embeddings", "768 numbers"),
    "cut": ("chat", "The code word is maple."),  # the probe at READY has short prompts only
    "long": ("chat", "The code word is maple."),
}
PROBLEMS = {
    "bang": ("text.degenerate", '"!!!!!!'),
    "token": ("text.degenerate", "the the the"),
    "loop": ("text.degenerate", "and then we and then we"),
    "glyphs": ("text.degenerate", ""),
    "replacement": ("text.degenerate", "\N{REPLACEMENT CHARACTER}"),
    "bad-utf8": ("text.degenerate", ""),
    "empty": ("text.empty", "(no text)"),
    "usage-only": ("text.empty", "(no text)"),
    "tools": ("text.empty", "(tool call)"),
    "equal": ("text.degenerate", ""),
    "mixed-up": ("text.mixed-up", ""),
    "fallback": ("text.other-model", ""),
    "batch": ("text.degenerate", '"!!!!!!'),
    "batch-fails": ("text.failed-together", ""),
    "nan-vectors": ("text.vector", "nan"),
    "zero-vectors": ("text.vector", "[0, 0, 0"),
    "equal-vectors": ("text.vector", ""),
}


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the longer answers on a slow machine too."""
    monkeypatch.setattr(text_probe, "LONGER_ANSWERS_S", 3600.0)


def _ask(url: str, first_timeout_s: float = 10.0) -> ReadinessResult:
    async def go() -> ReadinessResult:
        with closing(readiness.make_request_connection(url)) as connection:
            engine = engines.get_engine("vllm")
            return await readiness.check_readiness(
                connection.ask, engine, first_timeout_s=first_timeout_s
            )

    return asyncio.run(go())


def test_another_model_is_a_doubt_and_no_problem() -> None:
    text = _asked("other-model").text
    assert text is not None
    assert (text.problem, text.notes) == (
        "",
        ("another model answered: fallback-8b instead of tiny",),
    )


def test_one_odd_answer_may_be_chance_and_is_asked_again() -> None:
    with TextEngine("good") as engine:
        _ask(engine.url)
        assert engine.requests == 1 + text_probe.PROMPTS_TOGETHER + text_probe.LONGER_ANSWERS
    with TextEngine("bang") as engine:
        _ask(engine.url)
        assert engine.requests == 2 + text_probe.PROMPTS_TOGETHER


def test_a_server_that_is_busy_with_other_requests_is_not_called_bad() -> None:
    text = _asked("busy").text
    assert text is not None
    assert (text.problem, text.answers) == ("", 1)
    assert "8 of 8 requests that were sent at once were refused" in text.unjudged


def test_a_slow_server_costs_a_limited_time_and_is_not_called_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_probe, "OTHER_PROMPTS_TIMEOUT_S", 0.2)
    with TextEngine("good") as engine:
        engine.slow = 20  # an answer takes 1 s
        text = _ask(engine.url).text
    assert text is not None
    assert (text.problem, text.answers) == ("", 1)
    assert "8 of 8 requests that were sent at once were refused or had no answer" in text.unjudged


def _asked(kind: str) -> ReadinessResult:
    with TextEngine(kind) as engine:
        return _ask(engine.url)


@pytest.mark.parametrize("kind", SOUND)
def test_sound_text_is_no_problem(kind: str) -> None:
    answer = _asked(kind)
    assert answer.is_ready and answer.text is not None
    endpoint, excerpt = SOUND[kind]
    assert (answer.text.problem, answer.text.notes, answer.text.unjudged) == ("", (), "")
    assert answer.text.endpoint == endpoint
    assert excerpt in answer.text.excerpt
    long_already = kind in ("thinking", "vectors")
    longer = 0 if long_already else text_probe.LONGER_ANSWERS
    assert answer.text.answers == 1 + text_probe.PROMPTS_TOGETHER + longer


@pytest.mark.parametrize("kind", PROBLEMS)
def test_garbage_is_a_problem_and_the_server_can_be_used(kind: str) -> None:
    answer = _asked(kind)
    assert answer.is_ready and answer.text is not None
    code, excerpt = PROBLEMS[kind]
    assert answer.text.code == code, answer.text
    assert answer.text.problem
    assert excerpt in answer.text.excerpt


def _hangul(prompt: str, tokens: int) -> str:
    """Random syllables, a token each."""
    draw = random.Random(prompt)
    pieces = [chr(draw.randrange(0xAC00, 0xD7A4)) for _ in range(tokens)]
    return "".join(one + " " * (draw.random() < 0.3) for one in pieces)


def _about_the_topic(prompt: str, tokens: int) -> str:
    """The same words about everything, with the topic of the prompt in them."""
    topic = prompt.rpartition("sentences ")[2].rstrip(".")
    said = (
        f"You have asked me {topic}, and I am glad to tell you. There are many ways to look at this"
        " question, and people have thought about it for a long time. It is a matter of balance"
        " between things that act together, and each of them has its place in the whole picture,"
        " and so on from one case to the next without an end in sight for anyone who watches."
    )
    return " ".join(said.split()[: tokens * 3 // 4])


def _long_preamble(prompt: str, tokens: int) -> str:
    """A healthy model that repeats the code word late."""
    word = prompt.split("code word is ")[1].split(".")[0]
    draw = random.Random(prompt)
    names = " ".join(draw.sample(["rivers", "bread", "bees", "sails", "letters", "glass"], 4))
    said = (
        "Of course! I would be very happy to help you with this request today, so let us begin with"
        f" the first of your two wishes: the code word is {word}. As to your second wish, one can say"
        f" a lot, and it has to do with {names} and with the time that all things take."
    )
    return " ".join(said.split()[: tokens * 3 // 4])


Say = Callable[[str, int], str]


async def _probe(say: Say) -> tuple[text_probe.Probe, int]:
    asked = 0

    async def ask(path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        nonlocal asked
        asked += 1
        assert body is not None
        text = say(body["messages"][0]["content"], body["max_tokens"])
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        usage = {"prompt_tokens": 40, "completion_tokens": body["max_tokens"]}
        return Reply(200, {"model": "tiny", "choices": [choice], "usage": usage})

    too_long = engines.get_engine("vllm").too_long_answer
    found = await text_probe.probe_text(
        ask, "tiny", first_timeout_s=10.0, too_long_pattern=too_long
    )
    return found, asked


@pytest.mark.parametrize("say", [_hangul, _about_the_topic])
def test_more_answers_decide_about_a_model_that_follows_nothing(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """READY took such a server with a note, and a benchmark refused it: it sees longer answers."""
    found, asked = asyncio.run(_probe(say))
    assert found.text is not None and found.text.code == "text.degenerate", found.text
    assert (
        asked
        == 1
        + text_probe.PROMPTS_TOGETHER
        + text_probe.LONGER_ANSWERS
        + text_probe.MORE_LONGER_ANSWERS
    )
    monkeypatch.setattr(text_probe, "MORE_LONGER_ANSWERS", 0)
    before, _ = asyncio.run(_probe(say))
    assert before.text is not None and not before.text.problem


def test_a_healthy_model_may_repeat_the_code_word_late() -> None:
    """Its short answers are equal, since they end before the code word."""
    found, _ = asyncio.run(_probe(_long_preamble))
    assert found.text is not None and not found.text.problem, found.text


# what the engines answer to a request that is longer than their context
TOO_LONG = {
    "vllm": "This model's maximum context length is 32 tokens and your request has 40 input tokens",
    "sglang": "The input (40 tokens) is longer than the model's context length (32 tokens).",
    "tabbyapi": "Request length 24 + 16 is greater than max_seq_len 32",
    "llamacpp": "request (40 tokens) exceeds the available context size (32 tokens), try increasing it",
}


async def _probe_with_context(engine: str, most_tokens: int) -> text_probe.Probe:
    """Probe a server that refuses a request for more than `most_tokens` tokens as `engine` does."""

    async def ask(path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        assert body is not None
        if path != "/v1/chat/completions":
            return Reply(404, {"detail": "Not Found"})
        if body["max_tokens"] > most_tokens:
            return Reply(400, {"error": {"message": TOO_LONG[engine]}})
        word = body["messages"][0]["content"].split("code word is ")[1].split(".")[0]
        message_back = {"content": f"The code word is {word}, and the river is wide."}
        choice = {"message": message_back, "finish_reason": "stop"}
        return Reply(200, {"model": "tiny", "choices": [choice]})

    too_long = engines.get_engine(engine).too_long_answer
    return await text_probe.probe_text(ask, "tiny", first_timeout_s=10.0, too_long_pattern=too_long)


@pytest.mark.parametrize("engine", TOO_LONG)
def test_a_context_that_is_too_short_for_the_prompts_is_no_fault(engine: str) -> None:
    """Such a server was never READY: it was asked again and again until the start was given up."""
    found = asyncio.run(_probe_with_context(engine, 0))
    assert found.text is not None and not found.text.problem
    assert "context is too short for the prompts (400: " in found.text.unjudged
    assert TOO_LONG[engine] in found.text.unjudged
    only_short = asyncio.run(_probe_with_context(engine, text_probe.SHORT_ANSWER_TOKENS))
    assert only_short.text is not None and not only_short.text.problem, only_short.text
    assert only_short.text.answers == 1 + text_probe.PROMPTS_TOGETHER
