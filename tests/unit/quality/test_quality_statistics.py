"""The bounds, intervals and tests of quality, against values that are known otherwise."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.quality import GreedyAnswer, ScoredPosition, ScoredText
from workbench.quality import statistics


def position(shares: dict[int, float], token: int, k: int) -> ScoredPosition:
    best = sorted(shares.items(), key=lambda entry: -entry[1])[:k]
    top = tuple((one, math.log(share)) for one, share in best)
    return ScoredPosition(token, math.log(shares[token]), top)


def distribution(random: Random, tokens: int, spread: float) -> dict[int, float]:
    weights = [math.exp(random.gauss(0, spread)) for _ in range(tokens)]
    return {token: weight / sum(weights) for token, weight in enumerate(weights)}


def divergence(p: dict[int, float], q: dict[int, float]) -> float:
    return math.fsum(share * math.log(share / q[token]) for token, share in p.items())


@given(
    seed=st.integers(0, 2**32),
    tokens=st.integers(2, 60),
    k=st.integers(0, 25),
    spread=st.floats(0.1, 4),
    alike=st.booleans(),
)
def test_the_bound_is_never_above_the_divergence(
    seed: int, tokens: int, k: int, spread: float, alike: bool
) -> None:
    random = Random(seed)
    p = distribution(random, tokens, spread)
    q = distribution(random, tokens, spread)
    if alike:
        moved = {token: share * math.exp(random.gauss(0, 0.2)) for token, share in p.items()}
        q = {token: share / sum(moved.values()) for token, share in moved.items()}
    token = random.randrange(tokens)
    bound = statistics.kl_lower_bound_nats(position(p, token, k), position(q, token, k), k)
    # the rest of 1 is not known more exactly than 1e-6
    assert 0.0 <= bound <= divergence(p, q) + 1e-4


def test_all_tokens_give_the_divergence_itself() -> None:
    random = Random(5)
    p, q = distribution(random, 12, 1.0), distribution(random, 12, 1.0)
    bound = statistics.kl_lower_bound_nats(position(p, 3, 12), position(q, 3, 12), 12)
    assert bound == pytest.approx(divergence(p, q), abs=1e-4)


def test_twenty_tokens_keep_most_of_the_divergence_of_a_quantization() -> None:
    random = Random(7)
    whole = bound = 0.0
    for _ in range(200):
        p = distribution(random, 200, 2.5)
        moved = {token: share * math.exp(random.gauss(0, 0.3)) for token, share in p.items()}
        q = {token: share / sum(moved.values()) for token, share in moved.items()}
        token = random.choices(list(p), list(p.values()))[0]
        whole += divergence(p, q)
        bound += statistics.kl_lower_bound_nats(position(p, token, 20), position(q, token, 20), 20)
    assert 0.7 < bound / whole < 1


def test_two_sides_without_a_common_token_are_far_apart() -> None:
    a = ScoredPosition(1, math.log(0.99), ((1, math.log(0.99)), (2, math.log(0.005))))
    b = ScoredPosition(1, math.log(1e-6), ((3, math.log(0.99)), (4, math.log(0.005))))
    assert statistics.kl_lower_bound_nats(a, b, 2) > 10


def test_a_probability_of_zero_is_large_but_not_infinite() -> None:
    a = ScoredPosition(1, 0.0, ((1, 0.0),))
    b = ScoredPosition(1, -math.inf, ((2, 0.0),))
    assert 50 < statistics.kl_lower_bound_nats(a, b, 1) < 200


def test_a_token_that_was_not_named_counts_like_the_last_one() -> None:
    a = ScoredPosition(9, None, ((1, -0.1), (2, -2.5)))
    b = ScoredPosition(9, None, ((1, -0.2), (3, -2.0)))
    texts = [ScoredText("one", "prose", (position,)) for position in (a, b)]
    difference = statistics.text_difference(*texts, 2)
    assert difference.ln_ppl == pytest.approx(-0.5)
    assert 0 <= difference.kl < 0.2
    assert statistics.share_of_unscored_tokens(texts[0]) == 1


# scipy.stats.chi2.ppf(0.025, 2 n) / 2 and chi2.ppf(0.975, 2 n + 2) / 2
@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (20, 12.2165, 30.8884)],
)
def test_poisson_interval(count: int, low: float, high: float) -> None:
    assert statistics.poisson_mean_interval(count) == pytest.approx((low, high), abs=1e-4)


def test_one_sided_and_two_sided_t() -> None:
    values = [0.1, 0.3, 0.2, 0.5, 0.4]  # t = 4.2426, 4 degrees of freedom
    assert statistics.p_value_of_positive_mean(values) == pytest.approx(0.00662, abs=1e-5)
    assert statistics.p_value_of_nonzero_mean(values) == pytest.approx(0.01324, abs=1e-5)
    assert statistics.p_value_of_positive_mean([-value for value in values]) == pytest.approx(
        1 - 0.00662, abs=1e-5
    )


def test_the_interval_of_a_mean_is_that_of_students_table() -> None:
    found = statistics.mean_with_confidence_interval([1.0, 2.0, 3.0], level=0.95)
    # t with two degrees of freedom is 4.3027, the standard error 1 / sqrt(3)
    assert (found.low, found.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_equal_values_need_no_interval() -> None:
    assert statistics.p_value_of_positive_mean([0.0] * 32) == 1.0
    assert statistics.p_value_of_nonzero_mean([0.0] * 32) == 1.0
    assert statistics.is_mean_within_margin([0.0] * 32, 0.001)
    assert not statistics.is_mean_within_margin([0.001] * 32, 0.001)
    assert not statistics.is_mean_within_margin([0.0], 0.001)


def test_the_texts_that_are_asked_for_would_decide() -> None:
    random = Random(3)
    few = [random.gauss(0.0, 0.004) for _ in range(24)]
    more = statistics.count_further_texts_needed(few, 0.001)
    assert more is not None
    decided = 0
    for _ in range(200):
        values = [random.gauss(0.0, 0.004) for _ in range(24 + more)]
        decided += (
            statistics.is_mean_within_margin(values, 0.001)
            or statistics.p_value_of_nonzero_mean(values) < 0.05
        )
    assert decided / 200 > 0.7


# -- forks -----------------------------------------------------------------------------------------


def answer(*tokens: int, gaps: tuple[float | None, ...] = (), name: str = "one") -> GreedyAnswer:
    return GreedyAnswer(name, "prose", tokens, gaps)


@pytest.mark.parametrize(
    ("a", "b", "place", "at_risk"),
    [
        (answer(1, 2, 3), answer(1, 2, 3), None, 3),
        (answer(1, 2, 3), answer(1, 5, 3), 1, 2),
        (answer(1, 2, 3), answer(1, 2), 2, 3),
        (answer(), answer(), None, 0),
    ],
)
def test_first_fork(a: GreedyAnswer, b: GreedyAnswer, place: int | None, at_risk: int) -> None:
    found = statistics.find_fork(a, b)
    assert (found.place, found.at_risk) == (place, at_risk)


def test_a_fork_between_nearly_equal_tokens_is_a_tie() -> None:
    a = [answer(1, 2, gaps=(2.0, 0.001)), answer(1, 2, gaps=(2.0, 0.9), name="two")]
    b = [answer(1, 3, gaps=(2.0, 0.002)), answer(1, 3, gaps=(2.0, 0.8), name="two")]
    count = statistics.count_forks(a, b, noise_nats=0.01)
    assert count is not None
    assert (count.forks, count.ties, count.at_risk, count.answers) == (1, 1, 4, 2)
    assert count.per_1000.value == 250


def test_the_noise_under_load_is_that_of_what_both_answers_have_alike() -> None:
    a = [answer(1, 2, 3, 4, gaps=(2.0, None, 0.5, 7.0))]
    again = [answer(1, 2, 3, 5, gaps=(2.001, 0.3, 0.504, 0.1))]
    assert statistics.top2_gap_noise_under_load_nats(a, again) == pytest.approx(0.004)
    assert statistics.top2_gap_noise_under_load_nats(a, []) == 0.0


def test_the_noise_is_that_of_the_gaps_that_move() -> None:
    """On a real vLLM in bfloat16, one gap in 200 moves, by 0.0039 or more, and answers part there."""
    still, moved = (2.0,) * 1000, (2.0,) * 995 + (2.0039,) * 5
    tokens = range(1000)
    a, again = [answer(*tokens, gaps=still)], [answer(*tokens, gaps=moved)]
    assert statistics.top2_gap_noise_under_load_nats(a, again) == pytest.approx(0.0039)
    assert statistics.top2_gap_noise_under_load_nats(a, a) == 0.0


def test_the_gap_of_a_fork_is_known_although_other_gaps_are_not() -> None:
    a, b = [answer(1, 2, gaps=(None, 0.001))], [answer(1, 3, gaps=(2.0, None))]
    found = statistics.count_forks(a, b, noise_nats=0.01)
    assert found is not None and (found.forks, found.ties) == (0, 1)


def test_answers_without_a_partner_count_nothing() -> None:
    assert statistics.count_forks([answer(1, name="a")], [answer(1, name="b")], 0.0) is None


# -- texts that cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logprobs", "asked", "words"),
    [
        ((-1.0, math.nan), 2, "not a number"),
        ((-1.0, 0.5), 2, "above 0"),
        ((-1.0, -1.0), 3, "2 positions came back, 3"),
        ((), None, "no position"),
        ((-1.0, None), 2, "no log probability at position 1"),
    ],
)
def test_a_text_that_cannot_be_used_says_why(
    logprobs: tuple[float | None, ...], asked: int | None, words: str
) -> None:
    positions = tuple(ScoredPosition(1, value) for value in logprobs)
    text = ScoredText("one", "prose", positions, asked=asked)
    assert words in statistics.why_scored_text_is_unusable(text)


def test_a_certain_token_and_an_impossible_one_can_be_used() -> None:
    positions = (ScoredPosition(1, 0.0), ScoredPosition(2, -math.inf))
    assert (
        statistics.why_scored_text_is_unusable(ScoredText("one", "prose", positions, asked=2)) == ""
    )


def test_a_fork_from_a_server_whose_tokens_are_all_equally_probable_is_no_tie() -> None:
    a, b = [answer(1, 2, gaps=(2.0, 0.9))], [answer(7, 8, gaps=(0.0, 0.0))]
    found = statistics.count_forks(a, b, noise_nats=0.01)
    assert found is not None and (found.forks, found.ties) == (1, 0)
