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

from workbench.model.quality import ForkCount, Interval, TextDifference
from workbench.quality.statistics import poisson_interval

_POSITION_SIGMA = math.sqrt(math.log(1 + (0.026 / 0.0106) ** 2))  # of the lognormal divergence
_LN_RATIO = 0.158 / math.sqrt(0.0106)
_OTHER_TOP = 0.0475 / math.sqrt(0.0106)
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts to draw. `kl` is the mean divergence of the population, `ln_ppl` that of the change of
    ln perplexity. `text_sigma` is the spread of the texts' divergences, as a lognormal sigma."""

    kl: float
    ln_ppl: float = 0.0
    count: int = 32
    positions: int = 256
    text_sigma: float = 0.4
    correlation: float = 0.4

    @property
    def same_top(self) -> float:
        """The share of positions with the same best token, in the population."""
        return 1 - _OTHER_TOP * math.sqrt(self.kl) * math.exp(-(self.text_sigma**2) / 8)


def drawn(random: Random, texts: Texts, factors: list[float]) -> tuple[TextDifference, ...]:
    """Return one difference per text. `factors` has the divergence of each text, relative to the
    mean of the population."""
    return tuple(_text(random, texts, i, factor) for i, factor in enumerate(factors))


def text_factors(random: Random, texts: Texts) -> list[float]:
    sigma = texts.text_sigma
    return [math.exp(random.gauss(-sigma * sigma / 2, sigma)) for _ in range(texts.count)]


def _text(random: Random, texts: Texts, index: int, factor: float) -> TextDifference:
    kl = texts.kl * factor
    change = texts.ln_ppl + random.gauss(0.0, texts.kl)  # a text's own part
    limit = _quantile(_OTHER_TOP * math.sqrt(kl)) if kl else -math.inf
    rho = texts.correlation
    new = math.sqrt(1 - rho * rho)
    x, y, z = (random.gauss(0, 1) for _ in range(3))
    kls = ratios = others = 0.0
    for _ in range(texts.positions):
        x = rho * x + new * random.gauss(0, 1)
        y = rho * y + new * random.gauss(0, 1)
        z = rho * z + new * random.gauss(0, 1)
        here = kl * math.exp(_POSITION_SIGMA * x - _POSITION_SIGMA**2 / 2)
        kls += here
        ratios += change + _LN_RATIO * math.sqrt(kl) * y
        others += z < limit
    n = texts.positions
    return TextDifference(
        name=f"text-{index}",
        kind="prose",
        positions=n,
        kl=kls / n,
        ln_ppl=ratios / n,
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
    low, high = poisson_interval(forks)
    scale = 1000 / at_risk
    interval = Interval(forks * scale, low * scale, high * scale)
    return ForkCount(forks=forks, ties=0, at_risk=at_risk, answers=answers, per_1000=interval)
