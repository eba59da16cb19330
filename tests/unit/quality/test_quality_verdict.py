"""The verdict about quality: from scored texts to a result, and how often it is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from support.simulated_quality import Truth, shares

from workbench.model.quality import (
    BROKEN,
    DIFFERS,
    FORKS,
    KL,
    LN_PPL,
    NOT_DECIDED,
    NOT_MEASURED,
    SAME,
    GreedyAnswer,
    InstrumentProof,
    QualityResult,
    ScoredPosition,
    ScoredText,
    TextDifference,
)
from workbench.quality.verdict import (
    LEAST_TEXTS,
    Margins,
    compare_with_floor,
    compute_quality_result,
    format_value_with_half_width,
)

POSITIONS = 24
TOKENS = 30
TOP = 20


def scored(noise: float, seed: int, texts: int = 32, shift: int = 0) -> list[ScoredText]:
    """Return texts scored by one model, whose logits have noise. `shift` gives the probabilities to
    other tokens: a broken model."""
    return [
        ScoredText(
            f"text-{i}",
            "prose",
            tuple(
                _position(Random(1000 * i + place), noise, Random(f"{seed} {i} {place}"), shift)
                for place in range(POSITIONS)
            ),
            asked=POSITIONS,
        )
        for i in range(texts)
    ]


def _position(model: Random, noise: float, own: Random, shift: int) -> ScoredPosition:
    logits = [model.gauss(0, 2.0) for _ in range(TOKENS)]
    token = model.randrange(TOKENS)
    moved = [logit + own.gauss(0, noise) for logit in logits]
    moved = moved[shift:] + moved[:shift]
    total = math.log(math.fsum(math.exp(logit) for logit in moved))
    logprobs = {token: logit - total for token, logit in enumerate(moved)}
    best = sorted(logprobs.items(), key=lambda entry: -entry[1])[:TOP]
    return ScoredPosition(token, logprobs[token], tuple(best))


def answers(tokens_until_fork: int | None, count: int = 32) -> list[GreedyAnswer]:
    whole = tuple(range(64))
    own = whole if tokens_until_fork is None else (*whole[:tokens_until_fork], *(99,) * 8)
    return [GreedyAnswer(f"text-{i}", "prose", own) for i in range(count)]


def verdicts(result: QualityResult) -> dict[str, str]:
    return {one.name: one.verdict for one in result.measures}


A, AGAIN = scored(0.01, 1), scored(0.01, 2)


def test_the_same_server_answers_the_same() -> None:
    result = compute_quality_result(A, scored(0.01, 3), floors=[AGAIN], text_set=("workbench", "1"))
    assert result.verdict == SAME
    assert result.summary == "its answers are the same within 0.001 KLD"
    assert result.positions == 32 * POSITIONS
    assert result.top_k == TOP
    assert (result.text_set, result.text_version) == ("workbench", "1")
    assert result.more_texts == 0
    kl = next(one for one in result.measures if one.name == KL)
    assert kl.floor is not None
    assert kl.floor.value == pytest.approx(kl.value.value, rel=0.5)


def test_more_noise_differs_and_says_by_how_much() -> None:
    result = compute_quality_result(A, scored(0.3, 3), floors=[AGAIN])
    assert result.verdict == DIFFERS
    assert verdicts(result)[KL] == DIFFERS
    assert "its answers differ: KLD >= 0.0" in result.summary
    assert "±" in result.summary


def test_the_divergence_that_is_named_is_one_that_differs() -> None:
    """The two long texts are measured in another way, which is only shown."""
    long_a, long_b = (
        [replace(text, lane="decode", name=f"long {text.name}") for text in texts[:2]]
        for texts in (A, scored(0.5, 8))
    )
    result = compute_quality_result(
        [*A, *long_a], [*scored(0.3, 3), *long_b], floors=[[*AGAIN, *long_a]]
    )
    (decided,) = [one for one in result.measures if one.name == KL and one.verdict == DIFFERS]
    assert format_value_with_half_width(decided) in result.summary


def test_many_forks_are_a_whole_number() -> None:
    result = compute_quality_result(
        A, AGAIN, floors=[AGAIN], greedy_a=answers(None), greedy_b=answers(0),
        greedy_floor=answers(None),
    )  # fmt: skip
    assert "1,000 forks per 1,000 tokens (floor 0)" in result.summary


def test_a_broken_text_is_enough() -> None:
    healthy, broken = scored(0.01, 3), scored(0.01, 3, shift=7)
    result = compute_quality_result(A, [*healthy[:-1], broken[-1]], floors=[AGAIN])
    assert result.verdict == BROKEN
    assert "broken: 1 of 32 texts, the worst text-31" in result.summary
    assert result.worst is not None
    assert result.worst.position == 0
    assert result.worst.a != result.worst.b


def test_the_worst_text_and_the_first_fork_are_shown_by_the_texts_of_their_tokens() -> None:
    of_a = {token: f" a{token}" for token in range(100)}
    of_b = {token: f" b{token}" for token in range(100)}
    broken = scored(0.01, 3, shift=7)
    early, late = answers(3, 1), answers(9, 3)[1:]
    result = compute_quality_result(
        A, broken, floors=[AGAIN], greedy_a=answers(None), greedy_b=[*late, *early],
        pieces=(of_a, of_b),
    )  # fmt: skip
    assert result.worst is not None and result.forked is not None
    assert result.worst.a.startswith(" a") and result.worst.b.startswith(" b")
    assert (result.forked.name, result.forked.position) == ("text-0", 3)
    assert result.forked.before == " a0 a1 a2"
    assert result.forked.a.startswith(" a3 a4") and result.forked.b.startswith(" b99 b99")
    assert compute_quality_result(A, AGAIN, greedy_a=late, greedy_b=late).forked is None


def test_forks_within_the_noise_of_answers_under_load_are_ties() -> None:
    """A server that answers a text alone twice alike, bit by bit, may not do so in a batch."""

    def loaded(gap: float, until: int | None) -> list[GreedyAnswer]:
        return [replace(one, gaps=(gap,) * len(one.tokens)) for one in answers(until)]

    a, again, b = loaded(0.5e-4, None), loaded(1.5e-4, 60), loaded(0.9e-4, 3)
    result = compute_quality_result(A, A, floors=[A], greedy_a=a, greedy_b=b, greedy_floor=again)
    assert result.forks is not None and (result.forks.forks, result.forks.ties) == (0, 32)
    assert result.verdict == SAME
    far = loaded(0.5, None)
    result = compute_quality_result(A, A, floors=[A], greedy_a=far, greedy_b=b, greedy_floor=far)
    assert result.forks is not None and (result.forks.forks, result.forks.ties) == (32, 0)
    assert result.verdict == DIFFERS


def test_a_bad_floor_does_not_make_b_broken() -> None:
    other = scored(0.01, 2, shift=7)
    assert compute_quality_result(A, other, floors=[other]).verdict != BROKEN


def test_the_worse_of_two_floors_counts() -> None:
    restarted = scored(0.3, 2)
    result = compute_quality_result(A, scored(0.3, 3), floors=[AGAIN, restarted])
    assert result.verdict != DIFFERS
    kl = next(one for one in result.measures if one.name == KL)
    assert kl.floor is not None
    assert kl.floor.value > 0.01


def test_two_floors_that_do_not_differ_are_averaged() -> None:
    def floor(*kl: float) -> dict[str, TextDifference]:
        return {
            f"t{n}": TextDifference(f"t{n}", "prose", 9, kl=value, ln_ppl=0.0, same_top=1.0)
            for n, value in enumerate(kl)
        }

    again = floor(1.0, 2.0, 3.0, 4.0)
    chance = compare_with_floor([], [again, floor(2.0, 1.0, 4.0, 5.0)], TOP).floor
    assert [text.kl for text in chance.values()] == [1.5, 1.5, 3.5, 4.5]
    restart = floor(9.0, 10.1, 11.0, 12.0)
    assert compare_with_floor([], [again, restart], TOP).floor == restart
    assert compare_with_floor([], [{}, again], TOP).floor == again
    assert compare_with_floor([], [], TOP).floor == {}


def test_without_a_floor_nothing_differs() -> None:
    result = compute_quality_result(A, scored(0.3, 3))
    assert verdicts(result)[KL] == NOT_DECIDED
    assert any("A was not measured again" in note for note in result.notes)


def test_few_texts_decide_nothing() -> None:
    few = LEAST_TEXTS - 4
    result = compute_quality_result(A[:few], scored(0.3, 3)[:few], floors=[AGAIN])
    assert result.verdict == NOT_DECIDED
    assert result.more_texts == 4
    assert "not decided: 4 more texts" in result.summary


def test_a_wider_margin_makes_a_difference_the_same() -> None:
    result = compute_quality_result(
        A, scored(0.05, 3), floors=[AGAIN], margins=Margins(kl=0.05, ln_ppl=0.05)
    )
    assert result.verdict == SAME
    assert result.summary == "its answers are the same within 0.05 KLD"


def test_forks_alone_can_differ() -> None:
    result = compute_quality_result(
        A,
        scored(0.01, 3),
        floors=[AGAIN],
        greedy_a=answers(None),
        greedy_b=answers(20),
        greedy_floor=answers(None),
    )
    assert result.verdict == DIFFERS
    assert verdicts(result)[FORKS] == DIFFERS
    assert verdicts(result)[KL] == SAME
    assert "forks per 1,000 tokens (floor 0)" in result.summary


def test_forks_like_those_of_the_floor_are_no_difference() -> None:
    forked = answers(20)
    result = compute_quality_result(
        A,
        scored(0.01, 3),
        floors=[AGAIN],
        greedy_a=answers(None),
        greedy_b=forked,
        greedy_floor=forked,
    )
    assert result.verdict == SAME


def test_texts_that_cannot_be_used_are_left_out_and_named() -> None:
    b = scored(0.01, 3)
    nan = replace(b[0].positions[0], logprob=math.nan)
    b[0] = replace(b[0], positions=(nan, *b[0].positions[1:]))
    b[1] = replace(b[1], positions=b[1].positions[:-1])
    b[2] = replace(b[2], problem="the context is too short")
    result = compute_quality_result(A, b, floors=[AGAIN])
    assert len(result.texts) == 29
    notes = " ".join(result.notes)
    assert "text-0): the log probability at position 0 is not a number" in notes
    assert f"{POSITIONS - 1} positions came back" in notes
    assert "the context is too short" in notes
    assert all(math.isfinite(text.kl) for text in result.texts)


def test_other_tokens_are_not_compared() -> None:
    b = scored(0.01, 3)
    b[0] = replace(b[0], positions=tuple(replace(one, token=77) for one in b[0].positions))
    result = compute_quality_result(A, b, floors=[AGAIN])
    assert len(result.texts) == 31
    assert any("different tokens" in note for note in result.notes)


@pytest.mark.parametrize("other", [lambda token: f" t{token}", lambda token: token + 1000])
def test_answers_in_other_tokens_are_no_forks(other: Callable[[int], int | str]) -> None:
    """vLLM against TabbyAPI, which names tokens by their text, "differed" at each first token."""

    def renamed(one: GreedyAnswer) -> GreedyAnswer:
        return replace(one, tokens=tuple(map(other, one.tokens)))

    b = [
        replace(text, positions=tuple(replace(p, token=other(p.token)) for p in text.positions))
        for text in A
    ]
    written = answers(None)
    result = compute_quality_result(
        A, b, floors=[AGAIN], greedy_a=written, greedy_floor=written,
        greedy_b=[renamed(one) for one in written],
    )  # fmt: skip
    assert result.verdict == NOT_MEASURED and result.forks is None, result.summary
    assert result.summary.startswith("quality not measured: A and B cut 32 texts (")
    assert "A and B have other tokens, so where their answers part is not known" in result.notes


def test_an_instrument_that_is_not_usable_gives_no_number() -> None:
    proof = InstrumentProof("B", "prefill", False, reason="zeros", defect="vLLM #53488")
    result = compute_quality_result(A, scored(0.01, 3), floors=[AGAIN], proofs=[proof])
    assert result.verdict == NOT_MEASURED
    assert result.measures == ()
    assert result.texts == ()
    assert "instrument not usable, prefill of B: zeros (vLLM #53488)" in result.summary
    greedy = {"greedy_a": answers(None), "greedy_floor": answers(None)}
    alike = compute_quality_result(
        A, A, floors=[AGAIN], proofs=[proof], greedy_b=answers(None), **greedy
    )
    assert alike.verdict == NOT_MEASURED and "zeros" in alike.summary and alike.forks is not None
    forked = compute_quality_result(
        A, A, floors=[AGAIN], proofs=[proof], greedy_b=answers(20), **greedy
    )
    assert forked.verdict == DIFFERS


def test_nothing_scored_is_not_measured() -> None:
    result = compute_quality_result([], [])
    assert result.verdict == NOT_MEASURED
    assert result.worst is None


@pytest.mark.parametrize("concurrency", [8])
def test_damage_at_one_concurrency_is_found_there(concurrency: int) -> None:
    def at(texts: Sequence[ScoredText]) -> list[ScoredText]:
        return [replace(text, concurrency=concurrency) for text in texts]

    b = [*scored(0.01, 3), *at(scored(0.3, 4))]
    result = compute_quality_result([*A, *at(A)], b, floors=[[*AGAIN, *at(AGAIN)]])
    found = {(one.name, one.concurrency): one.verdict for one in result.measures}
    assert found[KL, 1] == SAME
    assert found[KL, concurrency] == DIFFERS


# A small twin of tests/benchmarks/bench_quality.py, whose table is in docs/REFERENCE.md.


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-4, 5e-4])
def test_equal_servers_seldom_differ(noise: float) -> None:
    """A single measurement of A was so noisy that one equal pair in ten was not called the same."""
    found = shares(Truth(floor_kl=noise), comparisons=60, seed=21)
    assert found.differs <= 5
    assert found.same >= 92
    assert all(value >= 88 for value in found.covered.values())  # 93 % less two errors of 60


@pytest.mark.slow
def test_a_divergence_of_the_margin_is_found() -> None:
    found = shares(Truth(floor_kl=1e-4, more_kl=1e-3), comparisons=80, seed=22)
    assert found.differs >= 85
    assert found.covered[LN_PPL] >= 87


def test_perplexity_is_compared_with_the_mean_of_all_measurements_of_a() -> None:
    def text(ln_ppl: float) -> TextDifference:
        return TextDifference("t", "prose", 9, kl=0.0, ln_ppl=ln_ppl, same_top=1.0)

    floors = [{"t": text(0.003)}, {"t": text(0.006)}, {}]
    part = compare_with_floor([text(0.004)], floors, TOP)
    assert part.texts[0].ln_ppl == pytest.approx(0.004 - (0.0 + 0.003 + 0.006) / 3)
    assert compare_with_floor([text(0.004)], [], TOP).texts[0].ln_ppl == 0.004
