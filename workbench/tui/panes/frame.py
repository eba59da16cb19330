"""The border around a pane, with the title and the key hints in it. A change of the content does not redraw it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical

from workbench.tui.cells import border_text

if TYPE_CHECKING:
    from workbench.tui.panes.base import Pane


class PaneFrame(Vertical):
    """A bordered box with a pane's number, title and content. A search input may be mounted above the content."""

    def __init__(self, number: int, body: Pane) -> None:
        super().__init__(id=f"pane-{body.NAME}", classes="pane")
        self.number, self.body = number, body
        self._texts: tuple[str, str] = ("", "")
        self.title()

    def compose(self) -> ComposeResult:
        yield self.body

    def title(self, detail: str = "", hint: str = "") -> None:
        """Set the texts in the border. Texts that have not changed are left alone: setting them repaints the border."""
        texts = (f"{self.number} {self.body.TITLE}" + (f"  {detail}" if detail else ""), hint)
        if texts != self._texts:
            self._texts = texts
            self.border_title, self.border_subtitle = map(border_text, texts)
