"""The base class of the pages. A page is a text that the user reads, and has keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.actions import SkipAction
from textual.binding import Binding, BindingType

from workbench.tui.cells import Row, RowMaker
from workbench.tui.widgets.scrolled import Scrolled

if TYPE_CHECKING:
    from workbench.session.state import SessionState
    from workbench.tui.bindings import Key
    from workbench.tui.controllers import Controllers
    from workbench.tui.pages.frame import PageFrame

Keys = Mapping[str, tuple[str, Callable[[], Any]]]  # key -> (its word in the footer, what it does)


class Page(Scrolled):
    """A page to read. `keys` is a function that returns the page's keys that work now, as {key:
    (label, function)}. It is called again after each change of the session's state.

    The keys of the main screen that ON_PAGES names work too, except those in `OWN`: these belong to
    the page even while `keys` does not return them.
    """

    OWN: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "press('escape')", show=False),
        *(Binding(key, f"press('{key}')", show=False) for key in "KRVacfinompstxy"),
    ]

    def __init__(
        self, title: str, make: RowMaker, keys: Callable[[], Keys] = dict, *, kind: str = ""
    ) -> None:
        """`make` returns the rows of the page for a width in cells. `kind` is the subject of the
        page, by default its title. Opening a page closes an open page of the same kind."""
        super().__init__()
        self.title, self.make, self.keys, self.kind = title, make, keys, kind or title
        self.frame: PageFrame | None = None

    def all_rows(self, width: int, height: int) -> list[Row]:
        return self.make_rows_or_error_rows(self.make, width)

    def show(self, state: SessionState) -> None:
        """Draw the page again. The main screen calls this method after each change of the session's
        state and once a second."""
        self.draw()

    def draw(self) -> None:
        """Draw the text, the title and the keys of the page."""
        self.repaint()
        if self.frame is not None:
            self.frame.show_title()

    def close_page(self) -> None:
        if self.frame is not None:
            self.frame.close(self)

    def replace_keys(self, keys: Sequence[Key], controllers: Controllers) -> None:
        """Replace the keys of this page by `keys`, which run methods of `controllers`."""
        own = {key.key: (key.label, partial(key.run, controllers)) for key in keys}
        self.keys = lambda: own

    async def action_press(self, key: str) -> None:
        """Run the function of a key of this page. Escape closes the page."""
        found = ("", self.close_page) if key == "escape" else self.keys().get(key)
        if found is None and key not in self.OWN:
            raise SkipAction
        running = found[1]() if found is not None else None
        if isawaitable(running):
            await running
