"""Comparisons of quality whose truth is known, judged by the product's own rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from support.simulated_answers import Texts, drawn, drawn_forks, text_factors

from workbench.model.quality import DIFFERS, FORKS, KL, LN_PPL, SAME, SAME_TOP, Interval
from workbench.quality.verdict import Compared, Margins, measures_of, verdict_of


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of A and B: the divergence of A from itself, how much more B diverges, the change
    of ln perplexity, and the forks per 1,000 tokens of A against itself and of B."""

    floor_kl: float = 1e-4
    more_kl: float = 0.0
    ln_ppl: float = 0.0
    floor_forks: float = 2.0
    forks: float = 2.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Percentages of the comparisons: with each verdict, and whose interval contains the truth."""

    differs: float
    same: float
    covered: dict[str, float]


def shares(
    truth: Truth,
    comparisons: int,
    texts: int = 32,
    positions: int = 256,
    text_sigma: float = 0.4,
    seed: int = 0,
) -> Shares:
    """Return what the product says about `comparisons` draws."""
    random = Random(seed)
    verdicts: Counter[str] = Counter()
    covered: Counter[str] = Counter()

    def design(kl: float, ln_ppl: float = 0.0) -> Texts:
        return Texts(kl, ln_ppl, texts, positions, text_sigma)

    of_floor, of_b = design(truth.floor_kl), design(truth.floor_kl + truth.more_kl, truth.ln_ppl)
    true = {
        KL: truth.more_kl,
        LN_PPL: truth.ln_ppl,
        SAME_TOP: of_b.same_top,
        FORKS: truth.forks,
    }
    for _ in range(comparisons):
        factors = text_factors(random, of_b)
        floor = {one.name: one for one in drawn(random, of_floor, factors)}
        part = Compared(texts=drawn(random, of_b, factors), floor=floor, top_k=20)
        forks, forks_floor = (
            drawn_forks(random, rate) for rate in (truth.forks, truth.floor_forks)
        )
        measures, _ = measures_of([part], forks, forks_floor, Margins())
        verdicts[verdict_of(measures)] += 1
        for one in measures:
            covered[one.name] += _holds(one.excess or one.value, true[one.name])
    scale = 100 / comparisons
    return Shares(
        differs=scale * verdicts[DIFFERS],
        same=scale * verdicts[SAME],
        covered={name: scale * covered[name] for name in (KL, LN_PPL, SAME_TOP, FORKS)},
    )


def _holds(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.low <= truth <= (interval.high or 0.0)
