"""The frame of the open pages, which covers the panes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.containers import Vertical

from workbench.tui.cells import border_content

if TYPE_CHECKING:
    from textual.widget import AwaitMount

    from workbench.tui.pages.base import Page
    from workbench.tui.widgets.bars import Footer


class PageFrame(Vertical):
    """A stack of pages. Only the last page is visible, and the footer shows its keys.
    `on_page_change` is called when another page, or none, becomes visible."""

    def __init__(self, footer: Footer, on_page_change: Callable[[], None]) -> None:
        super().__init__(id="page", classes="pane")
        self.footer, self.on_page_change = footer, on_page_change
        self.pages: list[Page] = []
        self._title = ""
        self._mounting: AwaitMount | None = None

    @property
    def visible_page(self) -> Page | None:
        """Return the visible page; None if no page is open."""
        return self.pages[-1] if self.pages else None

    def open(self, page: Page) -> None:
        """Show `page` over the other open pages. An open page of the same kind is closed."""
        replaced = [one for one in self.pages if one.kind == page.kind]
        self.pages = [*(one for one in self.pages if one not in replaced), page]
        page.frame = self
        self._mounting = self.mount(page)
        self._show_visible_page_and_remove(replaced)

    async def wait_until_mounted(self) -> None:
        """Wait until the page that was opened last is mounted. Return at once if another caller
        waits for it already."""
        if self._mounting is not None:
            mounting, self._mounting = self._mounting, None
            await mounting

    def close(self, page: Page) -> None:
        """Close the page. Do nothing if it is closed already."""
        if page in self.pages:
            self.pages.remove(page)
            self._show_visible_page_and_remove([page])

    def close_all(self) -> None:
        """Close all pages."""
        if self.pages:
            closed, self.pages = self.pages, []
            self._show_visible_page_and_remove(closed)

    def _show_visible_page_and_remove(self, closed_pages: list[Page]) -> None:
        for page in self.pages:
            page.display = page is self.visible_page
        self.on_page_change()
        self.show_title()
        for page in closed_pages:
            page.frame = None
            page.remove()

    def show_title(self) -> None:
        """Show the title of the visible page in the border, and its keys in the footer."""
        if self.visible_page is not None and self.visible_page.title != self._title:
            self._title = self.visible_page.title
            self.border_title = border_content(self._title)
        self.footer.show_page_keys(self.visible_page)
