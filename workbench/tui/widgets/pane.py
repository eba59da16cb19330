"""A bordered pane: title and key hints in the border, which is not redrawn when the content changes."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from workbench.tui.cells import Painted, border_text


class Pane(Vertical):
    """Pane number, name, and one drawn widget inside; a search input may be mounted above it."""

    def __init__(self, number: int, name: str, body: Painted) -> None:
        super().__init__(id=f"pane-{number}", classes="pane")
        self.number, self.pane_name, self.body = number, name, body
        self._texts: tuple[str, str] = ("", "")
        self.title()

    def compose(self) -> ComposeResult:
        yield self.body

    def title(self, detail: str = "", hint: str = "") -> None:
        """Texts in the border; set only when they differ, for they repaint it."""
        texts = (f"{self.number} {self.pane_name}" + (f"  {detail}" if detail else ""), hint)
        if texts != self._texts:
            self._texts = texts
            self.border_title, self.border_subtitle = map(border_text, texts)

    def focus_target(self) -> Widget:
        return self.body
