"""Several statistical tests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rejected_by_holm_procedure(
    p_values: Sequence[float | None], alpha: float, weights: Sequence[float] | None = None
) -> list[bool]:
    """Return for each p-value whether Holm's procedure rejects its hypothesis. The procedure limits
    the chance of any false rejection to `alpha`. A p-value of None is never rejected. `weights` are
    the shares of `alpha`, equal by default (Holm 1979, section 4: p / weight in rising order)."""
    weight_of = weights or [1.0] * len(p_values)
    known = sorted(
        (p / weight_of[place], place) for place, p in enumerate(p_values) if p is not None
    )
    left = math.fsum(weight_of[place] for _, place in known)
    stand = [False] * len(p_values)
    for weighted, place in known:
        if weighted > alpha / left:
            break
        stand[place] = True
        left -= weight_of[place]
    return stand
