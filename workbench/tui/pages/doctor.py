"""The page about the examination of a host, or the check of a host or cluster: first the findings
with what to do, then what was read from the host, such as versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from workbench.model.findings import Finding
from workbench.tui.cells import Row, paragraph_rows

if TYPE_CHECKING:
    from workbench.session.hosts.doctor import HostReport


class ExaminationReport(Protocol):
    """The result of an examination: the findings, and what was read from the host as pairs (label,
    text), such as ("driver", "580.95")."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def labels_and_texts(self) -> Sequence[tuple[str, str]]: ...


def examination_rows(reports: Sequence[ExaminationReport], width: int) -> list[Row]:
    """Return the rows of the last report in `reports`. If there is no report yet, return a row that
    says that the examination is running."""
    from workbench.report.finding_blocks import doctor_blocks  # not for the first frame
    from workbench.tui.block_rows import block_rows

    if not reports:
        return paragraph_rows("examining the host …", width, "dim")
    report = reports[-1]
    return block_rows(doctor_blocks(report.findings, report.labels_and_texts), width)


def host_examination_rows(reports: Sequence[HostReport], width: int) -> list[Row]:
    """Return the rows of the examination of the host, and below them the matrix of the last copies
    between its GPUs."""
    from workbench.report.finding_blocks import gpu_path_blocks
    from workbench.session.hosts.gpu_paths import path_matrix_lines_and_time
    from workbench.tui.block_rows import block_rows

    rows = examination_rows(reports, width)
    if reports and reports[-1].paths is not None:
        rows += block_rows(gpu_path_blocks(*path_matrix_lines_and_time(reports[-1].paths)), width)
    return rows


def known_trap_rows(width: int) -> list[Row]:
    """Return the rows of the published traps, as `workbench doctor --list` prints them."""
    from workbench.doctor.known_traps import known_traps, known_traps_summary
    from workbench.report.finding_blocks import trap_table_blocks
    from workbench.tui.block_rows import block_rows

    traps = [(t.id, t.title, t.detection_text, t.versions or "", t.status) for t in known_traps()]
    return block_rows(trap_table_blocks(known_traps_summary(), traps), width)
