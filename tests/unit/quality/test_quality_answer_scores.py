"""How probable A finds the answers that B wrote under load: the instrument, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from workbench.model.multiple_tests import rejected_by_holm_procedure
from workbench.model.quality import (
    ANSWER_SCORE,
    BROKEN,
    DIFFERS,
    AnswerScore,
    GreedyAnswer,
    QualityMeasure,
    QualityResult,
    ScoredPosition,
)
from workbench.quality.instrument import FORCED_POSITIONS, MOST_TOKENS, AnswersScored, Instrument
from workbench.quality.lanes.base import Prompt, ScoreError, ScoringInterface
from workbench.quality.statistics import p_value_of_sparse_differences
from workbench.quality.texts import Text
from workbench.quality.verdict import ScoredAnswers, compute_quality_result

TEXTS = [Text(f"t{number}", "prose", f"{number} " * 40) for number in range(3)]
UNLIKELY = 7


class Likes(ScoringInterface):
    """A server that finds each token but one equally probable."""

    def __init__(self, *, prefill: bool, dies_after: int = 10_000) -> None:
        super().__init__(_no_network, "model")
        self.prefill = prefill  # type: ignore[misc]
        self.asked, self._dies_after = 0, dies_after

    async def tokenize(self, text: str) -> Prompt:
        return Prompt(text, tuple(100 + int(word) for word in text.split()))

    async def score_whole_prompt(self, prompt: Prompt) -> tuple[ScoredPosition, ...]:
        self._count()
        assert len(prompt.ids) <= MOST_TOKENS
        return tuple(self._scored(token) for token in prompt.ids[1:])

    async def score_next(self, prompt: Prompt, place: int, slot: int = 0) -> ScoredPosition:
        self._count()
        return self._scored(prompt.ids[place])

    async def generate_answer(
        self, prompt: Prompt, tokens: int, slot: int = 0
    ) -> tuple[ScoredPosition, ...]:
        return tuple(self._scored(token) for token in range(20, 20 + tokens))

    def _count(self) -> None:
        self.asked += 1
        if self.asked > self._dies_after:
            raise ScoreError("the server gave no answer")

    def _scored(self, token: int) -> ScoredPosition:
        return ScoredPosition(token, -5.0 if token == UNLIKELY else -0.5, ((1, -0.5), (2, -1.0)))


async def _no_network(path: str, body: Mapping[str, Any], timeout_s: float) -> Any:
    raise AssertionError("no request is made")


def scored(server: Likes, *changed: dict[int, int]) -> AnswersScored:
    """Let the server score its own answers, and then copies of them in which the tokens at some
    places are others."""

    async def measure() -> AnswersScored:
        instrument = Instrument(server)
        own = (await instrument.write_answers(TEXTS, concurrency=3)).answers
        every = list(own)
        for places in changed:
            every += [_with(answer, places) for answer in own]
        return await instrument.score_answers(TEXTS, every)

    return asyncio.run(measure())


def _with(answer: GreedyAnswer, places: dict[int, int]) -> GreedyAnswer:
    tokens = tuple(places.get(place, token) for place, token in enumerate(answer.tokens))
    return GreedyAnswer(answer.name, answer.kind, tokens, prompt=answer.prompt)


def test_each_token_of_an_answer_is_scored_after_the_prompt_and_no_answer_twice() -> None:
    server = Likes(prefill=True)
    found = scored(server, {}, {5: UNLIKELY})
    assert not found.problem and server.asked == 2 * len(TEXTS), "an equal answer is asked once"
    assert [one.tokens for one in found.scores] == [128] * 9
    assert [one.logprob for one in found.scores[:6]] == [-0.5] * 6
    assert found.scores[6].logprob == pytest.approx(-0.5 - 4.5 / 128)


def test_a_server_that_scores_single_tokens_scores_the_beginnings_of_answers() -> None:
    server = Likes(prefill=False)
    found = scored(server, {FORCED_POSITIONS - 1: UNLIKELY}, {FORCED_POSITIONS: UNLIKELY})
    assert server.asked == 3 * len(TEXTS) * FORCED_POSITIONS
    assert {one.tokens for one in found.scores} == {FORCED_POSITIONS}
    assert [one.logprob < -0.5 for one in found.scores] == [*[False] * 3, *[True] * 3, *[False] * 3]


def test_a_whole_answer_never_asks_for_more_than_a_text_does() -> None:
    long = Text("long", "prose", "1 " * 700)

    async def measure() -> AnswersScored:
        instrument = Instrument(Likes(prefill=True))
        prompt = (await instrument.write_answers([long], concurrency=1)).answers[0].prompt
        written = GreedyAnswer("long", "prose", (20,) * 600, prompt=prompt)
        return await instrument.score_answers([long], [written])

    [one] = asyncio.run(measure()).scores
    assert one.tokens == MOST_TOKENS - 220


def test_what_cannot_be_scored_is_named_and_a_server_that_dies_ends_it() -> None:
    prompt = (100,) * 30
    answers = [
        GreedyAnswer("t0", "prose", (), prompt=prompt),
        GreedyAnswer("t0", "prose", (20,), prompt=(99,)),
        GreedyAnswer("t0", "prose", (20,), problem="it is too short", prompt=prompt),
        GreedyAnswer("t0", "prose", (20,), prompt=prompt),
    ]
    found = asyncio.run(Instrument(Likes(prefill=True)).score_answers(TEXTS, answers))
    assert [one.problem for one in found.scores] == [
        "the answer has no token",
        "A and B cut its beginning into different tokens",
        "it is too short",
        "",
    ]
    dying = scored(Likes(prefill=True, dies_after=2))
    assert dying.problem == "2 of 3 answers scored: the server gave no answer"


# ---- the verdict


def scores(values: Sequence[float]) -> list[AnswerScore]:
    return [AnswerScore(f"t{number}", value, 128) for number, value in enumerate(values)]


def judged(drops: Sequence[float]) -> tuple[QualityResult, QualityMeasure]:
    """Return the verdict about a B whose answers A finds less probable by `drops` than its own, and
    the measure."""
    random = Random(5)
    own = [random.gauss(-0.4, 0.1) for _ in drops]
    again = [value + random.gauss(0, 0.01) for value in own]
    of_b = [value - drop for value, drop in zip(own, drops, strict=True)]
    answers = ScoredAnswers(scores(own), scores(again), scores(of_b), concurrency=8)
    result = compute_quality_result([], [], scored_answers=answers)
    [measure] = [one for one in result.measures if one.name == ANSWER_SCORE]
    return result, measure


def test_answers_that_a_finds_less_probable_differ_and_nonsense_is_broken() -> None:
    random = Random(6)
    result, measure = judged([random.gauss(0.1, 0.05) for _ in range(32)])
    assert (result.verdict, measure.verdict, measure.concurrency) == (DIFFERS, DIFFERS, 8)
    assert measure.floor is not None and abs(measure.floor.value) < 0.01
    assert measure.value.value == pytest.approx(-0.1, abs=0.03)
    assert "A finds what it writes less probable than its own answers by 0.0" in result.summary
    assert result.answer_scores is not None and result.answer_scores.answers == 32
    result, _ = judged([random.gauss(8, 0.5) for _ in range(32)])
    assert result.verdict == BROKEN
    assert result.summary.startswith("its answers are broken: A finds what it writes less probable")


def test_noise_and_a_few_answers_that_part_do_not_differ() -> None:
    random = Random(7)
    _, measure = judged([random.gauss(0, 0.02) for _ in range(32)])
    assert measure.verdict == ""
    few = [0.3] * 5 + [0.0] * 27
    assert p_value_of_sparse_differences(few) == pytest.approx(2 / 2**5), "t alone would say 0.02"
    assert p_value_of_sparse_differences([0.0] * 32) == 1.0


def test_answers_that_a_cannot_score_are_named_once() -> None:
    own = scores([-0.4] * 30)
    lost = [AnswerScore(f"t{n}", problem="the answer has no token") for n in range(2)]
    result = compute_quality_result(
        [], [], scored_answers=ScoredAnswers(own, own, [*lost, *own[2:]])
    )
    assert result.answer_scores is not None and result.answer_scores.answers == 28
    assert (
        "A did not score the answers to 2 texts (t0, t1): the answer has no token" in result.notes
    )


def test_two_measures_of_the_same_answers_share_the_chance_of_one() -> None:
    ps = [0.016, 0.5, 0.014, 0.5]
    assert rejected_by_holm_procedure(ps, 0.05) == [False] * 4
    assert rejected_by_holm_procedure(ps, 0.05, [1, 1, 0.5, 0.5]) == [True, False, False, False]
    assert rejected_by_holm_procedure([0.008, None], 0.05, [0.5, 0.5]) == [True, False]
