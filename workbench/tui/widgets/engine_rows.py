"""The rows below the GPUs in the telemetry strip: metrics of the selected server's engine, with the
same time axis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import ENGINE, History, Key
from workbench.tui.cells import Row, Run, cut_text, row_width
from workbench.tui.formats import NA
from workbench.tui.glyphs import G
from workbench.tui.widgets.graph import Columns, Graph, highest_value_or_zero
from workbench.tui.widgets.graph_cache import GraphCache
from workbench.tui.widgets.time_axis import Window

if TYPE_CHECKING:
    from workbench.model.engine_live import EngineView
    from workbench.session.state import SessionState

# rows of the terminal from which graphs are higher, or have a second line
TALL_ROWS, TWO_LINES_ROWS = 50, 34
STACKED_TWO_ROWS = 44  # rows of a terminal from which a graph over the whole width has two
ONE_ROW_LABEL = 12  # cells in front of a graph that are enough for a label and its value in one row
# length and number of the cells that the first scale is computed from: 8 hours
LOOK_BACK = (10, 2880)


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of the engine. `short` is its label if the graph is one row high. `fields` are
    fields of the history, of which the graph shows the sum, and `text` makes a text of their
    present values. `top` is the upper end of the scale, or None for a scale that grows with the
    values."""

    label: str
    short: str
    fields: tuple[str, ...]
    text: Callable[[Sequence[float]], str]
    top: float | None = 100.0

    @property
    def history_keys(self) -> list[Key]:
        """The keys of the fields in the history."""
        return [(ENGINE, field) for field in self.fields]


def _token_rate_text(values: Sequence[float]) -> str:
    """Return the first of `values`, a number of tokens per second, as text of at most 5 cells, such
    as "1,234" or "12.3k"."""
    value = values[0]
    if value < 9_999.5:
        return f"{value:,.0f}"
    if value < 99_950:
        return f"{value / 1e3:.1f}k"
    return f"{value / 1e3:.0f}k"


def _percent_text(values: Sequence[float]) -> str:
    return f"{values[0]:.0f}%"


def _queue_text(values: Sequence[float]) -> str:
    running, waiting = values
    return f"{running:.0f}+{waiting:.0f}"


_FIRST = (
    _Metric("tok/s", "tok/s", ("generation_tok_s",), _token_rate_text, None),
    _Metric("queue", "queue", ("running", "waiting"), _queue_text, None),
    _Metric("KV cache", "KV", ("kv_use_pct",), _percent_text),
)
_SECOND = (
    _Metric("prompt/s", "prompt", ("prompt_tok_s",), _token_rate_text, None),
    _Metric("prefix", "hits", ("prefix_hit_pct",), _percent_text),
    _Metric("accepted", "acc", ("spec_accepted_pct",), _percent_text),
    _Metric("preempt", "pre", ("preemptions_s",), lambda values: f"{values[0]:.1f}/s", None),
)


class EngineRows:
    """The graphs of the engine's metrics, in the same columns as the graphs of the GPUs. The scale
    of a metric without a fixed upper end grows, but never shrinks."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._graph_cache = GraphCache(history)
        self._tops: dict[str, float] = {}
        self._lines, self._each = 0, 0  # lines of graphs, and rows of each

    def count_full_width_rows(self, state: SessionState, terminal_rows: int) -> int:
        """Return how many rows the engine needs if a graph takes the whole width: those of its
        tokens per second, and one with its other figures. Return 0 if no server is selected, and 1
        if the engine's metrics cannot be read."""
        if state.engine is None:
            return 0
        self._lines, self._each = 1, 1
        if terminal_rows >= STACKED_TWO_ROWS:
            self._each = 2
        if state.engine.problem is not None:
            return 1
        return self._each + 1

    def graph_rows_and_value_rows(
        self, state: SessionState, window: Window, columns: Columns, width: int
    ) -> tuple[list[Row], list[Row]]:
        """Return the rows of the graph of tokens per second, and those with the other figures of
        the engine. If its metrics cannot be read, the second list has the reason instead; if no
        server is selected, both are empty."""
        view = state.engine
        if view is None:
            return [], []
        if view.problem is not None:
            return [], self._problem_rows(view, width)
        graph = self._graph_cache.make_graph(
            view.title,
            lambda part, rows: self._make_graph(
                _FIRST[0], view, part, short=True, earlier_rows=rows
            ),
            window,
            self._each,
            _FIRST[0].history_keys,
        )
        figures: list[Run] = [(f"{view.title}  ", "title")]
        for metric in (*_FIRST[1:], *self._reported_second_line_metrics(view)):
            text, role = self._value_and_role(metric, view, window)
            if row_width(figures) + len(metric.label) + len(text) + 3 > width:
                break
            figures += [(f"{metric.label} ", "dim"), (text, role), ("   ", "dim")]
        drawn = columns.draw_graphs_side_by_side(
            [graph], self._each, _engine_name_texts(view, columns), window.cursor_column
        )
        return drawn, [tuple(figures)]

    @staticmethod
    def _problem_rows(view: EngineView, width: int) -> list[Row]:
        text = f"{view.title}: {view.problem}"
        return [((f"{G.alert} ", "warn"), (cut_text(text, width - 2), "text"))]

    def count_rows(self, state: SessionState, columns: Columns, terminal_rows: int) -> int:
        """Return how many rows the engine's graphs need: 0 if no server is selected, and 1 if the
        engine's metrics cannot be read."""
        if state.engine is None:
            return 0
        self._lines, self._each = _count_graph_lines_and_rows_each(columns, terminal_rows)
        if state.engine.problem is not None:
            return 1
        return self._lines * self._each

    def rows(self, state: SessionState, window: Window, columns: Columns, width: int) -> list[Row]:
        """Return the rows with the engine's graphs and, as text, the present values. While there is
        a time cursor, the texts are the values at the cursor."""
        view = state.engine
        if view is None:
            return []
        if view.problem is not None:
            return self._problem_rows(view, width)
        rows: list[Row] = []
        for number, line in enumerate(
            (_FIRST, self._reported_second_line_metrics(view))[: self._lines]
        ):
            short = self._each == 1
            graphs = [
                self._make_graph(m, view, window, short=short) for m in line[: columns.graph_count]
            ]
            lead: Sequence[Run] = ()
            if number == 0:
                lead = _engine_name_texts(view, columns)
            if columns.after[0] and graphs:
                text = graphs[0].label  # it begins in front of its column
                if not number and columns.lead >= 20:
                    text = f"{cut_text(view.title, columns.lead - 7)} {text}"
                text = text.ljust(columns.lead)
                graphs[0] = replace(graphs[0], label=text[columns.lead :])
                lead = ((text[: columns.lead], "dim"),)
            rows += columns.draw_graphs_side_by_side(graphs, self._each, lead, window.cursor_column)
        return rows

    def _reported_second_line_metrics(self, view: EngineView) -> Sequence[_Metric]:
        """Return those metrics for the second line of graphs that the engine reports now or has
        reported earlier."""
        return [m for m in _SECOND if all(self._was_ever_reported(view, f) for f in m.fields)]

    def _was_ever_reported(self, view: EngineView, field: str) -> bool:
        return field in view.values or (ENGINE, field) in self._history

    def _make_graph(
        self,
        metric: _Metric,
        view: EngineView,
        window: Window,
        *,
        short: bool,
        earlier_rows: Sequence[Row] = (),
    ) -> Graph:
        several = [window.metric_values(self._history, key) for key in metric.history_keys]
        cells = _sum_field_values(several)
        text, role = self._value_and_role(metric, view, window)
        label = metric.label
        if short:
            label = metric.short
        return Graph(
            label,
            text,
            cells,
            self._scale_top_so_far(metric, cells),
            value_role=role,
            per_cell=window.per_cell,
            earlier_rows=earlier_rows,
        )

    def _value_and_role(self, metric: _Metric, view: EngineView, window: Window) -> Run:
        """Return the present value of a metric as text, or the value at the time cursor, and the
        role of the text."""
        if window.cursor is not None:
            cell = (window.cursor_middle_s, window.cell_s, 1)
            values = [self._history.cell_means(key, *cell)[0] for key in metric.history_keys]
            return _value_text(metric, values), "strong"
        values = list(map(view.values.get, metric.fields))
        text = _value_text(metric, values)
        if metric.fields[-1] == "waiting" and text != NA and values[-1]:
            return text, "warn"
        return text, "text"

    def _scale_top_so_far(self, metric: _Metric, cells: Sequence[float | None]) -> float:
        """Return the upper end of the metric's scale. If `metric.top` is None, this is the highest
        value so far of the metric, rounded up so that the scale seldom changes. Otherwise it is
        fixed."""
        if metric.top is not None:
            return metric.top
        if metric.label not in self._tops:
            now_s = time.time()
            before = [
                self._history.cell_means(key, now_s, *LOOK_BACK) for key in metric.history_keys
            ]
            self._tops[metric.label] = highest_value_or_zero(_sum_field_values(before))
        self._tops[metric.label] = max(self._tops[metric.label], highest_value_or_zero(cells))
        return _round_up_scale_top(self._tops[metric.label])


def _count_graph_lines_and_rows_each(columns: Columns, terminal_rows: int) -> tuple[int, int]:
    """Return how many lines of graphs there are, and how many rows each has."""
    if not columns.after[0]:  # the value is in front of the graph
        if terminal_rows >= TALL_ROWS:
            return 2, 3
        if columns.before[0] < ONE_ROW_LABEL:
            return 1, 2
    if terminal_rows >= TWO_LINES_ROWS:
        return 2, 1
    return 1, 1


def _value_text(metric: _Metric, values: Sequence[float | None]) -> str:
    known = known_values(values)
    if len(known) < len(values):
        return NA
    return metric.text(known)


def _engine_name_texts(view: EngineView, columns: Columns) -> Sequence[Run]:
    """Return the name and the port of the engine, for the cells in front of its graphs."""
    if columns.lead < 6:
        return ()
    name, _, port = view.title.rpartition(" ")
    return (name, "title"), (port, "dim")


def _sum_field_values(values_by_field: Sequence[list[float | None]]) -> list[float | None]:
    """Return the sums of the values of several fields; None where a field has no value."""
    if len(values_by_field) == 1:
        return values_by_field[0]
    cells = zip(*values_by_field, strict=True)
    return [None if None in cell else sum(known_values(cell)) for cell in cells]


def _round_up_scale_top(value: float) -> float:
    """Return the least number of the series 5, 10, 20, 50, 100, 200, … that is not below
    `value`."""
    tens = 10.0 ** math.floor(math.log10(max(value, 5.0)))
    return next(step * tens for step in (1, 2, 5, 10) if value <= step * tens)
