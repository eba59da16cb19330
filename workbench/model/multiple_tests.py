"""Several statistical tests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rejected_by_holm_procedure(
    p_values: Sequence[float | None], alpha: float, weights: Sequence[float] | None = None
) -> list[bool]:
    """Return for each p-value whether Holm's procedure rejects its hypothesis. The procedure limits
    the chance that any rejection is false to `alpha`. A hypothesis without a p-value (None) is not
    rejected. `weights` are the shares that the hypotheses have in `alpha`, equal by default (Holm
    1979, section 4)."""
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
