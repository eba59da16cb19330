"""Several statistical tests at once."""

from __future__ import annotations

from collections.abc import Sequence


def holm(ps: Sequence[float | None], alpha: float) -> list[bool]:
    """Return for each p-value whether Holm's procedure rejects its hypothesis. The procedure limits
    the chance of any false rejection to `alpha`. A p-value of None is never rejected."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    stand = [False] * len(ps)
    for rank, (p, place) in enumerate(known):
        if p > alpha / (len(known) - rank):
            break
        stand[place] = True
    return stand
