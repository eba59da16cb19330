"""A page with keys of its own: something to read, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual import events

from workbench.tui.modals.base import TextModal
from workbench.tui.paint import Row


class Page(TextModal):
    """`keys`: key -> (word, what it does); the page goes first."""

    def __init__(
        self,
        title: str,
        make: Callable[[int], list[Row]],
        *,
        wide: bool = False,
        keys: Mapping[str, tuple[str, Callable[[], Any]]] | None = None,
    ) -> None:
        super().__init__(title, make, wide=wide)
        self.calls = dict(keys or {})
        self.keys = "   ".join(["esc close", *(f"{key} {word}" for key, (word, _) in self.calls.items())])

    def on_key(self, event: events.Key) -> None:
        found = self.calls.get(event.character or "")
        if found is not None:
            event.stop()
            main = self.app.screen_stack[0]
            self.dismiss(None)
            main.call_later(found[1])
