"""The text of simulated answers: what a healthy model would write, or garbage on request."""

from __future__ import annotations

import struct

import pytest

from workbench.model.answer_probe import (
    DEGENERATE,
    Probed,
    assess_probe,
    make_long_ask,
    make_short_asks,
)
from workbench.model.answer_text import Answer, features_of_answers
from workbench.sim.reply_text import (
    VECTOR_NUMBERS,
    ReplyText,
    make_embedding,
    pack_vector_as_float32,
)


def _answer(prompt: str, tokens: int, *, garbage: bool = False) -> Answer:
    text = ReplyText(prompt, garbage=garbage).text_of_token_range(0, tokens)
    return Answer(text, output_tokens=tokens, prompt=prompt)


@pytest.mark.parametrize("tokens", [24, 64, 256])
def test_the_probe_finds_nothing_in_simulated_answers(tokens: int) -> None:
    asks = [*make_short_asks(9), make_long_ask(512), make_long_ask(512, 1)]
    probed = [Probed(ask, _answer(ask.prompt, tokens)) for ask in asks]
    assert assess_probe(probed, asks_sent_at_once=8, long_tokens=512) == ()


def test_the_answers_of_a_benchmark_differ_and_look_like_language() -> None:
    prompts = [f"Continue this list of words: [{mark}] time year people" for mark in range(256)]
    found = features_of_answers([_answer(prompt, 128) for prompt in prompts])
    assert found.equal <= 4
    assert (found.empty, found.collapsed, found.looping, found.odd, found.salad) == (0,) * 5


def test_a_text_in_parts_is_the_text() -> None:
    text = ReplyText("any prompt")
    assert "".join(
        text.text_of_token_range(place, 1) for place in range(40)
    ) == text.text_of_token_range(0, 40)


def test_garbage_is_what_the_probe_calls_garbage() -> None:
    asks = make_short_asks(9)
    (found,) = assess_probe([Probed(ask, _answer(ask.prompt, 24, garbage=True)) for ask in asks])
    assert found.code == DEGENERATE
    assert found.evidence is not None and "!!!!" in found.evidence


def test_vectors_depend_on_the_prompt_only() -> None:
    one, other = make_embedding("one prompt"), make_embedding("another prompt")
    assert one == make_embedding("one prompt") != other
    assert len(one) == VECTOR_NUMBERS and any(one)
    unpacked = struct.unpack(f"<{VECTOR_NUMBERS}f", pack_vector_as_float32(one))
    assert unpacked == pytest.approx(one)
