"""A list with a cursor: the base class of the lists of presets, flags, results and choices.

Textual's OptionList reports a choice by a message, which may be handled only after later keys. When
its cursor moves, it sends the whole list to the terminal.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType

from workbench.tui.cells import Painted, Row
from workbench.tui.textual_private import run_bound_action

# Keys that move the cursor of a list: they call `action_move` and `action_page`.
CURSOR_BINDINGS: tuple[BindingType, ...] = (
    Binding("down,j", "move(1)", show=False),
    Binding("up,k", "move(-1)", show=False),
    Binding("pagedown,ctrl+d", "page(1)", show=False),
    Binding("pageup,ctrl+u", "page(-1)", show=False),
    Binding("home", "move(-1000000)", show=False),
    Binding("end,G", "move(1000000)", show=False),
)


class PickList(Painted, can_focus=True):
    """A list with a cursor. Subclasses draw the items, and the rows above and below them. When
    `items` change, the cursor stays on its item."""

    BINDINGS: ClassVar[list[BindingType]] = [*CURSOR_BINDINGS]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: Sequence[Any] = ()
        self.cursor = 0
        self.top = 0

    # of a subclass
    def item_key(self, item: Any) -> Hashable:
        return str(item)

    def item_row(self, item: Any, width: int) -> Row:
        return ((str(item), "text"),)

    def is_heading(self, item: Any) -> bool:
        """Return whether `item` is a heading. The cursor skips headings."""
        return False

    def rows_above_items(self, width: int) -> list[Row]:
        return []

    def handle_head_click(self, cell: int) -> None:
        """Act on a click on the last row above the items, at the cell `cell` of the row. By default
        nothing happens."""

    def rows_below_items(self, width: int, height: int) -> list[Row]:
        return []

    def rows_without_items(self, width: int) -> list[Row]:
        return []

    @property
    def current_item(self) -> Any | None:
        return self.items[self.cursor] if 0 <= self.cursor < len(self.items) else None

    def set_items(self, items: Sequence[Any], *, keep_cursor: bool = True) -> None:
        """Show these items in the list. With `keep_cursor` the cursor stays on its item, otherwise
        it goes to the first item."""
        before = self.current_item
        self.items = items
        if not keep_cursor:
            self.cursor = self.top = 0
        elif before is not None:
            self.cursor = self._index_of_key(self.item_key(before))
        self.cursor = self._nearest_item_index(self.cursor, 1)
        self.repaint()

    def _index_of_key(self, key: Hashable) -> int:
        """Return the index of the item with the key `key`; the cursor if there is no such item."""
        for index, item in enumerate(self.items):
            if self.item_key(item) == key:
                return index
        return self.cursor

    def select_item(self, key: Hashable) -> None:
        """Move the cursor to the item with the key `key`, which the method `item_key` computes. Do
        nothing if the list has no such item."""
        self.cursor = self._index_of_key(key)
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        head = self.rows_above_items(width)
        self._head = len(head)
        if not self.items:
            return [*head, *self.rows_without_items(width)][:height]
        foot = self.rows_below_items(width, height)
        room = max(1, height - len(head) - len(foot))
        self.top = max(0, min(self.top, self.cursor, len(self.items) - room))
        self.top = max(self.top, self.cursor - room + 1)
        if self.top == self.cursor and self.top and self.is_heading(self.items[self.top - 1]):
            self.top -= 1
        body: list[Row] = []
        for index in range(self.top, min(len(self.items), self.top + room)):
            row = self.item_row(self.items[index], width)
            if index == self.cursor:
                role = "select" if self.has_focus or self.lit else "rest"
                row = tuple((text, role) for text, _ in row)
                row = (*row, (" " * width, role))
            body.append(row)
        gap: list[Row] = [()] * (room - len(body))
        return [*head, *body, *gap, *foot]

    _head = 0  # rows above the first item

    async def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row. A double click acts as the enter key. A click on the
        last row above the items, which has the column titles, calls `handle_head_click`."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == self._head - 1:
            event.stop()
            self.handle_head_click(offset.x)
            return
        index = self.top + offset.y - self._head
        if not 0 <= index < len(self.items):
            return
        event.stop()
        if index != self.cursor:
            self.action_move(index - self.cursor)
        elif event.chain == 2:
            await run_bound_action(self.app, "enter")

    lit = False  # an input above the list has the focus and moves the cursor

    def action_move(self, by: int) -> None:
        before = self.cursor
        self.cursor = self._nearest_item_index(self.cursor + by, 1 if by > 0 else -1)
        if self.cursor != before:
            self.repaint()

    def _nearest_item_index(self, index: int, step: int) -> int:
        """Return the index of the item nearest to `index` that is not a heading. Search first in
        the direction `step` (1 or -1), then in the opposite direction. If every item is a heading,
        return `index`, moved into the list."""
        last = len(self.items) - 1
        index = max(0, min(index, last))
        for way in (step, -step):
            at = index
            while 0 <= at <= last and self.is_heading(self.items[at]):
                at += way
            if 0 <= at <= last:
                return at
        return index

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.content_size.height - 4))

    def watch_has_focus(self, value: bool) -> None:
        super().watch_has_focus(value)
        self.repaint()
