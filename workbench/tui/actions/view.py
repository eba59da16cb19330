"""Panes, zoom, log reading, help, palette, activity."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from workbench.model.findings import Level
from workbench.tui.actions.base import Actions

if TYPE_CHECKING:
    from workbench.tui.widgets.log_pane import LogPane


class ViewActions(Actions):
    active: int
    zoomed: bool
    log_pane: LogPane
    _counted: tuple[str, float, float] | None = None  # text, when it began, seconds

    def action_pane(self, number: int) -> None:
        self.go(number)

    def action_next_pane(self, by: int) -> None:
        self.go((self.active - 1 + by) % 6 + 1)

    def action_zoom(self) -> None:
        self.zoomed = not self.zoomed
        self.go(self.active)

    async def action_back(self) -> None:
        """escape: the search, then the message, then the zoom, then pane 6."""
        from workbench.tui.widgets.search import Search

        if self.query(Search):
            await self.close_search()  # type: ignore[attr-defined]
        elif self.notice_bar.display:  # type: ignore[attr-defined]
            self.hush()  # type: ignore[attr-defined]
        elif self.zoomed:
            self.action_zoom()
        elif self.active == 6 and not self.single:  # type: ignore[attr-defined]
            self.go(2)

    # work whose length is known
    def count_down(self, text: str, seconds: float) -> None:
        self._counted = (text, time.monotonic(), seconds)
        self.count()

    def stop_counting(self) -> None:
        self._counted = None

    def count(self) -> None:
        """Once a second, while something is counted."""
        if self._counted is None:
            return
        text, began_s, seconds = self._counted
        done = min(seconds, time.monotonic() - began_s)
        from workbench.tui.widgets.results import gauge

        cells = max(4, min(20, self.app.size.width - len(text) - 24))
        self.say(f"{text}  {gauge(done / seconds, cells)} {done:.0f}/{seconds:.0f} s")

    # log
    def action_follow(self) -> None:
        self.log_pane.toggle_follow()

    def action_next_error(self) -> None:
        if not self.log_pane.next_error():
            self.say("no error in the log")

    # pages
    async def action_help(self) -> None:
        from workbench.tui.modals.base import TextModal
        from workbench.tui.modals.info import help_rows

        await self.app.push_screen(TextModal("Keys", help_rows))

    async def action_activity(self) -> None:
        from workbench.tui.modals.base import TextModal
        from workbench.tui.modals.info import activity_rows

        def show(_: object) -> None:
            state = self.session.state
            done = tuple(a for a in state.activity if a.host == state.host.name)
            title = f"Done to {state.host.name}, newest first"
            self.app.push_screen(TextModal(title, lambda w: activity_rows(done, w), wide=True))

        self.attempt(self.session.read_activity(), show)

    async def action_palette(self) -> None:
        from workbench.tui.cells import pad, width_of
        from workbench.tui.commands import everything
        from workbench.tui.modals.base import PickModal

        main: Any = self
        entries = list(everything(main))
        items = [(str(n), f"{pad(e.name, max(22, width_of(e.name)))}  {e.help}", "text") for n, e in enumerate(entries)]

        def chosen(number: str | None) -> None:
            if number is not None and number.isdigit():
                self.call_later(entries[int(number)].call)

        await self.app.push_screen(PickModal("Actions", items, filter=True, free=False).add_class("-wide"), chosen)

    def action_screenshot(self) -> None:
        try:
            path = self.app.save_screenshot(path=".")
        except OSError as error:
            self.say(f"the picture could not be written: {error}", Level.ERROR)
        else:
            self.say(f"written: {path}")
