"""The rows of the telemetry strip below the GPUs: what the engine of the watched server does, on the same time axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.model.timeline import ENGINE, History
from workbench.tui.cells import Row, cut
from workbench.tui.formats import NA
from workbench.tui.glyphs import G
from workbench.tui.widgets.graph import Columns, Graph
from workbench.tui.widgets.time_axis import Window

if TYPE_CHECKING:
    from workbench.model.engine_live import EngineView
    from workbench.session.state import SessionState

TALL_ROWS, TWO_LINES_ROWS = 50, 34  # rows of the terminal from which graphs are higher, or have a second line
LOOK_BACK = (10, 2880)  # length and number of the cells that the first scale is computed from: 8 hours
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of the engine. `fields` are its fields in the history, whose sum is drawn. `top` is the end of its
    scale, or None for a scale that grows with the highest value."""

    label: str
    fields: tuple[str, ...]
    text: Callable[[Sequence[float]], str]
    top: float | None = 100.0


def _tokens(values: Sequence[float]) -> str:
    """Return tokens per second in at most 5 cells."""
    value = values[0]
    return f"{value:,.0f}" if value < 9_999.5 else f"{value / 1e3:.1f}k" if value < 99_950 else f"{value / 1e3:.0f}k"


def _percent(values: Sequence[float]) -> str:
    return f"{values[0]:.0f}%"


_FIRST = (
    _Metric("tok/s", ("generation_tok_s",), _tokens, None),
    _Metric("queue", ("running", "waiting"), lambda v: f"{v[0]:.0f}+{v[1]:.0f}", None),
    _Metric("KV", ("kv_use_pct",), _percent),
)
_SECOND = (
    _Metric("prompt", ("prompt_tok_s",), _tokens, None),
    _Metric("prefix", ("prefix_hit_pct",), _percent),
    _Metric("draft", ("spec_accepted_pct",), _percent),
    _Metric("preempt", ("preemptions_s",), lambda v: f"{v[0]:.1f}/s", None),
)


class EngineRows:
    """Draws the metrics of the engine. A scale without a fixed top only grows, in steps of 1, 2 and 5."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._tops: dict[str, float] = {}

    def height(self, state: SessionState, terminal_rows: int, *, single_rows: bool) -> int:
        """Return the number of rows that the engine needs. `single_rows` says that the graphs of the GPUs have one row,
        with the value behind the graph."""
        view = state.engine
        if view is None:
            return 0
        if view.problem is not None:
            return 1
        return self._lines(terminal_rows) * self._each(terminal_rows, single_rows)

    @staticmethod
    def _lines(terminal_rows: int) -> int:
        return 2 if terminal_rows >= TWO_LINES_ROWS else 1

    @staticmethod
    def _each(terminal_rows: int, single_rows: bool) -> int:
        if single_rows:
            return 1
        return 3 if terminal_rows >= TALL_ROWS else 2 if terminal_rows < TWO_LINES_ROWS else 1

    def rows(self, state: SessionState, window: Window, columns: Columns, height: int, width: int) -> list[Row]:
        """Return `height` rows with the values of now, or of the cell under the cursor."""
        view = state.engine
        if view is None or height <= 0:
            return []
        if view.problem is not None:
            text = f"{view.title}: {view.problem}"
            return [((f"{G.alert} ", "warn"), (cut(text, width - 2), "text"))]
        lines = [_FIRST, self._second(view)] if height > 1 else [_FIRST]
        rows: list[Row] = []
        for number, line in enumerate(lines):
            each = height // len(lines)
            graphs = [self._graph(metric, view, window) for metric in line[: columns.count]]
            rows += columns.line(graphs, each, self._lead(view, columns) if not number else (), window.cursor_column)
        return rows

    @staticmethod
    def _lead(view: EngineView, columns: Columns) -> Sequence[tuple[str, str]]:
        name, _, port = view.title.rpartition(" ")
        if columns.lead < 6:
            return ()
        return ((view.title, "title"),) if columns.lead >= 20 else ((name, "title"), (port, "dim"))

    def _second(self, view: EngineView) -> Sequence[_Metric]:
        """Return the metrics of the second line: those that the engine reports or has reported."""
        return [m for m in _SECOND if all(f in view.values or (ENGINE, f) in self._history for f in m.fields)]

    def _graph(self, metric: _Metric, view: EngineView, window: Window) -> Graph:
        cells = self._cells(metric, window.end_s, window.cell_s, window.count)
        at = window.cursor_column
        values: list[float | None] = [view.values.get(field) for field in metric.fields]
        if at is not None and window.cursor is not None:
            second = (window.cursor + 0.5) * window.cell_s
            values = [self._history.cells((ENGINE, f), second, window.cell_s, 1)[0] for f in metric.fields]
        known = [value for value in values if value is not None]
        text = metric.text(known) if len(known) == len(values) else NA
        waiting = metric.label == "queue" and len(known) == 2 and known[1] > 0
        role = "strong" if at is not None else "warn" if waiting else "text"
        return Graph(metric.label, text, cells, self._top(metric, cells), role="engine", value_role=role)

    def _cells(self, metric: _Metric, end_s: float, cell_s: int, count: int) -> list[float | None]:
        several = [self._history.cells((ENGINE, field), end_s, cell_s, count) for field in metric.fields]
        if len(several) == 1:
            return several[0]
        return [None if None in cell else sum(v for v in cell if v is not None) for cell in zip(*several, strict=True)]

    def _top(self, metric: _Metric, cells: Sequence[float | None]) -> float:
        """Return the end of the scale. It only grows, so that the drawn past changes as rarely as possible."""
        if metric.top is not None:
            return metric.top
        label = metric.label
        if label not in self._tops:
            import time

            before = self._cells(metric, time.time(), *LOOK_BACK)
            self._tops[label] = max((v for v in before if v is not None), default=0.0)
        highest = max((v for v in cells if v is not None), default=0.0)
        if highest > self._tops[label]:
            self._tops[label] = highest
        return _round_up(self._tops[label])


def _round_up(value: float) -> float:
    """Return the next number of the series 4, 10, 20, 50, 100, 200, … that is not below `value`."""
    top = 10.0
    if value <= 4:
        return 4.0
    while top < value:
        top *= 2.5 if str(top).startswith("2") else 2.0
    return top
