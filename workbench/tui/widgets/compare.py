"""A against B: the differences in configuration first, then each figure with its change and a word for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.binding import Binding

from workbench.session.state import SessionState
from workbench.tui.bindings import bindings_for
from workbench.tui.formats import NA, figure, value_text
from workbench.tui.glyphs import G
from workbench.tui.paint import Painted, Row, pad, paragraph, row_width

if TYPE_CHECKING:
    from workbench.model.bench import Comparison, MetricChange

CHANGE = 13
VERDICTS = {
    "better": ("BETTER", "goodb"),
    "worse": ("worse", "bad"),
    "no difference shown": ("= none shown", "dim"),
}


def comparison_rows(comparison: Comparison, width: int) -> list[Row]:
    """The whole comparison as rows; the pane shows a window of it."""
    rows: list[Row] = []
    differences = comparison.differences
    count = f"{len(differences)} difference{'s' if len(differences) != 1 else ''}"
    head: list[tuple[str, str]] = [("A ", "a"), (f"#{comparison.a}", "a"), (" vs ", "dim"), (f"B #{comparison.b}", "b")]
    if comparison.simulated:
        head.append(("  SIMULATED", "warnb"))
    texts = [f"{d['name']} {value_text(d.get('a'))} > {value_text(d.get('b'))}" for d in differences]
    if len(texts) == 1 and row_width(head) + len(texts[0]) + 3 <= width:
        rows.append((*head, ("   ", "dim"), (texts[0], "text")))
    else:
        rows.append((*head, (f"  {count}", "dim")))
        for text in texts:
            rows += paragraph(f"  {text}", width, "text", "    ")
    rows.append(((_line(width, "metric", "A", "B", "change", ""), "head"),))
    rows += [_metric_row(metric, width) for metric in comparison.metrics]
    if comparison.like_for_like:
        rows.append((("like for like", "dim"),))
    else:
        rows.append((("! not like for like", "warnb"),))
    for warning in comparison.warnings:
        rows += paragraph(f"! {warning}", width, "warn", "  ")
    return rows


def _line(width: int, name: str, a: str, b: str, change: str, verdict: str) -> str:
    label, size = _sizes(width)
    return f"{pad(name, label)}{pad(a, size, True)}{pad(b, size, True)}{pad(change, CHANGE, True)}  {verdict}"


def _sizes(width: int) -> tuple[int, int]:
    """Cells of the metric's name and of each value."""
    return (18, 10) if width >= 70 else (13, 7)


def _metric_row(metric: MetricChange, width: int) -> Row:
    change = NA if metric.change_pct is None else f"{metric.change_pct:+.1f}%"
    if metric.interval_pct is not None:
        change += f" {G.plus_minus}{metric.interval_pct:.1f}"
    word, role = VERDICTS.get(metric.verdict, (metric.verdict, "dim"))
    label, size = _sizes(width)
    name = f"{metric.metric} {metric.unit}".strip()
    if len(name) > label or metric.unit in metric.metric:
        name = metric.metric
    return (
        (pad(name, label), "text"),
        (pad(figure(metric.a), size, True), "text"),
        (pad(figure(metric.b), size, True), "text"),
        (pad(change, CHANGE, True), role if role != "dim" else "text"), ("  ", "text"), (word, role),
    )  # fmt: skip


class Compare(Painted, can_focus=True):
    BINDINGS = [  # noqa: RUF012
        *bindings_for("compare"),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move(-8)", show=False),
        Binding("pagedown", "move(8)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="compare")
        self.state: SessionState | None = None
        self.top = 0

    def show(self, state: SessionState) -> None:
        if self.state is None or self.state.comparison is not state.comparison:
            self.top = 0
        self.state = state
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        comparison = self.state.comparison if self.state else None
        if comparison is None:
            return self._empty(width)
        rows = comparison_rows(comparison, width)
        self.top = max(0, min(self.top, len(rows) - height))
        shown = rows[self.top : self.top + height]
        if self.top + height < len(rows):
            shown[-1] = ((f"  {len(rows) - self.top - height + 1} more lines (down)", "dim"),)
        return shown

    def action_move(self, by: int) -> None:
        self.top = max(0, self.top + by)
        self.repaint()

    def _empty(self, width: int) -> list[Row]:
        state = self.state
        if state is None or len(state.results) < 2:
            have = len(state.results) if state else 0
            return paragraph(f"Nothing to compare: {have} of 2 results. b runs a benchmark.", width, "dim")
        marks = [m for m, v in (("A", state.mark_a), ("B", state.mark_b)) if v is not None]
        if len(marks) == 1:
            other = "B" if marks == ["A"] else "a"
            return paragraph(f"{marks[0]} is marked. {other} in 4 marks the other, c compares.", width, "dim")
        return paragraph("c compares the last two results. In 4, a and B mark which ones.", width, "dim")
