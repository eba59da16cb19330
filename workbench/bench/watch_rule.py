"""The rule of a watch: whether an upgrade is worse than the pinned version. All functions are pure.

  first experiment:   3 pairs; if they do not show the candidate at least as good, 8
  second experiment:  16 pairs of fresh starts, if a loss in the first is likely
  alarm:              the second shows the loss too, and the pairs of both show it at the level that
                      Holm's procedure leaves for it among all presets and measures of the night

Only the last step can raise an alarm. The steps before only end the measuring early, which cannot
make false alarms more frequent. In equal arms, a night has an alarm with a chance of
`ALPHA_PER_NIGHT` at most: one in three years. A loss that is too small to matter is no alarm,
however sure it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from workbench.bench.metric_changes import variance
from workbench.bench.tune_race import Noise
from workbench.model.multiple_tests import rejected_by_holm_procedure
from workbench.model.student_t import t_cdf
from workbench.model.watch import MEMORY, SPEED, START, Loss

FIRST_PAIRS, MOST_FIRST_PAIRS, SECOND_PAIRS = 3, 8, 16
ALPHA_PER_NIGHT = 0.001
_MAX_P_OF_LIKELY_LOSS = 0.15  # p of the first experiment below which the second one is made
_REPEATED_LOSS_P = 0.05  # p of the second experiment alone
# by measure: its share of the level, and the smallest loss in percent that matters
ALPHA_WEIGHTS = {SPEED: 0.8, START: 0.1, MEMORY: 0.1}
MIN_LOSS_PCT = {SPEED: 1.0, START: 10.0, MEMORY: 2.0}
_MIN_SPREAD = 0.0005  # of one run: less is the resolution of its window

Losses = Sequence[float]  # ln of how much worse the candidate is, for each pair


def p_value_of_loss(losses: Losses) -> float | None:
    """Return the one-sided p-value of "the candidate is not worse". None for fewer than two
    pairs."""
    if len(losses) < 2:
        return None
    spread = max(2 * _MIN_SPREAD**2, variance(losses))
    error = math.sqrt(spread / len(losses))
    return t_cdf(-fmean(losses) / error, len(losses) - 1)


def needs_more_pairs(first: Mapping[str, Losses]) -> bool:
    """Return whether the first experiment needs all of its pairs: a measure looks worse so far."""
    return any(losses and fmean(losses) > 0 for losses in first.values())


def needs_second_experiment(first: Mapping[str, Losses]) -> bool:
    """Return whether a measure of the first experiment calls for a second one: a loss is likely,
    and its mean is at least half of MIN_LOSS_PCT."""
    return any(_is_loss_likely(measure, losses) for measure, losses in first.items())


def _is_loss_likely(measure: str, losses: Losses) -> bool:
    p = p_value_of_loss(losses)
    if p is None or p >= _MAX_P_OF_LIKELY_LOSS:
        return False
    return _mean_loss_percent(losses) >= MIN_LOSS_PCT[measure] / 2


def detect_losses_of_night(
    experiments_by_preset: Sequence[tuple[Mapping[str, Losses], Mapping[str, Losses]]],
) -> list[tuple[Loss, ...]]:
    """Return the losses of each preset of a night. `experiments_by_preset` has for each preset the
    losses by measure of its first and of its second experiment; the second is empty if it was not
    made."""
    tests: list[tuple[int, Loss]] = []
    p_values, weights = [], []
    for place, (first, second) in enumerate(experiments_by_preset):
        for measure, losses in first.items():
            again = second.get(measure, ())
            both = [*losses, *again]
            if not both:
                continue
            repeated = _is_loss_repeated(measure, losses, again)
            size = _mean_loss_percent(both)
            loss = Loss(measure, size, len(both), p_value_of_loss(both), repeated)
            tests.append((place, loss))
            # a test that cannot raise an alarm is still one of the tests of the night
            p_values.append(loss.p if _is_alarm_possible(loss) else 1.0)
            weights.append(ALPHA_WEIGHTS[measure])
    found: list[list[Loss]] = [[] for _ in experiments_by_preset]
    if tests:
        total = math.fsum(weights)
        shares = [weight / total for weight in weights]
        alarms = rejected_by_holm_procedure(p_values, ALPHA_PER_NIGHT, shares)
        for (place, loss), alarm in zip(tests, alarms, strict=True):
            found[place].append(replace(loss, alarm=alarm))
    return list(map(tuple, found))


def _is_loss_repeated(measure: str, first: Losses, second: Losses) -> bool:
    if not _is_loss_likely(measure, first):
        return False
    p = p_value_of_loss(second)
    return p is not None and p < _REPEATED_LOSS_P


def _is_alarm_possible(loss: Loss) -> bool:
    return loss.repeated and loss.loss_pct >= MIN_LOSS_PCT[loss.measure]


def _mean_loss_percent(losses: Losses) -> float:
    """Return the mean loss in percent of the pinned arm: 3 for a candidate that is 3 % slower."""
    return -100 * math.expm1(-fmean(losses))


# -- how often it is wrong -------------------------------------------------------------------------


def simulate_alarms_of_night(
    true_loss_pct: Sequence[float], noise: Noise, rng: random.Random
) -> list[bool]:
    """Carry out one night of as many presets, whose candidates are slower by these percentages.
    Return for each whether it was an alarm."""

    def simulate_pair_losses(loss_pct: float, count: int) -> list[float]:
        size = math.sqrt(2 * (noise.server_pct**2 + noise.run_pct**2)) / 100
        true = -math.log1p(-loss_pct / 100)
        return [true + rng.gauss(0.0, size) for _ in range(count)]

    nights = []
    for loss_pct in true_loss_pct:
        first = {SPEED: simulate_pair_losses(loss_pct, FIRST_PAIRS)}
        if needs_more_pairs(first):
            first[SPEED] += simulate_pair_losses(loss_pct, MOST_FIRST_PAIRS - FIRST_PAIRS)
        second = {}
        if needs_second_experiment(first):
            second = {SPEED: simulate_pair_losses(loss_pct, SECOND_PAIRS)}
        # equal in the two other measures, which take their shares of the level
        equal = {START: [0.0] * len(first[SPEED]), MEMORY: [0.0] * len(first[SPEED])}
        nights.append(({**first, **equal}, second))
    return [any(loss.alarm for loss in losses) for losses in detect_losses_of_night(nights)]
