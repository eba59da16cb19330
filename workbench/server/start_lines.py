"""Reads from a server's log, while the server starts, the phase of the start, the engine's version,
and a port that the engine has chosen itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.untrusted_numbers import parse_whole_number

if TYPE_CHECKING:
    from workbench.engines.base import Engine

_MOST_SILENT = 5000  # lines that are remembered because they report nothing


class StartLines:
    """Collects what a server's log reports about its start: the phase, the port and the engine's
    version. Each is None until a line of the log reports it, except a version that is known before.

    An engine has a dozen regular expressions for its phases. A line is not searched if it differs
    only in numbers from an earlier line that reported nothing.
    """

    def __init__(self, engine: Engine | None, version: str | None) -> None:
        self.phase: str | None = None
        self.version = version
        self.port: int | None = None
        self._engine = engine
        self._silent: set[str] = set()

    def search_new_lines(self, lines: Sequence[str], number_free_lines: Sequence[str]) -> None:
        """Search the new lines `lines` of the log for the phase, the version and the port.
        `number_free_lines` are the same lines from `remove_numbers_from_lines`."""
        if len(self._silent) > _MOST_SILENT:
            self._silent.clear()
        for line, form in zip(lines, number_free_lines, strict=True):
            if form not in self._silent and not self.update_if_start_fact_found(line):
                self._silent.add(form)

    def update_if_start_fact_found(self, line: str) -> bool:
        """Set the phase, the version or the port that `line` reports, and return whether it reports
        one. A version that is known is not replaced. False for an unknown engine."""
        engine = self._engine
        if engine is None:
            return False
        phase = engine.start_phase_in_log_line(line)
        if phase:
            self.phase = phase
        port = engine.moved_port_log and engine.moved_port_log.search(line)
        if port:
            self.port = parse_whole_number(port["port"], digits=5) or self.port
        version = None
        if self.version is None and (version := engine.version_log.search(line)):
            self.version = next(filter(None, version.groupdict().values()), None)
        return bool(phase or port or version)
