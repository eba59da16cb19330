"""Sparklines that change little: a cell is the mean of several seconds, so each reading changes only the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from workbench.tui.glyphs import G

CELL_S = 5.0  # seconds per cell, after which the line moves by one cell


class Spark:
    """A sparkline, newest cell last. Cells are aligned to absolute time, so that all sparklines move together."""

    def __init__(self, cells: int = 240) -> None:
        self._done: deque[float | None] = deque(maxlen=cells)
        self._slot = -1
        self._sum, self._count = 0.0, 0

    def add(self, t_s: float, value: float | None) -> None:
        slot = int(t_s // CELL_S)
        if slot != self._slot:
            if self._slot >= 0:
                self._done.append(self._mean())
                self._done.extend([None] * min(slot - self._slot - 1, 60))
            self._slot, self._sum, self._count = slot, 0.0, 0
        if value is not None:
            self._sum += value
            self._count += 1

    def fill(self, values: Iterable[tuple[float, float | None]]) -> None:
        for t_s, value in values:
            self.add(t_s, value)

    def _mean(self) -> float | None:
        return self._sum / self._count if self._count else None

    def text(self, width: int, floor: float, top: float) -> str:
        """Return the newest `width` cells. Seven levels lie between `floor` and `top`, and the full block means "at the
        limit"."""
        cells = [*list(self._done)[-(width - 1) :], self._mean()] if width > 1 else [self._mean()]
        span = max(top - floor, 1e-9)
        return "".join(level((v - floor) / span if v is not None else None) for v in cells).rjust(width)


def level(share: float | None) -> str:
    if share is None:
        return " "
    if share >= 0.995:
        return G.levels[7]
    return G.levels[max(0, min(6, int(share * 7)))]
