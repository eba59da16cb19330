"""A report as plain text for a terminal, without colours, escape sequences, plots and folded
details."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.model.untrusted_text import clean_text
from workbench.report.blocks import (
    Alert,
    CodeBlock,
    Facts,
    FindingBlock,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    ShownBlock,
    Table,
    TextBlock,
)
from workbench.report.content import Report
from workbench.report.document import document_from_report

_INDENT = "  "
_LABELS = {"rejected": "REJECTED: "}  # kind of an alert -> the word that people search for


def render(report: Report) -> str:
    document = document_from_report(report)
    lines = [
        clean_text(document.title),
        clean_text(document.subtitle),
        *block_lines(document.blocks),
    ]
    return "\n".join(lines) + "\n"


def block_lines(blocks: Iterable[ShownBlock]) -> list[str]:
    """Return the blocks as lines of text, without control characters."""
    return [clean_text(line) for block in blocks for line in _lines_of_block(block)]


def _lines_of_block(block: ShownBlock) -> Iterable[str]:
    match block:
        case Heading():
            return ["", block.text]
        case TextBlock():
            return [_INDENT + block.text]
        case Alert():
            title = f"{_LABELS.get(block.kind, '')}{block.title}"
            return ["", title, *(f"{_INDENT}{line}" for line in block.lines)]
        case KeyMetrics():
            return ["", *_align_columns(block.items)]
        case Table():
            return _align_columns([block.head, *block.rows], block.numeric)
        case Facts():
            return _align_columns(block.rows)
        case CodeBlock():
            return ["", _INDENT + block.text, ""]
        case Items():
            return [f"{_INDENT}- {line}" for line in block.lines]
        case FindingBlock():
            return _finding_lines(block)
        case Fold() | PlotBlock():
            return []


def _finding_lines(finding: FindingBlock) -> list[str]:
    line = f"{finding.level}: {finding.text}"
    if finding.number is not None:
        line = f"{finding.number:>2}. {line}"
    return [line, *(f"    {label:<9} {text}" for label, text in finding.facts)]


def _align_columns(
    rows: Sequence[Sequence[str]], numeric: frozenset[int] = frozenset()
) -> list[str]:
    """Return the rows as lines with aligned columns; the columns in `numeric` are aligned right. A
    row that has text only in its first cell does not widen the first column.
    """
    full = [row for row in rows if any(row[1:])]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    lines = []
    for row in rows:
        if not any(row[1:]):
            lines.append(_INDENT + row[0])
            continue
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            align = cell.rjust if column in numeric else cell.ljust
            cells.append(align(width))
        lines.append((_INDENT + "  ".join(cells)).rstrip())
    return lines
