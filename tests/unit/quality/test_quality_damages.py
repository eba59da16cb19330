"""The verdict about damaged servers: the eight kinds that the check of text knows, and the damages of
log probabilities. The table of docs/REFERENCE.md, "How sure a verdict about quality is", has them.

The servers answer as vLLM does, from the simulated language model, without a network.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from workbench.model.quality import (
    ANSWER_SCORE,
    BROKEN,
    DIFFERS,
    FORKS,
    NOT_MEASURED,
    SAME,
    GreedyAnswer,
    QualityResult,
)
from workbench.quality import texts
from workbench.quality.instrument import Instrument
from workbench.quality.lanes import interface_class
from workbench.quality.texts import Text
from workbench.quality.verdict import ScoredAnswers, compute_quality_result
from workbench.server.small_requests import Reply, make_reply
from workbench.sim.language_model import (
    Damage,
    LanguageModel,
    Predicted,
    count_user_turns,
    text_of_tokens,
    token_ids_of,
)

TOGETHER = 8
CONTEXT = 4096  # tokens, above which one of the servers is broken
WORDS = 16
ANSWER_TOKENS = 24
TOP = 20


def _cut(text: Text) -> Text:
    return text if text.kind == "chat" else replace(text, content=_words(text.content, WORDS))


def _words(text: str, count: int) -> str:
    return " ".join(text.split()[:count])


SHORT = [text for text in texts.shipped_text_set().texts if not text.is_long and text.kind != "cjk"]
ONE_LONG = Text("long", "long", _words(SHORT[0].content, WORDS), before="on " * 4200)
TEXTS = (*map(_cut, SHORT), ONE_LONG)


@dataclass(frozen=True)
class Asked:
    """One token that is asked for: of the prompt, or number `place` of the answer."""

    context: Sequence[int]
    token: int
    place: int | None
    together: int
    turns: int


Predict = Callable[[Asked], Predicted]


def of_model(damage: Damage) -> Predict:
    model = LanguageModel(damage)

    @cache
    def known(context: tuple[int, ...], token: int, together: int, turns: int) -> Predicted:
        return model.predict(context, token, TOP, batch_size=together, turn_count=turns)

    def predict(asked: Asked) -> Predicted:
        # The model looks at no more than the last four tokens.
        together, turns = min(2, asked.together), min(2, asked.turns)
        return known(tuple(asked.context[-4:]), asked.token, together, turns)

    return predict


HEALTHY = of_model(Damage())
GARBAGE = of_model(Damage(garbage=True))


class Served:
    """A server with vLLM's interface. `ends` says that its answers end before their first token."""

    def __init__(self, predict: Predict, *, ends: bool = False) -> None:
        self._predict, self._ends, self._in_flight = predict, ends, 0

    async def send(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Reply:
        if path == "/tokenize":
            return make_reply(200, json.dumps({"tokens": token_ids_of(body["prompt"])}).encode())
        self._in_flight += 1
        await asyncio.sleep(0)  # the others of a batch are sent
        reply = self._reply(body)
        await asyncio.sleep(0)
        self._in_flight -= 1
        return make_reply(200, json.dumps(reply).encode())

    def _reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ids, choice = body["prompt"], {}
        turns = count_user_turns(text_of_tokens(ids))

        def ask(context: Sequence[int], token: int, place: int | None) -> Predicted:
            return self._predict(Asked(context, token, place, self._in_flight, turns))

        if "prompt_logprobs" in body:
            found = [ask(ids[:place], ids[place], None) for place in range(1, len(ids))]
            pairs = zip(found, ids[1:], strict=True)
            choice["prompt_logprobs"] = [None, *(_entries(one, token) for one, token in pairs)]
        else:
            choice["logprobs"] = self._answer(ids, body, ask)
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def _answer(
        self, ids: Sequence[int], body: Mapping[str, Any], ask: Callable[..., Predicted]
    ) -> dict[str, Any]:
        wanted = body.get("logprob_token_ids", [0])[0]
        count = body["max_tokens"]
        made: list[int] = []
        tops = []
        for place in range(0 if self._ends and count > 1 else count):
            one = ask([*ids, *made], wanted, place)
            tops.append({f"token_id:{token}": logged for token, logged in one.top})
            if wanted:
                tops[-1] = {f"token_id:{wanted}": one.log_probability}
            made.append(one.top[0][0])
        return {
            "tokens": [f"token_id:{token}" for token in made],
            "token_logprobs": [top[f"token_id:{one}"] for one, top in zip(made, tops, strict=True)]
            if not wanted
            else [0.0] * len(made),
            "top_logprobs": tops,
        }


def _entries(one: Predicted, token: int) -> dict[str, Any]:
    found = {**dict(one.top), token: one.log_probability}
    return {str(name): {"logprob": logged} for name, logged in found.items()}


# ---- damages


def not_a_number(asked: Asked) -> Predicted:
    return Predicted(math.nan, tuple((token, math.nan) for token, _ in HEALTHY(asked).top))


def a_loop(asked: Asked) -> Predicted:
    """Four tokens again and again, once an answer is eight tokens long."""
    if asked.place is None or asked.place < 8:
        return HEALTHY(asked)
    return _surely(asked, asked.context[-4])


def one_answer_to_all(asked: Asked) -> Predicted:
    if asked.place is None:
        return HEALTHY(asked)
    return _surely(
        asked, token_ids_of("I am sorry, but I cannot help with that. " * 20)[asked.place]
    )


def _surely(asked: Asked, token: int) -> Predicted:
    others = [(one, -9.0) for one, _ in HEALTHY(asked).top if one != token]
    best = ((token, -0.01), *others[: TOP - 1])
    return Predicted(dict(best).get(asked.token, -12.0), best)


def broken_above_a_context(asked: Asked) -> Predicted:
    return (GARBAGE if len(asked.context) > CONTEXT else HEALTHY)(asked)


def stale_prompts(asked: Asked) -> Predicted:
    """Log probabilities of a prompt are those of one token before, as on vLLM with MTP."""
    if asked.place is not None:
        return HEALTHY(asked)
    earlier = Asked(asked.context[:-1], asked.token, None, asked.together, asked.turns)
    return HEALTHY(earlier)


def zeros(asked: Asked) -> Predicted:
    return Predicted(0.0, tuple((token, 0.0) for token, _ in HEALTHY(asked).top))


# ---- verdicts


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.quality.instrument.ANSWER_TOKENS", ANSWER_TOKENS)


@cache
def healthy_a() -> dict[str, Any]:
    """Measure a healthy A as `workbench quality` does: twice."""

    async def measure() -> dict[str, Any]:
        instrument = Instrument(interface_class("prompt_logprobs")(Served(HEALTHY).send, "a"))
        proof = await instrument.check_scores_agree(TEXTS, "A")
        scores = [await instrument.score_texts(TEXTS) for _ in range(2)]
        answers = [await instrument.write_answers(TEXTS, concurrency=TOGETHER) for _ in range(2)]
        return {"proof": proof, "scores": scores, "answers": answers}

    return asyncio.run(measure())


def verdict_about(predict: Predict, *, ends: bool = False) -> QualityResult:
    """Return the verdict about B, whose tokens `predict` gives, against a healthy A."""
    a = healthy_a()

    async def measure() -> QualityResult:
        instrument = Instrument(
            interface_class("prompt_logprobs")(Served(predict, ends=ends).send, "b")
        )
        proof = await instrument.check_scores_agree(TEXTS, "B")
        scored = (await instrument.score_texts(TEXTS)).texts if proof.usable else ()
        written = await instrument.write_answers(TEXTS, concurrency=TOGETHER)
        return compute_quality_result(
            a["scores"][0].texts,
            scored,
            floors=[a["scores"][1].texts],
            greedy_a=a["answers"][0].answers,
            greedy_b=written.answers,
            greedy_floor=a["answers"][1].answers,
            scored_answers=await _judged(written.answers),
            proofs=[a["proof"], proof],
        )

    return asyncio.run(measure())


async def _judged(of_b: Sequence[GreedyAnswer]) -> ScoredAnswers:
    """Let a healthy A score its own answers and those of B."""
    judging = Instrument(interface_class("prompt_logprobs")(Served(HEALTHY).send, "a"))
    own = [one.answers for one in healthy_a()["answers"]]
    found = [await judging.score_answers(TEXTS, answers) for answers in (*own, of_b)]
    assert [one.problem for one in found] == [""] * 3
    return ScoredAnswers(*(one.scores for one in found), concurrency=TOGETHER)


KINDS = {
    "second turn": (of_model(Damage(second_turn=True)), BROKEN),
    "above 4k tokens": (broken_above_a_context, BROKEN),
    "MTP": (stale_prompts, NOT_MEASURED),
    "in a batch": (of_model(Damage(together=True)), BROKEN),
    "not a number": (not_a_number, NOT_MEASURED),
    "zeros": (zeros, NOT_MEASURED),
    "loop": (a_loop, DIFFERS),
    "one answer to all": (one_answer_to_all, BROKEN),
    "KLD 0.01": (of_model(Damage(kld=0.01)), DIFFERS),
    "only !": (GARBAGE, BROKEN),
}


@pytest.mark.slow
@pytest.mark.ci_cases(3)
@pytest.mark.parametrize(("predict", "verdict"), KINDS.values(), ids=KINDS)
def test_each_damage_is_found(predict: Predict, verdict: str) -> None:
    found = verdict_about(predict)
    assert found.verdict == verdict, found.summary
    if verdict == NOT_MEASURED:
        assert "instrument not usable, prefill of B: " in found.summary
        assert {one.name for one in found.measures} <= {FORKS, ANSWER_SCORE}


@pytest.mark.slow
@pytest.mark.long
def test_nonsense_in_a_batch_is_broken_by_what_a_says_of_it() -> None:
    """Alone, this server scores each text as ever; its answers only were said to differ."""
    found = verdict_about(of_model(Damage(together=True)))
    [judged] = [one for one in found.measures if one.name == ANSWER_SCORE]
    assert judged.floor is not None and judged.floor.value == 0
    assert judged.value.high is not None and judged.value.high < -2
    assert found.answer_scores is not None and found.answer_scores.b < found.answer_scores.a - 2
    assert found.summary.startswith(
        "its answers are broken: A finds what it writes less probable than its own answers by "
    )


@pytest.mark.slow
def test_answers_without_a_token_are_found_and_an_undamaged_server_is_the_same() -> None:
    assert verdict_about(HEALTHY, ends=True).verdict == DIFFERS
    found = verdict_about(HEALTHY)
    assert (found.verdict, found.notes) == (SAME, ())
