"""Garbage that is close to language, and language that is close to garbage."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from workbench.model.answer_probe import (
    DEGENERATE,
    ECHO,
    TEMPLATE,
    Ask,
    Probed,
    ProbePart,
    assess_probe,
    make_long_ask,
    make_short_asks,
    summarize_probe,
)
from workbench.model.answer_text import (
    Answer,
    ProbeOutcome,
    ProbePartOutcome,
    SetFeatures,
    features_of_answers,
    text_features,
)
from workbench.model.answer_verdict import AskedLoad, findings_about_load
from workbench.model.findings import Level

ASKS = (
    *make_short_asks(3),
    *make_short_asks(16, ProbePart.TOGETHER),
    *(make_long_ask(300, n) for n in range(4)),
)
PROSE = (
    "Water wears away rock over thousands of years. The river carries sand and small stones with "
    "it. It leaves the sand in the plain, because it flows more slowly there. Then the valley is "
    "wide, and its meadows are green and flat in each summer that follows. Some of them are lakes."
)
SAME = (
    "Hello! I am happy to help you. Please tell me what you would like to know about {}, and I "
    "will answer as well as I can. There are many topics that we could talk about in the evening."
)
FEW = "the of water and is to in a that it was for as on be at by this had not"
# Tibetan and Punjabi: the first article of the Universal Declaration of Human Rights
TIBETAN = (
    "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌། ཐོབ་ཐངགི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ། ཁོང་ཚོར་རང་བྱུང་གི་བློ་རྩལ་དང་"
    "བསམ་ཚུལ་བཟང་པོ་འདོན་པའི་འོས་བབས་ཀྱང་ཡོད།"
)
PUNJABI = (
    "ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿਵਾਰ ਆਪਣੀ ਮਹਿਮਾ, ਸ਼ਾਨ ਅਤੇ ਹੱਕਾਂ ਦੇ ਪੱਖੋਂ ਜਨਮ ਤੋਂ ਹੀ ਆਜ਼ਾਦ ਹੈ ਅਤੇ ਸੁਤੇ ਸਿੱਧ ਸਾਰੇ "
    "ਲੋਕ ਬਰਾਬਰ ਹਨ। ਉਨ੍ਹਾਂ ਸਭਨਾ ਨੂੰ ਤਰਕ ਅਤੇ ਜ਼ਮੀਰ ਦੀ ਸੌਗਾਤ ਮਿਲੀ ਹੋਈ ਹੈ।"
)
SYLLABLES = [first + last for first in "bcdfglmnprst" for last in "aeiou"]


def words_of(draw: random.Random, vocabulary: list[str], count: int) -> str:
    return " ".join(draw.choice(vocabulary) for _ in range(count))


def vocabulary(size: int) -> list[str]:
    draw = random.Random(size)
    made = {"".join(draw.choices(SYLLABLES, k=3)) for _ in range(2 * size)}
    return sorted(made)[:size]


def characters(first: int, last: int) -> Callable[[random.Random, Ask], str]:
    return lambda draw, ask: "".join(chr(draw.randrange(first, last)) for _ in range(28))


MANY_SCRIPTS = (0x61, 0x61, 0x410, 0x4E00, 0x905, 0xE01)
LARGE = vocabulary(2_000)
GARBAGE: dict[str, tuple[str, Callable[[random.Random, Ask], str]]] = {
    "random words of a large vocabulary": (
        "10 most common of their",
        lambda draw, ask: words_of(draw, LARGE, 60),
    ),
    "twenty words in any order": (
        "different ones",
        lambda draw, ask: words_of(draw, FEW.split(), 50),
    ),
    "random ideographs": ("letters are", characters(0x4E00, 0x9FA0)),
    "random syllables of Korean": ("letters are", characters(0xAC00, 0xD7A0)),
    "a space after each letter": (
        "has a space after each letter",
        lambda draw, ask: " ".join(f"{ask.word} {PROSE[draw.randrange(9) :]}".replace(" ", "")),
    ),
    "each word twice": (
        "says its words twice",
        lambda draw, ask: " ".join(
            f"{word} {word}" for word in f"{ask.word} {PROSE[draw.randrange(9) :]}".split()
        ),
    ),
    "random tokens after a good beginning": (
        "ends in scripts or symbols at random",
        lambda draw, ask: (
            f"The code word is {ask.word}. {PROSE[draw.randrange(9) : 170]}"
            + "".join(chr(draw.choice(MANY_SCRIPTS) + draw.randrange(26)) for _ in range(110))
        ),
    ),
    "one text, cut at any length, with another name": (
        "differ in a word",
        lambda draw, ask: SAME.format(draw.choice(LARGE))[: draw.randrange(125, 190)],
    ),
    "one text, with another subject of some words": (
        "differ in a word",
        lambda draw, ask: SAME.format(words_of(draw, LARGE, draw.randrange(1, 5))),
    ),
}


def probed(made: Callable[[random.Random, Ask], str]) -> list[Probed]:
    draw = random.Random(3)
    return [Probed(ask, Answer(made(draw, ask), model="m", prompt=ask.prompt)) for ask in ASKS]


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_that_is_close_to_language_is_found(kind: str) -> None:
    why, made = GARBAGE[kind]
    (one, *_) = assess_probe(probed(made))
    assert (one.code, one.level) == (DEGENERATE, Level.ERROR)
    assert why in one.text
    assert not [
        f
        for f in assess_probe(probed(made), why_nonsense_is_expected="x")
        if f.level is Level.ERROR
    ]


def test_ready_finds_random_words_of_a_large_vocabulary() -> None:
    draw = random.Random(4)
    large = vocabulary(4_000)
    asks = [
        *make_short_asks(9),
        *(Ask(a.prompt, a.word, ProbePart.LONGER) for a in make_short_asks(13)[9:]),
    ]
    answers = [
        Probed(ask, Answer(words_of(draw, large, 45 if ask.part is ProbePart.LONGER else 12)))
        for ask in asks
    ]
    (one, *_) = assess_probe(answers)
    assert (one.code, one.level) == (DEGENERATE, Level.ERROR)
    assert "unrelated words" in one.text


def test_a_mark_of_a_template_in_the_longer_answers_is_enough() -> None:
    def made(number: int) -> Answer:
        end = f"<|im_end|>\n{PROSE[number:]}" if number >= 9 else PROSE[number : number + 30]
        return Answer(f"The code word is {ASKS[number].word}. {end}")

    findings = assess_probe([Probed(ask, made(n)) for n, ask in enumerate(ASKS[:13])])
    assert [(one.code, one.level) for one in findings] == [(TEMPLATE, Level.WARN)]


@pytest.mark.parametrize(
    "said",
    ["user\n{0}\nassistant\n{0}", "{0} {0}", "user: {0}"],
)
@pytest.mark.parametrize("changed", [str, str.lower])
def test_a_prompt_between_marks_of_a_chat_is_an_echo(
    said: str, changed: Callable[[str], str]
) -> None:
    (one, *_) = assess_probe(probed(lambda draw, ask: changed(said.format(ask.prompt))[:250]))
    assert (one.code, one.level) == (ECHO, Level.ERROR)


def test_an_answer_that_first_quotes_its_prompt_is_marked_only() -> None:
    findings = assess_probe(
        probed(lambda draw, ask: f'You asked: "{ask.prompt}" {PROSE[draw.randrange(60) :]}')
    )
    assert [(one.code, one.level) for one in findings] == [(ECHO, Level.WARN)]


def test_a_loop_of_a_language_with_letters_for_tones_is_no_salad() -> None:
    hmong = "yanb senb ghob nhangb nangd nex, " + "nis ghob nhangb nangd nex, " * 9
    assert text_features(hmong).vowel_share == pytest.approx(0.25, abs=0.02)
    assert not text_features(hmong).mixes_scripts
    draw = random.Random(6)
    letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz    ", k=290))
    assert text_features(letters).mixes_scripts


def test_a_language_without_spaces_is_no_garbage() -> None:
    size = len(TIBETAN)
    for count in (40, 90, size):
        for begin in range(0, size - count + 1, 7):
            assert text_features(TIBETAN[begin : begin + count]).defect == ""


@pytest.mark.parametrize("bytes_missing", [1, 2, 3])
def test_a_character_that_is_not_complete_is_no_garbage(bytes_missing: int) -> None:
    broken = "\N{REPLACEMENT CHARACTER}" * bytes_missing
    for text in (f"ਸਾਰਾ ਮਨੁੱਖੀ ਪਰਿ{broken}", f"ਸਾਰਾ ਮਨੁੱ{broken}ਖੀ ਪਰਿਵਾਰ{broken}"):
        assert text_features(text).defect == ""
    assert text_features("\N{REPLACEMENT CHARACTER}" * 40).has_odd_characters
    assert text_features("ab\N{REPLACEMENT CHARACTER}" * 9).has_odd_characters


def test_a_tokenizer_that_makes_a_token_of_each_byte_counts_rightly() -> None:
    def made(begin: int, ask: Ask) -> Probed:
        tokens = len(PUNJABI[begin:].encode())
        answer = Answer(PUNJABI[begin:], output_tokens=tokens, model="m", prompt=ask.prompt)
        return Probed(ask, answer, recounted=tokens)

    answers = [made(9 * n, ask) for n, ask in enumerate(ASKS[:2])]
    assert not [one for one in assess_probe(answers) if one.level is Level.ERROR]
    load = features_of_answers([one.answer for one in answers])
    assert load.characters_per_token is not None and load.characters_per_token < 0.4
    assert findings_about_load(load, AskedLoad("m", ends=True), summarize_probe(answers)) == ()


def test_the_usage_of_a_load_without_language_is_not_judged() -> None:
    load = SetFeatures(32, 32, characters_per_token=0.1)
    (one,) = findings_about_load(load, AskedLoad("m"))
    assert one.level is Level.WARN
    assert (
        findings_about_load(load, AskedLoad("m"), why_nonsense_is_expected="its weights are random")
        == ()
    )


def test_marks_in_a_part_of_the_load_are_invalid_if_the_probe_has_some_too() -> None:
    load = SetFeatures(answers=32, looked_at=32, repeated="!", repeated_answers=10)
    for broken, level in ((0, Level.WARN), (1, Level.ERROR)):
        probe = ProbeOutcome({"together": ProbePartOutcome(16, broken, 16)})
        (one,) = findings_about_load(load, AskedLoad("m"), probe)
        assert (one.code, one.level) == (DEGENERATE, level), broken


def test_marks_in_a_twelfth_of_the_load_are_invalid_if_the_probe_has_some_too() -> None:
    load = SetFeatures(answers=64, looked_at=64, repeated="!", repeated_answers=6)
    for broken, levels in ((0, []), (1, [Level.ERROR])):
        probe = ProbeOutcome({"together": ProbePartOutcome(16, broken, 15)})
        found = findings_about_load(load, AskedLoad("m"), probe)
        assert [one.level for one in found] == levels, broken


def test_a_word_in_a_part_of_the_load_is_invalid_if_two_answers_of_the_probe_are_broken() -> None:
    load = SetFeatures(16, 16, repeated=" of", repeated_answers=4, collapsed=4)
    for broken, levels in ((1, []), (2, [Level.ERROR])):
        # one before and one after the load: neither group of four blames its place
        probe = ProbeOutcome(
            {"together": ProbePartOutcome(8, broken, 6), "long": ProbePartOutcome(4, 0, 4)}
        )
        found = findings_about_load(load, AskedLoad("m"), probe)
        assert [one.level for one in found] == levels, broken


@pytest.mark.parametrize(("salad", "level"), [(7, None), (8, Level.WARN), (16, Level.ERROR)])
def test_a_quarter_of_mixed_scripts_in_a_load_is_marked(salad: int, level: Level | None) -> None:
    load = SetFeatures(answers=32, looked_at=32, salad=salad)
    found = findings_about_load(
        load, AskedLoad("m"), ProbeOutcome({"alone": ProbePartOutcome(3, 0, 3)})
    )
    assert [one.level for one in found] == ([] if level is None else [level])
