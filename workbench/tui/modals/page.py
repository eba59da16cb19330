"""A page with keys of its own: something to read, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual import events

from workbench.session.state import SessionState
from workbench.tui.cells import Row
from workbench.tui.modals.base import TextBody, TextModal

Keys = Mapping[str, tuple[str, Callable[[], Any]]]


class Page(TextModal):
    """`keys`: what can be done now, key -> (word, what it does); the page goes first. `top`: rows above. Both are asked
    for anew each second."""

    def __init__(
        self,
        title: str,
        make: Callable[[int], list[Row]],
        *,
        wide: bool = False,
        keys: Callable[[], Keys] = dict,
        top: Callable[[int], list[Row]] = lambda width: [],
    ) -> None:
        super().__init__(title, lambda width: [*top(width), *make(width)], wide=wide)
        self.calls, self.keys = keys, _words(keys())

    def state_changed(self, state: SessionState) -> None:
        """Once a second, and when something changed."""
        self.query_one(TextBody).repaint()
        if (words := _words(self.calls())) != self.keys:
            self.keys = words
            self.say_keys(words)

    def on_key(self, event: events.Key) -> None:
        found = self.calls().get(event.character or "")
        if found is not None:
            event.stop()
            main = self.app.screen_stack[0]
            self.dismiss(None)
            main.call_later(found[1])


def _words(keys: Keys) -> str:
    return "   ".join(["esc close", *(f"{key} {word}" for key, (word, _) in keys.items())])
