"""What modals are made of: a box with title and keys in its border, text that scrolls, and choices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget

from workbench.tui.cells import Row, border_text, paragraph
from workbench.tui.widgets.entry import Entry
from workbench.tui.widgets.pick_list import PickList
from workbench.tui.widgets.scrolled import Scrolled

T = TypeVar("T")
ROOM_AROUND = 4  # rows of the screen that a modal leaves: its border and some of what is behind it


class Modal(ModalScreen[T], Generic[T]):
    """A box in the middle. `content()` gives what stands in it; escape leaves without an outcome."""

    working = False  # keys other than escape are dropped (interfaces.OrderedKeys)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("tab", "app.focus_next", show=False),
        Binding("shift+tab", "app.focus_previous", show=False),
    ]
    AUTO_FOCUS = "Entry, PickList, TextBody"

    def __init__(self, title: str, keys: str = "esc close") -> None:
        super().__init__()
        self.box_title, self.keys = title, keys

    def compose(self) -> ComposeResult:
        box = Vertical(*self.content(), classes="box")
        box.border_title = border_text(self.box_title)
        box.border_subtitle = border_text(self.keys)
        yield box

    def content(self) -> Sequence[Widget]:
        return ()

    def say_keys(self, text: str) -> None:
        """Other words in the border, such as what a key has done."""
        self.query_one(".box").border_subtitle = border_text(text)

    def copy_text(self, text: str) -> None:
        """Copy, and say in the border what became of it."""
        from workbench.tui.clipboard import copy

        async def work() -> None:
            self.say_keys(await copy(self.app, text))

        self.run_worker(work(), group="copy", exclusive=True, exit_on_error=False)

    def action_leave(self) -> None:
        self.dismiss(None)


class TextBody(Scrolled):
    """Rows that are as wide as the box, made by `make(width)`. `reserve` rows of the screen are left for other parts of
    the box."""

    GROUND = "box"

    def __init__(self, make: Callable[[int], list[Row]], *, focusable: bool = True, reserve: int = 0) -> None:
        super().__init__()
        self.make = make
        self.can_focus = focusable
        self.reserve = reserve

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(0, min(len(self.made(self.make, width)), viewport.height - ROOM_AROUND - self.reserve))

    def again(self) -> None:
        """The text has changed, and maybe its height."""
        self._painted = []
        self.refresh(layout=True)
        self.repaint()

    def all_rows(self, width: int, height: int) -> list[Row]:
        return self.make(width)


class Choices(PickList):
    """A list of (value, row text, role) in a modal; enter takes the one under the cursor."""

    GROUND = "box"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "take_choice", show=False)]

    def __init__(
        self, items: Sequence[tuple[str, str, str]], on_take: Callable[[str], None], chosen: str = "", reserve: int = 0
    ) -> None:
        super().__init__()
        self.items, self.on_take, self.reserve = items, on_take, reserve
        self.cursor = next((i for i, item in enumerate(items) if item[0] == chosen), 0)

    def key_of(self, item: Any) -> Hashable:
        return str(item[0])

    def item_row(self, item: tuple[str, str, str], width: int) -> Row:
        return ((f" {item[1]}", item[2]),)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, min(len(self.items), viewport.height - ROOM_AROUND - self.reserve))

    def action_take_choice(self) -> None:
        if self.current is not None:
            self.on_take(self.current[0])


class TextModal(Modal[None]):
    """Something to read."""

    def __init__(
        self, title: str, make: Callable[[int], list[Row]], *, wide: bool = False, copy: Callable[[], str] | None = None
    ) -> None:
        """`copy` gives what y puts on the clipboard."""
        super().__init__(title, "esc close   up/down scroll" + ("   y copy" if copy else ""))
        self.make, self.copy = make, copy
        self.set_class(wide, "-wide")

    def content(self) -> Sequence[Widget]:
        return (TextBody(self.make),)

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "leave", show=False), Binding("y", "copy", show=False)]

    def action_copy(self) -> None:
        if self.copy is not None:
            self.copy_text(self.copy())


class PickModal(Modal[str]):
    """One of several; typing narrows the list down."""

    def __init__(
        self,
        title: str,
        items: Sequence[tuple[str, str, str]],
        *,
        chosen: str = "",
        intro: str = "",
        filter: bool = False,
        free: bool = True,
    ) -> None:
        """`filter`: typing narrows the list down; `free`: what matches nothing is an outcome too."""
        super().__init__(title, "enter choose   esc cancel" + ("   type to filter" if filter else ""))
        self.all, self.intro, self.with_filter, self.free = items, intro, filter, free
        self.choices = Choices(items, self._chosen, chosen, reserve=4)

    def content(self) -> Sequence[Widget]:
        parts: list[Widget] = []
        if self.intro:
            parts.append(TextBody(lambda w: [*paragraph(self.intro, w), ()], focusable=False))
        if self.with_filter:
            self.choices.lit = True
            self.choices.can_focus = False
            what = "type to filter" + (", or a name" if self.free else "")
            parts.append(Entry(placeholder=what, on_submit=self._typed, on_change=self._narrow_down))
        return (*parts, self.choices)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
    ]

    def action_move(self, by: int) -> None:
        self.choices.action_move(by)

    def _narrow_down(self, text: str) -> None:
        from workbench.tui import fuzzy

        self.choices.set_items(fuzzy.best(text, self.all, lambda i: i[1]), keep=False)

    def _chosen(self, value: str) -> None:
        self.dismiss(value)

    def _typed(self, text: str) -> None:
        if self.choices.current is not None:
            self.dismiss(self.choices.current[0])
        elif self.free and text.strip():
            self.dismiss(text.strip())
