"""A text of rows that is scrolled with the arrow keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from workbench.tui.cells import Painted, Row


class Scrolled(Painted, can_focus=True):
    """A text that scrolls. Subclasses return all rows of the text from `all_rows`. If rows are
    hidden below, the last visible row shows how many."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+u", "move(-12)", show=False),
        Binding("pagedown,ctrl+d,space", "move(12)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
    ]
    top = 0  # the first visible row

    def all_rows(self, width: int, height: int) -> list[Row]:
        return []

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows = self.all_rows(width, height)
        self.top = max(0, min(self.top, len(rows) - height))
        shown = rows[self.top : self.top + height]
        hidden = len(rows) - self.top - height
        if hidden > 0 and shown:
            shown[-1] = ((f"  {hidden + 1} more lines (down)", "dim"),)
        return shown

    def action_move(self, by: int) -> None:
        self.top = max(0, self.top + by)
        self.repaint()
