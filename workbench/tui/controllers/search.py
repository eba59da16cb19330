"""The keys that open, use and close the search input above a pane."""

from __future__ import annotations

from workbench.tui.controllers.base import Controller
from workbench.tui.panes.base import Pane
from workbench.tui.panes.search import Search


class SearchController(Controller):
    async def open_preset_search(self) -> None:
        await self.open_search_input("presets")

    async def open_active_pane_search(self) -> None:
        """Open the search of the Presets pane or the Log pane if one of them is active, otherwise
        the search for flags."""
        active = self.services.panes.active
        await self.open_search_input(active if active in ("presets", "log") else "launch")

    async def open_result_search(self) -> None:
        await self.open_search_input("results")

    async def open_search_input(self, pane_name: str) -> None:
        """Show and focus the search input above the pane `pane_name`. Close the search input of any
        other pane."""
        self.go_to_pane(pane_name)
        pane = self.services.panes.current_pane
        for old in self.services.screen.query(Search):
            if old.pane is pane:
                self.services.screen.set_focus(old.entry)
                return
            await self._remove_search_input(old)
        search = Search(
            pane,
            apply_text=self._apply_search_text,
            submit_text=self._submit_search_text,
            end_search=self.close_search_input,
        )
        await self.services.panes.frames[pane_name].mount(search, before=pane)
        self.services.screen.set_focus(search.entry)

    async def close_search_input(self) -> None:
        for search in self.services.screen.query(Search):
            await self._remove_search_input(search)

    async def _remove_search_input(self, search: Search) -> None:
        search.pane.end_search(self.controllers)
        self.services.panes.refresh_titles()
        if search.entry.has_focus:
            self.services.screen.set_focus(search.pane)
        await search.remove()

    def _apply_search_text(self, pane: Pane, text: str) -> None:
        pane.apply_search(text, self.controllers)
        self.services.panes.refresh_titles()

    async def _submit_search_text(self, pane: Pane, text: str) -> None:
        await pane.submit_search(text, self.controllers)
        self.services.panes.refresh_titles()
