"""Changes with their confidence intervals on one axis, as in a forest plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, Run, merge_runs
from workbench.tui.glyphs import ASCII, G

ENDS = ("├", "─", "┤") if G is not ASCII else ("[", "-", "]")
FAR = 4.0  # a change beyond this multiple of the first one does not widen the axis
LEAST_PCT = 2.0  # the least limit of an axis: noise must not fill it
LEAST_CELLS = 9  # a narrower axis is left out
# a change and half the width of its interval, both in percent; None without an interval
ChangeSpan = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from -limit to +limit percent. `cells` is odd, and the middle cell means no change.
    An axis of 0 cells is not drawn."""

    limit_pct: float
    cells: int

    @property
    def middle_cell(self) -> int:
        return self.cells // 2

    def cell_of_change(self, change_pct: float) -> int:
        """Return the number of the cell in which a change of `change_pct` percent is drawn. For a
        change beyond the limit, this number is below 0 or above the last cell."""
        return self.middle_cell + round(change_pct / self.limit_pct * self.middle_cell)

    def label_text(self) -> str:
        edge = f"{self.limit_pct:g} %"
        if 2 * len(edge) + 5 > self.cells:  # the words would touch
            return "0".center(self.cells)[: self.cells]
        text = list(" " * self.cells)
        for at, word in (
            (0, f"-{edge}"),
            (self.middle_cell, "0"),
            (self.cells - len(edge) - 1, f"+{edge}"),
        ):
            text[at : at + len(word)] = word
        return "".join(text)


def make_axis(spans: Sequence[ChangeSpan], max_cells: int) -> Axis:
    """Return an axis of at most `max_cells` cells with a round limit. `spans` are changes with
    their confidence intervals.

    The axis contains the first change with its whole interval. It also contains each other change
    that is at most FAR times as far from 0, without regard to the interval of that change.
    """
    first = LEAST_PCT
    for change, half in spans[:1]:
        first = max(abs(change) + (half or 0.0), LEAST_PCT)
    widest = first
    for change, _ in spans:
        if abs(change) <= FAR * first:
            widest = max(widest, abs(change))
    size = 10.0 ** math.floor(math.log10(widest))
    limit = next(s * size for s in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if s * size >= widest)
    if max_cells < LEAST_CELLS:
        return Axis(limit, 0)
    return Axis(limit, max_cells if max_cells % 2 else max_cells - 1)


def change_and_interval_row(
    axis: Axis, change_pct: float, half_width_pct: float | None, role: str
) -> Row:
    """Return a change as a dot on the axis, with its confidence interval as a bar. A part beyond
    the ends of the axis is shown as "<" or ">". `half_width_pct` is half the width of the interval
    in percentage points, None without an interval."""
    if not axis.cells:
        return ()
    cells: list[Run] = [(" ", "text")] * axis.cells
    cells[axis.middle_cell] = (G.rule, "faint")
    at = axis.cell_of_change(change_pct)
    if half_width_pct is not None:
        left = axis.cell_of_change(change_pct - half_width_pct)
        right = axis.cell_of_change(change_pct + half_width_pct)
        for n in range(max(0, left), min(axis.cells - 1, right) + 1):
            sign = ENDS[1]
            if n == left:
                sign = ENDS[0]
            elif n == right:
                sign = ENDS[2]
            cells[n] = (sign, role)
        if left < 0:
            cells[0] = ("<", role)
        if right >= axis.cells:
            cells[-1] = (">", role)
    if at < 0:
        cells[0] = ("<", role)
    elif at >= axis.cells:
        cells[-1] = (">", role)
    else:
        cells[at] = (G.on, role)
    return merge_runs(cells)
