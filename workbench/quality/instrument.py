"""The two instruments on one server: the scores of texts, and answers that the server writes.

The first never sees decoding, batches or speculation, and the second sees all of them. Both return
what they measured until the end or until the server failed, and then the reason in one sentence.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import (
    DECODE,
    PREFILL,
    AnswerScore,
    GreedyAnswer,
    InstrumentProof,
    ScoredPosition,
    ScoredText,
)
from workbench.quality.lanes.base import (
    BROKEN,
    REQUEST_S,
    ImpossibleScore,
    ScoreError,
    UnusableText,
)
from workbench.quality.statistics import mean_logprob, top2_gap_nats
from workbench.quality.texts import LONG_TOKENS
from workbench.quality.token_texts import TokenTexts

if TYPE_CHECKING:
    from workbench.quality.lanes.base import Prompt, ScoringInterface
    from workbench.quality.texts import Text

MOST_TOKENS = 512  # of a request for a whole text: it needs 6 bytes for each word of the vocabulary
PREFILL_POSITIONS = 256  # of each text
FORCED_POSITIONS = 64
PROOF_POSITIONS = 64
_PROOF_TEXTS = 8  # to find so many positions in, if a server does not score each of them
ANSWER_TOKENS = 128
MOST_ANSWER_S = 1800.0
# No answer forks after a shorter prompt in a batch, and a quarter of the answers after such a one.
QUESTION_TOKENS = 220
# Two ways to one number differ by rounding: by 0.0078 at most in bfloat16, as measured. A defect
# makes them differ by 1 and more.
_MEAN_DIFFERENCE = 0.05
_FEWEST_POSITIONS = 16  # of a text: fewer say nothing about it
# An answer may take this many times as long as its tokens would one after the other.
_PATIENCE = 2.0
_AT_TOP = 1e-3

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is done, and how many of how many


@dataclass(frozen=True, slots=True)
class Scores:
    """The scored texts. A text that the server cannot score has a problem and no positions.
    `problem` says why the scoring ended before all texts were scored; "" if it did not."""

    texts: tuple[ScoredText, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers that a server wrote. `problem` says why it ended before all were written; "" if
    it did not."""

    answers: tuple[GreedyAnswer, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AnswersScored:
    """How probable a server finds answers. `problem` says why the scoring ended before all answers
    were scored; "" if it did not."""

    scores: tuple[AnswerScore, ...]
    problem: str = ""


def count_scoring_requests(texts: Sequence[Text], *, prefill: bool) -> int:
    """Return the number of requests that one scoring of the texts takes. `prefill` says whether the
    server scores a short text in one request."""
    long = _count_long_texts(texts)
    return long * FORCED_POSITIONS + (len(texts) - long) * _count_requests_of_short_text(prefill)


def count_scored_positions(texts: Sequence[Text], *, prefill: bool) -> int:
    """Return the most positions that one scoring of the texts scores. `prefill` says whether the
    server scores a short text in one request."""
    long = _count_long_texts(texts)
    each = PREFILL_POSITIONS if prefill else FORCED_POSITIONS
    return long * FORCED_POSITIONS + (len(texts) - long) * each


def count_answer_requests(texts: Sequence[Text], *, prefill: bool) -> int:
    """Return the most requests that one scoring of the answers to the texts takes. `prefill` says
    whether the server scores a short text in one request."""
    return (len(texts) - _count_long_texts(texts)) * _count_requests_of_short_text(prefill)


def _count_long_texts(texts: Sequence[Text]) -> int:
    return sum(text.is_long for text in texts)


def _count_requests_of_short_text(prefill: bool) -> int:
    return 1 if prefill else FORCED_POSITIONS


def _ignore_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress of an instrument."""


class Instrument:
    """The two instruments on one server. `on_progress` is called after each text with what is being
    done, and with how many of how many texts are done."""

    def __init__(
        self, interface: ScoringInterface, on_progress: Progress = _ignore_progress
    ) -> None:
        self._interface = interface
        self._on_progress = on_progress
        self._prompts: dict[str, Prompt] = {}
        self._one_token_s = float("inf")  # the shortest request for one token
        self._known_scores: dict[tuple[Any, ...], AnswerScore] = {}

    @property
    def lane(self) -> str:
        """How a short text is scored: PREFILL, in one request, or DECODE, token by token."""
        return PREFILL if self._interface.prefill else DECODE

    @property
    def token_texts(self) -> TokenTexts:
        """The texts of the tokens that the server has named so far."""
        return self._interface.pieces

    # ---- proof

    async def check_scores_agree(self, texts: Sequence[Text], side: str) -> InstrumentProof:
        """Score tokens of the first texts in two ways, and return the proof. It is usable if the
        scores agree, and otherwise has the reason, also if the server failed. `side` is "A" or "B".
        """
        differences: list[float] = []

        def make_unusable_proof(reason: str, defect: str = "") -> InstrumentProof:
            return InstrumentProof(
                side=side,
                lane=self.lane,
                usable=False,
                positions=len(differences),
                largest=max(differences, default=None),
                reason=reason,
                defect=defect,
            )

        try:
            usable = await self._first_scorable_texts(texts)
            for text in usable:
                if len(differences) < PROOF_POSITIONS:
                    differences += await self._measure_score_differences_nats(
                        text, PROOF_POSITIONS - len(differences)
                    )
            noise = await self._measure_repeat_noise_nats(usable[0])
        except ImpossibleScore as error:
            return make_unusable_proof(str(error), self._interface.defect)
        except ScoreError as error:
            return make_unusable_proof(str(error))
        count = len(differences)
        if count < _FEWEST_POSITIONS:
            return make_unusable_proof(
                f"only {count} of {PROOF_POSITIONS} positions could be scored twice"
            )
        mean = sum(differences) / count
        if mean > _MEAN_DIFFERENCE:
            said = (
                f"two ways to score the same {count} tokens differ by {mean:.3g} on average, "
                f"where rounding explains {_MEAN_DIFFERENCE}"
            )
            return make_unusable_proof(said, self._interface.defect)
        return InstrumentProof(
            side=side,
            lane=self.lane,
            usable=True,
            positions=count,
            largest=max(differences),
            noise=noise,
        )

    async def _first_scorable_texts(self, texts: Sequence[Text]) -> list[Text]:
        """Return the first texts that this server can score, at most _PROOF_TEXTS. Raises
        UnusableText if it can score none."""
        found: list[Text] = []
        problem = UnusableText("there is no text")
        for text in texts:
            if len(found) == _PROOF_TEXTS:
                break
            try:
                await self._tokenize_prompt(text)
            except UnusableText as error:
                problem = UnusableText(f"text {text.name} cannot be scored: {error}")
            else:
                found.append(text)
        if not found:
            raise problem
        return found

    async def _measure_repeat_noise_nats(self, text: Text) -> float | None:
        """Score a text twice in the same way, and return the largest difference in nats. None if no
        token has two scores."""
        prompt = (await self._tokenize_prompt(text)).first_tokens(PROOF_POSITIONS + 1)
        first, second = await self._score_prompt_once(prompt), await self._score_prompt_once(prompt)
        differences = []
        for a, b in zip(first, second, strict=True):
            if a and b:
                differences.append(_logprob_difference_nats(a, b))
        return max(known_values(differences), default=None)

    async def _score_prompt_once(self, prompt: Prompt) -> Sequence[ScoredPosition | None]:
        if self._interface.prefill:
            return await self._interface.score_whole_prompt(prompt)
        end = len(prompt.ids)
        return await self._score_positions(prompt, range(max(1, end - _FEWEST_POSITIONS), end))

    async def _score_positions(
        self, prompt: Prompt, positions: range, slot: int = 0
    ) -> list[ScoredPosition | None]:
        """Score the tokens at some positions of a prompt, one after the other. The score is None
        where the server cannot be asked for the token."""
        return [await self._interface.score_next(prompt, place, slot) for place in positions]

    async def _measure_score_differences_nats(self, text: Text, tokens: int) -> list[float]:
        """Score at most `tokens` tokens of a text in two ways, and return the differences in nats.
        Raises ScoreError if the server gives impossible scores."""
        prompt = (await self._tokenize_prompt(text)).first_tokens(tokens + 1)
        if self._interface.prefill:
            one = list(await self._interface.score_whole_prompt(prompt))
        else:
            # A server that scores no prompts: its scores of its own answer, and of it forced
            question = prompt.first_tokens(1 + PROOF_POSITIONS // 2)
            one = list(await self._interface.generate_answer(question, tokens))
            prompt = await self._prompt_with_answer_cut_to_fit(question, one)
        start = len(prompt.ids) - len(one)
        differences = []
        for number, first in enumerate(one):
            began = time.monotonic()
            second = await self._interface.score_next(prompt, start + number)
            if second is None or second.token != first.token:
                continue
            self._one_token_s = min(self._one_token_s, time.monotonic() - began)
            _require_no_token_above_top(first)
            _require_no_token_above_top(second)
            differences.append(_logprob_difference_nats(first, second))
        return known_values(differences)

    async def _prompt_with_answer_cut_to_fit(
        self, prompt: Prompt, answer: list[ScoredPosition]
    ) -> Prompt:
        """Return the prompt followed by an answer. The list `answer` loses the tokens at its end
        that the server's tokenizer does not give back as they were."""
        tokens = [one.token for one in answer]
        ids = [token for token in tokens if isinstance(token, int)]
        if len(ids) == len(tokens):
            return type(prompt)(prompt.text, (*prompt.ids, *ids))
        said = "".join(map(str, tokens))
        start = await self._interface.text_of_prompt(prompt)
        again = await self._interface.tokenize(start + said)
        del answer[max(0, len(again.ids) - len(prompt.ids)) :]
        return again.first_tokens(len(prompt.ids) + len(answer))

    # ---- scores of texts

    async def score_texts(self, texts: Sequence[Text], *, concurrency: int = 1) -> Scores:
        """Score texts, at most `concurrency` of them together. A failure of the server ends the
        scoring and is not raised. With a concurrency above 1, each position is one request, because
        whole prompts together need too much memory."""

        async def score_or_report_problem(text: Text, slot: int) -> ScoredText:
            try:
                return await self._score_text(text, slot, concurrency)
            except ScoreError as error:
                # A context may be too short for a long text only.
                if not text.is_long and not isinstance(error, UnusableText):
                    raise
                return ScoredText(
                    name=text.name,
                    kind=text.kind,
                    positions=(),
                    lane=DECODE,
                    concurrency=concurrency,
                    problem=str(error),
                )

        found, problem = await self._results_and_problem_of_texts(
            texts, concurrency, "texts scored", score_or_report_problem
        )
        return Scores(tuple(found), problem)

    async def _score_text(self, text: Text, slot: int, concurrency: int) -> ScoredText:
        prompt = await self._tokenize_prompt(text)
        whole = self._interface.prefill and not text.is_long and concurrency == 1
        if whole:
            lane = PREFILL
            positions = (await self._interface.score_whole_prompt(prompt))[-PREFILL_POSITIONS:]
        else:
            lane = DECODE
            end = len(prompt.ids)
            places = range(max(1, end - FORCED_POSITIONS), end)
            positions = tuple(known_values(await self._score_positions(prompt, places, slot)))
        for one in positions:
            _require_no_token_above_top(one)
        if len(positions) < min(_FEWEST_POSITIONS, len(prompt.ids) - 1):
            raise UnusableText(f"it can be scored at {len(positions)} positions only")
        return ScoredText(
            name=text.name,
            kind=text.kind,
            positions=positions,
            lane=lane,
            concurrency=concurrency,
            asked=len(positions),  # those at which this server can be asked
        )

    async def _tokenize_prompt(self, text: Text) -> Prompt:
        if text.name in self._prompts:
            return self._prompts[text.name]
        whole = await self._interface.tokenize(text.before + text.content)
        prompt = self._cut_to_token_limit(text, whole)
        if len(prompt.ids) < 2:
            raise UnusableText("it has fewer than two tokens")
        self._prompts[text.name] = prompt
        return prompt

    def _cut_to_token_limit(self, text: Text, prompt: Prompt) -> Prompt:
        if text.is_long:
            return self._interface.last_tokens(prompt, LONG_TOKENS)
        return prompt.first_tokens(MOST_TOKENS)

    # ---- answers

    async def write_answers(self, texts: Sequence[Text], *, concurrency: int) -> Answers:
        """Return the greedy answers with which the server continues the beginning of each short
        text, `concurrency` texts together. A failure of the server ends this and is not raised."""

        async def write_answer(text: Text, slot: int) -> GreedyAnswer:
            try:
                prompt = await self._tokenize_question(text)
            except UnusableText as error:
                return GreedyAnswer(text.name, text.kind, (), (), concurrency, str(error))
            written = await self._interface.generate_answer(prompt, ANSWER_TOKENS, slot)
            return _make_greedy_answer(text, prompt, written, concurrency)

        short = [text for text in texts if not text.is_long]
        self._interface.request_s = self._answer_limit_s(concurrency)
        found, problem = await self._results_and_problem_of_texts(
            short, concurrency, "answers written", write_answer
        )
        return Answers(tuple(found), problem)

    def _answer_limit_s(self, concurrency: int) -> float:
        """Return the seconds that an answer may take. They follow the speed at which the server
        scored single tokens: a slow server gets more time, and a stuck one does not get all."""
        if not math.isfinite(self._one_token_s):
            return REQUEST_S
        one_by_one_s = ANSWER_TOKENS * concurrency * self._one_token_s
        return min(MOST_ANSWER_S, max(REQUEST_S, _PATIENCE * one_by_one_s))

    async def _tokenize_question(self, text: Text) -> Prompt:
        """Return the tokens of the part of a text after which the server writes its answer: of a
        conversation all that is before the last answer."""
        if text.text_before_last_answer == text.content:
            whole = await self._tokenize_prompt(text)
            part = whole.first_tokens(min(QUESTION_TOKENS, max(1, len(whole.ids) * 3 // 4)))
        else:
            part = (await self._interface.tokenize(text.text_before_last_answer)).first_tokens(
                MOST_TOKENS
            )
        return await self._interface.trim_for_generation(part)

    # ---- scores of answers

    async def score_answers(
        self, texts: Sequence[Text], answers: Sequence[GreedyAnswer]
    ) -> AnswersScored:
        """Return how probable this server finds answers to the texts, one at a time. An equal
        answer is scored only once. A failure of the server ends the scoring and is not raised."""
        asked = {text.name: text for text in texts}
        scores: list[AnswerScore] = []
        for answer in answers:
            key = (answer.name, answer.prompt, answer.tokens, answer.problem)
            try:
                if key not in self._known_scores:
                    self._known_scores[key] = await self._score_answer(asked[answer.name], answer)
            except ScoreError as error:
                done = f"{len(scores)} of {len(answers)} answers scored"
                return AnswersScored(tuple(scores), f"{done}: {error}")
            scores.append(self._known_scores[key])
            self._on_progress("answers scored", len(scores), len(answers))
        return AnswersScored(tuple(scores))

    async def _score_answer(self, text: Text, answer: GreedyAnswer) -> AnswerScore:
        try:
            positions = await self._score_answer_tokens(text, answer)
        except UnusableText as error:
            return AnswerScore(answer.name, lane=self.lane, problem=str(error))
        return AnswerScore(answer.name, mean_logprob(positions), len(positions), self.lane)

    async def _score_answer_tokens(
        self, text: Text, answer: GreedyAnswer
    ) -> Sequence[ScoredPosition]:
        """Return the scores of the tokens of an answer, each after its prompt and the tokens before
        it. Raises UnusableText if no token can be scored."""
        if answer.problem:
            raise UnusableText(answer.problem)
        if not answer.tokens:
            raise UnusableText("the answer has no token")
        prompt = await self._tokenize_question(text)
        if prompt.ids != answer.prompt:
            raise UnusableText("A and B cut its beginning into different tokens")
        complete = takewhile(lambda token: BROKEN not in str(token), answer.tokens)
        whole = await self._prompt_with_answer_cut_to_fit(
            prompt, [ScoredPosition(one, None) for one in complete]
        )
        first = len(prompt.ids)
        if whole.ids[:first] != prompt.ids:
            raise UnusableText("the tokenizer cuts the text with the answer in another way")
        if self._interface.prefill:
            room = (self._interface.context_tokens or MOST_TOKENS + 1) - 1
            whole = whole.first_tokens(min(MOST_TOKENS, room))
            positions = (await self._interface.score_whole_prompt(whole))[first - 1 :]
        else:
            places = range(first, min(len(whole.ids), first + FORCED_POSITIONS))
            positions = tuple(known_values(await self._score_positions(whole, places)))
        for one in positions:
            _require_no_token_above_top(one)
        named = [one for one in positions if one.log_probabilities]
        if not named:
            raise UnusableText("no token of the answer can be scored")
        return named

    # ---- several texts

    async def _results_and_problem_of_texts(
        self,
        texts: Sequence[Text],
        concurrency: int,
        what: str,
        measure: Callable[[Text, int], Awaitable[T]],
    ) -> tuple[list[T], str]:
        """Call `measure` for each text, `concurrency` of them together. Return (results in the
        order of the texts, why it ended before all were measured or ""). `what` says in that text
        what was done."""
        found: dict[int, T] = {}
        waiting = list(enumerate(texts))[::-1]
        problems: list[str] = []

        async def process_waiting_texts(slot: int) -> None:
            while waiting and not problems:
                place, text = waiting.pop()
                try:
                    found[place] = await measure(text, slot)
                except ScoreError as error:
                    problems.append(f"{len(found)} of {len(texts)} {what}: {error}")
                    return
                self._on_progress(what, len(found), len(texts))

        await asyncio.gather(*map(process_waiting_texts, range(min(concurrency, len(texts)))))
        return [found[place] for place in sorted(found)], next(iter(problems), "")


def _logprob_difference_nats(a: ScoredPosition, b: ScoredPosition) -> float | None:
    """Return the difference between two log probabilities; None if one is not known."""
    if a.logprob is None or b.logprob is None:
        return None
    return abs(a.logprob - b.logprob)


def _make_greedy_answer(
    text: Text, prompt: Prompt, written: Sequence[ScoredPosition], concurrency: int
) -> GreedyAnswer:
    return GreedyAnswer(
        name=text.name,
        kind=text.kind,
        tokens=tuple(one.token for one in written),
        gaps=tuple(map(top2_gap_nats, written)),
        concurrency=concurrency,
        prompt=prompt.ids,
    )


def _require_no_token_above_top(scored: ScoredPosition) -> None:
    """Raise ImpossibleScore if a token is more probable than the most probable one at its
    position."""
    if scored.logprob is None or not scored.top:
        return
    if scored.logprob > scored.top[0][1] + _AT_TOP:
        raise ImpossibleScore(
            "the server gave a token a higher probability than its most probable one"
        )
