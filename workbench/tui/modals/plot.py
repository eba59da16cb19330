"""The page with a large plot of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.session.state import BenchRow
from workbench.tui.cells import Painted, Row
from workbench.tui.modals.base import ROOM_AROUND, Modal
from workbench.tui.widgets.plot import plot_rows


class _Canvas(Painted, can_focus=True):
    GROUND = "box"

    def __init__(self, results: Sequence[BenchRow], mark_a: int | None, mark_b: int | None) -> None:
        super().__init__()
        self.results, self.marks = results, (mark_a, mark_b)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(8, viewport.height - ROOM_AROUND)

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return plot_rows(self.results, width, height, *self.marks)


class Plot(Modal[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q,t", "leave", show=False)]
    AUTO_FOCUS = "_Canvas"

    def __init__(self, results: Sequence[BenchRow], mark_a: int | None = None, mark_b: int | None = None) -> None:
        super().__init__("Results", wide=True)
        self.canvas = _Canvas(results, mark_a, mark_b)

    def content(self) -> Sequence[Widget]:
        return (self.canvas,)
