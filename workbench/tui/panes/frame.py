"""The border around a pane, with the pane's title and key hints. A change of the pane's content
does not redraw the border."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Region

from workbench.tui.cells import border_content
from workbench.tui.textual_private import drawing_state_key

if TYPE_CHECKING:
    from workbench.tui.panes.base import Pane


class PaneFrame(Vertical):
    """A box with a border that shows the number, title and key hints of a pane. A search input may
    be mounted above the pane."""

    def __init__(self, number: int, body: Pane) -> None:
        super().__init__(id=f"pane-{body.NAME}", classes="pane")
        self.number, self.body = number, body
        self._texts: tuple[str, str] = ("", "")
        self._looks: object = None  # with which it was drawn last
        self.show_title()

    def compose(self) -> ComposeResult:
        yield self.body

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Let Textual draw the frame. If only a border text or a border colour has changed, draw
        the border without the pane inside."""
        looks, before = drawing_state_key(self), self._looks
        self._looks = looks
        if regions or layout or recompose or not repaint or looks != before or looks is None:
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        (width, height), (left, top) = self.outer_size, self.content_offset
        sides = (
            Region(-left, 0, 1, height - 2 * top),
            Region(width - 1 - left, 0, 1, height - 2 * top),
        )
        ends = (Region(-left, -top, width, 1), Region(-left, height - 1 - top, width, 1))
        return super().refresh(*sides, *ends) if top else self

    def show_title(self, detail: str = "", key_hints: str = "") -> None:
        """Draw the pane's title in the border, followed by `detail`, and the key hints
        `key_hints`. Do nothing for unchanged texts, because setting them would repaint the
        border."""
        texts = (f"{self.number} {self.body.TITLE}" + (f"  {detail}" if detail else ""), key_hints)
        if texts != self._texts:
            self._texts = texts
            self.border_title, self.border_subtitle = map(border_content, texts)
