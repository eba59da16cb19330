"""The parts of modals: a box with title and keys in its border, text that scrolls, and lists to
choose from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget

from workbench.model import fuzzy
from workbench.tui.cells import Painted, Row, RowMaker, border_content, paragraph_rows
from workbench.tui.clipboard import copy_to_clipboard_and_describe
from workbench.tui.widgets.entry import Entry
from workbench.tui.widgets.pick_list import PickList
from workbench.tui.widgets.scrolled import Scrolled

T = TypeVar("T")
Choice = tuple[str, str, str]  # outcome, text of its row, role of the text
# rows of the screen that a modal leaves free: its border, and two rows of what it covers
ROOM_AROUND = 4
# rows of a list: a longer one is searched or scrolled, and hides less of what it covers
MOST_CHOICES = 24


class Modal(ModalScreen[T], Generic[T]):
    """A box in the middle of the screen. A subclass returns the widgets of the box from
    `make_widgets`. The box closes with a value, its outcome, which is None if the user presses
    escape."""

    is_busy = False  # while true, keys other than escape are dropped (interfaces.OrderedKeys)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("tab", "app.focus_next", show=False),
        Binding("shift+tab", "app.focus_previous", show=False),
    ]
    AUTO_FOCUS = "Entry, PickList, TextBody"

    def __init__(self, title: str, keys: str = "esc close", *, wide: bool = False) -> None:
        super().__init__()
        self.box_title, self.keys = title, keys
        self.set_class(wide, "-wide")

    def compose(self) -> ComposeResult:
        box = Vertical(*self.make_widgets(), classes="box")
        box.border_title = border_content(self.box_title)
        box.border_subtitle = border_content(self.keys)
        yield box

    def make_widgets(self) -> Sequence[Widget]:
        return ()

    def show_key_hints(self, text: str) -> None:
        """Show `text` in the bottom border of the box, in place of the key hints."""
        self.query_one(".box").border_subtitle = border_content(text)

    def copy_text(self, text: str) -> None:
        """Copy `text` to the clipboard, and show the outcome in place of the key hints."""

        async def copy_and_show_outcome() -> None:
            self.show_key_hints(await copy_to_clipboard_and_describe(self.app, text))

        self.run_worker(copy_and_show_outcome(), group="copy", exclusive=True, exit_on_error=False)

    def on_resize(self) -> None:
        """Compute the heights of the box's texts again for the new size of the screen. Textual
        would do that only if the width of the box had changed."""
        for widget in self.query(Painted):
            widget.refresh(layout=True)

    def action_leave(self) -> None:
        self.dismiss(None)


class Text(Scrolled, can_focus=False):
    """A scrolling text in a box. `make_text_rows` gets the width in cells and returns the rows. The
    text is as high as the number of its rows, but leaves at least `reserved_rows` rows of the
    screen for other widgets of the box."""

    GROUND = "box"

    def __init__(self, make_text_rows: RowMaker, *, reserved_rows: int = 0) -> None:
        super().__init__()
        self.make_text_rows, self.reserved_rows = make_text_rows, reserved_rows

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(
            0,
            min(
                len(self.make_rows_or_error_rows(self.make_text_rows, width)),
                viewport.height - ROOM_AROUND - self.reserved_rows,
            ),
        )

    def rebuild_rows(self) -> None:
        """Make the rows again, draw them, and adapt the height of the text to their number."""
        self._painted = []
        self.refresh(layout=True)
        self.repaint()

    def all_rows(self, width: int, height: int) -> list[Row]:
        return self.make_text_rows(width)


class TextBody(Text, can_focus=True):
    """A text that scrolls with the arrow keys."""


class TextAboveChoices(TextBody):
    """A text above a list of choices, which has the focus. `on_end` is called when the last row is
    visible for the first time."""

    MORE_KEY = "pgdn"

    def __init__(
        self, make_text_rows: RowMaker, *, reserved_rows: int, on_end: Callable[[], None]
    ) -> None:
        super().__init__(make_text_rows, reserved_rows=reserved_rows)
        self.on_end = on_end

    def handle_last_row_shown(self) -> None:
        self.on_end()


class TextThenChoices(Modal[T], Generic[T]):
    """A box with a text and a list of choices below it. The keys pgup and pgdn scroll the text,
    wherever the focus is. The choice `agreement`, if there is one, cannot be chosen until the end
    of the text was visible."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "read(-1)", show=False, priority=True),
        Binding("pagedown", "read(1)", show=False, priority=True),
    ]
    AUTO_FOCUS = "Choices"
    agreement = ""

    def make_text(self, make_text_rows: RowMaker, reserved_rows: int) -> TextAboveChoices:
        """Make and return the text of the box."""
        self.body = TextAboveChoices(
            make_text_rows, reserved_rows=reserved_rows, on_end=self._enable_agreement_choice
        )
        return self.body

    def make_choices(
        self, items: Sequence[Choice], on_choose: Callable[[str], object], preselected: str
    ) -> Choices:
        """Make and return the list of choices, with the cursor on the choice `preselected`."""
        self.wanted = list(items)
        self.choices = Choices(items, self._choose_or_scroll, preselected)
        self.choose = on_choose
        return self.choices

    def on_mount(self) -> None:
        self.call_after_refresh(self._disable_agreement_choice)

    def _disable_agreement_choice(self) -> None:
        if self.agreement and not self.body.end_seen:
            items = []
            for name, text, role in self.wanted:
                if name == self.agreement:
                    text, role = f"{text}: after the last line (pgdn)", "dim"
                items.append((name, text, role))
            self.choices.set_items(items)

    def _enable_agreement_choice(self) -> None:
        if self.agreement:
            self.choices.set_items(self.wanted)

    def action_read(self, by: int) -> None:
        self.body.scroll_page(by)

    def _choose_or_scroll(self, choice_name: str) -> None:
        """Act on a choice. Before the end of the text was visible, scroll on instead of
        agreeing."""
        if choice_name == self.agreement and not self.body.end_seen:
            self.body.scroll_page(1)
        else:
            self.choose(choice_name)


class Label(Text):
    """One line of text, in a column that is `cells` wide."""

    def __init__(self, text: str, cells: int) -> None:
        super().__init__(lambda _: [((text, "dim"),)])
        self.styles.width = cells


class Choices(PickList):
    """A list of items to choose from. An item is (name, text, role). The enter key calls
    `on_choose` with the name of the item under the cursor, and each move of the cursor calls
    `on_move`."""

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "take_choice", show=False)]

    def __init__(
        self,
        items: Sequence[Choice],
        on_choose: Callable[[str], object],
        preselected: str = "",
        reserved_rows: int = 0,
        on_move: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self.items, self.on_choose, self.on_move = items, on_choose, on_move
        self.reserved_rows = reserved_rows
        self.cursor = self._index_of_key(preselected)

    def item_key(self, item: Any) -> Hashable:
        return str(item[0])

    def item_row(self, item: Choice, width: int) -> Row:
        return ((f" {item[1]}", item[2]),)

    def rows_without_items(self, width: int) -> list[Row]:
        return [((" nothing in the list matches", "dim"),)]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        room = viewport.height - ROOM_AROUND - self.reserved_rows
        return max(1, min(len(self.items), room, MOST_CHOICES))

    def action_move(self, by: int) -> None:
        super().action_move(by)
        if self.on_move is not None:
            self.on_move()

    def action_take_choice(self) -> None:
        if self.current_item is not None:
            self.on_choose(self.current_item[0])


def score_choice_match(query: str, choice: Choice) -> float | None:
    """Return how well the text of a choice matches the words of `query`, the higher the better;
    None for no match."""
    return fuzzy.word_score(query, choice[1])


class PickModal(Modal[str]):
    """A list from which the user chooses one item. With `filter`, typing words narrows the list to
    the items that `score` matches, the best one first. With `free`, the user may also enter a text
    that matches no item."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
    ]

    def __init__(
        self,
        title: str,
        items: Sequence[Choice],
        *,
        chosen: str = "",
        intro: str = "",
        filter: bool = False,
        free: bool = True,
        score: Callable[[str, Choice], float | None] = score_choice_match,
    ) -> None:
        keys = "enter choose   esc cancel"
        if filter:
            keys += "   type to filter"
        super().__init__(title, keys)
        self.all, self.intro, self.filter, self.free = items, intro, filter, free
        self.score = score
        self.choices = Choices(items, self.dismiss, chosen, reserved_rows=4)

    def make_widgets(self) -> Sequence[Widget]:
        parts: list[Widget] = []
        if self.intro:
            parts.append(Text(lambda w: [*paragraph_rows(self.intro, w), ()]))
        if self.filter:
            self.choices.lit = True
            self.choices.can_focus = False
            placeholder = "type to filter, or a name" if self.free else "type to filter"
            parts.append(
                Entry(
                    placeholder=placeholder,
                    on_submit=self._close_with_item_or_text,
                    on_change=self._filter_choices,
                )
            )
        return (*parts, self.choices)

    def action_move(self, by: int) -> None:
        self.choices.action_move(by)

    def _filter_choices(self, text: str) -> None:
        found = fuzzy.scored_items_best_first(self.all, lambda item: self.score(text, item))
        self.choices.set_items(found, keep_cursor=False)

    def _close_with_item_or_text(self, text: str) -> None:
        """Close with the item under the cursor. If no item matches, close with the typed `text`, or
        do nothing where the user may not enter one."""
        if self.choices.current_item is not None:
            self.dismiss(self.choices.current_item[0])
        elif self.free and text.strip():
            self.dismiss(text.strip())
