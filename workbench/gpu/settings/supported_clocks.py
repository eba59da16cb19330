"""A clock lock against what the card can run at.

nvidia-smi takes the supported clock that is closest to a given one (its help says so of --lock-gpu-clocks), without a
word about it; a lock far from any is surely a mistake. Where the driver lists no clocks, its highest is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.errors import InputError
from workbench.model.settings import ClockRange

STEP_MHZ = 15  # the widest distance between two neighbouring SM clocks; memory clocks lie hundreds apart


def check(name: str, which: str, clocks: ClockRange, highest: int | None, supported: Sequence[int]) -> str:
    """InputError when `clocks` cannot be; else what will be set, where that is something else ("" where it is not).

    A lowest clock below all supported ones (0 is often given) is no lower bound, and allowed in a range.
    """
    if clocks.min_mhz < 0 or clocks.min_mhz > clocks.max_mhz:
        raise InputError(f"{name}: {clocks} is no range of clocks: MIN,MAX in MHz, MIN not above MAX")
    if highest is not None and clocks.max_mhz > highest:
        raise InputError(f"{name}: {clocks.max_mhz} MHz is above its highest {which} clock, {highest} MHz")
    if not supported:
        return ""
    taken: list[str] = []
    for mhz in dict.fromkeys((clocks.min_mhz, clocks.max_mhz)):
        nearest = min(supported, key=lambda s: (abs(s - mhz), s))
        if nearest == mhz:
            continue
        lower_bound = mhz < min(supported) and mhz < clocks.max_mhz
        if abs(nearest - mhz) > STEP_MHZ and not lower_bound:
            raise InputError(f"{name} has no {which} clock of {mhz} MHz; {_neighbours(mhz, supported)}")
        taken.append(f"{nearest} MHz for {mhz}")
    return f"nvidia-smi takes the closest {which} clock: {', '.join(taken)}" if taken else ""


def _neighbours(mhz: int, supported: Sequence[int]) -> str:
    below = max((s for s in supported if s < mhz), default=None)
    above = min((s for s in supported if s > mhz), default=None)
    near = " and ".join(f"{s} MHz" for s in (below, above) if s is not None)
    return f"nearest: {near}"
