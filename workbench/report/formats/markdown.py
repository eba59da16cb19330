"""A report as GitHub Markdown. Markup in values is escaped, because an imported result can contain
any text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from workbench.model.untrusted_text import clean_text
from workbench.report.blocks import (
    Alert,
    Block,
    CodeBlock,
    Document,
    Facts,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    Table,
    TextBlock,
)
from workbench.report.content import Report
from workbench.report.document import document_from_report

_MARKUP = re.compile(r"([\\`*\[\]|~])")
_KINDS = {
    "simulated": "WARNING",
    "rejected": "CAUTION",
    "failed": "CAUTION",
    "warning": "WARNING",
}


def render(report: Report) -> str:
    return document_text(document_from_report(report))


def document_text(document: Document) -> str:
    """Return a document as Markdown."""
    lines = [f"# {escape_markdown(document.title)}", "", escape_markdown(document.subtitle), ""]
    for block in document.blocks:
        if written := list(_block_lines(block)):
            lines += [*written, ""]
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Return `text` on one line, with all characters escaped that have a meaning in Markdown or
    HTML."""
    one = " ".join(clean_text(text, len(text)).split())
    one = _MARKUP.sub(r"\\\1", one).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # At the beginning, "# 5", "- x" and "1. x" would become a heading or a list.
    return re.sub(r"^([#+-]|\d+[.)])(?=\s)", r"\\\1", one)


def _block_lines(block: Block) -> Iterable[str]:
    match block:
        case Heading():
            return [f"{'#' * block.level} {escape_markdown(block.text)}"]
        case TextBlock():
            text = escape_markdown(block.text)
            return [f"**{text}**" if block.lead else text]
        case Alert():
            lines = "".join(f"\n> - {escape_markdown(line)}" for line in block.lines)
            return [f"> [!{_KINDS[block.kind]}]\n> **{escape_markdown(block.title)}**{lines}"]
        case KeyMetrics():
            return _table_lines(Table(("", "", ""), block.items, frozenset({1})))
        case Table():
            return _table_lines(block)
        case Facts():
            return _table_lines(Table(("name", "value"), block.rows))
        case CodeBlock():
            return _code_lines(block.text)
        case PlotBlock():
            return []  # the tables have its values; only the HTML report draws it
        case Items():
            return [f"- {escape_markdown(line)}" for line in block.lines]
        case Fold():
            inner: list[str] = []
            for one in block.blocks:
                if not isinstance(one, PlotBlock):
                    inner += [*_block_lines(one), ""]
            return [
                f"<details><summary>{escape_markdown(block.title)}</summary>",
                "",
                *inner,
                "</details>",
            ]


def _table_lines(table: Table) -> Iterable[str]:
    marks = ("---:" if i in table.numeric else "---" for i in range(len(table.head)))
    return [_table_row(table.head), f"|{'|'.join(marks)}|", *map(_table_row, table.rows)]


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def _code_lines(text: str) -> Iterable[str]:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}sh", clean_text(text, len(text), lines=True), fence]
