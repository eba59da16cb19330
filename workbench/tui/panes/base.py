"""The base class of the panes. A new pane is a subclass in a file of this folder, and an entry in
`PANES` (__init__.py)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Self

from textual.message import Message

from workbench.tui.bindings import Key, format_key_hints
from workbench.tui.cells import Painted
from workbench.tui.textual_private import drawing_state_key

if TYPE_CHECKING:
    from textual.geometry import Region

    from workbench.session.session import Session
    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers


class Pane(Painted, can_focus=True):
    """A part of the main screen with keys of its own, which draws some fields of the session's
    state.

    `FIELDS` has the names of these fields. `AREA` is the row of panes that contains the pane
    ("middle" or "bottom"); with "" the pane is always shown alone. `HINTS` has the keys that the
    border names. `SEARCH` is the text in the pane's empty search input, "" if the pane has no
    search.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    HELP: ClassVar[str] = ""  # of the number key that goes to the pane
    AREA: ClassVar[str] = "middle"
    FIELDS: ClassVar[frozenset[str]]
    KEYS: ClassVar[tuple[Key, ...]] = ()
    HINTS: ClassVar[tuple[str, ...]] = ()
    SEARCH: ClassVar[str] = ""
    SEARCH_HINT: ClassVar[str] = ""  # the keys in the border while the search input has the focus
    DRAWN_WHEN_HIDDEN: ClassVar[bool] = True

    class TitleChanged(Message):
        """The message that a pane sends when the title in its border has to be drawn again."""

    def __init__(self, session: Session) -> None:
        super().__init__(id=self.NAME)
        self.session = session
        self.state: SessionState = session.state
        self._looks: object = None  # with which it was drawn last
        self.lit = False  # the search input has the focus

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Let Textual draw the pane, except if only the focus has moved. In that case Textual would
        send the whole pane to the terminal, although nothing in the pane has changed."""
        looks = drawing_state_key(self)
        if regions or layout or recompose or not repaint or looks != self._looks:
            self._looks = looks
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        return self

    def show(self, state: SessionState) -> None:
        """Draw `state` in the pane. The main screen calls this method when a field that the pane
        draws has changed."""
        self.state = state
        self.repaint()

    def show_session_state(self) -> None:
        """Draw the present state of the session, because the pane becomes the active one."""
        self.show(self.session.state)

    @property
    def title_detail(self) -> str:
        """Return the text that follows the title in the pane's border; "" for none."""
        return ""

    @property
    def shows_only_sentence(self) -> bool:
        """Return whether the pane has only a sentence to show now."""
        return False

    @property
    def key_hints(self) -> str:
        """Return the key hints for the pane's border, which shows them while the pane has the
        focus."""
        return self.SEARCH_HINT if self.lit else format_key_hints(self.KEYS, *self.HINTS)

    @property
    def footer_keys(self) -> list[Key]:
        """Return the keys in HINTS that only this pane has. The footer of a small terminal shows
        them, because the pane has no border there."""
        return self._keys_with_names(self.HINTS)

    def _keys_with_names(self, key_names: Collection[str]) -> list[Key]:
        """Return those keys of the pane whose Textual names are among `key_names`."""
        return [key for key in self.KEYS if key.key in key_names]

    @property
    def tab_badge(self) -> str:
        """Return the short text in the pane's tab on a small terminal, such as the number of
        results; "" for none."""
        return ""

    # search
    def apply_search(self, text: str, controllers: Controllers) -> None:
        """Handle the new text of the pane's search input after an edit. By default nothing
        happens."""

    def end_search(self, controllers: Controllers) -> None:
        """End the search of the pane, because the user pressed escape in its search input. By
        default nothing happens."""

    async def submit_search(self, text: str, controllers: Controllers) -> None:
        """Act on the text of the pane's search input, because the user pressed enter. By default
        nothing happens."""
