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
    MORE_KEY = "down"  # that shows the rows below
    end_seen = False  # whether the last row was ever visible

    def all_rows(self, width: int, height: int) -> list[Row]:
        return []

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows = self.all_rows(width, height)
        self.top = max(0, min(self.top, len(rows) - height))
        shown = rows[self.top : self.top + height]
        hidden = len(rows) - self.top - height
        if hidden > 0 and shown:
            shown[-1] = ((f"  {hidden + 1} more lines ({self.MORE_KEY})", "dim"),)
        elif shown and not self.end_seen:
            self.end_seen = True
            self.handle_last_row_shown()
        return shown

    def handle_last_row_shown(self) -> None:
        """Act on the first time that the last row is visible. This class does nothing."""

    def scroll_page(self, direction: int) -> None:
        """Scroll by a page down (`direction` 1) or up (`direction` -1)."""
        self.action_move(direction * max(1, self.content_size.height - 2))

    def action_move(self, by: int) -> None:
        self.top = max(0, self.top + by)
        self.repaint()
