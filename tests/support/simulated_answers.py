"""Differences of texts whose truth is known, to check the statistics of quality.

The positions of a text are correlated (an autoregressive process), and texts differ in how far apart
the two models are. The spread per position is that of two quantizations of one model, measured by
llama.cpp over 163,710 positions: at a divergence of 0.0106, 0.026 for the divergence, 0.158 for the
difference of the log probabilities, and another best token at 4.75 % of the positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from workbench.model.quality import AnswerScore, ForkCount, Interval, TextDifference
from workbench.quality.statistics import poisson_mean_interval
from workbench.quality.verdict import ScoredAnswers

_POSITION_SIGMA = math.sqrt(math.log(1 + (0.026 / 0.0106) ** 2))  # of the lognormal divergence
_LN_RATIO = 0.158 / math.sqrt(0.0106)
_OTHER_TOP = 0.0475 / math.sqrt(0.0106)
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a comparison. `text_sigma` is the spread of their divergences, as a lognormal
    sigma."""

    count: int = 32
    positions: int = 256
    text_sigma: float = 0.4
    correlation: float = 0.4

    def same_top(self, kl: float) -> float:
        """The share of positions with the same best token, in the population, at a divergence."""
        return 1 - _OTHER_TOP * math.sqrt(kl) * math.exp(-(self.text_sigma**2) / 8)

    @property
    def mean_sigma(self) -> float:
        """The standard deviation of the mean over the positions of a text of values with a standard
        deviation of 1: that of the mean of an autoregressive process."""
        n, rho = self.positions, self.correlation
        ends = 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)
        return math.sqrt(((1 + rho) / (1 - rho) - ends) / n)


def text_factors(random: Random, texts: Texts) -> list[float]:
    """Return the divergence of each text, relative to the mean of the population."""
    sigma = texts.text_sigma
    return [math.exp(random.gauss(-sigma * sigma / 2, sigma)) for _ in range(texts.count)]


def log_noise(random: Random, texts: Texts, kl: float, factors: list[float]) -> list[float]:
    """Return what one measurement adds to the mean log probability of each text. Two measurements
    with this noise diverge by `kl` from each other, so each has half of the variance."""
    half = math.sqrt(0.5)
    return [
        half * (random.gauss(0, kl) + log_change(random, texts, kl * factor)) for factor in factors
    ]


def log_change(random: Random, texts: Texts, kl: float) -> float:
    """Return by how much the mean log probability of a text changes between two servers that
    diverge by `kl`, beside the change that all texts have in common."""
    return _LN_RATIO * math.sqrt(kl) * texts.mean_sigma * random.gauss(0, 1)


def drawn(
    random: Random,
    texts: Texts,
    kl: float,
    factors: list[float],
    ln_ppl: list[float],
    *,
    tokens: bool = False,
) -> tuple[TextDifference, ...]:
    """Return one difference per text, at a mean divergence and with these changes of ln perplexity.
    Without `tokens`, the share of equal best tokens is not drawn."""
    return tuple(
        _text(random, texts, i, kl * factor, change, tokens)
        for i, (factor, change) in enumerate(zip(factors, ln_ppl, strict=True))
    )


def _text(
    random: Random, texts: Texts, index: int, kl: float, ln_ppl: float, tokens: bool
) -> TextDifference:
    n, rho, gauss = texts.positions, texts.correlation, random.gauss
    new = math.sqrt(1 - rho * rho)
    x = gauss(0, 1)
    kls = 0.0
    for _ in range(n if kl else 0):
        x = rho * x + new * gauss(0, 1)
        kls += math.exp(_POSITION_SIGMA * x - _POSITION_SIGMA**2 / 2)
    others = 0
    if tokens and kl:
        limit, z = _quantile(_OTHER_TOP * math.sqrt(kl)), gauss(0, 1)
        for _ in range(n):
            z = rho * z + new * gauss(0, 1)
            others += z < limit
    return TextDifference(
        name=f"text-{index}",
        kind="prose",
        positions=n,
        kl=kl * kls / n,
        ln_ppl=ln_ppl,
        same_top=1 - others / n,
    )


def _quantile(share: float) -> float:
    """Return the standard normal quantile of a small share, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        if 0.5 * math.erfc(-middle / math.sqrt(2)) < share:
            low = middle
        else:
            high = middle
    return low


def drawn_forks(random: Random, per_1000: float, answers: int = 32) -> ForkCount:
    """Return the forks of answers that part with equal chance at each token."""
    forks = at_risk = 0
    for _ in range(answers):
        place = math.ceil(random.expovariate(per_1000 / 1000)) if per_1000 else ANSWER_TOKENS + 1
        forks += place <= ANSWER_TOKENS
        at_risk += min(place, ANSWER_TOKENS)
    low, high = poisson_mean_interval(forks)
    scale = 1000 / at_risk
    interval = Interval(forks * scale, low * scale, high * scale)
    return ForkCount(forks=forks, ties=0, at_risk=at_risk, answers=answers, per_1000=interval)


# Assumed standard deviations of the mean log probability of an answer in nats: from text to text, and
# of an answer that leaves the most probable way. They cancel out of the shares, unlike how often.
_TEXT_SPREAD, _PATH_SPREAD = 0.3, 0.15


def drawn_scores(
    random: Random, texts: int, floor_forks: float, forks: float, drop: float
) -> ScoredAnswers:
    """Return how probable A finds the answers of A, of A again and of B. Each of them leaves the most
    probable way by chance, as often as it forks, and is then more or less probable. A finds those of
    B less probable by `drop` on average, and by more in one text than in another."""

    def leaves(per_1000: float) -> float:
        alike = math.exp(-per_1000 / 1000 * ANSWER_TOKENS)
        return random.gauss(0, _PATH_SPREAD) if random.random() > math.sqrt(alike) else 0.0

    rows = []
    for _ in range(texts):
        own = random.gauss(-0.6, _TEXT_SPREAD)
        uneven = drop * random.lognormvariate(-0.125, 0.5)
        a, again, b = own + leaves(floor_forks), own + leaves(floor_forks), own + leaves(forks)
        rows.append((a, again, b - uneven))

    def scores(place: int) -> list[AnswerScore]:
        return [
            AnswerScore(f"text-{number}", row[place], ANSWER_TOKENS)
            for number, row in enumerate(rows)
        ]

    return ScoredAnswers(scores(0), scores(1), scores(2), concurrency=8)
