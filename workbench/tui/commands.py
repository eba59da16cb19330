"""The palette: every action of the table, every preset, every host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

from workbench.tui.bindings import KEYS

if TYPE_CHECKING:
    from workbench.tui.screen import MainScreen

SKIP = ("palette", "back", "next_pane")


class Actions(Provider):
    @property
    def main(self) -> MainScreen:
        screen: Any = self.screen
        return screen  # type: ignore[no-any-return]

    def everything(self) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        """(name, help, what to call)."""
        main = self.main
        seen: set[str] = set()
        for k in KEYS:
            if k.action.startswith(SKIP) or k.action in seen:
                continue
            seen.add(k.action)
            where = f" in {k.where}" if k.where else ""
            yield f"{k.label}  ({k.shown}{where})", k.help, partial(main.run_action, k.action)
        yield "Save a screenshot", "an SVG picture of the screen in the working directory", main.action_screenshot
        for entry in main.session.state.presets:
            yield f"Load preset: {entry.id}", entry.title, partial(main.load, entry)
        for name in main.session.known_hosts():
            yield f"Work on host: {name}", "switch the session to it", partial(self._switch, name)

    def _switch(self, name: str) -> None:
        self.main.attempt(self.main.session.switch_host(name))

    async def discover(self) -> Hits:
        for name, help_text, call in self.everything():
            yield DiscoveryHit(name, call, help=help_text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, help_text, call in self.everything():
            value = matcher.match(name)
            if value > 0:
                yield Hit(value, matcher.highlight(name), call, help=help_text)
