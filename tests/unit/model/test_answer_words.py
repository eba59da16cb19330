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
    TOOL_CALL,
    USAGE,
    Ask,
    Probed,
    ProbePart,
    assess_probe,
    make_long_ask,
    make_short_asks,
)
from workbench.model.answer_text import (
    Answer,
    ProbeOutcome,
    ProbePartOutcome,
    SetFeatures,
    features_of_answers,
    text_features,
)
from workbench.model.answer_verdict import CHANGED, AskedLoad, EarlierResult, findings_about_load
from workbench.model.answer_words import why_words_are_unordered, why_words_are_unrelated
from workbench.model.findings import Finding, Level

ASKS = (
    *make_short_asks(3),
    *make_short_asks(16, ProbePart.TOGETHER),
    *(make_long_ask(300, n) for n in range(4)),
)
PROSE = (
    "Water wears away rock over thousands of years. The river carries sand. It leaves the sand in "
    "the plain. Then the valley is wide."
)


def said(ask: Ask, text: str, **more: object) -> Probed:
    return Probed(ask, Answer(text, model="m", prompt=ask.prompt, **more))  # type: ignore[arg-type]


def found(answers: list[Probed], **more: object) -> dict[str, Finding]:
    return {one.code: one for one in assess_probe(answers, **more)}  # type: ignore[arg-type]


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
    assert not found(answers, why_nonsense_is_expected="its weights are random")


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_language_repeats_its_words(kind: str) -> None:
    draw = random.Random(kind)
    for size, count in ((75, 9), (290, 24)):
        texts = [Answer(text(draw, kind, size, 0.1)) for _ in range(count)]
        assert why_words_are_unrelated(texts) == "" and why_words_are_unordered(texts) == ""


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


def test_the_end_of_reasoning_without_its_beginning_is_a_mark() -> None:
    """A parser took the opening tag away and left the closing one; a server without a parser leaves
    the reasoning between both."""

    def answers(before: str) -> list[Probed]:
        return [
            said(ask, f"{before}The code word is {ask.word}. {PROSE[n:]}")
            for n, ask in enumerate(ASKS)
        ]

    (one,) = found(answers("\n</think>\n\n")).values()
    assert (one.code, one.level) == (TEMPLATE, Level.WARN) and "such as </think>:" in one.text
    assert TEMPLATE not in found(answers("<think>\nA word.\n</think>\n\n"))
    assert TEMPLATE not in found(answers("It asks for a word.\n</think>\n\n"))


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
    assert (
        found(blank, why_nonsense_is_expected="its weights are random")[EMPTY].level is Level.INFO
    )


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


def load_found(
    load: SetFeatures, earlier: EarlierResult | None = None, **asked: object
) -> list[Finding]:
    return list(findings_about_load(load, AskedLoad("m", **asked), earlier=earlier))  # type: ignore[arg-type]


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
    (one,) = load_found(now, EarlierResult(7, before, same_lengths=True))
    assert (one.code, one.level) == (CHANGED, Level.WARN)
    assert "30 of 32 answers repeat a phrase, and 2 of 32 in result 7" in one.text
    assert load_found(now, EarlierResult(7, before)) == []  # longer answers loop more
    assert load_found(before, EarlierResult(7, now, same_lengths=True)) == []


def collapsing(tail: str, count: int = 60) -> SetFeatures:
    """Return the features of 16 answers of 900 sound characters, each with a tail."""
    draw = random.Random(1)
    prose = [text(draw, "English", 900, 0.2) for _ in range(16)]
    return features_of_answers(
        [Answer(one + tail * count, prompt=str(n)) for n, one in enumerate(prose)]
    )


@pytest.mark.parametrize(
    ("tail", "asked", "level"),
    [
        ("!", {}, Level.WARN),
        (" the", {}, Level.INFO),  # a healthy model does that after its end
        (" the", {"ends": True}, Level.WARN),
        ("-", {}, None),  # a ruler
    ],
)
def test_answers_that_collapse_after_the_length_of_the_probe_are_marked(
    tail: str, asked: dict[str, bool], level: Level | None
) -> None:
    """The probe's answers have 64 tokens at most, and were all sound."""
    load = collapsing(tail)
    found = load_found(load, **asked)
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all("16 of 16 answers end in" in one.text for one in found)
    sound = collapsing("", 0)
    changed = load_found(load, EarlierResult(7, sound, same_lengths=True), **asked)
    expected = [] if level is None else [CHANGED] if level is Level.INFO else [DEGENERATE]
    assert [one.code for one in changed if one.level is Level.WARN] == expected


def test_answers_that_differ_in_a_number_only_are_found() -> None:
    text = "I have read message {} and would like to help you with it, if you tell me what it is."
    (one,) = found([said(ask, text.format(31 * n)) for n, ask in enumerate(ASKS)]).values()
    assert (one.code, one.level) == (DEGENERATE, Level.ERROR)
    assert "23 answers to different prompts are equal" in one.text
    word = "I have read your {} text and would like to help you with it, if you say what it is."
    draw = random.Random(5)
    answers = [said(ask, word.format(random_words(draw.randrange(99), 1))) for ask in ASKS]
    assert "differ in a word" in found(answers)[DEGENERATE].text


def test_answers_of_other_numbers_are_not_equal() -> None:
    lists = [", ".join(str(n * k) for k in range(40)) for n in range(1, 9)]
    answers = [Answer(one, prompt=str(n)) for n, one in enumerate(lists)]
    assert features_of_answers(answers).equal == 0
    same = [Answer(lists[0], prompt=str(n)) for n in range(8)]
    assert features_of_answers(same).equal == 8


def test_a_weak_model_may_say_the_same_about_everything() -> None:
    assert not found([said(ask, f"The code word is {ask.word}. {PROSE}") for ask in ASKS])


def test_random_words_that_come_twice_are_no_language() -> None:
    twice = [said(ask, random_words(n, 40)) for n, ask in enumerate(ASKS)]
    (one,) = found([*twice, *(replace(one, after=True) for one in twice)]).values()
    assert "unrelated words" in one.text


def test_tool_calls_without_tools_are_no_text() -> None:
    (one,) = found([said(ask, TOOL_CALL) for ask in ASKS]).values()
    assert (one.code, one.level) == (EMPTY, Level.ERROR) and "23 of 23 answers" in one.text


def test_garbage_of_longer_answers_is_named() -> None:
    good = [said(ask, f"The code word is {ask.word}. {PROSE[n:]}") for n, ask in enumerate(ASKS)]
    longer = [replace(ask, part=ProbePart.LONGER) for ask in make_short_asks(4)]
    (one,) = found([*good, *(said(ask, "the of " * 30) for ask in longer)]).values()
    assert one.text.startswith("degenerate output in longer answers only: 4 of 4 answers")


# -- usage -----------------------------------------------------------------------------------------


def counted(factor: float, hidden: int, scatter: int = 0, **more: object) -> list[Probed]:
    """Return six answers of two lengths, whose usage counts `factor` tokens for each token, and
    `hidden` marks. `scatter` is the number of hidden tokens that differ from answer to answer."""
    made = []
    for n, ask in enumerate(make_short_asks(6)):
        real = (14, 56)[n % 2] + n // 2
        text = f"The code word is {ask.word}. {(PROSE[n:] * 2)[: 4 * real]}"
        tokens = round(factor * real) + hidden + n * scatter % 19
        made.append(replace(said(ask, text, output_tokens=tokens, **more), recounted=real))
    return made


def usage_of(made: list[Probed], short: list[Probed] | None = None) -> str:
    given = made[1::2], made[::2] if short is None else short
    return next(
        (one.text for one in assess_probe(given[0], short_answers=given[1]) if one.code == USAGE),
        "",
    )


def test_usage_of_an_eighth_more_tokens_is_found() -> None:
    for factor in (1.12, 1.15, 1.25):
        assert f"it counts {factor:.1f}" in usage_of(counted(factor, 3))
    assert usage_of(counted(1.15, 1, finish_reason="stop"))
    assert usage_of(counted(1.15, 6, reasoning="The user asks for a word. "))


@pytest.mark.parametrize("hidden", [0, 1, 5, 11])
def test_hidden_marks_are_no_false_usage(hidden: int) -> None:
    for factor in (0.97, 1.0, 1.03):
        assert usage_of(counted(factor, hidden)) == ""
    assert usage_of(counted(1.0, hidden, finish_reason="stop")) == ""


def test_hidden_reasoning_is_no_false_usage() -> None:
    assert usage_of(counted(1.1, 2, scatter=7)) == ""
    # An engine that shows nothing before the reasoning has ended:
    silent = [said(make_short_asks(1)[0], "", output_tokens=16, finish_reason="length")]
    assert usage_of(counted(1.0, 120), silent) == ""
    assert usage_of(counted(1.0, 120))
    # Marks between reasoning and text are in the long answers only:
    long, short = counted(1.0, 9), counted(1.0, 2)
    only_thought = [
        replace(one, answer=replace(one.answer, reasoning=one.answer.text, text=""))
        for one in short[::2]
    ]
    assert usage_of(long, only_thought) == ""


def test_a_weak_model_has_no_slight_usage() -> None:
    """Its texts may have other tokens than a tokenizer makes of them."""
    other = [replace(one, ask=replace(one.ask, word="zzz")) for one in counted(1.15, 0)]
    assert usage_of(other) == ""


# -- the load: equal answers, loops of any length, characters per token ----------------------------

SOUND = ProbeOutcome({"alone": ProbePartOutcome(3, 0, 3), "together": ProbePartOutcome(8, 0, 8)})


def level_of(load: SetFeatures, probe: ProbeOutcome = SOUND, **asked: object) -> list[str]:
    made = AskedLoad("m", **asked)  # type: ignore[arg-type]
    return [str(one.level) for one in findings_about_load(load, made, probe)]


def test_long_equal_answers_to_different_prompts_are_no_answers() -> None:
    load = SetFeatures(32, 32, equal=32, equal_characters=360)
    assert level_of(load) == ["error"]
    assert level_of(load, ProbeOutcome()) == level_of(load, prompt_characters=900.0) == ["warn"]
    assert level_of(replace(load, looping=30)) == ["warn"]  # a healthy model comes to a loop
    assert level_of(replace(load, equal_characters=210)) == ["warn"]
    assert level_of(replace(load, equal=20)) == []


def test_answers_without_text_are_found_in_the_load() -> None:
    load = SetFeatures(32, 32, empty=20)
    assert level_of(load, ends=True) == ["error"] and level_of(load) == ["warn"]


def test_equal_answers_may_count() -> None:
    text = "I have read message {} and would like to help you with it, if you tell me what it is."
    load = features_of_answers([Answer(text.format(n), prompt=str(n)) for n in range(9)])
    assert (load.equal, load.looked_at) == (9, 9)


@pytest.mark.parametrize("size", [24, 170, 420])
def test_a_loop_of_any_length_is_found(size: int) -> None:
    draw = random.Random(size)
    unit = (text(draw, "English", size, 0.1) + " " * size)[:size]
    load = features_of_answers([Answer((unit * 90)[:2048], prompt=str(n)) for n in range(8)])
    assert load.looping == 8
    assert "repeats" in text_features((unit * 9)[: 5 * size]).defect


def test_a_phrase_from_the_first_character_on_is_no_loop_of_a_healthy_model() -> None:
    load = features_of_answers([Answer(" and then we" * 40, prompt=str(n)) for n in range(8)])
    assert level_of(load) == ["error"]


def test_a_paragraph_that_repeats_is_found_beside_the_same_load() -> None:
    prose = [Answer(random_words(n, 300)[:2048], prompt=str(n)) for n in range(12)]
    before = features_of_answers(prose)
    broken = features_of_answers(
        [Answer((one.text[:700] * 3)[:2048], prompt=one.prompt) for one in prose]
    )
    assert broken.looping == 0
    (one,) = load_found(broken, EarlierResult(7, before, same_lengths=True))
    assert (one.code, one.level) == (CHANGED, Level.WARN) and "compress to" in one.text
    assert load_found(before, EarlierResult(7, before, same_lengths=True)) == []


def test_usage_of_a_load_is_compared_with_the_same_load() -> None:
    before = SetFeatures(64, 64, characters_per_token=4.6)
    now = replace(before, characters_per_token=4.0)
    (one,) = load_found(now, EarlierResult(7, before, same_lengths=True))
    assert (one.code, one.level) == (USAGE, Level.WARN)
    assert load_found(now, EarlierResult(7, before)) == []
    assert load_found(replace(now, looping=20), EarlierResult(7, before, same_lengths=True)) == []
    few = replace(now, looked_at=8)
    assert load_found(few, EarlierResult(7, before, same_lengths=True)) == []


def test_hidden_reasoning_makes_no_load_invalid() -> None:
    load = SetFeatures(32, 32, characters_per_token=0.15)
    assert level_of(load, ends=True) == ["error"]
    assert level_of(load, ends=True, hides_reasoning=True) == ["info"]
