"""Graphs of which only the newest cells are drawn again.

A drawn cell of the past does not change. The cells before the last seconds are kept as they were
drawn, until the window moves. A graph of 200 values then costs as much as one of 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.tui.cells import Row
from workbench.tui.widgets.graph import Cells, Graph, draw, first_cells

if TYPE_CHECKING:
    from workbench.model.timeline import History
    from workbench.tui.widgets.time_axis import Window

SETTLED_S = 12.0  # a reading comes, and is counted for the seconds before it, within this time


class KeptHeads:
    """The drawn cells of the past of several graphs, by name."""

    def __init__(self, history: History) -> None:
        self._history = history
        # what the cells depend on, the top of the scale, the number of cells, and their rows
        self._kept: dict[Hashable, tuple[Hashable, float, int, list[Row]]] = {}

    def graph(
        self, name: Hashable, make: Callable[[Window], Graph], window: Window, height: int
    ) -> Graph:
        """Return the graph that `make` makes of a window. The cells of its past are those that were
        drawn for the same window before. `name` names the graph and everything else that its past
        depends on."""
        if window.per_cell == 1 or window.cursor is not None:
            return make(window)
        drawn_for = (window.first, window.count, window.cell_s, height, self._history.revision)
        kept = self._kept.get(name)
        if kept is not None and kept[0] == drawn_for:
            _, top, cells, rows = kept
            graph = make(window.after(cells))
            if graph.top == top:
                return replace(graph, head=rows)
        graph = make(window)
        settling = max(2, math.ceil(SETTLED_S / window.cell_s))
        cells = max(0, window.now - window.first - settling)
        rows = [first_cells(row, cells) for row in draw(graph, height)]
        self._kept[name] = (drawn_for, graph.top, cells, rows)
        first = cells * graph.per_cell
        return replace(
            graph,
            cells=graph.cells[first:],
            low=_after(graph.low, first),
            lines=tuple(line[first:] for line in graph.lines),
            head=rows,
        )


def _after(cells: Cells | None, first: int) -> Cells | None:
    return None if cells is None else cells[first:]
