"""The interfaces through which the application uses screens and widgets without importing their
classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from textual import events


@runtime_checkable
class OrderedKeys(Protocol):
    """A screen whose keys the application handles one after the other, in the order in which they
    were typed. While `is_busy` is true, the application ignores all keys except escape."""

    @property
    def is_busy(self) -> bool: ...


@runtime_checkable
class KeyHandler(Protocol):
    """A widget or a screen that handles keys itself, before its key bindings are tried."""

    def try_handling_key(self, event: events.Key) -> bool:
        """Handle the key, and return True. Return False for a key that the widget or screen does
        not handle itself."""
        ...


@runtime_checkable
class Themed(Protocol):
    """An application whose colours can be changed while it runs."""

    def switch_theme(self, name: str) -> None:
        """Draw the whole screen with the theme `name`."""
