"""The instruments on simulated engines, which answer in the form of each engine's interface."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from workbench.model.quality import InstrumentProof, ScoredText
from workbench.quality import texts
from workbench.quality.instrument import Instrument
from workbench.quality.token_texts import text_of_tokens

ENGINES = ("vllm", "sglang", "llamacpp", "tabbyapi")
ALL = texts.shipped_text_set().texts
SHORT = tuple(text for text in ALL if not text.is_long)
FEW = (SHORT[0], SHORT[2], SHORT[-1])
LONG = tuple(text for text in ALL if text.is_long)

pytestmark = pytest.mark.slow  # a start of a server and up to 600 requests each

Start = Callable[..., tuple[str, int]]
OnServer = Callable[..., Any]


def divergence(a: Sequence[ScoredText], b: Sequence[ScoredText]) -> float:
    """Return the mean divergence of B from A over the tokens that both list, with a rest."""
    found = []
    for one, other in zip(a, b, strict=True):
        for p, q in zip(one.positions, other.positions, strict=True):
            ours, theirs = dict(p.top), dict(q.top)
            both = ours.keys() & theirs.keys()
            rest_p = 1 - sum(math.exp(ours[token]) for token in both)
            rest_q = 1 - sum(math.exp(theirs[token]) for token in both)
            listed = sum(math.exp(ours[token]) * (ours[token] - theirs[token]) for token in both)
            found.append(listed + rest_p * math.log(rest_p / rest_q))
    return sum(found) / len(found)


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_instrument_is_proven_scores_texts_twice_alike_and_lets_the_server_write(
    start_simulated: Start, on_server: OnServer, engine: str
) -> None:
    async def measure(instrument: Instrument) -> None:
        proof = await instrument.check_scores_agree(FEW, "A")
        assert (proof.usable, proof.reason, proof.positions) == (True, "", 64)
        assert proof.largest == pytest.approx(0, abs=1e-9)
        assert proof.noise == 0
        first, second = [await instrument.score_texts(FEW) for _ in range(2)]
        assert not first.problem and first.texts == second.texts
        assert [text.name for text in first.texts] == [text.name for text in FEW]
        for text in first.texts:
            assert text.lane == instrument.lane and len(text.positions) >= 32
        written = await instrument.write_answers(FEW, concurrency=3)
        assert not written.problem
        assert [len(answer.tokens) for answer in written.answers] == [128] * 3
        judged = await instrument.score_answers(FEW, written.answers)
        assert not judged.problem and [one.problem for one in judged.scores] == [""] * 3
        assert all(one.tokens >= 16 and one.logprob < 0 for one in judged.scores)
        senseless = [replace(one, tokens=one.tokens[::-1]) for one in written.answers[:1]]
        [backwards] = (await instrument.score_answers(FEW, senseless)).scores
        assert backwards.problem or backwards.logprob < judged.scores[0].logprob
        scored = [one.token for text in first.texts for one in text.positions]
        assert "<" not in text_of_tokens(scored[:200], instrument.token_texts), (
            "each has a text, and no id"
        )

    on_server(start_simulated(engine), measure)


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_injected_divergence_is_found_as_a_lower_bound(
    start_simulated: Start, on_server: OnServer, engine: str
) -> None:
    async def scored(instrument: Instrument) -> tuple[ScoredText, ...]:
        found: tuple[ScoredText, ...] = (await instrument.score_texts(SHORT[:8])).texts
        return found

    plain = on_server(start_simulated(engine), scored)
    moved = on_server(start_simulated(engine, fault="kld=0.05"), scored)
    found = divergence(plain, moved)
    assert 0.2 * 0.05 < found < 1.5 * 0.05  # few positions, whose divergences differ much
    assert divergence(plain, plain) == 0


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_that_is_broken_in_a_batch_scores_alone_as_ever_and_writes_nonsense_together(
    start_simulated: Start, on_server: OnServer, engine: str
) -> None:
    async def measure(instrument: Instrument) -> Any:
        alone = await instrument.score_texts(FEW[:1])
        return alone.texts, (await instrument.write_answers(SHORT[:6], concurrency=6)).answers

    # slow enough that the answers are written together
    scores, answers = on_server(start_simulated(engine, speed=8), measure)
    damaged = start_simulated(engine, fault="broken_together", speed=8)
    same, broken = on_server(damaged, measure)
    assert scores == same
    differ = [a.tokens[:8] != b.tokens[:8] for a, b in zip(answers, broken, strict=True)]
    # on a busy machine, the first requests write their first tokens alone
    assert sum(differ) >= 3


@pytest.mark.long
def test_a_server_that_is_broken_from_the_second_turn_is_found_in_conversations(
    start_simulated: Start, on_server: OnServer
) -> None:
    asked = (*(text for text in SHORT if text.kind == "chat"), FEW[0])

    async def measure(instrument: Instrument) -> Any:
        return (await instrument.write_answers(asked, concurrency=1)).answers

    healthy = on_server(start_simulated("vllm"), measure)
    broken = on_server(start_simulated("vllm", fault="broken_second_turn"), measure)
    equal = [a.tokens == b.tokens for a, b in zip(healthy, broken, strict=True)]
    assert equal == [False, False, True]


@pytest.mark.parametrize(
    ("engine", "flags", "said"),
    [
        (
            "vllm",
            ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'),
            "vllm-project/vllm#53488",
        ),
        ("llamacpp", ("--spec-draft-hf", "someone/draft"), "ggml-org/llama.cpp#27972"),
    ],
)
def test_a_known_defect_makes_the_instrument_unusable_and_is_named(
    start_simulated: Start, on_server: OnServer, engine: str, flags: tuple[str, ...], said: str
) -> None:
    async def measure(instrument: Instrument) -> InstrumentProof:
        return await instrument.check_scores_agree(FEW, "B")

    proof = on_server(start_simulated(engine, *flags), measure)
    assert not proof.usable and proof.reason and said in proof.defect


@pytest.mark.long
def test_a_long_text_is_scored_at_its_end_and_left_out_where_the_context_is_too_short(
    start_simulated: Start, on_server: OnServer
) -> None:
    async def measure(instrument: Instrument) -> Any:
        return await instrument.score_texts((FEW[0], LONG[0]))

    whole = on_server(start_simulated("vllm"), measure)
    assert [len(text.positions) for text in whole.texts][1:] == [64]
    short = on_server(start_simulated("vllm", "--max-model-len", "4096"), measure)
    assert not short.problem and not short.texts[0].problem
    assert "the context of the server has 4096 tokens" in short.texts[1].problem
    assert not short.texts[1].positions
