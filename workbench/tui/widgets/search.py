"""The input row above a pane's list. Arrows move the list's cursor while typing."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from workbench.tui.cells import Painted, Row
from workbench.tui.widgets.entry import Entry


class _Slash(Painted):
    def rows(self, width: int, height: int) -> list[Row]:
        return [(("/ ", "key"),)]


PLACEHOLDERS = {
    1: "letters of a preset",
    2: "letters of a flag",
    3: "text in the log",
    4: "words of results, notes, tags",
}


class SearchEntry(Entry):
    def __init__(self, number: int) -> None:
        super().__init__(placeholder=PLACEHOLDERS[number], on_change=self._changed)
        self.number = number

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "list(1)", show=False),
        Binding("up", "list(-1)", show=False),
        Binding("pagedown", "list(8)", show=False),
        Binding("pageup", "list(-8)", show=False),
        Binding("escape", "abandon", show=False),
    ]

    def action_list(self, by: int) -> None:
        pane = self.screen.panes[self.number]  # type: ignore[attr-defined]
        if self.number == 3:
            pane.body.action_scroll_by(by)
        else:
            pane.body.action_move(by)

    async def action_abandon(self) -> None:
        await self.screen.close_search()  # type: ignore[attr-defined]

    def _changed(self, text: str) -> None:
        self.screen.searched(self.number, text)  # type: ignore[attr-defined]

    async def action_submit(self) -> None:
        await self.screen.search_entered(self.number, self.value)  # type: ignore[attr-defined]


class Search(Horizontal):
    def __init__(self, number: int) -> None:
        super().__init__(classes="search")
        self.number = number
        self.entry = SearchEntry(number)

    def compose(self) -> ComposeResult:
        slash = _Slash(classes="search-label")
        slash.styles.width = 2
        yield slash
        yield self.entry
