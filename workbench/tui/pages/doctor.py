"""The page about the examination of a host, or the check of a host or cluster: first the findings
with what to do, then what was read from the host, such as versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from workbench.model.findings import Finding
from workbench.tui.cells import Row, paragraph


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
    from workbench.report.finding_blocks import doctor_blocks  # not for the first frame
    from workbench.tui.block_rows import block_rows

    if not reports:
        return paragraph("examining the host …", width, "dim")
    report = reports[-1]
    return block_rows(doctor_blocks(report.findings, report.lines), width)
