"""The log of the selected server run, for the Log pane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.model.findings import Finding
    from workbench.server.log_lines import LogRing


class RunLog:
    """The lines of the selected run's log, as far as they are in memory. Line 0 is the oldest of
    them. The log is empty if no run is selected."""

    def __init__(self, ring: Callable[[], LogRing | None]) -> None:
        self._ring = ring

    def __len__(self) -> int:
        ring = self._ring()
        return len(ring) if ring is not None else 0

    def lines(self, start: int = 0, count: int | None = None) -> Sequence[str]:
        ring = self._ring()
        return ring.lines(start, count) if ring is not None else ()

    def level_of_line(self, line: str) -> str:
        """Return the level of a log line: "error", "warn", "info", or "" if the line has none."""
        # not for the first frame, which shows no lines
        from workbench.server.log_lines import level_of_line

        return level_of_line(line)

    def explain(self, line: str, engine: str) -> Finding | None:
        """Return the most severe finding about a line of the log of `engine`. None if the line
        shows no known problem."""
        from workbench.server.log_patterns import explain_line

        return explain_line(line, engine)

    def find_line_number(self, text: str, start: int = 0, backwards: bool = False) -> int | None:
        """Return the number of the first line from line `start` on that contains `text`, ignoring
        case. With `backwards`, search from line `start` towards line 0. None if no line has it."""
        ring = self._ring()
        return ring.find(text, start, backwards) if ring is not None else None
