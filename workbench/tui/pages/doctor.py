"""The page about the examination of a host, or the check of a host or cluster: first the findings
with what to do, then what was read from the host, such as versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from workbench.model.findings import Finding
from workbench.tui.cells import Row, beside, pad, paragraph
from workbench.tui.glyphs import LEVELS

LEAST_LABEL, MOST_LABEL = 9, 20


class Report(Protocol):
    """The result of an examination: the findings, and `lines`, pairs (label, text) with what was
    read from the host."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def lines(self) -> Sequence[tuple[str, str]]: ...


def doctor_rows(reports: Sequence[Report], width: int) -> list[Row]:
    """Return the rows of the last report in `reports`. If there is no report yet, return a row that
    says that the examination is running."""
    if not reports:
        return paragraph("examining the host …", width, "dim")
    report = reports[-1]
    rows: list[Row] = [] if report.findings else paragraph("Nothing is missing.", width, "good")
    room = max(20, width - 2)
    for finding in report.findings:
        sign, role = LEVELS[finding.level]
        fix = paragraph(f"-> {finding.fix}", room, "key", "   ") if finding.fix else []
        rows += beside(f"{sign} ", role, [*paragraph(finding.text, room, "strong"), *fix])
    rows += [(), (("Facts", "title"),)] if report.lines else []
    cells = min(MOST_LABEL, max((LEAST_LABEL, *(len(label) + 2 for label, _ in report.lines))))
    for label, text in report.lines:
        rows += beside(pad(label, cells), "dim", paragraph(text, max(20, width - cells)))
    return rows
