"""The interface of a pane. A new pane is a class in a file of this folder, and an entry in `PANES` (__init__.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from workbench.tui.bindings import Key, hint
from workbench.tui.cells import Painted

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers


class Pane(Painted, can_focus=True):
    """A part of the main screen that draws some fields of the session's state, with keys of its own.

    `AREA` is the row of panes that contains it ("middle" or "bottom"); a pane without one takes the whole work area.
    `HINTS` are the keys in the border. `SEARCH` is the placeholder of its search input; "" if it has none.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    HELP: ClassVar[str] = ""  # of the number key that goes to the pane
    AREA: ClassVar[str] = "middle"
    FIELDS: ClassVar[frozenset[str]]
    KEYS: ClassVar[tuple[Key, ...]] = ()
    HINTS: ClassVar[tuple[str, ...]] = ()
    SEARCH: ClassVar[str] = ""
    DRAWN_WHEN_HIDDEN: ClassVar[bool] = True

    class TitleChanged(Message):
        """The text in the border may be another one now."""

    def __init__(self, session: Session) -> None:
        super().__init__(id=self.NAME)
        self.session = session
        self.state: SessionState | None = None

    def show(self, state: SessionState) -> None:
        """Draw the state. Called when one of `FIELDS` has changed."""
        self.state = state
        self.repaint()

    def show_again(self) -> None:
        """Draw the present state. Called when the pane becomes the active one."""
        self.show(self.session.state)

    @property
    def detail(self) -> str:
        """Return the text after the title."""
        return ""

    @property
    def hint(self) -> str:
        """Return the keys for the border, which are shown while the pane has the focus."""
        return hint(self.KEYS, *self.HINTS)

    @property
    def badge(self) -> str:
        """Return the sign for the tab of the pane on a small terminal."""
        return ""

    # search
    def search_changed(self, text: str, controllers: Controllers) -> None:
        """The text of the search input is another one now."""

    def search_closed(self, controllers: Controllers) -> None:
        """The search input has been left with escape."""

    async def search_entered(self, text: str, controllers: Controllers) -> None:
        """Enter was pressed in the search input."""
