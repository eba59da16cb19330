"""The border around a pane, with the pane's title and key hints. A change of the pane's content does not redraw the
border."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical

from workbench.tui.cells import border_text

if TYPE_CHECKING:
    from workbench.tui.panes.base import Pane


class PaneFrame(Vertical):
    """A box with a border that shows the number, title and key hints of a pane. A search input may be mounted above the
    pane."""

    def __init__(self, number: int, body: Pane) -> None:
        super().__init__(id=f"pane-{body.NAME}", classes="pane")
        self.number, self.body = number, body
        self._texts: tuple[str, str] = ("", "")
        self.title()

    def compose(self) -> ComposeResult:
        yield self.body

    def title(self, detail: str = "", hint: str = "") -> None:
        """Set the title in the border, followed by `detail`, and the key hints. Unchanged texts are not set again,
        because that would repaint the border."""
        texts = (f"{self.number} {self.body.TITLE}" + (f"  {detail}" if detail else ""), hint)
        if texts != self._texts:
            self._texts = texts
            self.border_title, self.border_subtitle = map(border_text, texts)
