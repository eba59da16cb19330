"""Comparisons of quality whose truth is known, judged by the product's own rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from support.simulated_answers import (
    Texts,
    drawn,
    drawn_forks,
    drawn_scores,
    log_change,
    log_noise,
    text_factors,
)

from workbench.model.quality import (
    ANSWER_SCORE,
    DIFFERS,
    FORKS,
    KL,
    LN_PPL,
    SAME,
    SAME_TOP,
    Interval,
)
from workbench.quality.verdict import (
    LaneDifferences,
    Margins,
    combine_verdicts,
    compare_with_floor,
    compute_measures_and_texts_needed,
)

MEASURES = (KL, LN_PPL, SAME_TOP, FORKS, ANSWER_SCORE)


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of A and B: the divergence of A from itself, how much more B diverges, the change
    of ln perplexity, the forks per 1,000 tokens of A against itself and of B, and by how much less
    probable A finds the answers of B than its own, in nats per token."""

    floor_kl: float = 1e-4
    more_kl: float = 0.0
    ln_ppl: float = 0.0
    floor_forks: float = 2.0
    forks: float = 2.0
    answer_drop: float = 0.0


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
    random, of_answers = Random(seed), Random(f"answers {seed}")
    verdicts: Counter[str] = Counter()
    covered: Counter[str] = Counter()

    design = Texts(texts, positions, text_sigma)
    true = {
        KL: truth.more_kl,
        LN_PPL: truth.ln_ppl,
        SAME_TOP: design.same_top(truth.floor_kl + truth.more_kl),
        FORKS: truth.forks,
        ANSWER_SCORE: -truth.answer_drop,
    }
    for _ in range(comparisons):
        part = _compared(random, design, truth)
        forks, forks_floor = (
            drawn_forks(random, rate) for rate in (truth.forks, truth.floor_forks)
        )
        answers = drawn_scores(of_answers, texts, truth.floor_forks, truth.forks, truth.answer_drop)
        measures, _ = compute_measures_and_texts_needed(
            [part], forks, forks_floor, Margins(), answers
        )
        verdicts[combine_verdicts(measures)] += 1
        for one in measures:
            covered[one.name] += _holds(one.excess or one.value, true[one.name])
    scale = 100 / comparisons
    return Shares(
        differs=scale * verdicts[DIFFERS],
        same=scale * verdicts[SAME],
        covered={name: scale * covered[name] for name in MEASURES},
    )


def _compared(random: Random, texts: Texts, truth: Truth) -> LaneDifferences:
    """Measure A three times, as the product does if it starts the servers, and B once."""
    factors = text_factors(random, texts)

    def noise() -> list[float]:
        return log_noise(random, texts, truth.floor_kl, factors)

    first = noise()
    floors = []
    for _ in range(2):
        ln_ppl = [a - again for a, again in zip(first, noise(), strict=True)]
        again = drawn(random, texts, truth.floor_kl, factors, ln_ppl)
        floors.append({one.name: one for one in again})
    more = truth.more_kl
    own = [
        truth.ln_ppl + random.gauss(0, more) + log_change(random, texts, more * factor)
        for factor in factors
    ]
    ln_ppl = [a - b + change for a, b, change in zip(first, noise(), own, strict=True)]
    kl = truth.floor_kl + more
    return compare_with_floor(drawn(random, texts, kl, factors, ln_ppl, tokens=True), floors, 20)


def _holds(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.low <= truth <= (interval.high or 0.0)
