"""The rows of a comparison: the two results, their differences, and each metric with its change and
verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.metrics import key_metrics, short_title
from workbench.tui.cells import Row, cut, pad, paragraph, row_width, width_of
from workbench.tui.formats import NA, figure, setting_text, setting_value, value_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.bench import Comparison, MetricChange

SINGLE = "single pair"
SINGLE_WIDTH = 80  # cells from which a heading says what a single pair lacks
VERDICTS = {
    "better": ("BETTER", "goodb"),
    "worse": ("worse", "bad"),
    "no difference shown": ("= none shown", "dim"),
    "hint only": ("? hint only", "dim"),
}
QUALITY_ROLES = {"same": "good", "differs": "bad", "broken": "bad"}


def comparison_rows(comparison: Comparison, width: int, height: int = 1000) -> list[Row]:
    """Return rows of the whole comparison. If `height` leaves too few rows for one row per
    difference, the differences share one row, and are listed one by one at the end."""
    rows = _heading(comparison, width, height)
    if comparison.quality:
        role = QUALITY_ROLES.get(comparison.quality_verdict, "warn")
        rows += paragraph(comparison.quality, width, role, "  ")
    single = all(m.interval_pct is None for m in comparison.metrics)
    said = ""
    if single:
        said = f"{SINGLE}: no interval" if width >= SINGLE_WIDTH else SINGLE
    rows.append(((_line(width, "metric", "A", "B", "change", said), "head"),))
    first = key_metrics()
    metrics = sorted(
        comparison.metrics,
        key=lambda m: first.index(m.metric) if m.metric in first else len(first),
    )
    rows += [_metric_row(metric, width, single) for metric in metrics]
    if comparison.like_for_like:
        paired = any(m.pairs for m in comparison.metrics)
        runs = f"  n={comparison.runs_a}+{comparison.runs_b}" + (" pairs" if paired else "")
        rows.append((("like for like", "good"), (runs, "dim")))
    else:
        rows.append((("! not like for like", "warnb"),))
    for side, answered in comparison.texts:
        if answered is not None and answered.excerpt:
            role = "warn" if answered.problem else "dim"
            rows.append(((f"{side} answered ", "dim"), (cut(answered.excerpt, width - 11), role)))
    for warning in comparison.warnings:
        rows += paragraph(f"! {warning}", width, "warn", "  ")
    for note in comparison.notes:
        rows += paragraph(note, width, "dim", "  ")
    texts = _differences(comparison)
    if len(texts) > 1 and not _listed_first(texts, height):
        rows += [((f"all {len(texts)} differences", "head"),)]
        for text in texts:
            rows += paragraph(f"  {text}", width, "text", "    ")
    return rows


def _differences(comparison: Comparison) -> list[str]:
    """Return the differences between the conditions of the two results as texts. Differences in the
    preset and in the port come last, because they matter least."""
    chosen = sorted(comparison.differences, key=lambda d: d["name"] in ("preset_id", "port"))
    return [_difference(d) for d in chosen]


def _difference(d: Mapping[str, Any]) -> str:
    if d.get("kind") == "gpu setting" and None not in (d.get("a"), d.get("b")):
        return f"{setting_text(d['name'], d['a'])} > {setting_value(d['name'], d['b'])}"
    return f"{d['name']} {value_text(d.get('a'))} > {value_text(d.get('b'))}"


def _listed_first(texts: Sequence[str], height: int) -> bool:
    """Return whether a pane of `height` rows is high enough to show each of the differences `texts`
    in a row of its own, above the table of metrics."""
    return len(texts) + 14 <= height


def _heading(comparison: Comparison, width: int, height: int) -> list[Row]:
    """Return rows with the two results and the differences between their conditions. If there is no
    room for one row per difference, all differences share one row."""
    texts = _differences(comparison)
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
    if _listed_first(texts, height):
        for text in texts:
            rows += paragraph(f"  {text}", width, "text", "    ")
        return rows
    shown = list(texts)
    while len(shown) > 1 and width_of(_joined(shown, texts)) > width - 2:
        shown.pop()
    return [*rows, ((cut(f"  {_joined(shown, texts)}", width), "text"),)] if texts else rows


def _joined(shown: Sequence[str], texts: Sequence[str]) -> str:
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f", +{more} more below" if more else "")


def _line(width: int, name: str, a: str, b: str, change: str, verdict: str) -> str:
    label, size, changed = _sizes(width)
    return f"{pad(name, label)}{pad(a, size, True)}{pad(b, size, True)}{pad(change, changed, True)}  {verdict}"


def _sizes(width: int) -> tuple[int, int, int]:
    """Return the widths in cells of three columns of the table: the name of a metric, its value
    (one such column for each result), and its change."""
    return (18, 10, 16) if width >= 66 else (14, 7, 14)


def _metric_row(metric: MetricChange, width: int, single: bool) -> Row:
    from workbench.model.bench import half_width

    change = NA if metric.change_pct is None else f"{metric.change_pct:+.1f}%"
    if metric.interval_pct is not None:
        change += f" {G.plus_minus}{half_width(metric.interval_pct)}"
    word, role = VERDICTS.get(
        metric.verdict, ("" if single and metric.verdict == SINGLE else metric.verdict, "dim")
    )
    label, size, changed = _sizes(width)
    return (
        (pad(short_title(metric.metric, metric.unit), label), "text"),
        (pad(figure(metric.a), size, True), "text"),
        (pad(figure(metric.b), size, True), "text"),
        (pad(change, changed, True), role if role != "dim" else "text"),
        ("  ", "text"),
        (word, role),
    )
