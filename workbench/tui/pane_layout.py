"""The arrangement of the panes on the main screen, which depends on the active pane and the size of
the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from textual.containers import Container, Horizontal

from workbench.tui.panes.frame import PaneFrame

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.screen import Screen
    from textual.widget import Widget

    from workbench.tui.pages.frame import PageFrame
    from workbench.tui.panes.base import Pane
    from workbench.tui.widgets.bars import TabRow
    from workbench.tui.widgets.gpu_strip import GpuStrip

P = TypeVar("P", bound="Pane")
NARROW_COLUMNS, ROOMY_COLUMNS, WIDE_COLUMNS, LOW_ROWS, TALL_ROWS = 100, 118, 160, 34, 50
PAGE_ALONE_ROWS = 14  # below them, an open page covers the graphs and the tabs too
AREAS = ("middle", "bottom")
FIXED_ROWS = 4  # the status bar, the command and the keys
# of the lower panes, with their border: while they have a sentence to show, at least, and at most
BARE_ROWS, LEAST_ROWS, MOST_ROWS = 4, 10, 19
WIDTHS = [
    (0, "-narrow"),
    (NARROW_COLUMNS, "-normal"),
    (ROOMY_COLUMNS, "-roomy"),
    (WIDE_COLUMNS, "-wide"),
]
HEIGHTS = [(0, "-low"), (LOW_ROWS, "-high"), (TALL_ROWS, "-tall")]


class PaneLayout:
    """The arrangement of the panes on the main screen. On a small terminal (`single`) only the
    active pane is shown, with a row of tabs. On other terminals the active pane is shown alone
    while `zoomed` is true, or if it belongs to no row of panes. An open page covers all panes, and
    the graphs and the tabs too if the terminal has few rows."""

    def __init__(
        self,
        screen: Screen[None],
        panes: Sequence[Pane],
        pages: PageFrame,
        tabs: TabRow,
        strip: GpuStrip,
    ) -> None:
        self.screen, self.pages, self.tabs, self.strip = screen, pages, tabs, strip
        self.frames = {pane.NAME: PaneFrame(number, pane) for number, pane in enumerate(panes, 1)}
        self.names = list(self.frames)
        self.active, self.zoomed, self.single = self.names[0], False, False
        self._shape: tuple[object, ...] = ()

    @property
    def panes(self) -> list[Pane]:
        return [frame.body for frame in self.frames.values()]

    def pane_of_type(self, kind: type[P]) -> P:
        """Return the pane whose class is `kind`."""
        return next(pane for pane in self.panes if isinstance(pane, kind))

    def is_pane_shown(self, pane: Pane) -> bool:
        return bool(self.frames[pane.NAME].display)

    @property
    def current_pane(self) -> Pane:
        return self.frames[self.active].body

    def compose(self) -> ComposeResult:
        frames = self.frames.values()
        with Container(id="work"):
            for area in AREAS:
                yield Horizontal(*(f for f in frames if area == f.body.AREA), id=area)
            yield from (f for f in frames if not f.body.AREA)
            yield self.pages

    def arrange_panes(self) -> None:
        """Show the panes for which there is room, and set the height of the GPU strip. Do nothing
        if nothing would change."""
        width, height = self.screen.app.size
        self.single = width < NARROW_COLUMNS or height < LOW_ROWS
        alone = self.single or self.zoomed or not self.current_pane.AREA
        reading = self.pages.visible_page is not None
        strip_rows = self.strip.arrange_and_count_rows(width, height)
        bottom_rows = self._bottom_pane_height(height - strip_rows - FIXED_ROWS)
        shown: list[Pane] = []
        if alone:
            shown = [self.current_pane]
            bottom_height: str | int = "1fr"
        else:
            shown = [pane for pane in self.panes if pane.AREA]
            bottom_height = bottom_rows
        if reading:
            shown = []
        shape = (width, height, self.single, alone, reading, shown, strip_rows, bottom_rows)
        if shape == self._shape:
            return
        self._shape = shape
        shown_areas = {pane.AREA for pane in shown}
        with self.screen.app.batch_update():
            self.screen.set_class(self.single, "-single")
            self.strip.styles.height = strip_rows
            for frame in self.frames.values():
                frame.display = frame.body in shown
            for area in AREAS:
                self.screen.query_one(f"#{area}").display = area in shown_areas
            self.screen.query_one("#bottom").styles.height = bottom_height
            self.pages.display = reading
            self.screen.set_class(reading, "-reading")
            self.screen.set_class(alone, "-alone")
            covers_all = reading and height < PAGE_ALONE_ROWS
            self.tabs.display = self.single and not covers_all
            self.strip.display = not covers_all
        self.refresh_titles()

    def _bottom_pane_height(self, available_rows: int) -> int:
        """Return the number of rows of the lower panes, which share `available_rows` rows with the
        upper ones. If all lower panes have only a sentence to show, it is small."""
        if all(pane.shows_only_sentence for pane in self.panes if pane.AREA == "bottom"):
            return BARE_ROWS
        return max(LEAST_ROWS, min(MOST_ROWS, available_rows // 2))

    def activate_pane(self, name: str) -> None:
        """Close the pages, make the pane `name` the active one, show it, and focus it."""
        self.active = name
        self.pages.close_all()
        self.arrange_panes()
        self.current_pane.show_session_state()
        self.screen.set_focus(self.current_pane)
        self.refresh_titles()

    def activate_next_pane(self, step: int) -> None:
        self.activate_pane(self.names[(self.names.index(self.active) + step) % len(self.names)])

    def show_visible_page_or_panes(self) -> None:
        """Show and focus the page that has become visible. If no page is open any more, show the
        panes again."""
        self.arrange_panes()
        if self.pages.visible_page is None:
            for pane in self.panes:
                if self.is_pane_shown(pane):
                    pane.show_session_state()
        self.screen.set_focus(self.pages.visible_page or self.current_pane)
        self.refresh_titles()

    def activate_focused_pane(self, widget: Widget) -> None:
        """Make the pane with the focused widget the active one."""
        for frame in self.frames.values():
            is_new = self.active != frame.body.NAME
            if is_new and frame.display and frame in widget.ancestors_with_self:
                self.active = frame.body.NAME
                self.arrange_panes()
        self.refresh_titles()

    def refresh_titles(self) -> None:
        """Set the title of each pane, and the key hints of the active pane. On a small terminal,
        also set the texts in the tabs, such as the number of results."""
        hints = {self.active: self.current_pane.key_hints}
        if self.single:
            hints = {}
        for name, frame in self.frames.items():
            frame.show_title(frame.body.title_detail, hints.get(name, ""))
        if not self.single:
            self.pages.footer.show_pane_keys(())
            return
        self.pages.footer.show_pane_keys(self.current_pane.footer_keys)
        active = self.frames[self.active].number
        if self.pages.visible_page is not None:
            active = 0
        badges = {frame.number: frame.body.tab_badge for frame in self.frames.values()}
        self.tabs.show(active, badges)
