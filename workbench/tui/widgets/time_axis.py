"""The time axis of the graphs: its window, its row with the marks of events, and the time cursor,
which selects an earlier second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import Event, EventKind, History, Key
from workbench.tui.cells import Row, Run, merge_runs, row_width
from workbench.tui.formats import time_of_day_text
from workbench.tui.glyphs import G

ZOOMS = (1, 5, 15, 60, 300)  # seconds of a value that is drawn
# seconds per cell, with one or two values, each with the seconds between two labels of the axis
_LABELS_S = {
    1: 10,
    5: 60,
    15: 180,
    60: 600,
    300: 3600,
    2: 30,
    10: 120,
    30: 600,
    120: 1800,
    600: 7200,
}
DAY_S = 86_400
_BLANK: Run = (" ", "dim")
_EARLIER = 10  # cells by which a label may begin before what it is about
# the picture stands still until time has passed a twelfth of it, and moves by that much at once
_STILL = 12

# sign and role of each kind of event; of several in one cell, the one further down is drawn
MARKS: dict[EventKind, tuple[str, str]] = {
    EventKind.BENCH_END: ("]", "goodb"),
    EventKind.BENCH_BEGIN: ("[", "goodb"),
    EventKind.QUALITY_END: ("}", "goodb"),
    EventKind.QUALITY_BEGIN: ("{", "goodb"),
    EventKind.QUEUEING: ("q", "warnb"),
    EventKind.SERVER_END: ("E", "strong"),
    EventKind.SERVER_START: ("S", "strong"),
    EventKind.SERVER_READY: ("R", "goodb"),
    EventKind.PREEMPTION: ("p", "warnb"),
    EventKind.SETTING_MADE: ("g", "warnb"),
    EventKind.SETTING_TRIAL: ("t", "warnb"),
    EventKind.SETTING_REVERTED: ("r", "warnb"),
    EventKind.THROTTLE: ("!", "bad"),
    EventKind.ALERT: ("A", "bad"),
    EventKind.LINK_BACK: ("c", "goodb"),
    EventKind.LINK_LOST: ("x", "bad"),
}
# the words that a mark begins, the longest first
WORDS: dict[EventKind, tuple[str, ...]] = {
    EventKind.BENCH_BEGIN: ("[bench", "[run"),
    EventKind.QUALITY_BEGIN: ("{answers",),
    EventKind.QUEUEING: ("queue",),
    EventKind.SERVER_END: ("Ended", "End"),
    EventKind.SERVER_START: ("Start",),
    EventKind.SERVER_READY: ("Ready",),
    EventKind.PREEMPTION: ("preempted",),
    EventKind.SETTING_MADE: ("gpu set", "gpu"),
    EventKind.SETTING_TRIAL: ("trial",),
    EventKind.SETTING_REVERTED: ("reverted",),
    EventKind.THROTTLE: ("!throttled",),
    EventKind.ALERT: ("Alert",),
    EventKind.LINK_BACK: ("connected",),
    EventKind.LINK_LOST: ("x link lost",),
}
# the words in front of a mark, for less room
BEFORE: dict[EventKind, str] = {
    EventKind.SERVER_START: "start",
    EventKind.SETTING_MADE: "set",
    EventKind.SETTING_REVERTED: "reverted",
    EventKind.QUEUEING: "queue",
    EventKind.ALERT: "alert",
}
# what a mark means, for the end of the axis
MEANINGS: dict[EventKind, str] = {
    EventKind.QUEUEING: "queue",
    EventKind.SERVER_END: "ended",
    EventKind.SERVER_START: "start",
    EventKind.SERVER_READY: "ready",
    EventKind.SETTING_MADE: "set",
    EventKind.SETTING_TRIAL: "trial",
    EventKind.SETTING_REVERTED: "revert",
    EventKind.THROTTLE: "slowed",
    EventKind.ALERT: "alert",
}
_WEIGHT = {kind: number for number, kind in enumerate(MARKS)}
_MEASUREMENTS = (EventKind.BENCH_BEGIN, EventKind.QUALITY_BEGIN)
# what happens while a benchmark runs, so that its word may stand on the time of the benchmark
_DURING_LOAD = (EventKind.THROTTLE, EventKind.QUEUEING, EventKind.PREEMPTION)
# what fills the time between two kinds of events: sign, role
_SPANS = {
    (EventKind.BENCH_BEGIN, EventKind.BENCH_END): ("=", "good"),
    (EventKind.SERVER_START, EventKind.SERVER_READY): ("·", "dim"),
    (EventKind.QUALITY_BEGIN, EventKind.QUALITY_END): ("~", "good"),
    (EventKind.LINK_LOST, EventKind.LINK_BACK): ("?", "bad"),
}
TimeLabel = tuple[int, str]  # column, text
ColumnSpan = tuple[int, int, Run]  # first column, last column, what is drawn in each of them


@dataclass(frozen=True, slots=True)
class Window:
    """The time range of the graphs: `count` cells of `cell_s` seconds each. The number of a cell is
    its Unix time divided by `cell_s`. `end` is the number of the last cell of the range, and `now`
    the number of the cell for the present second. `cursor` is the number of the cell at the time
    cursor, None without a cursor. A cell of the graphs shows `per_cell` values."""

    cell_s: int
    end: int
    count: int
    now: int
    cursor: int | None = None
    per_cell: int = 1

    def metric_values(
        self, history: History, key: Key, earlier_values: int = 0
    ) -> list[float | None]:
        """Return the values of a metric that the graphs show in this window, oldest first, and
        `earlier_values` values before them."""
        value_s = self.cell_s // self.per_cell
        last_s = (self.end + 1) * self.cell_s - 0.5 * value_s
        return history.cell_means(key, last_s, value_s, earlier_values + self.count * self.per_cell)

    def drop_first_cells(self, cells: int) -> Window:
        """Return the window without its first `cells` cells."""
        count = self.count - cells
        return Window(self.cell_s, self.end, count, self.now, self.cursor, self.per_cell)

    @property
    def first_cell(self) -> int:
        return self.end - self.count + 1

    @property
    def end_s(self) -> float:
        """Return the Unix time of the middle of the last cell."""
        return (self.end + 0.5) * self.cell_s

    @property
    def cursor_middle_s(self) -> float:
        """The Unix time of the middle of the cell at the time cursor, which there must be."""
        assert self.cursor is not None
        return (self.cursor + 0.5) * self.cell_s

    @property
    def cursor_column(self) -> int | None:
        if self.cursor is None:
            return None
        return self.cursor - self.first_cell

    def column_of_time(self, unix_s: float) -> int:
        """Return the column of the cell that contains `unix_s`. The column may lie outside the
        window."""
        return int(unix_s // self.cell_s) - self.first_cell


class TimeView:
    """The part of the history that the user sees: the seconds of a value, and the time cursor, if
    any. With a cursor, the shown time range moves only to keep the cursor inside. Without a cursor,
    it follows the time. A cell shows `per_cell` values."""

    def __init__(self) -> None:
        self.value_s = ZOOMS[0]
        self.per_cell = 1
        self.cursor_s: int | None = None  # Unix second under the cursor
        self._held_s = 0  # begin of the last cell of the window

    @property
    def cell_s(self) -> int:
        """The seconds of a cell of the graphs."""
        return self.value_s * self.per_cell

    @property
    def is_live(self) -> bool:
        return self.cursor_s is None

    def window(self, now_s: float, count: int) -> Window:
        """Return the window of `count` cells to draw at the Unix time `now_s`. The window is moved
        seldom and several cells at once, because each move changes every drawn cell."""
        now = int(now_s // self.cell_s)
        if self.cursor_s is None:
            step = max(1, count // (_STILL * self.cell_s))
            end = now // step * step + step - 1
            self._held_s = end * self.cell_s
            return Window(self.cell_s, end, count, now, per_cell=self.per_cell)
        cursor = self.cursor_s // self.cell_s
        end = min(max(self._held_s // self.cell_s, cursor), cursor + count - 1)
        self._held_s = end * self.cell_s
        return Window(self.cell_s, end, count, now, cursor, self.per_cell)

    def move_cursor(self, cells: int, now_s: float) -> None:
        """Move the time cursor by `cells` cells. A negative number moves it back in time. Without a
        cursor, start at the newest cell, and remove a cursor that reaches that cell."""
        at = self.cursor_s
        if at is None:
            at = int(now_s // self.cell_s) * self.cell_s
        self.place_cursor(max(at + cells * self.cell_s, int(now_s) - DAY_S), now_s)

    def place_cursor(self, unix_s: float, now_s: float) -> None:
        """Put the time cursor on the cell that contains the Unix time `unix_s`. If that is the
        newest cell, remove the cursor."""
        cell = int(unix_s // self.cell_s)
        self.cursor_s = None
        if cell < now_s // self.cell_s:
            self.cursor_s = cell * self.cell_s

    def move_to_now(self) -> None:
        self.cursor_s = None

    def change_zoom(self, step: int) -> None:
        """Change the seconds of a value in the graphs to the next larger (`step` 1) or next smaller
        (`step` -1) of the possible numbers."""
        at = ZOOMS.index(self.value_s) + step
        self.value_s = ZOOMS[min(max(at, 0), len(ZOOMS) - 1)]


def events_in_window(
    events: Sequence[Event], window: Window, cell: int | None = None
) -> Sequence[Event]:
    """Return the events in the window, oldest first. If `cell` is not None, return only the events
    in the cell with this number."""
    first, last = window.first_cell, window.end
    if cell is not None:
        first = last = cell
    begin = bisect_left(events, float(first * window.cell_s), key=_time_of_event)
    return events[
        begin : bisect_left(events, float((last + 1) * window.cell_s), key=_time_of_event)
    ]


def axis_row(window: Window, events: Sequence[Event], is_measuring: bool = False) -> Row:
    """Return the row below the graphs, which has `window.count` cells with the times and the marks
    of the events. With `is_measuring`, a benchmark without an end event is drawn up to the
    present."""
    return _axis_row_and_unexplained_kinds(window, events, is_measuring)[0]


def _axis_row_and_unexplained_kinds(
    window: Window, events: Sequence[Event], is_measuring: bool
) -> tuple[Row, tuple[EventKind, ...]]:
    """Return the row below the graphs, and the kinds of marks in it that no word explains."""
    cells: list[Run] = [_BLANK] * window.count
    for begin, end, what in _spans_of_lasting_events(window, events, is_measuring):
        for column in range(max(0, begin), min(end + 1, window.count)):
            cells[column] = what
    drawn: dict[int, EventKind] = {}
    for event in events_in_window(events, window):
        column = window.column_of_time(event.unix_s)
        before = drawn.get(column)
        if {before, event.kind} == {EventKind.BENCH_BEGIN, EventKind.BENCH_END}:
            cells[column] = ("=", "goodb")  # a whole benchmark in one cell
        elif before is None or _WEIGHT[event.kind] > _WEIGHT[before]:
            cells[column] = MARKS[event.kind]
        drawn[column] = max(before or event.kind, event.kind, key=_WEIGHT.__getitem__)
    at, room = window.cursor_column, window.count
    if at is None:
        room -= len(" now")
    unexplained = _explain_marks_and_list_unexplained(cells, drawn, room)
    if at is not None:
        sign, _ = cells[at]
        if cells[at] == _BLANK:
            sign = G.pointer
        cells[at] = (sign, "select")
    for column, text in _time_labels(window):
        end = column + len(text)
        if 0 <= column < end <= window.count and _are_all_blank(
            cells[max(0, column - 1) : end + 1]
        ):
            cells[column:end] = [(c, "dim") for c in text]
    return merge_runs(cells), unexplained


def _are_all_blank(cells: Sequence[Run]) -> bool:
    return all(cell == _BLANK for cell in cells)


def mark_meanings_row(kinds: Sequence[EventKind], width: int) -> Row:
    """Return the meanings of as many of these kinds of marks as fit into `width` cells, the worst
    kind first, such as "(! slowed)". In brackets, a meaning is not read as what happens now."""
    row: list[Run] = []
    for kind in sorted(kinds, key=_WEIGHT.__getitem__, reverse=True):
        if kind in MEANINGS:
            words: Row = ((" (", "dim"), MARKS[kind], (f" {MEANINGS[kind]})", "dim"))
            if row_width((*row, *words)) <= width:
                row += words
    return tuple(row)


class AxisCache:
    """The row of `axis_row`, which is made again only if the window or the events have changed: 0.3
    us in place of 33 us (with warm caches) in four of five seconds at one second a cell."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._row: Row = ()
        self.unexplained: tuple[EventKind, ...] = ()  # kinds of marks that no word explains
        self._made_of: tuple[object, ...] = ()
        self._grows = False  # something on the axis lasts up to the present

    def row(self, window: Window, is_measuring: bool) -> Row:
        """Return the row below the graphs, as `axis_row` makes it."""
        history = self._history
        shown = window.end, window.count, window.cell_s, window.cursor
        made_of = *shown, is_measuring, history.events_revision
        if self._grows or made_of != self._made_of:
            self._row, self.unexplained = _axis_row_and_unexplained_kinds(
                window, history.events, is_measuring
            )
            self._made_of = made_of
            self._grows = is_measuring or _is_link_lost(history.events)
        return self._row


def _is_link_lost(events: Sequence[Event]) -> bool:
    """Return whether the newest event about the link is its loss."""
    link = (EventKind.LINK_LOST, EventKind.LINK_BACK)
    last = next((event.kind for event in reversed(events) if event.kind in link), None)
    return last is EventKind.LINK_LOST


def _explain_marks_and_list_unexplained(
    cells: list[Run], drawn: Mapping[int, EventKind], end_column: int
) -> tuple[EventKind, ...]:
    """Explain the newest mark of each kind with a word, if the cells up to `end_column` have room
    for it: one mark then explains the others. The mark begins the word, or the word is in front of
    it. Return the kinds that have a word but no room for it."""
    spelled: dict[EventKind, bool] = {}
    for column in sorted(drawn, reverse=True):
        kind = drawn[column]
        if spelled.get(kind) or kind not in WORDS or column < 0 or cells[column] != MARKS[kind]:
            continue
        spelled[kind] = _try_completing_mark_to_word(
            cells, column, kind, end_column
        ) or _try_writing_word_before_mark(cells, column, kind)
    return tuple(kind for kind, done in spelled.items() if not done)


def _try_completing_mark_to_word(
    cells: list[Run], column: int, kind: EventKind, end_column: int
) -> bool:
    """Complete a mark to a word, and return whether there was room. A cell without a mark must
    follow the word, or the two would be read together. Only the word of a measurement may be
    followed by a mark, that of its end."""
    spanned = kind
    if kind in _DURING_LOAD:
        spanned = EventKind.BENCH_BEGIN
    free = {_BLANK, *(what for pair, what in _SPANS.items() if spanned in pair)}
    for word in WORDS.get(kind, ()):
        after = column + len(word)
        apart = after + (kind not in _MEASUREMENTS)
        if after < end_column and free.issuperset(cells[column + 1 : apart]):
            role = MARKS[kind][1].removesuffix("b")
            cells[column + 1 : after] = [(letter, role) for letter in word[1:]]
            return True
    return False


def _try_writing_word_before_mark(cells: list[Run], column: int, kind: EventKind) -> bool:
    """Put a word in front of a mark, and return whether there was room."""
    word = BEFORE.get(kind, "")
    first = column - len(word) - 1
    if not word or first < 1 or not _are_all_blank(cells[first - 1 : column]):
        return False
    cells[first : column - 1] = [(letter, "dim") for letter in word]
    return True


def _time_of_event(event: Event) -> float:
    return event.unix_s


def _time_labels(window: Window) -> Iterator[TimeLabel]:
    """Yield each label of the time axis: seconds before the present, or times of day while there is
    a time cursor."""
    if window.cursor is not None:
        yield 0, time_of_day_text(window.first_cell * window.cell_s)
        if window.count >= 20:
            yield window.count - 8, time_of_day_text(window.end * window.cell_s)
        return
    step_s = _LABELS_S[window.cell_s]
    unit, length = next((u, n) for u, n in (("h", 3600), ("m", 60), ("s", 1)) if step_s % n == 0)
    for number in range(1, window.count * window.cell_s // step_s + 1):
        text = f"-{number * step_s // length}{unit}"
        yield window.count - 1 - number * step_s // window.cell_s, text
    yield window.count - 3, "now"


def _spans_of_lasting_events(
    window: Window, events: Sequence[Event], is_measuring: bool
) -> Iterator[ColumnSpan]:
    """Yield (first column, last column, (character, role)) of each event with a duration, such as a
    benchmark. The character is drawn in all these columns. With `is_measuring`, a benchmark without
    an end event lasts up to the present."""
    earlier = bisect_left(events, float(window.first_cell * window.cell_s), key=_time_of_event)
    inside = events_in_window(events, window)
    for (begin, end), what in _SPANS.items():
        kinds = (begin, end)
        opened: Event | None = None
        before = next(_events_of_kinds(reversed(events[:earlier]), kinds), None)
        for event in chain(filter(None, (before,)), _events_of_kinds(inside, kinds)):
            if event.kind is begin:
                opened = event
            elif opened is not None:
                yield (
                    window.column_of_time(opened.unix_s),
                    window.column_of_time(event.unix_s),
                    what,
                )
                opened = None
        lasts = begin is EventKind.LINK_LOST or (is_measuring and begin in _MEASUREMENTS)
        if opened is not None and lasts:
            yield window.column_of_time(opened.unix_s), window.now - window.first_cell, what


def _events_of_kinds(events: Iterable[Event], kinds: tuple[EventKind, ...]) -> Iterator[Event]:
    return (event for event in events if event.kind in kinds)


PlacedLabel = tuple[int, Row]  # first column, text


@dataclass(frozen=True, slots=True)
class Label:
    """A text about something on the time axis at the cell `column`. `texts` are its forms as rows,
    the longest one first. The first `telling` forms say enough: one of them that begins at its
    column comes before a longer one that begins earlier. With `gives_way`, the label takes only the
    room that the other labels leave."""

    column: int
    texts: tuple[Row, ...]
    telling: int = 3
    gives_way: bool = False


def label_row(labels: Sequence[Label], cell_count: int) -> Row:
    """Return a row of at most `cell_count` cells with the labels, each in its longest form that
    fits between its neighbours. It may begin some cells before its column. A label without room is
    left out."""
    placed = _place_labels_in_order([label for label in labels if not label.gives_way], cell_count)
    for label in filter(lambda label: label.gives_way, labels):
        found = _place_label_between(label, placed, cell_count)
        if found is not None:
            placed.append(found)
    runs: list[Run] = []
    used = 0
    for begin, text in sorted(placed, key=lambda one: one[0]):
        runs += [(" " * (begin - used), "dim"), *text]
        used = begin + row_width(text)
    return tuple(runs)


def _place_labels_in_order(labels: Sequence[Label], cell_count: int) -> list[PlacedLabel]:
    """Return (first column, text) of each label that has room before the next one's column."""
    in_order = sorted(labels, key=lambda label: label.column)
    followed = [label.column - 1 for label in in_order[1:]]
    placed = []
    first = 0
    for label, end in zip(in_order, [*followed, cell_count], strict=bool(in_order)):
        found = _place_label(label, first, end)
        if found is not None:
            placed.append(found)
            first = found[0] + row_width(found[1]) + 1
    return placed


def _place_label_between(
    label: Label, placed_labels: Sequence[PlacedLabel], cell_count: int
) -> PlacedLabel | None:
    """Return (first column, text) of a label between those that are placed; None without room."""
    ends = [begin + row_width(text) + 1 for begin, text in placed_labels if begin <= label.column]
    begins = [begin - 1 for begin, _ in placed_labels if begin > label.column]
    return _place_label(label, max(ends, default=0), min(begins, default=cell_count))


def _place_label(label: Label, first_column: int, end_column: int) -> PlacedLabel | None:
    """Return (first column, text) of a label between the columns `first_column` and `end_column`;
    None if there is no room. A form that tells enough and begins at its column comes before a
    longer one that begins earlier."""
    column = max(label.column, first_column)
    for text in label.texts[: label.telling]:
        if column + row_width(text) <= end_column:
            return column, text
    for text in label.texts:
        begin = max(first_column, min(column, end_column - row_width(text)))
        if begin + row_width(text) <= end_column and label.column - begin <= _EARLIER:
            return begin, text
    return None
