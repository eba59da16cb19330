"""Pane 4, Bench: the history of results, the newest first. Each has its change from the result
before it and from the baseline A, and a bar. An experiment or a sweep is one row. Below them is the
highest tok/s that the memory bandwidth of the GPUs allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual.message import Message

from workbench.model.lazy_dataclass import dataclass
from workbench.model.server_run import ServerState
from workbench.session.bench.row_changes import row_compared_in_label
from workbench.session.state import SessionState
from workbench.tui.bindings import Key, copy_keys_for_view, make_textual_bindings, open_result_plot
from workbench.tui.cells import (
    Row,
    Run,
    cut_paragraph_rows,
    cut_text,
    cut_text_middle,
    fit_row,
    pad_text,
    paragraph_rows,
    row_text,
    width_of,
    wrap_text,
)
from workbench.tui.formats import (
    NA,
    bar_text,
    enclose_nonempty_text,
    gauge_text,
    number_text,
    short_preset_name,
    throughput_change_and_role,
)
from workbench.tui.glyphs import G
from workbench.tui.panes.base import Pane
from workbench.tui.panes.result_groups import SeriesRow, group_results, series_row
from workbench.tui.widgets.graph import highest_value_or_zero
from workbench.tui.widgets.pick_list import PickList

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow
    from workbench.session.session import Session
    from workbench.tui.controllers import Controllers

PLOT_FROM = (110, 12)  # columns and rows from which the plot is beside the table
TABLE_BESIDE_PLOT = 64
_TITLE = re.compile(r"\S+(?: \S+)*")  # of a column, such as "ITL ms"
_SHOWN_DOUBT_MS = 0.5  # a TTFT is shown in whole milliseconds
MAX_FINDINGS = 3  # findings below the table, at most; the table keeps half of the rows
MOST_ADVICE = 6  # rows of them, where the table leaves rows blank
_TWO_LINES_FROM = 10  # rows of the pane from which a reason may take two


# word at the beginning of a column's head -> the value of a result in it, and whether the highest
# comes first
ORDERS: Mapping[str, tuple[Callable[[BenchRow], Any], bool]] = {
    "#": (lambda row: row.id, True),
    "change": (lambda row: row.label, False),
    "tok/s": (lambda row: row.output_tok_s, True),
    "TTFT": (lambda row: row.ttft_p50_ms, False),
    "ITL": (lambda row: row.itl_mean_ms, False),
    "W": (lambda row: row.power_w, False),
    "tok/J": (lambda row: row.tok_per_joule, True),
}
NEWEST_FIRST = ("#", True)
FIRST_OF_ORDER = {True: "highest", False: "lowest"}
BENCHMARK_KEY_TEXTS = {
    ServerState.READY: "Press b to run a quick benchmark.",
    ServerState.STARTING: "Press b to benchmark the server when it is READY.",
}
BEFORE, BASELINE = "vs prev", "vs A"
_NUMBER_CELLS = 6  # of the mark and the number
_LEAST_LABEL = 17  # "power limit 170 W", "enforce-eager=off"
_LEAST_BAR, _LONGEST_BAR = 5, 24
_BOTH_FROM = 11  # cells of a column of p50 and p90
_LOOKED_AT = 60  # results whose labels say how long a label is
_WIDER = 14  # cells left over from which the columns have their wide forms


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list. `importance` is its place among those that are shown if there is little
    room, and `text` returns the value of a result in so many cells."""

    head: str
    cells: int
    importance: int
    text: Callable[[BenchRow, int], str]
    wide_head: str = ""
    wide_cells: int = 0  # 0: as in a narrow list

    @property
    def is_baseline_column(self) -> bool:
        return self.head == BASELINE

    def wide_variant(self) -> Column:
        """Return the column for a wide list."""
        if not self.wide_cells:
            return self
        return replace(self, head=self.wide_head, cells=self.wide_cells)


def _empty_change_text(item: BenchRow, cells: int) -> str:
    """Return "": a change needs the other results too."""
    return ""


def ttft_text(item: BenchRow, width: int) -> str:
    """Return the TTFT in fewer than `width` cells: p50, or p50 and p90 as "77/83" in a wide list,
    and behind it how far it may be wrong if that is half a millisecond or more: "77/83 ±0.6"."""
    p50, p90 = item.ttft_p50_ms, item.ttft_p90_ms
    if p50 is None and p90 is None:
        return NA
    brief = number_text(p50, 0).replace(",", "")
    if width < _BOTH_FROM:
        return brief
    both = f"{brief}/{number_text(p90, 0)}".replace(",", "")
    forms = [both, brief]
    if item.ttft_unsure_ms >= _SHOWN_DOUBT_MS:
        forms.insert(0, f"{both} {G.plus_minus}{item.ttft_unsure_ms:.1f}")
    return next((form for form in forms if len(form) < width), brief)


COLUMNS = (
    Column("tok/s", 8, 1, lambda row, _: number_text(row.output_tok_s)),
    Column(BEFORE, 8, 2, _empty_change_text),
    Column(BASELINE, 8, 3, _empty_change_text),
    Column("TTFT50 ms", 10, 4, ttft_text, "TTFT50/90 ms", 13),
    Column("ITL ms", 7, 5, lambda row, _: number_text(row.itl_mean_ms, 1)),
    Column("W", 6, 7, lambda row, _: number_text(row.power_w, 0)),
    Column("tok/J", 7, 6, lambda row, _: number_text(row.tok_per_joule)),
)


def _newest_result_id(state: SessionState) -> int:
    """Return the number of the newest listed result; 0 if none is listed."""
    return max((row.id for row in state.results), default=0)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How a row of the list is divided: its columns, and the cells of the label and of the bar."""

    columns: tuple[Column, ...]
    label_cells: int
    bar_cells: int


def _fitting_columns(width: int, with_baseline: bool) -> tuple[Column, ...]:
    """Return the columns that fit beside a label, in their order on the screen. Those that matter
    most come first if there is no room for all."""
    chosen: list[Column] = []
    room = width - _NUMBER_CELLS - _LEAST_LABEL
    for column in sorted(COLUMNS, key=lambda each: each.importance):
        if column.is_baseline_column and not with_baseline:
            continue
        if column.cells > room and chosen:
            break
        chosen.append(column)
        room -= column.cells
    shown = [each for each in COLUMNS if each in chosen]
    if room >= _WIDER:
        return tuple(map(Column.wide_variant, shown))
    return tuple(shown)


def _bar_width_cells(available_cells: int, longest_label: int) -> int:
    """Return the cells of the bars beside labels in so much room; 0 if they would be too short to
    read."""
    label = min(longest_label, max(_LEAST_LABEL, available_cells // 2))
    left = min(_LONGEST_BAR, available_cells - 1 - label)
    if left < _LEAST_BAR:
        return 0
    return left


class Results(Pane, PickList):
    NAME, TITLE, AREA = "results", "Bench", "bottom"
    FIELDS = frozenset(
        {
            "results",
            "results_read",
            "bench",
            "results_search",
            "mark_a",
            "mark_b",
            "servers",
            "run_id",
        }
    )
    KEYS = copy_keys_for_view(
        "results",
        Key(
            "enter",
            "detail",
            "show the result with its conditions, or the runs of an experiment or a sweep",
            lambda c: c.results.open_result_or_toggle_runs(),
        ),
        Key(
            "i",
            "advice",
            "show what limits the result, and which change would help",
            lambda c: c.advice.open_advice_on_selected_result(),
        ),
        Key(
            "a",
            "mark A",
            "mark the result as A",
            lambda c: c.results.toggle_mark_of_selected_result("A"),
        ),
        Key(
            "B",
            "mark B",
            "mark the result as B",
            lambda c: c.results.toggle_mark_of_selected_result("B"),
        ),
        Key(
            "d", "delete", "delete the result", lambda c: c.results.ask_to_delete_selected_result()
        ),
        Key(
            "e",
            "export",
            "write the result as JSON, CSV or Markdown",
            lambda c: c.results.export_selected_result(),
        ),
        Key("t", "plot", "plot the results", open_result_plot),
        Key(
            "f",
            "filter",
            "show only results with these words: flags, notes, tags, dates",
            lambda c: c.search.open_result_search(),
        ),
        Key(
            "o",
            "order",
            "sort the results by the next column",
            lambda c: c.pane_of_type(Results).sort_by_next_column(),
        ),
        Key(
            "n",
            "note",
            "edit the note and the tags of the result",
            lambda c: c.results.edit_note_and_tags(),
        ),
    )
    HINTS = ("enter", "a", "B", "n", "f")
    SEARCH = "words of results, notes, tags"
    SEARCH_HINT = "enter done  esc all results"
    BINDINGS = make_textual_bindings(KEYS)

    class OlderWanted(Message):
        """The message that the pane sends to the screen when the cursor is on the last result of
        the list, and older results are stored."""

    class Selected(Message):
        """The message that the pane sends to the screen when the cursor has come to another
        result."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._plotted: tuple[object, ...] = ()
        self._plot: list[Row] = []
        self._opened: set[str] = set()  # names of the series whose runs are listed
        self._shaped: tuple[object, ...] = ()  # for which the rows were divided last
        self._row_layout_cache = RowLayout((), 0, 0)
        self._top_tok_s = 0.0  # of the valid results: the longest bar
        self._before: Mapping[int, BenchRow | None] = {}  # by result, the one before it
        self.order = NEWEST_FIRST  # column, and whether its highest value comes first

    @property
    def shows_only_sentence(self) -> bool:
        state = self.session.state
        return not (state.results or state.results_search or state.bench.error)

    @property
    def filter_text(self) -> str:
        """Return the words that filter the list; "" if the list is not filtered."""
        return self.session.state.results_search

    @property
    def title_detail(self) -> str:
        shown = enclose_nonempty_text("/", self.filter_text) or self.tab_badge
        if self.order == NEWEST_FIRST:
            return shown
        column, is_highest = self.order
        return f"{shown}  by {column}, {FIRST_OF_ORDER[is_highest]} first".lstrip()

    @property
    def tab_badge(self) -> str:
        # 0 in the first frame, which does not wait for the results
        shown = len(self.session.state.results)
        if not shown:
            return ""
        if self.session.results.has_older:
            return f"{shown}+"
        return str(shown)

    # search
    def apply_search(self, text: str, controllers: Controllers) -> None:
        self.lit = True
        self._filter_results(text, controllers)

    def end_search(self, controllers: Controllers) -> None:
        self.lit = False
        self._filter_results("", controllers)

    async def submit_search(self, text: str, controllers: Controllers) -> None:
        """Move the focus from the search input to the list. The list stays filtered until the user
        presses escape."""
        self.lit = False
        self.screen.set_focus(self)

    def _filter_results(self, text: str, controllers: Controllers) -> None:
        if text != self.filter_text:
            controllers.services.run_in_background(
                lambda: self.session.results.show_matching_results(text), exclusive_group="search"
            )

    def show(self, state: SessionState) -> None:
        new = _newest_result_id(state) > _newest_result_id(self.state)
        self.state = state
        self._update_compared_results(state)
        self.set_items(self._list_items(state), keep_cursor=not new)
        if new:
            self.post_message(self.Selected())

    def _update_compared_results(self, state: SessionState) -> None:
        """Find again what the rows are compared with: the result before each, and the fastest
        one."""
        valid = (row.output_tok_s for row in state.results if not row.refused)
        self._top_tok_s = highest_value_or_zero(valid)
        self._before = {row.id: row_compared_in_label(row, state.results) for row in state.results}

    def _list_items(self, state: SessionState) -> Sequence[BenchRow | SeriesRow]:
        """Return the items of the list. In another order than by number, each run has its own place
        in it, so that no series is shown."""
        rows = self._sort_results(state)
        if self.order != NEWEST_FIRST:
            return rows
        return group_results(rows, self._opened)

    def toggle_series_runs(self, item: SeriesRow) -> None:
        """List the runs of an experiment or a sweep below its row, or list them no longer."""
        self._opened ^= {item.name}
        self.set_items(self._list_items(self.state))

    # the order
    def _sort_results(self, state: SessionState) -> list[BenchRow]:
        """Return the results in the chosen order. Results without a value in the column of that
        order come last."""
        column, highest = self.order
        value = ORDERS[column][0]
        known, absent = [], []
        for row in state.results:
            if value(row) is None:
                absent.append(row)
            else:
                known.append(row)
        known.sort(key=lambda row: (value(row), row.id), reverse=highest)
        return [*known, *absent]

    def sort_by_column(self, column: str) -> None:
        """Sort the results by a column. A second call with the same column reverses the order."""
        before, highest = self.order
        if column == before:
            self.order = (column, not highest)
        else:
            self.order = (column, ORDERS[column][1])
        self.set_items(self._list_items(self.state))
        self.post_message(self.TitleChanged())

    def sort_by_next_column(self) -> None:
        columns = list(ORDERS)
        self.sort_by_column(columns[(columns.index(self.order[0]) + 1) % len(columns)])

    def handle_head_click(self, cell: int) -> None:
        """Sort by the column whose title the user clicked at the cell `cell` of the row. Titles are
        aligned right, so the blanks left of a title belong to its column."""
        text = self.drawn_text.splitlines()[self._head - 1]
        starts = {word: text.find(word) for word in ORDERS if word in text}
        if "change" in starts and starts["change"] <= cell < starts.get("tok/s", cell + 1) - 3:
            self.sort_by_column("change")
            return
        words = sorted(starts, key=starts.__getitem__)
        ends = [*(starts[word] for word in words[1:]), len(text)]
        for word, end in zip(words, ends, strict=True):
            title = _TITLE.match(text, starts[word], end)
            if title is not None and cell < title.end():
                self.sort_by_column(word)
                return

    def action_move(self, by: int) -> None:
        before = self.cursor
        super().action_move(by)
        if self.cursor != before:
            self.post_message(self.Selected())
        if by > 0 and self.cursor == len(self.items) - 1 and self.session.results.has_older:
            self.post_message(self.OlderWanted())

    def set_items(self, items: Sequence[Any], *, keep_cursor: bool = True) -> None:
        self._shaped = ()
        super().set_items(items, keep_cursor=keep_cursor)

    @property
    def result_under_cursor(self) -> BenchRow | None:
        """Return the result under the cursor; None if the list is empty, or if the cursor is on an
        experiment or a sweep."""
        item = self.current_item
        if isinstance(item, SeriesRow):
            return None
        return item

    def item_key(self, item: Any) -> Hashable:
        if isinstance(item, SeriesRow):
            return item.name
        return int(item.id)

    def rows(self, width: int, height: int) -> Sequence[Row]:
        results = self.state.results
        if width < PLOT_FROM[0] or height < PLOT_FROM[1] or not results:
            return super().rows(width, height)
        from workbench.tui.widgets.plot import BARS_UP_TO

        if len(results) <= BARS_UP_TO:
            return super().rows(width, height)
        table = [*super().rows(TABLE_BESIDE_PLOT, height), *[()] * height]
        plot = self._draw_plot_beside_table(width - TABLE_BESIDE_PLOT - 3, height)
        both = zip(table[:height], [*plot, *[()] * height], strict=False)
        return [(*fit_row(a, TABLE_BESIDE_PLOT), ("   ", "text"), *b) for a, b in both]

    def _draw_plot_beside_table(self, width: int, height: int) -> list[Row]:
        """Return the rows of the plot beside the table. Draw the plot again only if the results,
        the marks A and B, or the size has changed."""
        marks = (self.state.mark_a, self.state.mark_b)
        results = self.state.results
        key = (tuple((r.id, r.output_tok_s) for r in results), marks, width, height)
        if key != self._plotted:
            from workbench.tui.widgets.plot import plot_rows

            self._plotted, self._plot = key, plot_rows(results, width, height, *marks)
        return self._plot

    def rows_above_items(self, width: int) -> list[Row]:
        rows = self._error_rows(width)
        if self.items:
            shape = self._row_layout(width)
            first, *rest = (
                pad_text(each.head, each.cells, align_right=True) for each in shape.columns
            )
            heads = first + " " * shape.bar_cells + "".join(rest)
            label = pad_text("change", shape.label_cells)
            rows.append(((f"{'':<2}{'#':>3} {label}{heads}", "head"),))
        return rows

    def _row_layout(self, width: int) -> RowLayout:
        """Return how the rows are divided. It is found once for all rows of the list."""
        baseline = self._baseline_result()
        key = (width, baseline.id if baseline is not None else None)
        if key != self._shaped:
            results = [item for item in self.items if not isinstance(item, SeriesRow)][:_LOOKED_AT]
            longest = max(map(len, map(self._label_text, results)), default=0)
            columns = _fitting_columns(width, baseline is not None)
            taken = sum(each.cells for each in columns)
            bar_cells = _bar_width_cells(width - _NUMBER_CELLS - taken, longest)
            label_cells = max(6, width - _NUMBER_CELLS - taken - bar_cells)
            self._shaped, self._row_layout_cache = key, RowLayout(columns, label_cells, bar_cells)
        return self._row_layout_cache

    def _baseline_result(self) -> BenchRow | None:
        """Return the result that is marked as A; None if none is, or if it is not listed."""
        return self.state.find_result(self.state.mark_a)

    def item_row(self, item: BenchRow | SeriesRow, width: int) -> Row:
        if isinstance(item, SeriesRow):
            return series_row(item, width)
        marks = {self.state.mark_b: ("B", "b"), self.state.mark_a: ("A", "a")}
        mark, role = marks.get(item.id, ("", "text"))
        bar_role = role
        if not mark:
            bar_role = "spark"
        head, label = f"{mark:<2}{item.id:>3} ", self._label_text(item)
        if item.refused:
            return self._rejected_row(item, head, label, width)
        shape = self._row_layout(width)
        if item.requests_failed and not mark:
            role = "bad"
        named = pad_text(_shorten_label(item, label, shape.label_cells), shape.label_cells)
        runs = [(head + named, role)]
        for at, column in enumerate(shape.columns):
            text, own_role = self._value_and_role(item, column)
            runs.append((pad_text(text, column.cells, align_right=True), own_role or role))
            if at == 0 and shape.bar_cells:
                runs.append((self._bar_text(item, shape.bar_cells), bar_role))
        return tuple(runs)

    def _rejected_row(self, item: BenchRow, head: str, label: str, width: int) -> Row:
        """Return the row of a result that is not valid: `head` with its marks and number, `label`,
        and the reason in the place of the figures, which are no measurement."""
        why = f"  {item.refused[0]}"
        return ((head, "bad"), (cut_text(f"x rejected {label}{why}", width - len(head)), "bad"))

    def _bar_text(self, item: BenchRow, cells: int) -> str:
        """Return a bar of tok/s from 0, so that its length is in proportion."""
        return f" {bar_text(item.output_tok_s, self._top_tok_s, cells - 1)}".ljust(cells)

    def _value_and_role(self, item: BenchRow, column: Column) -> Run:
        """Return the text of a result in a column, and its role; "" is the role of the row."""
        if column.is_baseline_column:
            return short_throughput_change_and_role(item, self._baseline_result(), column.cells)
        if column.head == BEFORE:
            return short_throughput_change_and_role(item, self._before.get(item.id), column.cells)
        return column.text(item, column.cells), ""

    def _label_text(self, item: BenchRow) -> str:
        label = f"{item.model} c{item.concurrency}"
        if item.label:
            label = short_preset_name(item.label, item.engine)
        if item.simulated and not self.state.simulated:
            label = f"SIM {label}"
        # the label names the experiment
        tags = [tag for tag in item.tags if not tag.startswith("experiment ")]
        if tags:
            label += " " + " ".join(f"#{tag}" for tag in tags)
        if item.requests_failed and not item.refused:
            sent = item.requests_ok + item.requests_failed
            label = f"{item.requests_failed}/{sent} failed {label}"
        return label

    def _error_rows(self, width: int) -> list[Row]:
        error = self.state.bench.error
        if not error:
            return []
        return cut_paragraph_rows(f"x {error}", width, 2, "bad")

    def rows_below_items(self, width: int, height: int) -> list[Row]:
        rows = [
            *self._missing_ttft_or_power_rows(width, height),
            *self._memory_bandwidth_limit_rows(width),
        ]
        taken = len(self.items) + 1 + len(rows)  # with the head of the table
        most = max(min(MAX_FINDINGS, (height - 4) // 2), min(MOST_ADVICE, height - taken))
        return [*rows, *self._advice_rows(width, most)]

    def _advice_rows(self, width: int, max_rows: int) -> list[Row]:
        """Return at most `max_rows` rows with the most important findings of the advice on a
        result. The result is the newest one that has advice."""
        newest = next((row for row in self.state.results if row.advice), None)
        if newest is None or max_rows < 1:
            return []
        findings = newest.advice[: min(MAX_FINDINGS, max_rows)]
        label = f"i advice #{newest.id} "
        rows: list[Row] = []
        for number, finding in enumerate(findings):
            gain = enclose_nonempty_text("", finding.expected_gain, ": ")
            lines = paragraph_rows(f"{gain}{finding.text}", max(8, width - len(label)))
            room = (
                max_rows - len(rows) - (len(findings) - number - 1)
            )  # a row for each that follows
            if len(lines) > room:
                rest = " ".join(map(row_text, lines[room - 1 :]))
                lines = [*lines[: room - 1], _cut_to_row(rest, width - len(label), "i")]
            first = row_text(lines[0])
            if gain and first.startswith(gain):
                lines[0] = ((gain, "good"), (first.removeprefix(gain), "text"))
            for line in lines:
                rows.append(((label, "dim"), *line))
                label = " " * len(label)
        return rows

    def _missing_ttft_or_power_rows(self, width: int, height: int) -> list[Row]:
        """Return rows that say why the result under the cursor has no TTFT, or no power; [] if it
        has both."""
        item = self.result_under_cursor
        if item is None:
            return []
        texts = []
        if item.ttft_absent:
            texts.append(f"TTFT withheld (#{item.id}): {item.ttft_absent}")
        if item.power_absent and item.power_w is None and not item.refused:
            texts.append(f"no W and tok/J (#{item.id}): {item.power_absent}")
        rows: list[Row] = []
        most = 2 if height >= _TWO_LINES_FROM else 1
        for text in texts:
            lines = wrap_text(text, width, "  ")
            whole, rest = lines[:most], lines[most:]
            last = " ".join([whole.pop(), *map(str.strip, rest)])
            rows += [((line, "warn"),) for line in whole]
            rows.append(_cut_to_row(last, width, "enter", "warn"))
        return rows

    def _memory_bandwidth_limit_rows(self, width: int) -> list[Row]:
        ceiling = next((row.ceiling for row in self.state.results if row.ceiling), None)
        if ceiling is None:
            return []
        whose = f"for {ceiling.streams} streams together"
        if ceiling.streams == 1:
            whose = "per stream"
        about = f"(#{ceiling.result_id}, {ceiling.basis})"
        limit = f"{number_text(ceiling.tok_s)} tok/s {whose} {about}"
        if ceiling.measured_tok_s is None:
            return [((f"limit {limit}: no speed measured", "dim"),)]
        fraction, role = 0.0, "text"
        if ceiling.tok_s:
            fraction = ceiling.measured_tok_s / ceiling.tok_s
        if fraction > 1.0:
            role = "bad"
        text = f" {fraction * 100:.0f} % of {limit}"
        cells = max(12, min(30, width - 6 - len(text)))
        values = cut_text(text, width - 6 - cells)
        return [(("limit ", "dim"), (gauge_text(fraction, cells), "good"), (values, role))]

    def rows_without_items(self, width: int) -> list[Row]:
        return paragraph_rows(self._empty_pane_text(), width, "dim")

    def _empty_pane_text(self) -> str:
        state, server = self.state, self.state.server
        if self.filter_text:
            return f"No result contains “{self.filter_text}”. Press esc to see all."
        if not state.results_read:
            return "The stored results are not read yet."
        if state.bench.is_running_or_queued:
            return "No results yet. The first one appears here when its benchmark ends."
        key = "Press s to start the server, then b to benchmark it."
        if server is not None:
            key = BENCHMARK_KEY_TEXTS.get(server.state, key)
        return f"No results yet. {key}"


def _shorten_label(item: BenchRow, label: str, max_cells: int) -> str:
    """Return the label for `max_cells` cells. If it has no room, a change is cut in its middle, and
    of several changes it names the first one and how many more there are: "enforce-eager… +1"."""
    if width_of(label) < max_cells or not item.changes:
        return label
    if len(item.changes) == 1:  # its end has the value
        return cut_text_middle(label, max_cells - 1)
    more = f" +{len(item.changes) - 1}"
    return cut_text(item.changes[0], max_cells - 1 - len(more)) + more


def _cut_to_row(text: str, width: int, more_key: str, text_role: str = "text") -> Row:
    """Return `text` in one row, which ends with the key that shows all of it if a part is
    missing."""
    if width_of(text) <= width:
        return ((text, text_role),)
    tail = f" {more_key}: all"
    return ((cut_text(text, width - len(tail)), text_role), (tail, "dim"))


def short_throughput_change_and_role(item: BenchRow, base: BenchRow | None, cells: int) -> Run:
    """Return the change of a result from another one as a text without a blank, and its role. If
    the change may be chance, the text says by how much: "+1.9%±3", or "+2%±12" where cells are
    few."""
    text, role = throughput_change_and_role(item, base)
    text = text.replace(" ", "")
    percent, sign, chance = text.partition(f"%{G.plus_minus}")
    if sign and len(text) >= cells:  # a blank is between two columns
        text = f"{float(percent):+.0f}{sign}{chance}"
    return text, role
