"""The rows of a comparison: the two results, and below them the blocks of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.tui.cells import Row, cut, row_width, width_of
from workbench.tui.formats import setting_text, setting_value, value_text

if TYPE_CHECKING:
    from workbench.model.bench import Comparison


def comparison_rows(comparison: Comparison, width: int) -> list[Row]:
    """Return rows of the whole comparison. Its differences share one row at the top. If there are
    several, a table at the end lists them."""
    from workbench.report.blocks import Items
    from workbench.report.series_blocks import (  # not for the first frame
        answer_texts,
        change_table,
        difference_blocks,
        likeness,
        quality_line,
    )
    from workbench.tui.block_rows import block_rows

    blocks = [
        *quality_line(comparison),
        change_table(comparison.metrics),
        *likeness(comparison),
        *answer_texts(comparison),
        *([Items(comparison.notes)] if comparison.notes else []),
        *(difference_blocks(comparison) if len(comparison.differences) > 1 else []),
    ]
    return [*_heading(comparison, width), *block_rows(blocks, width)]


def _heading(comparison: Comparison, width: int) -> list[Row]:
    """Return a row with the two results and a row with the differences between their conditions. A
    single difference stands in the first row if there is room."""
    texts = [_difference(d) for d in comparison.differences]
    count = count_of(len(texts), "difference")
    head: Row = (
        ("A ", "a"),
        (f"#{comparison.a}", "a"),
        (" vs ", "dim"),
        ("B ", "b"),
        (f"#{comparison.b}", "b"),
    )
    if comparison.simulated:
        head += (("  SIMULATED", "warnb"),)
    if not comparison.like_for_like:
        head += (("  ! not like for like", "warnb"),)
    if len(texts) == 1 and row_width(head) + len(texts[0]) + 3 <= width:
        return [(*head, ("   ", "dim"), (texts[0], "text"))]
    rows: list[Row] = [(*head, (f"  {count}", "dim"))]
    shown = list(texts)
    while len(shown) > 1 and width_of(_joined(shown, texts)) > width - 2:
        shown.pop()
    return [*rows, ((cut(f"  {_joined(shown, texts)}", width), "text"),)] if texts else rows


def _difference(d: Mapping[str, Any]) -> str:
    if d.get("kind") == "gpu setting" and None not in (d.get("a"), d.get("b")):
        return f"{setting_text(d['name'], d['a'])} > {setting_value(d['name'], d['b'])}"
    return f"{d['name']} {value_text(d.get('a'))} > {value_text(d.get('b'))}"


def _joined(shown: Sequence[str], texts: Sequence[str]) -> str:
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f", +{more} more below" if more else "")
