"""Graphs of the seconds around one or two benchmarks: power, SM clock, utilization and token rate.
Time 0 is the benchmark's first request, so that the graphs of two results can be compared cell by
cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from workbench.model.known_values import known_values
from workbench.model.timeline import CLIENT_TOK_S
from workbench.tui.cells import Row, Run, merge_runs, pad_text, paragraph_rows
from workbench.tui.formats import number_text
from workbench.tui.widgets.graph import Cells, Columns, Graph, highest_value_or_zero, mean_value
from workbench.tui.widgets.time_axis import MARKS

if TYPE_CHECKING:
    from workbench.store.result_timelines import ResultTimeline

NONE = "no timeline was kept: the result is older than timelines, was imported, or its file is gone"
_LABEL = 22
_AXIS_CELLS = 12  # between two labels of the axis, at least
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)


class _Metric(NamedTuple):
    """A metric that is drawn as a graph. `field` is its name in the history of a GPU, and `fold`
    computes one value from the values of several GPUs. `top` is the upper end of the scale, which
    is higher if a value is."""

    label: str
    unit: str
    field: str
    fold: Callable[[list[float]], float]
    top: float = 0.0  # of the scale, which is longer if a value is higher


_GPU = (
    _Metric("power", "W", "power_w", sum),
    _Metric("SM clock", "MHz", "sm_mhz", fmean),
    _Metric("utilization", "%", "gpu_util_pct", fmean, 100.0),
)
_TOKENS = _Metric("tokens", "tok/s", CLIENT_TOK_S[1], sum)


class _TimeRange(NamedTuple):
    """The time range of the graphs: `cells` cells of `cell_s` seconds each. The first cell begins
    `first_s` seconds after the benchmark's first request, so `first_s` is negative."""

    first_s: int
    cell_s: int
    cells: int

    def column_of_second(self, after_s: float) -> int:
        return math.floor((after_s - self.first_s) / self.cell_s)


def timeline_rows(timeline: ResultTimeline | None, width: int) -> list[Row]:
    """Return the rows with the graphs of a result's timeline; without a timeline, a row that says
    why there is none."""
    title: list[Row] = [(), (("Timeline", "title"),)]
    if timeline is None:
        return [*title, *paragraph_rows(NONE, width, "dim")]
    return [*title, *_graph_rows({"": timeline}, width)]


def aligned_timeline_rows(timelines: Mapping[str, ResultTimeline | None], width: int) -> list[Row]:
    """Return the graphs of several timelines. `timelines` maps the names of results to their
    timelines. For each metric, the graphs of all results are one below the other."""
    rows: list[Row] = []
    known = {name: t for name, t in timelines.items() if t is not None}
    if known:
        rows += _graph_rows(known, width)
    for name in timelines:
        if name not in known:
            rows += paragraph_rows(f"{name}: {NONE}", width, "dim")
    return rows


def _graph_rows(timelines: Mapping[str, ResultTimeline], width: int) -> list[Row]:
    span = _common_time_range(list(timelines.values()), max(16, width - _LABEL - 1))
    columns = Columns(0, (_LABEL,), (0,), span.cells)
    rows: list[Row] = []
    height = 2 if len(timelines) > 1 else 3
    for metric in (*_GPU, _TOKENS):
        cells = {name: _cell_means(t, metric, span) for name, t in timelines.items()}
        highest = max(map(highest_value_or_zero, cells.values()))
        top = max(highest, metric.top)
        if highest <= 0:
            continue
        for name, line in cells.items():
            value = _mean_during_bench(line, timelines[name], span)
            text = f"{number_text(value, 0)} / {number_text(top, 0)} {metric.unit}"
            graph = Graph(f"{name} {metric.label}".strip(), text, line, top)
            rows += columns.draw_graphs_side_by_side([graph], height)
    marks = [_event_marks_row(name, timeline, span) for name, timeline in timelines.items()]
    return [*rows, *marks, _axis_row(span), *_legend_rows(width)]


def _legend_rows(width: int) -> list[Row]:
    text = (
        "seconds after the first request; values: the mean from [ to ] / the top of the scale; "
        "power of several GPUs is their sum, clock and utilization their mean"
    )
    return paragraph_rows(text, width, "dim")


def _common_time_range(timelines: Sequence[ResultTimeline], max_cells: int) -> _TimeRange:
    before_s = max(int(t.begin_s) - t.first_s for t in timelines)
    after_s = max(t.last_s - int(t.begin_s) + t.step_s for t in timelines)
    finest = max(t.step_s for t in timelines)
    cell_s = max(finest, math.ceil((before_s + after_s) / max_cells))
    first_s = -math.ceil(before_s / cell_s) * cell_s
    return _TimeRange(first_s, cell_s, min(max_cells, math.ceil((after_s - first_s) / cell_s)))


def _cell_means(timeline: ResultTimeline, metric: _Metric, span: _TimeRange) -> Cells:
    """Return the mean of the metric for each cell of `span`; None for cells without readings."""
    history, step_s = timeline.history, timeline.step_s
    keys = [key for key in history if key[1] == metric.field]
    count = (timeline.last_s - timeline.first_s) // step_s + 1
    columns = [history.cell_means(key, timeline.last_s, step_s, count) for key in sorted(keys)]
    parts: list[list[float]] = [[] for _ in range(span.cells)]
    for index, values in enumerate(zip(*columns, strict=True)):
        known = known_values(values)
        column = span.column_of_second(timeline.first_s + index * step_s - int(timeline.begin_s))
        if known and 0 <= column < span.cells:
            parts[column].append(metric.fold(known))
    return list(map(mean_value, parts))


def _mean_during_bench(cells: Cells, timeline: ResultTimeline, span: _TimeRange) -> float | None:
    last = span.column_of_second(timeline.end_s - int(timeline.begin_s))
    first = max(
        span.column_of_second(0), 0
    )  # the cell in which the benchmark ends has seconds after it too
    return mean_value(known_values(cells[first : max(last, first + 1)]))


def _event_marks_row(name: str, timeline: ResultTimeline, span: _TimeRange) -> Row:
    """Return a row that begins with the name of the result and has a sign for each event of its
    timeline, at the time of the event. The sign depends on the kind of the event."""
    cells: list[Run] = [(" ", "dim")] * span.cells
    for event in timeline.history.events:
        column = span.column_of_second(event.unix_s - int(timeline.begin_s))
        if 0 <= column < span.cells:
            cells[column] = MARKS[event.kind]
    return merge_runs([(pad_text(f"{name} events".strip(), _LABEL), "dim"), *cells])


def _axis_row(span: _TimeRange) -> Row:
    """Return the row of the time axis, labelled with seconds after the benchmark's first
    request."""
    least_s = _AXIS_CELLS * span.cell_s
    step_s = next((s for s in _STEPS_S if s >= least_s), least_s)
    text = [" "] * span.cells
    begin_s, end_s = -(-span.first_s // step_s) * step_s, span.first_s + span.cells * span.cell_s
    for second in range(begin_s, end_s, step_s):
        at = span.column_of_second(second)
        label = f"{second} s"
        if at >= 0 and at + len(label) <= span.cells:
            text[at : at + len(label)] = label
    return ((pad_text("time", _LABEL), "dim"), ("".join(text), "dim"))
