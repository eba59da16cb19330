"""The page with a large plot of the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.tui.cells import Row
from workbench.tui.pages.base import Page
from workbench.tui.widgets.plot import plot_rows

if TYPE_CHECKING:
    from workbench.session.state import SessionState


class Plot(Page):
    """A page with a plot of all results, in which the results marked A and B stand out. The key t
    closes the page."""

    def __init__(self, state: SessionState) -> None:
        super().__init__("Results", lambda width: [], lambda: {"t": ("Close", self.close_page)})
        self.state = state

    def show(self, state: SessionState) -> None:
        """Draw the plot again if the results have changed. Other changes of the state do not
        matter, because plotting takes time."""
        before, self.state = self.state, state
        if (before.results, before.mark_a, before.mark_b) != (
            state.results,
            state.mark_a,
            state.mark_b,
        ):
            self.draw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return plot_rows(self.state.results, width, height, self.state.mark_a, self.state.mark_b)
