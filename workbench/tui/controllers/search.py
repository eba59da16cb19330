"""The keys that open, use and close the search input above a pane."""

from __future__ import annotations

from workbench.tui.controllers.base import Controller
from workbench.tui.panes.base import Pane
from workbench.tui.panes.search import Search


class SearchController(Controller):
    async def presets(self) -> None:
        await self.open("presets")

    async def find(self) -> None:
        """Open the search of the Presets pane or the Log pane if one of them is active, otherwise
        the search for flags."""
        active = self.services.panes.active
        await self.open(active if active in ("presets", "log") else "launch")

    async def results(self) -> None:
        await self.open("results")

    async def open(self, name: str) -> None:
        """Show and focus the search input above the pane `name`. Close the search input of any
        other pane."""
        self.go(name)
        pane = self.services.panes.current
        for old in self.services.screen.query(Search):
            if old.pane is pane:
                self.services.screen.set_focus(old.entry)
                return
            await self._close(old)
        search = Search(pane, changed=self._changed, entered=self._entered, left=self.close)
        await self.services.panes.frames[name].mount(search, before=pane)
        self.services.screen.set_focus(search.entry)

    async def close(self) -> None:
        for search in self.services.screen.query(Search):
            await self._close(search)

    async def _close(self, search: Search) -> None:
        search.pane.search_closed(self.controllers)
        self.services.panes.refresh_titles()
        if search.entry.has_focus:
            self.services.screen.set_focus(search.pane)
        await search.remove()

    def _changed(self, pane: Pane, text: str) -> None:
        pane.search_changed(text, self.controllers)
        self.services.panes.refresh_titles()

    async def _entered(self, pane: Pane, text: str) -> None:
        await pane.search_entered(text, self.controllers)
        self.services.panes.refresh_titles()
