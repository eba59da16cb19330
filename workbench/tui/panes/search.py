"""The search input above a pane. While the user types, the up and down keys move the cursor of the
pane's list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from workbench.tui.cells import Painted, Row
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.entry import Entry


class _Slash(Painted):
    def rows(self, width: int, height: int) -> list[Row]:
        return [(("/ ", "key"),)]


class SearchEntry(Entry):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "list(1)", show=False),
        Binding("up", "list(-1)", show=False),
        Binding("pagedown", "list(8)", show=False),
        Binding("pageup", "list(-8)", show=False),
        Binding("escape", "abandon", show=False),
    ]

    def __init__(self, search: Search) -> None:
        super().__init__(
            placeholder=search.pane.SEARCH,
            on_change=lambda text: search.apply_text(search.pane, text),
        )
        self.search = search

    def try_handling_key(self, event: events.Key) -> bool:
        if event.character == "/" and not self.value:
            return True  # the key that opens the search, which `p` has opened already
        return super().try_handling_key(event)

    def action_list(self, by: int) -> None:
        self.search.pane.action_move(by)

    async def action_abandon(self) -> None:
        await self.search.end_search()

    async def action_submit(self) -> None:
        await self.search.submit_text(self.search.pane, self.value)


class Search(Horizontal):
    """The row with the search input of a pane. It calls `apply_text` after each edit, `submit_text`
    on enter and `end_search` on escape, before the next key is handled."""

    def __init__(
        self,
        pane: Pane,
        *,
        apply_text: Callable[[Pane, str], None],
        submit_text: Callable[[Pane, str], Awaitable[None]],
        end_search: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(classes="search")
        self.pane, self.apply_text, self.submit_text, self.end_search = (
            pane,
            apply_text,
            submit_text,
            end_search,
        )
        self.entry = SearchEntry(self)

    def compose(self) -> ComposeResult:
        slash = _Slash(classes="search-label")
        slash.styles.width = 2
        yield slash
        yield self.entry
