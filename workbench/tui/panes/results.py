"""Pane 4, Bench: the results with the newest first, and the highest tok/s that the memory bandwidth
of the GPUs allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from textual.message import Message

from workbench.model.server_run import ServerState
from workbench.session.state import SessionState
from workbench.tui.bindings import Key, bindings_for, keys_of, plot_results
from workbench.tui.cells import Row, cut, fit, pad, paragraph
from workbench.tui.formats import NA, figure, gauge, preset_name
from workbench.tui.glyphs import G
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.pick_list import PickList
from workbench.tui.widgets.plot import plot_rows

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow
    from workbench.session.session import Session
    from workbench.tui.controllers import Controllers

PLOT_FROM = (110, 12)  # columns and rows from which the plot is beside the table
TABLE_BESIDE_PLOT = 64
_TITLE = re.compile(r"\S+(?: \S+)*")  # of a column, such as "ITL ms"
_SHOWN_DOUBT_MS = 0.5  # a TTFT is shown in whole milliseconds
ADVICE = 3  # findings below the table, at most; the table keeps half of the rows


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


def _newest_id(state: SessionState) -> int:
    return max((row.id for row in state.results), default=0)


class Results(Pane, PickList):
    NAME, TITLE, AREA = "results", "Bench", "bottom"
    FIELDS = frozenset(
        {"results", "bench", "results_search", "mark_a", "mark_b", "servers", "run_id"}
    )
    KEYS = keys_of(
        "results",
        Key("enter", "detail", "show the result with its conditions", lambda c: c.results.show()),
        Key(
            "i",
            "advice",
            "show what limits the result, and which change would help",
            lambda c: c.advice.show(),
        ),
        Key("a", "mark A", "mark the result as A", lambda c: c.results.mark("A")),
        Key("B", "mark B", "mark the result as B", lambda c: c.results.mark("B")),
        Key("d", "delete", "delete the result", lambda c: c.results.delete()),
        Key(
            "e", "export", "write the result as JSON, CSV or Markdown", lambda c: c.results.export()
        ),
        Key("t", "plot", "plot the results", plot_results),
        Key(
            "f",
            "filter",
            "show only results with these words: flags, notes, tags, dates",
            lambda c: c.search.results(),
        ),
        Key(
            "o",
            "order",
            "sort the results by the next column",
            lambda c: c.pane(Results).sort_by_next(),
        ),
        Key("n", "note", "edit the note and the tags of the result", lambda c: c.results.note()),
    )
    HINTS = ("enter", "a", "B", "n", "f")
    SEARCH = "words of results, notes, tags"
    BINDINGS = bindings_for(KEYS)

    class OlderWanted(Message):
        """The message that the pane sends to the screen when the cursor is on the last result of
        the list, and older results are stored."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._plotted: tuple[object, ...] = ()
        self._plot: list[Row] = []
        self.order = NEWEST_FIRST  # column, and whether its highest value comes first

    @property
    def search(self) -> str:
        """Return the words that filter the list; "" if the list is not filtered."""
        return self.session.state.results_search

    @property
    def detail(self) -> str:
        column, highest = self.order
        by = f"by {column}, {'highest' if highest else 'lowest'} first"
        if self.order == NEWEST_FIRST:
            by = ""
        return "  ".join(filter(None, (f"/{self.search}" if self.search else self.badge, by)))

    @property
    def badge(self) -> str:
        # 0 in the first frame, which does not wait for the results
        shown = len(self.session.state.results)
        if not shown:
            return ""
        return f"{shown}+" if self.session.results.has_older else str(shown)

    @property
    def hint(self) -> str:
        return "enter done  esc all results" if self.lit else super().hint

    # search
    def search_changed(self, text: str, controllers: Controllers) -> None:
        self.lit = True
        self._find(text, controllers)

    def search_closed(self, controllers: Controllers) -> None:
        self.lit = False
        self._find("", controllers)

    async def search_entered(self, text: str, controllers: Controllers) -> None:
        """Move the focus from the search input to the list. The list stays filtered until the user
        presses escape."""
        self.lit = False
        self.screen.set_focus(self)

    def _find(self, text: str, controllers: Controllers) -> None:
        if text != self.search:
            controllers.services.attempt(lambda: self.session.results.find(text), only="search")

    def show(self, state: SessionState) -> None:
        new = self.state is not None and _newest_id(state) > _newest_id(self.state)
        self.state = state
        self.set_items(self._sorted(state), keep=not new)

    # the order
    def _sorted(self, state: SessionState) -> list[BenchRow]:
        """Return the results in the chosen order. Results without a value in the column of that
        order come last."""
        column, highest = self.order
        value = ORDERS[column][0]
        known = [row for row in state.results if value(row) is not None]
        absent = [row for row in state.results if value(row) is None]
        return [*sorted(known, key=lambda row: (value(row), row.id), reverse=highest), *absent]

    def sort_by(self, column: str) -> None:
        """Sort the results by a column. A second call with the same column reverses the order."""
        again = column == self.order[0]
        self.order = (column, not self.order[1] if again else ORDERS[column][1])
        if self.state is not None:
            self.set_items(self._sorted(self.state))
        self.post_message(self.TitleChanged())

    def sort_by_next(self) -> None:
        columns = list(ORDERS)
        self.sort_by(columns[(columns.index(self.order[0]) + 1) % len(columns)])

    def head_clicked(self, x: int) -> None:
        """Sort by the column whose title the user clicked at the cell `x` of the row. Titles are
        aligned right, so the blanks left of a title belong to its column."""
        text = self.drawn_text.splitlines()[self._head - 1]
        starts = {word: text.find(word) for word in ORDERS if word in text}
        if "change" in starts and starts["change"] <= x < starts.get("tok/s", x + 1) - 3:
            self.sort_by("change")
            return
        words = sorted(starts, key=lambda word: starts[word])
        for word, following in zip(words, [*words[1:], None], strict=True):
            until = len(text) if following is None else starts[following]
            title = _TITLE.match(text, starts[word], until)
            if title is not None and x < title.end():
                self.sort_by(word)
                return

    def action_move(self, by: int) -> None:
        super().action_move(by)
        if by > 0 and self.cursor == len(self.items) - 1 and self.session.results.has_older:
            self.post_message(self.OlderWanted())

    def key_of(self, item: Any) -> Hashable:
        return int(item.id)

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if width < PLOT_FROM[0] or height < PLOT_FROM[1] or len(self.items) < 2:
            return super().rows(width, height)
        table = list(super().rows(TABLE_BESIDE_PLOT, height))
        plot = self._plot_beside(width - TABLE_BESIDE_PLOT - 3, height)
        rows = [*table, *[()] * (height - len(table))]
        return [
            (*fit(row, TABLE_BESIDE_PLOT), ("   ", "text"), *(plot[n] if n < len(plot) else ()))
            for n, row in enumerate(rows)
        ]

    def _plot_beside(self, width: int, height: int) -> list[Row]:
        """Return the rows of the plot beside the table. Draw the plot again only if the results,
        the marks A and B, or the size has changed."""
        marks = (self.state.mark_a, self.state.mark_b) if self.state else (None, None)
        key = (tuple((r.id, r.output_tok_s) for r in self.items), marks, width, height)
        if key != self._plotted:
            self._plotted, self._plot = key, plot_rows(self.items, width, height, *marks)
        return self._plot

    def head_rows(self, width: int) -> list[Row]:
        rows = self._error(width)
        if self.items:
            heads = (
                "tok/s",
                "TTFT50/90 ms" if width >= 64 else "TTFT50/90",
                "ITL ms",
                "W",
                "tok/J",
            )
            rows.append(((self._columns(width, "", "#", "change", *heads), "head"),))
        return rows

    def _columns(self, width: int, mark: str, number: str, label: str, *values: str) -> str:
        sizes = [8, 13, 7, 6, 7]
        if width < 50:
            sizes, values = sizes[:3], values[:3]
        elif width < 64:
            sizes, values = [7, 10, 7, 5], values[:4]
        tail = "".join(pad(f, s, right=True) for f, s in zip(values, sizes, strict=True))
        return f"{mark:<2}{number:>3} {pad(label, max(6, width - 6 - sum(sizes)))}{tail}"

    def item_row(self, item: BenchRow, width: int) -> Row:
        state = self.state
        mark = ""
        if state and item.id == state.mark_a:
            mark = "A"
        elif state and item.id == state.mark_b:
            mark = "B"
        role = {"A": "a", "B": "b"}.get(mark, "text")
        label = (
            preset_name(item.label, item.engine)
            if item.label
            else (f"{item.model} c{item.concurrency}")
        )
        if item.simulated and not (state and state.simulated):
            label = f"SIM {label}"
        # the label names the experiment
        tags = [tag for tag in item.tags if not tag.startswith("experiment ")]
        if tags:
            label += " " + " ".join(f"#{tag}" for tag in tags)
        if item.refused:
            label = f"x rejected {label}"
            role = "bad" if not mark else role
        elif item.requests_failed:
            label = (
                f"{item.requests_failed}/{item.requests_ok + item.requests_failed} failed {label}"
            )
            role = "bad" if not mark else role
        ttft = ttft_text(item, 13 if width >= 64 else 10)
        values = (
            figure(item.output_tok_s),
            ttft,
            figure(item.itl_mean_ms, 1),
            figure(item.power_w, 0),
            figure(item.tok_per_joule),
        )
        return ((self._columns(width, mark, str(item.id), label, *values), role),)

    def _error(self, width: int) -> list[Row]:
        error = self.state.bench.error if self.state else None
        return paragraph(f"x {error}", width, "bad")[:2] if error else []

    def foot_rows(self, width: int, height: int) -> list[Row]:
        return [*self._no_ttft(width), *self._limit(width), *self._advice(width, height)]

    def _advice(self, width: int, height: int) -> list[Row]:
        """Return rows with the most important findings of the advice on a result, one row for each
        finding. The result is the newest one that has advice. The number of rows depends on
        `height`."""
        newest = (
            next((row for row in self.state.results if row.advice), None) if self.state else None
        )
        most = min(ADVICE, (height - 4) // 2)
        if newest is None or most < 1:
            return []
        label, rows = f"i advice #{newest.id} ", []
        for finding in newest.advice[:most]:
            gain = f"{finding.expected_gain}: " if finding.expected_gain else ""
            rows.append(fit(((label, "dim"), (gain, "good"), (finding.text, "text")), width))
            label = " " * len(label)
        return rows

    def _no_ttft(self, width: int) -> list[Row]:
        """Return a row that says why the result under the cursor has no TTFT; [] if it has one."""
        item: BenchRow | None = self.current
        if item is None or not item.ttft_absent:
            return []
        return [((cut(f"TTFT not measured (#{item.id}): {item.ttft_absent}", width), "warn"),)]

    def _limit(self, width: int) -> list[Row]:
        ceiling = (
            next((row.ceiling for row in self.state.results if row.ceiling), None)
            if self.state
            else None
        )
        if ceiling is None:
            return []
        limit = f"{figure(ceiling.tok_s)} tok/s (#{ceiling.result_id}, {ceiling.basis})"
        if ceiling.measured_tok_s is None:
            return [((f"limit {limit}: no speed measured", "dim"),)]
        share = ceiling.measured_tok_s / ceiling.tok_s if ceiling.tok_s else 0.0
        text = f" {share * 100:.0f} % of {limit}"
        cells = max(12, min(30, width - 6 - len(text)))
        values = cut(text, width - 6 - cells)
        return [
            (
                ("limit ", "dim"),
                (gauge(share, cells), "good"),
                (values, "bad" if share > 1.0 else "text"),
            )
        ]

    def empty_rows(self, width: int) -> list[Row]:
        server = self.state.server if self.state else None
        if self.search:
            return paragraph(
                f"No result contains “{self.search}”. Press esc to see all.", width, "dim"
            )
        if self.state and (self.state.bench.running or self.state.bench.queued):
            return paragraph(
                "No results yet. The first one appears here when its benchmark ends.", width, "dim"
            )
        if server is not None and server.state is ServerState.READY:
            return paragraph("No results yet. Press b to run a quick benchmark.", width, "dim")
        if server is not None and server.state is ServerState.STARTING:
            return paragraph(
                "No results yet. Press b to benchmark the server when it is READY.", width, "dim"
            )
        return paragraph(
            "No results yet. Press s to start the server, then b to benchmark it.", width, "dim"
        )


def ttft_text(item: BenchRow, width: int) -> str:
    """Return the TTFT as "77/83", in fewer than `width` cells, and behind it how far it may be wrong
    if that is half a millisecond or more: "77/83 ±0.6"."""
    p50, p90 = item.ttft_p50_ms, item.ttft_p90_ms
    if p50 is None and p90 is None:
        return NA
    text = f"{figure(p50, 0)}/{figure(p90, 0)}".replace(",", "")
    doubt = f" {G.plus_minus}{item.ttft_unsure_ms:.1f}"
    known = item.ttft_unsure_ms < _SHOWN_DOUBT_MS
    return text if known or len(text + doubt) >= width else text + doubt
