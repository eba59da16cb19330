"""The rows of a comparison: the verdict in words, the two results, and below them the blocks of the
reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.tui.cells import Row, cut, paragraph, row_width, width_of
from workbench.tui.formats import setting_text, setting_value, value_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.bench import Comparison


TIMES_FROM = 2.0  # ratio of two speeds from which it is a number of times and no percentage


def verdict_text(comparison: Comparison) -> tuple[str, str]:
    """Return what the comparison says about the speed, in words, and its role: "B is 3.3 times as
    fast as A (one pair: X proves it)". What it does not prove, it says in the same sentence."""
    from workbench.model.bench import half_width  # not for the first frame

    first = comparison.metrics[0] if comparison.metrics else None
    if first is None or first.change_pct is None:
        return "no verdict: the speed was not measured on both sides", "warn"
    said = _speed_words(first.change_pct)
    if not comparison.like_for_like:
        return f"no verdict: the runs are not like for like; measured: {said}", "warn"
    if first.interval_pct is None:
        return f"{said} (one pair: X proves it)", "goodb" if first.change_pct > 0 else "warnb"
    size = f"{first.change_pct:+.1f} % {G.plus_minus} {half_width(first.interval_pct)}"
    better = "faster" if first.change_pct > 0 else "slower"
    if first.verdict == "no difference shown":
        return f"no difference in speed is shown: {size}", "strong"
    if first.verdict == "hint only":
        return f"a hint, no proof: B is {better} by {size.lstrip('+-')}", "strong"
    return (
        f"B is {better} by {size.lstrip('+-')}",
        "goodb" if first.verdict == "better" else "warnb",
    )


def _speed_words(change_pct: float) -> str:
    ratio = 1.0 + change_pct / 100.0
    if ratio >= TIMES_FROM:
        return f"B is {ratio:.1f} times as fast as A"
    if 0.0 < ratio <= 1.0 / TIMES_FROM:
        return f"A is {1.0 / ratio:.1f} times as fast as B"
    if abs(change_pct) < 0.05:
        return "B is as fast as A"
    return f"B is {'faster' if change_pct > 0 else 'slower'} by {abs(change_pct):.1f} %"


def verdict_rows(comparison: Comparison, width: int) -> list[Row]:
    said, role = verdict_text(comparison)
    return paragraph(said, width, role)


def comparison_rows(comparison: Comparison, width: int, which_b: str = "") -> list[Row]:
    """Return rows of the whole comparison, without its verdict. Its differences share one row at the
    top. If there are several, a table at the end lists them. `which_b` says why the result B is
    this one."""
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
    return [*_heading(comparison, width, which_b), *block_rows(blocks, width)]


def _heading(comparison: Comparison, width: int, which_b: str) -> list[Row]:
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
    single = f"   {texts[0]}" if len(texts) == 1 else ""
    beside = bool(single) and row_width(head) + width_of(single) <= width
    told = f"  ({which_b})" if which_b else ""
    if row_width(head) + width_of(told) + width_of(single if beside else f"  {count}") <= width:
        head = (*head[:5], (told, "dim"), *head[5:])
    if beside:
        return [(*head, (single, "text"))]
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
