"""The most important findings of the advice on a result, for the pages of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Finding, Level
from workbench.tui.cells import Row, paragraph_rows, rows_beside_label

if TYPE_CHECKING:
    from workbench.session.results.advice import AdvisedResult

SHOWN = 3
_ROLES = {Level.ERROR: "bad", Level.WARN: "warn", Level.HINT: "strong", Level.INFO: "text"}


def top_finding_rows(advised: AdvisedResult, width: int) -> list[Row]:
    """Return a heading and rows with the most important findings, each with its expected gain and
    the verdicts of its tests. Return [] if the advice has no finding."""
    from workbench.report.finding_blocks import finding_text_with_gain  # not for the first frame

    rows: list[Row] = []
    for number, finding in enumerate(_most_important_findings(advised.findings), 1):
        rows += rows_beside_label(
            f"{number} ",
            "dim",
            paragraph_rows(
                finding_text_with_gain(finding), max(8, width - 2), _ROLES[finding.level]
            ),
        )
        for verdict in advised.verdicts.get(finding.code, ()):
            lines = paragraph_rows(verdict, max(8, width - 2), "good")
            rows += rows_beside_label("  ", "dim", lines)
    head: Row = (
        ("advice", "head"),
        ("  i shows all of it, t tests a change as an A/B experiment", "dim"),
    )
    return [head, *rows] if rows else []


def _most_important_findings(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return the first SHOWN findings, in the given order. Those that need no action are left out,
    unless there are no others."""
    needing_action = [f for f in findings if f.level is not Level.INFO]
    return (needing_action or list(findings))[:SHOWN]
