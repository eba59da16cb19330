"""A result for a terminal: the blocks of its report as plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.model.bench import BenchResult
from workbench.model.bench_json import result_from_json, to_json
from workbench.model.secrets import mask_data
from workbench.model.untrusted_text import clean
from workbench.report.blocks import (
    Alert,
    Block,
    CodeBlock,
    Facts,
    Figures,
    Fold,
    Heading,
    Items,
    PlotBlock,
    Table,
    Text,
)
from workbench.report.result_blocks import blocks_of, subtitle_of, title_of


def as_text(result: BenchResult) -> str:
    """Without colours and without escapes of any kind in it: a terminal obeys those."""
    safe = result_from_json(mask_data(to_json(result)))
    lines = [title_of(safe), subtitle_of(safe)]
    for block in blocks_of(safe):
        lines += _block(block)
    return "\n".join(clean(line) for line in lines)


def _block(block: Block, indent: str = "  ") -> Iterable[str]:
    match block:
        case Heading():
            return ["", block.text]
        case Text():
            return [indent + block.text]
        case Alert():
            return ["", block.title, *(f"{indent}{line}" for line in block.lines)]
        case Figures():
            return ["", *_aligned(block.items, frozenset(), indent)]
        case Table():
            return _aligned([block.head, *block.rows], block.numeric, indent)
        case Facts():
            return _aligned(block.rows, frozenset(), indent)
        case CodeBlock():
            return ["", indent + block.text, ""]
        case Items():
            return [f"{indent}- {line}" for line in block.lines]
        case Fold() | PlotBlock():
            return []  # in the reports


def _aligned(rows: Sequence[Sequence[str]], numeric: frozenset[int], indent: str) -> list[str]:
    """Columns; the last one is as wide as it is, and a row whose other cells are empty stands alone."""
    full = [row for row in rows if any(row[1:])]
    widths = [max(len(cell) for cell in column) for column in zip(*full, strict=True)] if full else []
    lines = []
    for row in rows:
        if not any(row[1:]):
            lines.append(indent + row[0])
            continue
        cells = [c.rjust(w) if i in numeric else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
