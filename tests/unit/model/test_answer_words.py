"""Garbage that shows only in several answers together, or in what an answer does with its prompt."""

from __future__ import annotations

import random
import string
from dataclasses import replace

import pytest
from support.healthy_texts import SENTENCES, text

from workbench.model.answer_probe import (
    DEGENERATE,
    DISORDER,
    ECHO,
    EMPTY,
    FINISH,
    NOT_FOLLOWED,
    TEMPLATE,
    Ask,
    Place,
    Probed,
    judge,
    long_ask,
    short_asks,
)
from workbench.model.answer_text import Answer, SetFeatures
from workbench.model.answer_verdict import CHANGED, Asked, Earlier, load_findings
from workbench.model.answer_words import out_of_order, unrelated_words
from workbench.model.findings import Finding, Level

ASKS = (*short_asks(3), *short_asks(16, Place.TOGETHER), *(long_ask(300, n) for n in range(4)))
PROSE = (
    "Water wears away rock over thousands of years. The river carries sand. It leaves the sand in "
    "the plain. Then the valley is wide."
)


def said(ask: Ask, text: str, **more: object) -> Probed:
    return Probed(ask, Answer(text, model="m", prompt=ask.prompt, **more))  # type: ignore[arg-type]


def found(answers: list[Probed], **more: object) -> dict[str, Finding]:
    return {one.code: one for one in judge(answers, **more)}  # type: ignore[arg-type]


def random_words(seed: int, count: int) -> str:
    """Return words as random tokens of a vocabulary make them: no two are equal."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        syllables = (draw.choice("bcdfglmnprst") + draw.choice("aeiou") for _ in range(4))
        word = "".join(syllables)
        made.append(word[:4] + word[4:].title() if draw.random() < 0.1 else word)
    return " ".join(made)


@pytest.mark.parametrize("words", [8, 40])
def test_words_of_which_none_occurs_twice_are_no_language(words: int) -> None:
    asks = ASKS[:9] if words == 8 else ASKS
    (one,) = found([said(ask, random_words(n, words)) for n, ask in enumerate(asks)]).values()
    assert (one.code, one.level) == (DEGENERATE, Level.ERROR)
    assert "unrelated words" in one.text and "occur only once" in one.text


def test_a_random_model_may_write_unrelated_words() -> None:
    answers = [said(ask, random_words(n, 40)) for n, ask in enumerate(ASKS)]
    assert not found(answers, nonsense_expected="its weights are random")


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_language_repeats_its_words(kind: str) -> None:
    draw = random.Random(kind)
    for size, count in ((75, 9), (290, 24)):
        texts = [Answer(text(draw, kind, size, 0.1)) for _ in range(count)]
        assert unrelated_words(texts) == "" and out_of_order(texts) == ""


def test_an_answer_that_is_its_prompt_is_no_answer() -> None:
    (one,) = found([said(ask, ask.prompt) for ask in ASKS]).values()
    assert (one.code, one.level) == (ECHO, Level.ERROR)
    quoted = [said(ask, f"You said: {ask.prompt} {PROSE}") for ask in ASKS]
    assert found(quoted)[ECHO].level is Level.WARN


def test_a_model_may_repeat_the_sentence_with_the_code_word() -> None:
    assert not found(
        [said(ask, f"The code word is {ask.word}. {PROSE[n:]}") for n, ask in enumerate(ASKS)]
    )


def test_shuffled_words_are_out_of_order() -> None:
    draw = random.Random(1)
    answers = []
    for ask in ASKS:
        words = f"The code word is {ask.word}. {PROSE}".split()
        draw.shuffle(words)
        answers.append(said(ask, " ".join(words)))
    (one,) = found(answers).values()
    assert (one.code, one.level) == (DISORDER, Level.WARN)
    small = [
        said(ask, f"the code word is {ask.word}. {PROSE[n:].lower()}") for n, ask in enumerate(ASKS)
    ]
    assert not found(small)


def test_marks_of_a_template_and_a_filter_are_found() -> None:
    answers = [
        said(ask, f"The code word is {ask.word}.<|im_end|>\n{PROSE[n:]}")
        for n, ask in enumerate(ASKS)
    ]
    (one,) = found(answers).values()
    assert (one.code, one.level) == (TEMPLATE, Level.WARN) and "<|im_end|>" in one.text
    good = [said(ask, f"The code word is {ask.word}. {PROSE[n:]}") for n, ask in enumerate(ASKS)]
    ended = [
        replace(one, answer=replace(one.answer, finish_reason="content_filter")) for one in good
    ]
    (one,) = found(ended).values()
    assert (one.code, one.level) == (FINISH, Level.ERROR)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("!!!", "has no words"),
        ("4 83 921 0 7 55 1 2 88 19", "has no words"),
        (
            "Thecodewordis{}andwaterwearsawaytherockoverthousandsofyearsuntilthevalleyiswide.",
            "has no spaces",
        ),
    ],
)
def test_answers_without_words_are_broken(broken: str, why: str) -> None:
    draw = random.Random(2)
    answers = [said(ask, broken.format(ask.word) + draw.choice(string.digits)) for ask in ASKS]
    assert why in found(answers)[DEGENERATE].text


def test_blank_answers_have_no_text() -> None:
    blank = [said(ask, "\n\n ") for ask in ASKS]
    assert found(blank)[EMPTY].level is Level.ERROR
    assert found(blank, nonsense_expected="its weights are random")[EMPTY].level is Level.INFO


def test_broken_answers_that_are_spread_over_all_places_are_found() -> None:
    good = [said(ask, f"The code word is {ask.word}. {PROSE[n:]}") for n, ask in enumerate(ASKS)]
    for place in (5, 9):
        good[place] = said(ASKS[place], "!" * 60)
    assert not found(good)
    good[12] = said(ASKS[12], "!" * 60)
    assert "3 of 23 answers are broken" in found(good)[DEGENERATE].text


def test_a_language_without_spaces_needs_none() -> None:
    draw = random.Random(3)
    answers = [said(ask, f"{ask.word}。" + text(draw, "Chinese", 150, 0.1)) for ask in ASKS]
    assert not found(answers)
    assert set(found([said(ask, text(draw, "Thai", 200, 0.1)) for ask in ASKS])) == {NOT_FOLLOWED}


# -- the load --------------------------------------------------------------------------------------


def load_found(load: SetFeatures, earlier: Earlier | None = None, **asked: object) -> list[Finding]:
    return list(load_findings(load, Asked("m", **asked), earlier=earlier))  # type: ignore[arg-type]


def test_marks_from_the_first_character_on_are_no_loop_of_a_healthy_model() -> None:
    load = SetFeatures(24, 24, collapsed=21, repeated="!", repeated_answers=14)
    (one,) = load_found(load)
    assert (one.code, one.level) == (DEGENERATE, Level.ERROR)
    (one,) = load_found(replace(load, collapsed=4, repeated_answers=4))
    assert one.level is Level.WARN
    assert load_found(replace(load, repeated=" the", collapsed=4, repeated_answers=4)) == []


def test_a_load_of_mixed_scripts_is_garbage_unless_the_prompts_are_the_user_s() -> None:
    load = SetFeatures(24, 24, salad=20)
    assert [one.level for one in load_found(load)] == [Level.ERROR]
    assert [one.level for one in load_found(load, prompt_characters=900.0)] == [Level.WARN]


def test_a_load_that_begins_to_loop_is_marked() -> None:
    before = SetFeatures(32, 32, looping=2)
    now = replace(before, looping=30)
    (one,) = load_found(now, Earlier(7, before, same_lengths=True))
    assert (one.code, one.level) == (CHANGED, Level.WARN)
    assert "30 of 32 answers repeat a phrase, and 2 of 32 in result 7" in one.text
    assert load_found(now, Earlier(7, before)) == []  # longer answers loop more
    assert load_found(before, Earlier(7, now, same_lengths=True)) == []
