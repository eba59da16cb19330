"""Explains a whole log: finds the lines with a known cause, the first error, and the warnings and
errors without a known cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.model.findings import Finding, by_severity
from workbench.server import log_patterns
from workbench.server.log_lines import LogRing, level_of

_MOST_UNKNOWN = 20  # lines that are kept
_MARKED = ("warn", "error")


class ExplainedLog:
    """Collects the explanation of a log while its lines are added: findings about lines with a
    known cause, the other warnings and errors, and the first error. Memory is bounded. `engine` is
    the engine that wrote the log; if it is None, the patterns of all engines are used."""

    def __init__(self, engine: str | None = None) -> None:
        self._engine = engine
        self._lines = LogRing()
        self._found: dict[str, Finding] = {}
        self._counts: Counter[str] = Counter()
        self._unknown_lines = 0
        self.unknown: list[tuple[int, str]] = []  # number and text of warnings and errors

    def add(self, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines, self._lines.total + 1):
            finding = log_patterns.explain(line, self._engine)
            if finding is not None:
                self._found.setdefault(finding.code, replace(finding, line=number))
                self._counts[finding.code] += 1
            elif level_of(line) in _MARKED:
                self._unknown_lines += 1
                if len(self.unknown) < _MOST_UNKNOWN:
                    self.unknown.append((number, log_patterns.plain(line)))
        self._lines.extend(lines)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings about the log lines added so far, one for each known cause, the most severe
        first. Errors that probably follow from a known one are left out."""
        return by_severity(log_patterns.without_consequences(self._found.values()))

    def count(self, finding: Finding) -> int:
        return self._counts[finding.code]

    def _phase(self) -> str | None:
        """Return the start-up phase that the log reports last, such as the loading of weights; None
        if the log reports none."""
        from workbench import engines

        known = [self._engine] if self._engine in engines.names() else engines.names()
        head = self._lines.lines()
        best: tuple[int, str] | None = None
        for name in known:
            engine = engines.get(name or "")
            phases = [(number, engine.phase(line)) for number, line in enumerate(head)]
            reported = [(number, phase) for number, phase in phases if phase]
            best = max(best or (-1, ""), reported[-1]) if reported else best
        return best[1] if best else None

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self._lines.total,
            "phase": self._phase(),
            "first_error": log_patterns.first_error(self._lines.lines(), self._engine),
            "findings": [{**f.as_json(), "count": self.count(f)} for f in self.findings],
            "unknown_lines": self._unknown_lines,
            "unknown": [{"line": number, "text": text} for number, text in self.unknown],
        }
