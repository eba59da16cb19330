"""The advice on a result: all of it as a page, and the most important findings for other pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.findings import Finding, Level
from workbench.tui.cells import Row, beside, pad, paragraph

if TYPE_CHECKING:
    from workbench.session.results.advice import Advised

SHOWN = 3
_LABEL = 10
_ROLES = {Level.ERROR: "bad", Level.WARN: "warn", Level.HINT: "strong", Level.INFO: "text"}


def top_rows(advised: Advised, width: int) -> list[Row]:
    """Return a heading and rows with the most important findings, each with its expected gain and
    the verdicts of its tests. Return [] if the advice has no finding."""
    rows: list[Row] = []
    for number, finding in enumerate(_first(advised.findings), 1):
        rows += beside(
            f"{number} ",
            "dim",
            paragraph(line_of(finding), max(8, width - 2), _ROLES[finding.level]),
        )
        for said in advised.verdicts.get(finding.code, ()):
            rows += beside("  ", "dim", paragraph(said, max(8, width - 2), "good"))
    head: Row = (
        ("advice", "head"),
        ("  i shows all of it, t tests a change as an A/B experiment", "dim"),
    )
    return [head, *rows] if rows else []


def _first(findings: Sequence[Finding]) -> Sequence[Finding]:
    acted = [f for f in findings if f.level is not Level.INFO]
    return (acted or list(findings))[:SHOWN]


def line_of(finding: Finding) -> str:
    """Return a finding as one line of text, followed by its expected gain if it is known."""
    gain = f" ({finding.expected_gain})" if finding.expected_gain else ""
    return f"{finding.text}{gain}"


def advice_rows(advised: Advised, width: int) -> list[Row]:
    """Return the rows of the page with all findings. Each has its text, expected gain, evidence,
    next step, change, the verdicts of its tests, and its source."""
    rows: list[Row] = []
    for number, finding in enumerate(advised.findings, 1):
        text = paragraph(line_of(finding), max(8, width - 4), _ROLES[finding.level])
        rows += beside(f"{number:>2}  ", "dim", text)
        changes = " ".join((*(change.text for change in finding.changes), *finding.settings))
        facts = (
            ("evidence", finding.evidence, "text"),
            ("next", finding.fix, "text"),
            ("change", changes, "goodb"),
            *(("verdict", said, "good") for said in advised.verdicts.get(finding.code, ())),
            (
                "source",
                f"{finding.code}; {finding.source}" if finding.source else finding.code,
                "dim",
            ),
        )
        for label, value, role in facts:
            if value:
                rows += beside(
                    f"    {pad(label, _LABEL)}",
                    "dim",
                    paragraph(value, max(8, width - _LABEL - 4), role),
                )
        rows.append(())
    return rows or paragraph("No finding: nothing in the facts asks for a change.", width, "dim")
