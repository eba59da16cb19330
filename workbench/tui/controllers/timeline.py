"""The keys of the telemetry strip: move its time cursor, change the seconds per cell of the graphs,
and show GPUs of the same type in one row."""

from __future__ import annotations

from workbench.tui.controllers.base import Controller
from workbench.tui.widgets.gpu_strip import GpuStrip


class TimelineController(Controller):
    @property
    def gpu_strip(self) -> GpuStrip:
        return self.services.panes.strip

    def move_cursor(self, cells: int) -> None:
        """Move the time cursor of the telemetry strip by `cells` cells of its time axis. A negative
        number moves it back in time."""
        self.gpu_strip.move_cursor(cells)

    def move_to_event(self, direction: int) -> None:
        """Move the time cursor to the last event before its position (`direction` -1) or to the
        next event after it (`direction` 1). Events are marked on the time axis, such as the start
        of a benchmark."""
        if not self.gpu_strip.move_to_event(direction):
            self.show_message(
                "no event is known before this time"
                if direction < 0
                else "no event is known after this time"
            )

    def move_to_now(self) -> None:
        self.gpu_strip.move_to_now()

    def zoom_time_axis(self, step: int) -> None:
        """Change the seconds per cell of the time axis to the next larger (`step` 1) or next
        smaller (`step` -1) of the possible values."""
        self.gpu_strip.change_zoom(step)
        self.show_message(f"each cell of the graphs is now {self.gpu_strip.view.cell_s} s long")

    def toggle_row_per_gpu(self) -> None:
        """Switch between one row for all GPUs of the same type and a row for each GPU."""
        if not self.gpu_strip.toggle_row_per_gpu():
            self.show_message(
                "no two GPUs of this host are of the same type: each has a row of its own"
            )
