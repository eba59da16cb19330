"""The interfaces by which the application and the main screen reach pages and widgets of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from textual import events

    from workbench.session.state import Notice, SessionState


@runtime_checkable
class OrderedKeys(Protocol):
    """A screen whose keys act in the order in which they were typed. While `working` is true, all keys but escape are
    dropped."""

    @property
    def working(self) -> bool: ...


@runtime_checkable
class KeyTaker(Protocol):
    """A widget that handles keys itself, before its key bindings are tried."""

    def take_key(self, event: events.Key) -> bool:
        """Handle the key. Return False if the key is not one of the widget's own."""
        ...


@runtime_checkable
class StateViewer(Protocol):
    """A page that follows the session's state while it is open."""

    def state_changed(self, state: SessionState) -> None:
        """Draw the new state. The main screen calls this after each change and once a second."""
        ...


@runtime_checkable
class NoticeViewer(Protocol):
    """A page that shows messages while it covers the main screen's message row."""

    def show_notice(self, notice: Notice) -> None: ...
