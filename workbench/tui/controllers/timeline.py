"""The keys of the telemetry strip: the cursor that goes back in time, the length of a cell, and folding."""

from __future__ import annotations

from workbench.tui.controllers.base import Controller
from workbench.tui.widgets.gpu_strip import GpuStrip


class TimelineController(Controller):
    @property
    def strip(self) -> GpuStrip:
        return self.services.panes.strip

    def move(self, cells: int) -> None:
        """Move the cursor of the strip by `cells` cells of its time axis."""
        self.strip.move(cells)

    def to_event(self, by: int) -> None:
        """Move the cursor to the next event before (-1) or after (1) it."""
        if not self.strip.to_event(by):
            self.say("no event is known before this time" if by < 0 else "no event is known after this time")

    def to_now(self) -> None:
        self.strip.to_now()

    def zoom(self, by: int) -> None:
        """Make the cells of the time axis longer (1) or shorter (-1)."""
        self.strip.zoom(by)
        self.say(f"a cell of the graphs is {self.strip.view.cell_s} s")

    def fold(self) -> None:
        """Draw equal GPUs in one row, or each in a row of its own."""
        if not self.strip.fold():
            self.say("no two GPUs of this host are equal: each has a row of its own")
