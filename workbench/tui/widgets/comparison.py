"""The rows of a comparison: the verdict in words, the two results, and below them the blocks of the
reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.tui.cells import Row, Run, cut_text, paragraph_rows, row_width, width_of
from workbench.tui.formats import (
    drop_gpu_from_setting_key,
    enclose_nonempty_text,
    flag_value_text,
    prefix_texts_with_gpus,
    setting_change_text,
    setting_value_text,
)
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.bench import Comparison


_DIFFERENCE_ROWS = 2  # of the texts of all differences, at most; else one row has the first of them
TIMES_FROM = 2.0  # ratio of two speeds from which it is a number of times and no percentage


# kinds of differences that are changes of the person
_CHANGES = frozenset({"flag", "env", "gpu setting", "executable"})


# in place of "quality not measured"
QUALITY_UNDER_WAY = "quality is being measured"
QUALITY_COMES = "quality not measured yet"


def replace_unmeasured_quality_text(comparison: Comparison, text: str) -> Comparison:
    """Return the comparison with `text` in place of "quality not measured". A comparison whose
    quality was measured is returned unchanged."""
    from workbench.model.quality import NOT_MEASURED  # not for the first frame

    if comparison.quality != NOT_MEASURED:
        return comparison
    return replace(comparison, quality=text)


def speed_verdict_and_role(comparison: Comparison, noise_pct: float | None = None) -> Run:
    """Return what the comparison says about the speed, in words, and the role of the text: "B is
    3.3 times as fast as A (one pair: not proven, X tests it)". The text also says what is not
    proven and how many changes caused the difference together. `noise_pct` is how many percent two
    such runs may differ by chance; None if that is not known, or less than the change."""
    from workbench.model.bench import format_half_width  # not for the first frame

    first = next(iter(comparison.metrics), None)
    if first is None or first.change_pct is None:
        return "no verdict: the speed was not measured on both sides", "warn"
    said = f"{_joint_changes_text(comparison)}{_speed_verdict_text(first.change_pct)}"
    if not comparison.like_for_like:
        return f"{said}, but the runs are not like for like: this proves nothing", "warn"
    if first.interval_pct is None and noise_pct is not None:
        chance = f"two such runs may differ by {math.ceil(noise_pct)} % by chance"
        return f"{said}, but {chance} (X tests it)", "strong"
    better, role = "slower", "warnb"
    if first.change_pct > 0:
        better, role = "faster", "goodb"
    if first.interval_pct is None:
        return f"{said} (one pair: not proven, X tests it)", role
    size = f"{first.change_pct:+.1f} % {G.plus_minus} {format_half_width(first.interval_pct)}"
    if first.verdict == "no difference shown":
        return f"no difference in speed is shown: {size}", "strong"
    said = f"B is {better} by {size.lstrip('+-')}"
    if first.verdict == "hint only":
        return f"a hint, no proof: {said}", "strong"
    if first.verdict == "better":
        return said, "goodb"
    return said, "warnb"


def _joint_changes_text(comparison: Comparison) -> str:
    """Return how many changes of the user act together, as the beginning of a sentence such as
    "both changes together: ". Return "" for one change, or if anything else differs too."""
    if not _CHANGES.issuperset(one.get("kind") for one in comparison.differences):
        return ""
    count = len(_difference_texts(comparison.differences))
    if count < 2:
        return ""
    if count == 2:
        return "both changes together: "
    return f"{count} changes together: "


def _speed_verdict_text(change_pct: float) -> str:
    ratio = 1.0 + change_pct / 100.0
    if ratio >= TIMES_FROM:
        return f"B is {ratio:.1f} times as fast as A"
    if 0.0 < ratio <= 1.0 / TIMES_FROM:
        return f"A is {1.0 / ratio:.1f} times as fast as B"
    if abs(change_pct) < 0.05:
        return "B is as fast as A"
    if change_pct > 0:
        return f"B is faster by {change_pct:.1f} %"
    return f"B is slower by {-change_pct:.1f} %"


def speed_verdict_rows(
    comparison: Comparison, width: int, noise_pct: float | None = None
) -> list[Row]:
    said, role = speed_verdict_and_role(comparison, noise_pct)
    return paragraph_rows(said, width, role)


def comparison_rows(comparison: Comparison, width: int, reason_for_b: str = "") -> list[Row]:
    """Return rows of the comparison without its verdict. The differences share one row at the top.
    If there are several, a table at the end lists them. `reason_for_b` says why the result B is
    this one; "" leaves the reason out."""
    from workbench.report.blocks import Items
    from workbench.report.series_blocks import (  # not for the first frame
        answer_text_blocks,
        difference_blocks,
        like_for_like_blocks,
        metric_change_table,
        quality_line_block,
    )
    from workbench.tui.block_rows import block_rows

    blocks = [
        *quality_line_block(comparison),
        metric_change_table(comparison.metrics),
        *like_for_like_blocks(comparison),
        *answer_text_blocks(comparison),
    ]
    if comparison.notes:
        blocks.append(Items(comparison.notes))
    if len(comparison.differences) > 1:
        blocks += difference_blocks(comparison)
    return [*_heading_rows(comparison, width, reason_for_b), *block_rows(blocks, width)]


def _heading_rows(comparison: Comparison, width: int, reason_for_b: str) -> list[Row]:
    """Return a row with the two results and a row with the differences between their conditions. A
    single difference stands in the first row if there is room."""
    texts = _difference_texts(comparison.differences)
    head: Row = (
        ("A ", "a"),
        (f"#{comparison.a}", "a"),
        (" vs ", "dim"),
        ("B ", "b"),
        (f"#{comparison.b}", "b"),
    )
    if comparison.simulated:
        head += (("  SIMULATED", "warnb"),)
    # behind the difference, which would read as its reason; the rows below say the reason
    warning: Row = ()
    if not comparison.like_for_like:
        warning = (("  ! not like for like, see below", "warnb"),)
    beside = (f"  {count_of(len(texts), 'difference')}", "dim")
    single = f"   {', '.join(texts)}"
    is_beside = len(texts) == 1 and row_width((*head, *warning)) + width_of(single) <= width
    if is_beside:
        beside = (single, "text")
    reason = f"  ({reason_for_b})"
    if reason_for_b and row_width((*head, beside, *warning)) + width_of(reason) <= width:
        head = (*head[:5], (reason, "dim"), *head[5:])
    rows: list[Row] = [(*head, beside, *warning)]
    if warning and row_width(rows[0]) > width:
        rows = [(*head, ("  ! not like for like", "warnb"))]
    if is_beside or not texts:
        return rows
    lines = paragraph_rows(f"  {', '.join(texts)}", width, "text", "  ")
    if len(lines) <= _DIFFERENCE_ROWS:
        return [*rows, *lines]
    shown = list(texts)
    while len(shown) > 1 and width_of(_join_texts_and_count_rest(shown, texts)) > width - 2:
        shown.pop()
    return [*rows, ((cut_text(f"  {_join_texts_and_count_rest(shown, texts)}", width), "text"),)]


def _difference_texts(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a text for each difference. One setting of several GPUs is one difference."""
    return prefix_texts_with_gpus((d["name"], _difference_text(d)) for d in differences)


def _difference_text(difference: Mapping[str, Any]) -> str:
    name, kind, values = (
        difference["name"],
        difference.get("kind"),
        (difference.get("a"), difference.get("b")),
    )
    if kind != "gpu setting":
        before, now = map(flag_value_text, values)
        return f"{name} {before} {G.becomes} {now}"
    name = drop_gpu_from_setting_key(name)
    texts = ["-", "-"]
    for side, value in enumerate(values):
        if value is not None:
            texts[side] = setting_value_text(name, value)
    return setting_change_text(name, *texts)


def _join_texts_and_count_rest(shown_texts: Sequence[str], all_texts: Sequence[str]) -> str:
    more = enclose_nonempty_text("+", len(all_texts) - len(shown_texts), " more below")
    return ", ".join(filter(None, (*shown_texts, more)))
