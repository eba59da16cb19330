"""The statistics of quality: differences of two scored texts, forks of greedy answers, intervals
and tests.

The unit of every interval is the text, not the position: the positions of one text are correlated,
and an interval that treats them as independent is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.quality import (
    ForkCount,
    GreedyAnswer,
    Interval,
    ScoredPosition,
    ScoredText,
    TextDifference,
    Token,
)
from workbench.model.student_t import t_cdf, t_quantile

LEVEL = 0.95
# Nominal, for values as skewed as divergences: with 32 texts, Student's interval at this level
# contains the truth in 94 % (docs/REFERENCE.md, "How sure a verdict about quality is").
SKEWED_LEVEL = 0.96
POWER = 0.8
MOST_MORE_TEXTS = 10_000  # above it, more texts are no sensible advice
_LEAST_REST = 1e-6  # sums of 20 probabilities of 32 bits are not more exact
_HIGHEST_LOGPROB = 1e-4  # rounding of a probability of 1
_NOISE_SHARE = 0.99  # of the top-2 gaps that move, which move by less than the noise


def why_scored_text_is_unusable(text: ScoredText) -> str:
    """Return why a scored text cannot be used, as a sentence; "" if it can."""
    if text.problem:
        return text.problem
    if not text.positions:
        return "no position was scored"
    if text.asked is not None and len(text.positions) != text.asked:
        return f"{len(text.positions)} positions came back, {text.asked} were asked for"
    for place, position in enumerate(text.positions):
        values = position.log_probabilities
        if not values:
            return f"there is no log probability at position {place}"
        if any(map(math.isnan, values)):
            return f"the log probability at position {place} is not a number"
        if max(values) > _HIGHEST_LOGPROB:
            return f"a log probability at position {place} is above 0"
    return ""


def count_scored_top_tokens(text: ScoredText) -> int:
    """Return for how many of the most probable tokens the whole text has log probabilities."""
    return min((len(position.top) for position in text.positions), default=0)


def have_same_tokens(a: ScoredText, b: ScoredText) -> bool:
    """Return whether two scored texts consist of the same tokens."""
    return a.tokens == b.tokens


def text_difference(a: ScoredText, b: ScoredText, k: int) -> TextDifference:
    """Return the difference between two scorings of one text, as means over its positions. Both
    have the same tokens, and at least `k` most probable tokens at each position.

    `ln_ppl` is ln PPL(B) - ln PPL(A) = mean(ln p_A - ln p_B), so it is above 0 if B expects the
    text less. A token that a server did not name counts like the last one that it named.
    """
    pairs = list(zip(a.positions, b.positions, strict=True))
    return TextDifference(
        name=a.name,
        kind=a.kind,
        positions=len(pairs),
        kl=_mean(kl_lower_bound_nats(x, y, k) for x, y in pairs),
        ln_ppl=_mean(_logprob_or_last_named(x, k) - _logprob_or_last_named(y, k) for x, y in pairs),
        same_top=_mean(float(have_same_top_token(x, y)) for x, y in pairs),
        lane=a.lane,
        concurrency=a.concurrency,
    )


def have_same_top_token(a: ScoredPosition, b: ScoredPosition) -> bool:
    """Return whether A and B have the same most probable token at a position."""
    if not a.top or not b.top:
        return False
    return a.top[0][0] == b.top[0][0]


# A probability of 0 in 32 bits: ln(2 ** -149). One such position must not make a mean infinite.
_LOWEST_LOGPROB = -103.3


def _logprob_or_last_named(position: ScoredPosition, k: int) -> float:
    if position.logprob is not None:
        return _clamp_logprob_from_below(position.logprob)
    return _clamp_logprob_from_below(position.top[:k][-1][1])


def mean_logprob(positions: Sequence[ScoredPosition]) -> float:
    """Return the mean log probability of scored tokens. A token that the server did not name counts
    like the last one that it named."""
    return _mean(_logprob_or_last_named(one, len(one.top)) for one in positions)


def share_of_unscored_tokens(text: ScoredText) -> float:
    """Return the share of the positions whose token the server did not name."""
    return _mean(float(position.logprob is None) for position in text.positions)


def _clamp_logprob_from_below(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)


def kl_lower_bound_nats(a: ScoredPosition, b: ScoredPosition, k: int) -> float:
    """Return a lower bound in nats of the Kullback-Leibler divergence KL(A || B) at one position,
    from the `k` most probable tokens of each side.

    Joining tokens into one bucket never increases the divergence (the log sum inequality: Cover and
    Thomas, Elements of Information Theory, 2nd ed., theorem 2.7.1). So the divergence of a
    partition is a lower bound: tokens that both sides gave, each alone; those that only A gave (U);
    those that only B gave (V); all other tokens. B's share of U is not known, but each of its
    tokens is at most as probable as the last one that B gave, and likewise A's share of V. The
    bound is the minimum over all shares that this allows. With one rest bucket alone, two sides
    without a common token would look equal."""
    p = {token: _probability_from_log(value) for token, value in a.top[:k]}
    q = {token: _probability_from_log(value) for token, value in b.top[:k]}
    last_a, last_b = min(p.values(), default=1.0), min(q.values(), default=1.0)
    if a.logprob is not None and b.logprob is not None:
        p[a.token], q[a.token] = _probability_from_log(a.logprob), _probability_from_log(b.logprob)
    common = math.fsum(p[token] * math.log(p[token] / q[token]) for token in p if token in q)
    only_a = [p[token] for token in p if token not in q]
    only_b = [q[token] for token in q if token not in p]
    rest_a = max(1.0 - math.fsum(p.values()), _LEAST_REST)
    rest_b = max(1.0 - math.fsum(q.values()), _LEAST_REST)
    others = _minimum_divergence_of_other_tokens(
        u=math.fsum(only_a),
        v=math.fsum(only_b),
        rest_a=rest_a,
        rest_b=rest_b,
        most_x=min(len(only_b) * last_a, rest_a),
        most_y=min(len(only_a) * last_b, rest_b),
    )
    return max(0.0, common + others)


def _probability_from_log(logprob: float) -> float:
    return math.exp(_clamp_logprob_from_below(min(logprob, 0.0)))


def _minimum_divergence_of_other_tokens(
    *, u: float, v: float, rest_a: float, rest_b: float, most_x: float, most_y: float
) -> float:
    """Return the minimum over x and y of u ln(u/y) + x ln(x/v) + (rest_a - x) ln((rest_a - x) /
    (rest_b - y)), for 0 <= x <= most_x and 0 <= y <= most_y.

    A gives U the probability `u` and V the unknown `x`; B gives U the unknown `y` and V the
    probability `v`. The sum is convex, so its minimum is where all three ratios are equal, or on an
    edge of the box.
    """

    def divergence(x: float, y: float) -> float:
        return (
            _divergence_term(u, y)
            + _divergence_term(x, v)
            + _divergence_term(rest_a - x, rest_b - y)
        )

    ratio = (u + rest_a) / (v + rest_b)
    x, y = v * ratio, u / ratio
    if x <= most_x and y <= most_y:
        return divergence(x, y)
    x_at_most_y = rest_a * v / max(v + rest_b - most_y, _LEAST_REST)
    y_at_most_x = rest_b * u / max(u + rest_a - most_x, _LEAST_REST)
    return min(
        divergence(min(x_at_most_y, most_x), most_y), divergence(most_x, min(y_at_most_x, most_y))
    )


def _divergence_term(p: float, q: float) -> float:
    if p <= 0.0:
        return 0.0
    return p * math.log(p / max(q, _LEAST_REST * _LEAST_REST))


# -- intervals and tests ---------------------------------------------------------------------------


def mean_with_confidence_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean of one value per text with its interval by Student's t distribution. With a
    single text there is no interval. `level` is the nominal level."""
    mean = _mean(values)
    if len(values) < 2:
        return Interval(mean)
    half = t_quantile((1 + level) / 2, len(values) - 1) * _standard_error(values)
    return Interval(mean, mean - half, mean + half)


def p_value_of_positive_mean(values: Sequence[float]) -> float:
    """Return the p-value of the one-sided t test that the mean of the population is above 0."""
    mean = _mean(values)
    if len(values) < 2:
        return 1.0
    error = _standard_error(values)
    if error == 0.0:
        return 0.0 if mean > 0 else 1.0
    return t_cdf(-mean / error, len(values) - 1)


def p_value_of_nonzero_mean(values: Sequence[float]) -> float:
    """Return the p-value of the two-sided t test that the mean of the population is not 0."""
    lower = p_value_of_positive_mean(values)
    upper = p_value_of_positive_mean([-value for value in values])
    return min(1.0, 2 * min(lower, upper))


def p_value_of_sparse_differences(values: Sequence[float]) -> float:
    """Return the two-sided p-value that the mean of the population is not 0, for differences of
    which many may be exactly 0. It is that of the t test, but at least that of a sign test in which
    all others have one sign: after a few equal ones, the t test would be too sure."""
    others = sum(value != 0.0 for value in values)
    return max(p_value_of_nonzero_mean(values), min(1.0, 2 * 0.5**others))


def is_mean_within_margin(values: Sequence[float], margin: float) -> bool:
    """Return whether the mean of the population is shown to lie within ± `margin`: two one-sided t
    tests, each at 5 % (Schuirmann 1987)."""
    if len(values) < 2:
        return False
    half = t_quantile(LEVEL, len(values) - 1) * _standard_error(values)
    return abs(_mean(values)) + half < margin


def count_further_texts_needed(values: Sequence[float], margin: float) -> int | None:
    """Return how many further texts would show, with a probability of 80 %, that the mean is within
    the margin, or that it is not 0: the smaller number. None if that is too many to be advice.

    Uses the normal approximation n = ((z(0.95) + z(0.8)) s / d)^2, where d is the distance to the
    margin or to 0 (z(0.975) there).
    """
    spread = _standard_error(values) * math.sqrt(len(values))
    mean = abs(_mean(values))
    ways = ((margin - mean, 1.645), (mean, 1.96))
    needed = [((z + 0.842) * spread / way) ** 2 for way, z in ways if way > 0]
    more = max(1, math.ceil(min(needed)) - len(values))
    return more if more <= MOST_MORE_TEXTS else None


def _mean(values: Iterable[float]) -> float:
    known = tuple(values)
    return math.fsum(known) / len(known)


def _standard_error(values: Sequence[float]) -> float:
    mean = _mean(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))


def poisson_mean_interval(count: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the mean of a Poisson distribution of which `count` was
    observed (Garwood 1936)."""
    tail = (1 - LEVEL) / 2
    low = 0.0
    if count:
        low = _find_root_by_bisection(
            lambda mean: (1 - poisson_cdf(count - 1, mean)) - tail, 0.0, float(count)
        )
    most = count + 10.0 + 10.0 * math.sqrt(count + 1)
    high = _find_root_by_bisection(lambda mean: tail - poisson_cdf(count, mean), float(count), most)
    return low, high


def poisson_cdf(count: int, mean: float) -> float:
    """Return P(X <= count) of a Poisson distribution."""
    if mean <= 0.0:
        return 1.0
    logs = (i * math.log(mean) - mean - math.lgamma(i + 1) for i in range(count + 1))
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def _find_root_by_bisection(
    rising_function: Callable[[float], float], low: float, high: float
) -> float:
    """Return the value between `low` and `high` at which a rising function is 0, by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        if rising_function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def binomial_upper_tail(count: int, trials: int, share: float) -> float:
    """Return P(X >= count) of a binomial distribution."""
    return min(
        1.0,
        math.fsum(
            math.comb(trials, i) * share**i * (1 - share) ** (trials - i)
            for i in range(count, trials + 1)
        ),
    )


# -- forks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fork:
    """The end of the common part of two greedy answers. `place` is the index of the first token
    that differs; None if none does. `at_risk` is the number of tokens that could have differed, and
    `gap` the difference of the two best tokens at the fork, in nats; None if it is not known."""

    place: int | None
    at_risk: int
    gap: float | None = None

    @property
    def tokens_before_fork(self) -> int:
        """The number of tokens before the fork."""
        return self.at_risk if self.place is None else self.place


def find_fork(a: GreedyAnswer, b: GreedyAnswer) -> Fork:
    """Return where two greedy answers part. An answer that ends earlier parts at its end. What
    comes after a fork is not compared, because the contexts differ."""
    shorter = min(len(a.tokens), len(b.tokens))
    if a.tokens == b.tokens:
        return Fork(None, shorter)
    place = next((i for i in range(shorter) if a.tokens[i] != b.tokens[i]), shorter)
    # A's gap first: a B whose probabilities are all equal is broken, and has a tie at each token.
    gaps = known_values((*a.gaps[place : place + 1], *b.gaps[place : place + 1]))
    return Fork(place, place + 1, next(iter(gaps), None))


Pair = tuple[GreedyAnswer, GreedyAnswer]


def _pair_answers_by_text(a: Sequence[GreedyAnswer], b: Sequence[GreedyAnswer]) -> list[Pair]:
    """Return (answer of A, answer of B) for each text that both answered without a problem."""
    mine, others = _answers_without_problem(a), _answers_without_problem(b)
    return [(one, others[key]) for key, one in mine.items() if key in others]


def _answers_without_problem(
    answers: Sequence[GreedyAnswer],
) -> dict[tuple[str, int], GreedyAnswer]:
    return {(one.name, one.concurrency): one for one in answers if not one.problem}


def _is_fork_a_tie(fork: Fork, noise_nats: float) -> bool:
    """Return whether the two best tokens at a fork are equally probable within the noise. False if
    their probabilities are not known."""
    return fork.gap is not None and fork.gap <= noise_nats


def earliest_fork_and_token_index(
    a: Sequence[GreedyAnswer], b: Sequence[GreedyAnswer], noise_nats: float
) -> tuple[GreedyAnswer, GreedyAnswer, int] | None:
    """Return the two answers to one text that part first, and the index of the first token that
    differs. Ties are left out. None if no answers part."""
    found: list[tuple[GreedyAnswer, GreedyAnswer, int]] = []
    for x, y in _pair_answers_by_text(a, b):
        fork = find_fork(x, y)
        if fork.place is not None and not _is_fork_a_tie(fork, noise_nats):
            found.append((x, y, fork.place))
    return min(found, key=lambda one: one[2], default=None)


def count_forks(
    a: Sequence[GreedyAnswer], b: Sequence[GreedyAnswer], noise_nats: float
) -> ForkCount | None:
    """Return the forks of the answers to the same texts, per 1,000 tokens at risk, with the exact
    Poisson interval. A fork whose gap is at most `noise_nats` is a tie. None if no answer has a
    pair."""
    pairs = _pair_answers_by_text(a, b)
    found = [find_fork(x, y) for x, y in pairs]
    at_risk = sum(one.at_risk for one in found)
    if not at_risk:
        return None
    parted = [one for one in found if one.place is not None]
    ties = sum(_is_fork_a_tie(one, noise_nats) for one in parted)
    forks = len(parted) - ties
    low, high = poisson_mean_interval(forks)
    scale = 1000 / at_risk
    return ForkCount(
        forks=forks,
        ties=ties,
        at_risk=at_risk,
        answers=len(pairs),
        per_1000=Interval(forks * scale, low * scale, high * scale),
        concurrency=max(x.concurrency for x, _ in pairs),
    )


def p_value_of_more_forks(forks_of_b: ForkCount, floor: ForkCount) -> float:
    """Return the p-value of the exact one-sided test that B forks from A more often than A from
    itself (`floor`): given their sum, the forks of B are binomial (Przyborowski and Wilenski 1940).
    """
    share = forks_of_b.at_risk / (forks_of_b.at_risk + floor.at_risk)
    return binomial_upper_tail(forks_of_b.forks, forks_of_b.forks + floor.forks, share)


def top2_gap_noise_nats(a: Sequence[ScoredText], repeated_a: Sequence[ScoredText]) -> float:
    """Return the noise of a top-2 gap in nats: of the gaps that move between two equal measurements
    of A, 99 % move by less."""
    others = {text.key: text for text in repeated_a}
    moves: list[float] = []
    for text in a:
        if other := others.get(text.key):
            moves += _top2_gap_changes_nats(
                map(top2_gap_nats, text.positions), map(top2_gap_nats, other.positions)
            )
    return _noise_of_gap_changes_nats(moves)


def top2_gap_noise_under_load_nats(
    a: Sequence[GreedyAnswer], repeated_a: Sequence[GreedyAnswer]
) -> float:
    """Return the noise of a top-2 gap in nats in answers that A wrote twice, by the tokens before
    they part. Where a result depends on the batch, it is higher than that of texts scored alone."""
    moves: list[float] = []
    for one, other in _pair_answers_by_text(a, repeated_a):
        alike = find_fork(one, other).tokens_before_fork
        moves += _top2_gap_changes_nats(one.gaps[:alike], other.gaps[:alike])
    return _noise_of_gap_changes_nats(moves)


def _top2_gap_changes_nats(a: Iterable[float | None], b: Iterable[float | None]) -> list[float]:
    pairs = zip(a, b, strict=False)
    return [abs(x - y) for x, y in pairs if x is not None and y is not None]


def _noise_of_gap_changes_nats(moves: Sequence[float]) -> float:
    # Where a result depends on the batch, many gaps do not move at all, and the noise is that of
    # those which do: answers part there.
    moved = sorted(move for move in moves if move > 0)
    return moved[int(_NOISE_SHARE * len(moved))] if moved else 0.0


def top2_gap_nats(position: ScoredPosition) -> float | None:
    """Return how much more probable the best token is than the second one, in nats; None if the
    server did not name both."""
    if len(position.top) < 2:
        return None
    return position.top[0][1] - position.top[1][1]


def first_differing_position_and_tokens(
    a: ScoredText, b: ScoredText
) -> tuple[int, Token, Token] | None:
    """Return the first position at which the most probable tokens of A and B differ, with both
    tokens. None if there is none."""
    for place, (x, y) in enumerate(zip(a.positions, b.positions, strict=False)):
        if x.top and y.top and not have_same_top_token(x, y):
            return place, x.top[0][0], y.top[0][0]
    return None
