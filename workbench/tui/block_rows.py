"""Blocks of a report as rows of the screen. The screen shows a result in the blocks that the
commands and the reports show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.report.blocks import (
    Alert,
    Block,
    CodeBlock,
    Facts,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    Table,
    TextBlock,
)
from workbench.report.format_values import NA
from workbench.tui.cells import Row, beside, cut, pad, paragraph, width_of

LABEL = 12
_GAP = 2
_LEAST_TEXT = 20  # cells beside a label
_LABELS = {"rejected": " REJECTED ", "simulated": " SIMULATED "}


def block_rows(blocks: Iterable[Block], width: int) -> list[Row]:
    """Return the blocks as rows of at most `width` cells. Plots and folded details are left out."""
    return [row for block in blocks for row in _rows(block, width)]


def fitted(blocks: Iterable[Block], width: int) -> list[Block]:
    """Return the blocks for a page of their own. A table that is wider than `width` becomes labels
    with texts, which are never cut, and folded details are shown."""
    found: list[Block] = []
    for block in blocks:
        match block:
            case Table() if sum(_widths(block)) + _GAP * len(block.head) > width:
                found.append(_stacked(block))
            case Fold():
                found += [Heading(block.title, 3), *fitted(block.blocks, width)]
            case _:
                found.append(block)
    return found


def _stacked(table: Table) -> Facts:
    """Return a table as one label with a text per row. The text has the other cells with their
    heads. Cells without a value are left out."""

    def text(cells: Sequence[str]) -> str:
        pairs = zip(table.head[1:], cells, strict=True)
        return ", ".join(f"{head} {cell}" for head, cell in pairs if cell != NA)

    return Facts(tuple((row[0], text(row[1:])) for row in table.rows))


def _widths(table: Table) -> list[int]:
    """Return the width of the longest cell of each column."""
    full = [table.head, *(row for row in table.rows if any(row[1:]))]
    return [max(map(width_of, column)) for column in zip(*full, strict=True)]


def _rows(block: Block, width: int) -> list[Row]:
    match block:
        case Heading():
            return [(), ((cut(block.text, width), "title"),)]
        case TextBlock():
            return paragraph(block.text, width, "strong" if block.lead else "dim")
        case Alert():
            return _alert(block, width)
        case KeyMetrics():
            texts = [(title, f"{value}  ({detail})") for title, value, detail in block.items]
            return fact_rows(texts, width)
        case Table():
            return _table(block, width)
        case Facts():
            return fact_rows(block.rows, width)
        case CodeBlock():
            return [(), *paragraph(f"$ {block.text}", width, "dim", "  ")]
        case Items():
            return [
                row for line in block.lines for row in paragraph(f"- {line}", width, "text", "  ")
            ]
        case Fold() | PlotBlock():
            return []


def fact_rows(facts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Return rows of label and text. The labels of all facts have one width."""
    longest = max((width_of(label) for label, _ in facts), default=0)
    wanted = LABEL if longest < LABEL else longest + _GAP
    label_width = min(wanted, max(LABEL, width - _LEAST_TEXT))
    room = max(_LEAST_TEXT, width - label_width)
    return [
        row
        for label, text in facts
        for row in beside(pad(label, label_width), "dim", paragraph(text, room))
    ]


def _alert(alert: Alert, width: int) -> list[Row]:
    if alert.kind == "simulated":
        text = " ".join(alert.lines)
        return [((_LABELS[alert.kind], "reverse"), (cut(f" {text}", width - LABEL), "warn")), ()]
    if alert.kind == "rejected":
        title: Row = ((_LABELS[alert.kind], "reverse"), (f" {alert.title}:", "bad"))
        mark, role = "x", "bad"
    else:
        title, mark, role = ((cut(f"{alert.title}:", width), "warn"),), "!", "warn"
    reasons = [
        row for line in alert.lines for row in paragraph(f"{mark} {line}", width, role, "  ")
    ]
    return [title, *reasons, ()]


def _table(table: Table, width: int) -> list[Row]:
    """Return a table whose columns are as wide as their cells. The first column is cut if the rest
    leaves it too little room. A row with text in its first cell only has the whole width."""
    longest = _widths(table)
    gap = _GAP if LABEL + sum(each + _GAP for each in longest[1:]) <= width else 1
    widths = [each + gap for each in longest]
    widths[0] = min(widths[0], max(LABEL, width - sum(widths[1:])))
    rows: list[Row] = []
    for n, row in enumerate([table.head, *table.rows]):
        role = "text" if n else "head"
        first = row[0]
        if n and not any(row[1:]):
            rows += paragraph(first, width, "dim", "  ")
            continue
        cells = [
            pad(cell, widths[i], i in table.numeric) for i, cell in enumerate(row[1:], start=1)
        ]
        others = cut("".join(cells), width - widths[0])
        rows.append(((pad(first, widths[0]), "dim" if n else "head"), (others, role)))
    return rows
