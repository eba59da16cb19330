"""The examination of a host, and advice, as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.model.findings import Finding, option_texts_of_changes
from workbench.report.blocks import Facts, FindingBlock, Heading, ShownBlock, Table, TextBlock

NO_ADVICE = "No finding: nothing in the facts asks for a change."


def doctor_blocks(
    findings: Sequence[Finding],
    fact_rows: Sequence[tuple[str, str]],
    text_without_findings: str = "Nothing is missing.",
) -> list[ShownBlock]:
    """Return the blocks on what is missing or does not fit on a host or a cluster, with the next
    steps; `text_without_findings` if all fits. Then follow `fact_rows`, pairs (label, text) on what
    was read."""
    found: list[ShownBlock] = []
    for finding in findings:
        changes = option_texts_of_changes(finding.changes)
        facts = (("next", finding.fix), ("change", changes))
        known = tuple((label, text) for label, text in facts if text)
        text = ": ".join(filter(None, (finding.file_and_line_text, finding.text)))
        found.append(FindingBlock(finding.level, text, known))
    if not found:
        found.append(TextBlock(text_without_findings, mark="good"))
    if fact_rows:
        found += [Heading("Facts"), Facts(tuple(fact_rows))]
    return found


def gpu_path_blocks(
    matrix: Sequence[tuple[str, ...]],
    fact_rows: Sequence[tuple[str, str]],
    tested_when: str | None = None,
) -> list[ShownBlock]:
    """Return the blocks on the copies between GPUs; [] without `fact_rows`. A row of `matrix` has
    the GPU that sends and the GB/s to each GPU, `fact_rows` are pairs (label, text) about the GPUs,
    and `tested_when` says when a stored trial was made."""
    if not fact_rows:
        return []
    title = "Paths between GPUs"
    if tested_when:
        title += f", tried {tested_when}"
    found: list[ShownBlock] = [Heading(title)]
    if matrix:
        head = ("GB/s", *(f"to {row[0].removeprefix('GPU ')}" for row in matrix))
        numeric = frozenset(range(1, len(head)))
        found.append(Table(head, tuple(matrix), numeric, importance=(0,) * len(head)))
    return [*found, Facts(tuple(fact_rows))]


def trap_table_blocks(
    summary: str, rows: Sequence[tuple[str, str, str, str, str]]
) -> list[ShownBlock]:
    """Return the blocks on published traps: `summary` and a table. A row has the number, the title,
    what sees the trap or why nothing does, versions and status."""
    head = ("trap", "what", "seen by", "versions", "status")
    return [TextBlock(summary), Table(head, tuple(rows), importance=(0, 0, 0, 1, 2))]


def advice_blocks(
    findings: Sequence[Finding], verdicts: Mapping[str, Sequence[str]]
) -> list[ShownBlock]:
    """Return a block for each finding of the advisor, with its expected gain, evidence, next step,
    change, source, and the verdicts of its tests, which `verdicts` has by the finding's code. One
    sentence if there are no findings."""
    if not findings:
        return [TextBlock(NO_ADVICE)]
    found: list[ShownBlock] = []
    for number, finding in enumerate(findings, 1):
        changes = " ".join((*(change.option_text for change in finding.changes), *finding.settings))
        facts = (
            ("evidence", finding.evidence),
            ("next", finding.fix),
            ("change", changes),
            *(("verdict", said) for said in verdicts.get(finding.code, ())),
            ("source", "; ".join(filter(None, (finding.code, finding.source)))),
        )
        known = tuple((label, text) for label, text in facts if text)
        found.append(FindingBlock(finding.level, finding_text_with_gain(finding), known, number))
    return found


def finding_text_with_gain(finding: Finding) -> str:
    """Return a finding as one line of text, followed by its expected gain if it is known."""
    if not finding.expected_gain:
        return finding.text
    return f"{finding.text} ({finding.expected_gain})"
