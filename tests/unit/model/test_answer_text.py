"""The text of answers: garbage of each known kind is recognized, and language is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.answer_probe import (
    DEGENERATE,
    EMPTY,
    MIXED_UP,
    NOT_FOLLOWED,
    OTHER_MODEL,
    PROMPT_CUT,
    USAGE,
    Ask,
    Probed,
    ProbePart,
    assess_probe,
    make_long_ask,
    make_short_asks,
    may_be_same_model,
    read_answer,
    request_body_of_ask,
    summarize_probe,
)
from workbench.model.answer_text import Answer, answer_excerpt, features_of_answers, text_features
from workbench.model.findings import Level

_RANDOM = random.Random(1)


def _characters(low: int, high: int, count: int) -> str:
    return "".join(chr(_RANDOM.randrange(low, high)) for _ in range(count))


GARBAGE = {
    "exclamation marks": "!" * 60,
    "one word": " the" * 40,
    "a token after a good beginning": "The code word is this. Water wears away rock." + "!" * 24,
    "few words": " ".join(_RANDOM.choice(("the", "of", "and", "to")) for _ in range(60)),
    "replacement characters": "\ufffd" * 50,
    "random characters of all planes": _characters(0x21, 0x2FA1D, 80),
    "random characters": _characters(0x21, 0xD7FF, 80),
    "random printable ASCII": _characters(33, 127, 200),
    "random letters": "".join(_RANDOM.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(300)),
    "a short loop": "and then " * 20,
    "control characters": "\x01\x02" * 20,
    "nan": "nan " * 30,
    "one Chinese character": "的" * 50,
    "tokens of many scripts": "json личте Пере_SL 보통 mapped#### ujących उत्तर ฟัง النص 的 της foo",
}
LANGUAGE = {
    "English": "The code word is maple. Rivers shape valleys by wearing away rock over a long "
    "time.",
    "Chinese": "暗号是 maple。河流通过侵蚀岩石来塑造山谷,水流携带沉积物向下游移动,山谷变得更深更宽。",
    "Japanese": "コードワードは maple です。川は岩を侵食し、土砂を下流へ運ぶことで谷を形作ります。",
    "Arabic": "الكلمة السرية هي maple. تشكل الأنهار الوديان عن طريق تآكل الصخور ونقل الرواسب.",
    "Hindi": "कोड शब्द maple है। नदियाँ चट्टानों को काटकर घाटियों को आकार देती हैं।",
    "Thai": "รหัสคำคือ maple แม่น้ำกัดเซาะหินและพัดพาตะกอนไปตามกระแสน้ำ",
    "Korean": "암호는 maple입니다. 강은 암석을 침식하고 퇴적물을 운반하여 계곡을 만듭니다.",
    "Czech": "Kódové slovo je maple. Řeky vytvářejí údolí tím, že po tisíce let odnášejí horninu.",
    "Vietnamese": "Từ mã là maple. Các con sông tạo nên thung lũng bằng cách bào mòn đá và mang "
    "phù sa.",
    "code": "```python\ndef f(x):\n    return {k: v for k, v in x.items() if v != 0}\n```",
    "JSON": '{"code_word": "maple", "explanation": "Rivers erode the land.", "n": [1, 2, 3]}',
    "words": "time year people way day man thing woman life child world school state family",
    "pictures": "The code word is maple! 🍁 Rivers carve valleys 🌊🏞️ over a long time.",
    "a table": "| word | topic |\n|---|---|\n| maple | rivers |\n| copper | bread |",
    "Markdown": "## maple\n\n- **Erosion**: rivers wear away rock.\n- **Transport**: they carry "
    "it.",
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_has_a_defect(kind: str) -> None:
    assert text_features(GARBAGE[kind]).defect


@pytest.mark.parametrize("kind", LANGUAGE)
def test_language_has_no_defect(kind: str) -> None:
    assert text_features(LANGUAGE[kind]).defect == ""


_VOCABULARY = (  # noqa: SIM905  tokens as a vocabulary of 150,000 has them
    "getElement Update SIZE _id вод ção river (str 水 ing Поль tabla Vec .push ère müssen Node ση "
    "tion Boolean 수 kings ilarity ))) under Context ов 한국 stamp _MAX été quick ROW Ве Prop ness "
    "angl Index 新 ления able Query ที่ ist Handler ός sett Frame ك window 界 blue Serial ły"
).split()


def test_random_tokens_of_a_vocabulary_are_garbage() -> None:
    """Broken kernels and mixed-up weights make such text; nearly all answers show it."""
    draw = random.Random(3)
    found = 0
    for _ in range(100):
        tokens = [draw.choice(_VOCABULARY) + draw.choice(("", " ")) for _ in range(60)]
        found += bool(text_features("".join(tokens)).defect)
    assert found >= 95


@pytest.mark.parametrize(
    "text",
    [
        "She is glad to meet everyone who is glad to walk with her along the wide river bank. " * 5,
        "(xy" * 30,
        "7" + "0" * 60,
    ],
)
def test_phrases_and_digits_that_repeat_are_garbage(text: str) -> None:
    assert text_features(text).defect


def test_names_of_products_and_units_are_language() -> None:
    text = (
        "GitHub, YouTube and OpenStreetMap run on PostgreSQL; an iPhone needs 12.5 kWh a year, and "
        "the river moves 3.5 m3 of sand per second at 40 km/h, as JavaScript programs show."
    )
    assert text_features(text).defect == ""


@given(st.text(max_size=3000))
def test_any_text_has_features(text: str) -> None:
    found = text_features(text)
    shares = (found.loop_share, found.common_share, found.odd_share, found.symbol_share)
    assert all(0 <= share <= 1 for share in shares)
    assert "\x1b" not in answer_excerpt(Answer(text)) and "\n" not in answer_excerpt(Answer(text))


@given(st.text(min_size=1, max_size=8), st.integers(12, 200))
def test_a_repeated_short_unit_is_always_a_defect(unit: str, times: int) -> None:
    assert text_features(unit * times).defect


def _probed(ask: Ask, text: str, *, tokens: int = 30, **more: object) -> Probed:
    given = {name: more.pop(name) for name in ("recounted", "after") if name in more}
    answer = Answer(text, output_tokens=tokens, model="m", prompt=ask.prompt, **more)  # type: ignore[arg-type]
    return Probed(ask, answer, **given)  # type: ignore[arg-type]


def _said(ask: Ask) -> str:
    return f"The code word is {ask.word}. Water wears away the ground for years, and so it goes on."


def _asks() -> list[Ask]:
    return [
        *make_short_asks(2),
        *make_short_asks(4, ProbePart.TOGETHER),
        make_long_ask(500),
        make_long_ask(500, 1),
    ]


def _codes(probed: list[Probed], **more: object) -> list[str]:
    return [one.code for one in assess_probe(probed, **more)]  # type: ignore[arg-type]


def test_healthy_answers_have_no_finding() -> None:
    assert (
        assess_probe([_probed(ask, _said(ask), recounted=28) for ask in _asks()], model="m") == ()
    )


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_server_that_answers_garbage_is_found(kind: str) -> None:
    (found,) = assess_probe([_probed(ask, GARBAGE[kind]) for ask in _asks()])
    assert found.code == DEGENERATE and found.level is Level.ERROR
    assert "8 of 8 answers are broken" in found.text and found.evidence


def test_garbage_of_a_model_without_sense_is_a_note() -> None:
    probed = [_probed(ask, "!" * 60) for ask in _asks()]
    (found,) = assess_probe(probed, why_nonsense_is_expected="its weights are random")
    assert found.level is Level.INFO and "because its weights are random" in found.text


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (ProbePart.TOGETHER, "degenerate output with 4 requests at once only: 4 of 4"),
        (ProbePart.LONG, "degenerate output with prompts of 500 tokens only: 2 of 2"),
    ],
)
def test_garbage_in_one_place_is_named(place: ProbePart, where: str) -> None:
    probed = [_probed(ask, "!" * 60 if ask.part is place else _said(ask)) for ask in _asks()]
    (found,) = assess_probe(probed, asks_sent_at_once=4, long_tokens=500)
    assert found.text.startswith(where)
    assert (
        summarize_probe(probed).places[place.value].broken
        == summarize_probe(probed).places[place.value].answers
    )


def test_garbage_after_the_load_is_named() -> None:
    before = [_probed(ask, _said(ask)) for ask in _asks()]
    after = [_probed(ask, "!" * 60, after=True) for ask in _asks()]
    (found,) = assess_probe([*before, *after])
    assert found.text.startswith("degenerate output after the load: 8 of 8")


def test_a_part_of_a_batch_that_is_broken_is_found() -> None:
    asks = _asks()
    broken = {asks[3].prompt, asks[5].prompt}
    probed = [_probed(ask, "!" * 60 if ask.prompt in broken else _said(ask)) for ask in asks]
    assert _codes(probed) == [DEGENERATE]


def test_one_odd_answer_is_no_finding() -> None:
    asks = _asks()
    probed = [_probed(ask, "!" * 60 if ask is asks[0] else _said(ask)) for ask in asks]
    assert _codes(probed) == []


def test_equal_answers_to_different_prompts_are_found() -> None:
    assert _codes([_probed(ask, "The weather is fine today.") for ask in _asks()]) == [DEGENERATE]


def test_answers_without_text_are_found_with_their_usage() -> None:
    (found,) = assess_probe([_probed(ask, "", tokens=40) for ask in _asks()])
    assert found.code == EMPTY and "although usage says up to 40 tokens" in found.text


def test_answers_to_the_prompts_of_others_are_found() -> None:
    asks = _asks()
    others = [*asks[1:], asks[0]]
    probed = [_probed(ask, _said(other)) for ask, other in zip(asks, others, strict=True)]
    assert _codes(probed) == [MIXED_UP]


def test_a_model_that_does_not_follow_is_marked_only() -> None:
    words = "rivers carry sand and stones and wear away the ground below them until they rest"
    turned = [" ".join(words.split()[i:] + words.split()[:i]) for i in range(8)]
    (found,) = assess_probe([_probed(ask, turned[i]) for i, ask in enumerate(_asks())])
    assert found.code == NOT_FOLLOWED and found.level is Level.WARN


def test_a_prompt_that_was_cut_is_found_by_its_usage() -> None:
    cut = [_probed(ask, _said(ask), prompt_tokens=min(32, ask.count_words + 9)) for ask in _asks()]
    assert _codes(cut) == [PROMPT_CUT]
    whole = [_probed(ask, _said(ask), prompt_tokens=ask.count_words + 9) for ask in _asks()]
    assert _codes(whole) == []


@pytest.mark.parametrize(("tokens", "level"), [(500, Level.ERROR), (60_000, Level.WARN)])
def test_a_prompt_whose_beginning_is_not_known_was_cut(tokens: int, level: Level) -> None:
    forgot = (
        "I do not know the word. Bread rises because yeast makes a gas in the dough, number {}."
    )
    probed = [
        _probed(ask, forgot.format(i) if ask.part is ProbePart.LONG else _said(ask))
        for i, ask in enumerate(_asks())
    ]
    (found,) = assess_probe(probed, long_tokens=tokens)
    assert (found.code, found.level) == (PROMPT_CUT, level)


@pytest.mark.parametrize(
    ("said", "real", "codes"), [(60, 30, [USAGE]), (30, 60, [USAGE]), (36, 30, [])]
)
def test_usage_is_compared_with_the_text(said: int, real: int, codes: list[str]) -> None:
    probed = [_probed(ask, _said(ask), tokens=said, recounted=real) for ask in _asks()]
    assert _codes(probed) == codes


def test_usage_without_a_second_count_must_be_plausible() -> None:
    assert _codes([_probed(ask, _said(ask), tokens=400) for ask in _asks()]) == [USAGE]
    assert _codes([_probed(ask, _said(ask), tokens=24, characters=400) for ask in _asks()]) == [
        USAGE
    ]


def test_another_model_is_named() -> None:
    (found,) = assess_probe([_probed(ask, _said(ask)) for ask in _asks()], model="llama-70b")
    assert found.code == OTHER_MODEL and "m instead of llama-70b" in found.text


@pytest.mark.parametrize(
    ("asked", "reported", "same"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b", True),
        ("tiny", "/models/tiny.gguf", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B", False),
    ],
)
def test_names_of_one_model(asked: str, reported: str, same: bool) -> None:
    assert may_be_same_model(asked, reported) is same


def test_short_prompts_differ_and_do_not_change() -> None:
    asks = make_short_asks(64)
    assert len({ask.prompt for ask in asks}) == 64
    assert asks[:8] == make_short_asks(8)
    assert len({ask.word for ask in asks[:16]}) == 16


@pytest.mark.parametrize("tokens", [128, 1000, 8000])
def test_a_long_prompt_has_about_the_length_and_the_word_in_front(tokens: int) -> None:
    ask = make_long_ask(tokens)
    assert 0.8 * tokens < ask.count_words < 1.2 * tokens
    assert ask.prompt.index(ask.word) < 60 and ask.prompt.count(ask.word) == 1


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_reply_is_read(endpoint: str) -> None:
    ask = make_short_asks(1)[0]
    body = request_body_of_ask(ask, "m", endpoint)
    assert (body["model"], body["stream"]) == ("m", False)
    said = {"text": "hi"} if endpoint == "completions" else {"message": {"content": "hi"}}
    usage = {"completion_tokens": 1, "prompt_tokens": 9}
    read = read_answer(
        {"model": "m", "choices": [{**said, "finish_reason": "stop"}], "usage": usage}
    )
    assert read == Answer("hi", output_tokens=1, prompt_tokens=9, finish_reason="stop", model="m")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["choices", "message", "content", "usage", "x"]), inner
            )
        ),
    )
)
def test_any_reply_is_read_or_refused(body: object) -> None:
    read = read_answer(body)
    assert read is None or isinstance(read.text, str)


def test_the_answers_of_a_run() -> None:
    good = [Answer(_said(ask), output_tokens=20, prompt=ask.prompt) for ask in make_short_asks(6)]
    bad = [Answer("!" * 40, output_tokens=20, prompt=f"{n}") for n in range(2)]
    found = features_of_answers(
        [*good, *bad, Answer("", output_tokens=20, prompt="x")], total_answers=900
    )
    assert (found.answers, found.looked_at, found.empty, found.collapsed) == (900, 9, 1, 2)
    assert (found.repeated, found.repeated_answers, found.equal) == ("!", 2, 2)
    assert (
        features_of_answers(good).digest
        == features_of_answers(good[::-1]).digest
        != features_of_answers(bad).digest
    )
