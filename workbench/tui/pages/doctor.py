"""The page of a host's examination: the findings with what to do first, then the facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.tui.cells import Row, beside, pad, paragraph
from workbench.tui.glyphs import LEVELS

if TYPE_CHECKING:
    from workbench.session.doctor import HostReport


def doctor_rows(reports: Sequence[HostReport], width: int) -> list[Row]:
    """Return the rows of the newest report. Without one, the host is being examined."""
    if not reports:
        return paragraph("examining the host …", width, "dim")
    report = reports[-1]
    rows: list[Row] = [] if report.findings else paragraph("Nothing is missing on this host.", width, "good")
    room = max(20, width - 2)
    for finding in report.findings:
        sign, role = LEVELS[finding.level]
        fix = paragraph(f"-> {finding.fix}", room, "key", "   ") if finding.fix else []
        rows += beside(f"{sign} ", role, [*paragraph(finding.text, room, "strong"), *fix])
    rows += [(), (("Facts of the host", "title"),)]
    for label, text in report.lines:
        rows += beside(pad(label, 9), "dim", paragraph(text, max(20, width - 9)))
    return rows
