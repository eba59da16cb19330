"""Graphs of which only the newest cells are drawn again.

A drawn cell of the past does not change. The cells before the newest values are kept as they were
drawn, until they leave the window. A graph of 200 values then costs as much as one of 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, merge_runs
from workbench.tui.widgets.graph import (
    Graph,
    draw_graph,
    drop_first_cells_of_row,
    first_cells_of_row,
)

if TYPE_CHECKING:
    from workbench.model.timeline import History, Key
    from workbench.tui.widgets.time_axis import Window

# A metric without values may still get some for the seconds before its next one: a reading of the
# GPUs counts for the time since the last one, and an engine may answer late.
SETTLED_S = 12.0
_KEPT_AT_ONCE = 3  # cells: to keep one costs more than to draw it a few times


@dataclass(frozen=True, slots=True)
class _DrawnCells:
    """The drawn cells of the past of one graph."""

    shape: Hashable  # what the cells depend on beside their time and the top of the scale
    top: float
    first_cell: int  # number of the first cell
    cells: int
    rows: list[Row]

    def drop_first_cells(self, count: int) -> _DrawnCells:
        """Return the cells without the first `count`, which have left the window."""
        rows = [drop_first_cells_of_row(row, count) for row in self.rows]
        return replace(
            self, first_cell=self.first_cell + count, cells=self.cells - count, rows=rows
        )

    def append_cells(self, count: int, drawn_rows: list[Row]) -> _DrawnCells:
        """Return the cells with `count` more, the first of `drawn_rows`."""
        pairs = zip(self.rows, drawn_rows, strict=True)
        rows = [merge_runs((*old, *first_cells_of_row(row, count))) for old, row in pairs]
        return replace(self, cells=self.cells + count, rows=rows)


class GraphCache:
    """The drawn cells of the past of several graphs, by name."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._drawn_by_name: dict[Hashable, _DrawnCells] = {}

    def make_graph(
        self,
        name: Hashable,
        make: Callable[[Window, Sequence[Row]], Graph],
        window: Window,
        height: int,
        keys: Collection[Key],
    ) -> Graph:
        """Return the graph of a window. `make` gets a part of the window and the drawn rows before
        that part, so that cells which were drawn earlier are not made again. `name` identifies the
        graph and everything else on which its past cells depend. `keys` are the keys in the history
        of the metrics that it shows."""
        if window.per_cell == 1 or window.cursor is not None:
            return make(window, ())
        shape = (window.count, window.cell_s, height, self._history.revision)
        drawn = self._stored_cells_in_window(name, shape, window, height)
        graph = make(window.drop_first_cells(drawn.cells), drawn.rows)
        if graph.top != drawn.top:
            graph = make(window, ()) if drawn.cells else replace(graph, earlier_rows=())
            drawn = _DrawnCells(shape, graph.top, window.first_cell, 0, [()] * height)
        more = self._first_changeable_cell_number(window, keys) - window.first_cell - drawn.cells
        if more >= _KEPT_AT_ONCE:
            drawn = drawn.append_cells(more, draw_graph(replace(graph, earlier_rows=()), height))
            graph = _remove_first_values(graph, more * graph.per_cell, drawn.rows)
        self._drawn_by_name[name] = drawn
        return graph

    def _first_changeable_cell_number(self, window: Window, keys: Collection[Key]) -> int:
        """Return the number of the first cell that may change: the one before that with the newest
        value, because the value of a limit depends on the next cell."""
        by_age = window.now - math.ceil(SETTLED_S / window.cell_s)
        newest_s = min(map(self._history.newest_second, keys))
        return min(max(by_age, newest_s // window.cell_s - 1), window.now - 1)

    def _stored_cells_in_window(
        self, name: Hashable, shape: Hashable, window: Window, height: int
    ) -> _DrawnCells:
        """Return those of the stored cells that are still in the window. Without any, return an
        object with no cells, which begins at the first cell of the window."""
        kept = self._drawn_by_name.get(name)
        if kept is not None and kept.shape == shape:
            moved = window.first_cell - kept.first_cell
            if moved == 0:
                return kept
            if 0 < moved < kept.cells:
                return kept.drop_first_cells(moved)
        return _DrawnCells(shape, 0.0, window.first_cell, 0, [()] * height)


def _remove_first_values(graph: Graph, count: int, earlier_rows: Sequence[Row]) -> Graph:
    """Return the graph without its first `count` values, which the rows `earlier_rows` have."""
    return replace(
        graph,
        earlier_rows=earlier_rows,
        cells=graph.cells[count:],
        low=None if graph.low is None else graph.low[count:],
        lines=tuple(line[count:] for line in graph.lines),
    )
