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
from workbench.tui.widgets.graph import Graph, cells_after_first, draw_graph, first_cells_of_row

if TYPE_CHECKING:
    from workbench.model.timeline import History, Key
    from workbench.tui.widgets.time_axis import Window

# A metric without values may still get some for the seconds before its next one: a reading of the
# GPUs counts for the time since the last one, and an engine may answer late.
SETTLED_S = 12.0
_KEPT_AT_ONCE = 3  # cells: to keep one costs more than to draw it a few times


@dataclass(frozen=True, slots=True)
class _Head:
    """The drawn cells of the past of one graph."""

    shape: Hashable  # what the cells depend on beside their time and the top of the scale
    top: float
    first: int  # number of the first cell
    cells: int
    rows: list[Row]

    def drop_first(self, moved: int) -> _Head:
        """Return the head without its first `moved` cells, which have left the window."""
        rows = [cells_after_first(row, moved) for row in self.rows]
        return replace(self, first=self.first + moved, cells=self.cells - moved, rows=rows)

    def append_cells(self, more: int, drawn: list[Row]) -> _Head:
        """Return the head with `more` cells, the first of the rows `drawn`."""
        pairs = zip(self.rows, drawn, strict=True)
        rows = [merge_runs((*head, *first_cells_of_row(row, more))) for head, row in pairs]
        return replace(self, cells=self.cells + more, rows=rows)


class KeptHeads:
    """The drawn cells of the past of several graphs, by name."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kept: dict[Hashable, _Head] = {}

    def make_graph(
        self,
        name: Hashable,
        make: Callable[[Window, Sequence[Row]], Graph],
        window: Window,
        height: int,
        keys: Collection[Key],
    ) -> Graph:
        """Return the graph that `make` makes of a window and of the drawn rows before it. The cells
        of its past are those that were drawn before. `name` names the graph and everything else that
        its past depends on. `keys` are the metrics that it shows."""
        if window.per_cell == 1 or window.cursor is not None:
            return make(window, ())
        shape = (window.count, window.cell_s, height, self._history.revision)
        head = self._kept_head(name, shape, window, height)
        graph = make(window.without_first(head.cells), head.rows)
        if graph.top != head.top:
            graph = make(window, ()) if head.cells else replace(graph, head=())
            head = _Head(shape, graph.top, window.first, 0, [()] * height)
        more = self._first_unsettled_cell(window, keys) - window.first - head.cells
        if more >= _KEPT_AT_ONCE:
            head = head.append_cells(more, draw_graph(replace(graph, head=()), height))
            graph = _graph_without_first(graph, more * graph.per_cell, head.rows)
        self._kept[name] = head
        return graph

    def _first_unsettled_cell(self, window: Window, keys: Collection[Key]) -> int:
        """Return the number of the first cell that may change: the one before that with the newest
        value, because the value of a limit depends on the next cell."""
        by_age = window.now - math.ceil(SETTLED_S / window.cell_s)
        newest_s = min(map(self._history.newest_second, keys))
        return min(max(by_age, newest_s // window.cell_s - 1), window.now - 1)

    def _kept_head(self, name: Hashable, shape: Hashable, window: Window, height: int) -> _Head:
        """Return the kept cells that are in the window; a head without cells if there are none."""
        kept = self._kept.get(name)
        if kept is not None and kept.shape == shape:
            moved = window.first - kept.first
            if moved == 0:
                return kept
            if 0 < moved < kept.cells:
                return kept.drop_first(moved)
        return _Head(shape, 0.0, window.first, 0, [()] * height)


def _graph_without_first(graph: Graph, values: int, head: Sequence[Row]) -> Graph:
    """Return the graph without its first `values` values, which the rows `head` have."""
    return replace(
        graph,
        head=head,
        cells=graph.cells[values:],
        low=None if graph.low is None else graph.low[values:],
        lines=tuple(line[values:] for line in graph.lines),
    )
