"""A page with a text and with keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual import events

from workbench.session.state import SessionState
from workbench.tui.modals.base import Make, TextBody, TextModal

Keys = Mapping[str, tuple[str, Callable[[], Any]]]  # key -> (its word in the border, what it does)


class Page(TextModal):
    """A page to read. `keys` returns the keys that work now; such a key closes the page, then runs its function. `top`
    makes rows above the text. Both are called again every second."""

    def __init__(
        self,
        title: str,
        make: Make,
        *,
        wide: bool = False,
        keys: Callable[[], Keys] = dict,
        top: Make = lambda width: [],
    ) -> None:
        super().__init__(title, lambda width: [*top(width), *make(width)], wide=wide)
        self.calls, self.keys = keys, _words(keys())

    def state_changed(self, state: SessionState) -> None:
        self.query_one(TextBody).repaint()
        words = _words(self.calls())
        if words != self.keys:
            self.keys = words
            self.show_keys(words)

    def on_key(self, event: events.Key) -> None:
        found = self.calls().get(event.character or "")
        if found is not None:
            event.stop()
            main = self.app.screen_stack[0]
            self.dismiss(None)
            main.call_later(found[1])


def _words(keys: Keys) -> str:
    return "   ".join(["esc close", *(f"{key} {word}" for key, (word, _) in keys.items())])
