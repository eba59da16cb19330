"""Labelled graphs of metrics, one cell per step of the time axis, one or several rows high.

`Columns` has the positions of the graphs. All rows of the strip use the same columns, so that one
time axis serves them all. The scale of a graph is fixed, so that a drawn cell does not change when
a limit changes or later readings arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, Run, merge_runs, pad_text, width_of
from workbench.tui.glyphs import G
from workbench.tui.theme import HIGH, LEVELLED, LOW

EIGHTHS = 8  # heights of a block character
AT_LIMIT = 0.98  # of the limit: a value this high is drawn as limited in a graph of one row

Cells = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Graph:
    """A metric to draw: its label, its present value as text, and its values as `cells` on a scale
    from `floor` to `top`. `lines` are values drawn as lines across the graph, such as a power limit
    over time. For a group of GPUs, `cells` has the highest values and `low` the lowest. `note` is a
    text below the value, which is shown if there is room. With `per_cell` 2, a cell of the terminal
    shows two of the values side by side, as dots of a Braille pattern. `earlier_rows` are rows with
    cells before `cells` that were drawn earlier."""

    label: str
    value: str
    cells: Cells
    top: float
    floor: float = 0.0
    lines: tuple[Cells, ...] = ()
    low: Cells | None = None
    note: str = ""
    role: str = "spark"
    value_role: str = "text"
    per_cell: int = 1
    earlier_rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """The positions of the graphs in a row of the telemetry strip, all in terminal cells. The first
    `lead` cells are for texts about the GPU. Each column has `before` cells for the label, `cells`
    cells for the graph, and `after` cells for the value. If `after` is 0, label and value are both
    in front of the graph, one above the other."""

    lead: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    cells: int

    @property
    def graph_count(self) -> int:
        return len(self.before)

    @property
    def graph_starts(self) -> list[int]:
        """Return the screen column in which each graph begins."""
        out, at = [], self.lead
        for before, after in zip(self.before, self.after, strict=True):
            out.append(at + before)
            at += before + self.cells + after + 1
        return out

    def repeat_below_graphs(self, row: Row) -> Row:
        """Return a row in which `row`, such as the axis of one graph, is repeated below each
        graph."""
        runs: list[Run] = []
        at = 0
        for start in self.graph_starts:
            runs += [(" " * (start - at), "text"), *row]
            at = start + self.cells
        return tuple(runs)

    def draw_graphs_side_by_side(
        self,
        graphs: Sequence[Graph],
        height: int,
        lead: Sequence[Run] = (),
        cursor: int | None = None,
    ) -> list[Row]:
        """Return `height` rows with one graph in each column. `lead` are the texts at the left,
        from top to bottom. `cursor` is the number of the cell that is highlighted in each graph;
        None for no cell."""
        drawn = [draw_graph(graph, height, cursor) for graph in graphs]
        rows = []
        for y in range(height):
            text, role = _run_at_or_blank(lead, y)
            runs: list[Run] = [(pad_text(text, self.lead), role)]
            for graph, body, before, after in zip(
                graphs, drawn, self.before, self.after, strict=False
            ):
                runs += [*_text_before_graph(graph, before, y, height, bool(after)), *body[y]]
                if after:
                    runs.append(_text_behind_graph(graph, after, y))
                runs.append((" ", "text"))
            rows.append(merge_runs(runs))
        return rows


def _run_at_or_blank(runs: Sequence[Run], index: int) -> Run:
    """Return the run at `index`; a run without text if `runs` has no such index."""
    if index >= len(runs):
        return "", "text"
    return runs[index]


def _value_and_note_texts(graph: Graph) -> Sequence[Run]:
    """Return the texts beside a graph, one below the other: its value, and its note."""
    notes = [(line, "dim") for line in graph.note.splitlines()]
    return [(graph.value, graph.value_role), *notes]


def _text_behind_graph(graph: Graph, width: int, row: int) -> Run:
    """Return the text behind row `row` of a graph, in `width` cells: the value, and the note below
    it."""
    text, role = _run_at_or_blank(_value_and_note_texts(graph), row)
    return pad_text(text, width, align_right=True), role


def _text_before_graph(
    graph: Graph, width: int, row: int, height: int, has_value_after: bool
) -> Row:
    """Return the text in front of row `row` of a graph, in `width` cells. If `has_value_after` is
    true, only row 0 has a text, the label. Otherwise the texts are the label, the value and the
    note, one below the other, but label and value side by side if the graph is one row high."""
    texts: list[Run] = [(graph.label, "dim")]
    if not has_value_after:
        if height == 1:
            room = max(0, width - 1 - width_of(graph.label))
            value = pad_text(graph.value, room, align_right=True)
            return *texts, (f"{value} ", graph.value_role)
        texts += _value_and_note_texts(graph)
    text, role = _run_at_or_blank(texts, row)
    return ((pad_text(text, width), role),)


def draw_graph(graph: Graph, height: int, cursor: int | None = None) -> list[Row]:
    """Return the graph in `height` rows, from top to bottom. A cell without a value is blank.
    `cursor` is the number of the cell to highlight; None for no cell."""
    if graph.per_cell == 2:
        return _draw_braille_graph(graph, height, cursor)
    levels = _heights_in_eighths(graph.cells, graph, height)
    if graph.low is not None and height > 1:
        low = _heights_in_eighths(graph.low, graph, height)
        return [
            _highlight_cell(_draw_banded_row(levels, low, height - 1 - y, graph.role), cursor)
            for y in range(height)
        ]
    texts = [
        "".join(map(row.__getitem__, levels)) for row in _characters_by_level(height, G.levels)
    ]
    if not graph.lines:
        return [_highlight_cell(((text, graph.role),), cursor) for text in texts]
    held = _are_cells_at_limit(graph.cells, graph.lines[0])
    marks: list[list[int]] = []
    if height > 1:
        for line in graph.lines:
            heights = _heights_in_eighths(line, graph, height)
            marks.append(_limit_line_row_by_cell(line, heights, EIGHTHS, graph.top))
    return [
        _highlight_cell(_draw_limit_lines(text, held, marks, height - 1 - y, graph.role), cursor)
        for y, text in enumerate(texts)
    ]


DOTS = 4  # heights of a column of dots in a Braille pattern
_LEFT, _RIGHT = (0, 0x40, 0x44, 0x46, 0x47), (0, 0x80, 0xA0, 0xB0, 0xB8)  # dots from the bottom
# character of a cell by the heights of its left and its right column
_PATTERNS = tuple(
    tuple(chr(0x2800 + left + right) if left + right else " " for right in _RIGHT) for left in _LEFT
)


def _draw_braille_graph(graph: Graph, height: int, cursor: int | None) -> list[Row]:
    """Return a graph with two values in a cell in `height` rows, from top to bottom."""
    levels = _heights_in_dots(graph.cells, graph, height)
    pairs = list(zip(levels[::2], levels[1::2], strict=True))
    low: Sequence[int] | None = None
    held = [False] * len(pairs)
    marks: list[list[int]] = []
    if graph.lines:
        each = _are_cells_at_limit(graph.cells, graph.lines[0])
        held = [a or b for a, b in zip(each[::2], each[1::2], strict=True)]
    if height > 1:
        if graph.low is not None:
            low = _heights_in_dots(graph.low, graph, height)
        for line in graph.lines:  # of the two values in a cell the later one counts
            heights = _heights_in_dots(line, graph, height)[1::2]
            marks.append(_limit_line_row_by_cell(line[1::2], heights, DOTS, graph.top))
    rows = []
    for row in range(height - 1, -1, -1):
        role = graph.role
        if height > 1:
            role = _role_at_height(role, (row + 0.5) / height)
        below = DOTS * row
        text = "".join([_braille_character(a - below, b - below) for a, b in pairs])
        drawn: Row = ((text, role),)
        if graph.lines:
            drawn = _draw_limit_lines(text, held, marks, row, role)
        if low is not None:
            drawn = _draw_faint_band(drawn, low, row, role)
        if height == 1:
            drawn = _shade_row_by_height(drawn, pairs, role)
        rows.append(_highlight_cell(drawn, cursor))
    if graph.earlier_rows:
        return [merge_runs((*old, *new)) for old, new in zip(graph.earlier_rows, rows, strict=True)]
    return rows


def _role_at_height(graph_role: str, scale_fraction: float) -> str:
    """Return the role of a graph for the part of its scale at `scale_fraction`: the higher, the
    brighter. Return `graph_role` itself if it has only one brightness."""
    if graph_role not in LEVELLED:
        return graph_role
    if scale_fraction < 1 / 3:
        return graph_role + LOW
    if scale_fraction > 2 / 3:
        return graph_role + HIGH
    return graph_role


def _shade_row_by_height(
    drawn: Row, dot_height_pairs: Sequence[tuple[int, int]], graph_role: str
) -> Row:
    """Return a graph of one row whose cells show by their brightness how high their values are.
    Return it unchanged if its role has only one brightness."""
    if graph_role not in LEVELLED:
        return drawn
    roles = [_role_at_height(graph_role, max(0, height - 0.5) / DOTS) for height in range(DOTS + 1)]
    return merge_runs(
        (char, roles[max(pair)] if its == graph_role else its)
        for (char, its), pair in zip(_split_into_characters(drawn), dot_height_pairs, strict=True)
    )


def first_cells_of_row(row: Row, count: int) -> Row:
    """Return the first `count` cells of a drawn row of a graph."""
    runs: list[Run] = []
    for text, role in row:
        if count <= 0:
            break
        runs.append((text[:count], role))
        count -= len(text)
    return tuple(runs)


def drop_first_cells_of_row(row: Row, count: int) -> Row:
    """Return a drawn row of a graph without its first `count` cells."""
    runs: list[Run] = []
    for text, role in row:
        if count < len(text):
            runs.append((text[max(count, 0) :], role))
        count -= len(text)
    return tuple(runs)


@cache
def _braille_character(left_height: int, right_height: int) -> str:
    return _PATTERNS[min(max(left_height, 0), DOTS)][min(max(right_height, 0), DOTS)]


def _heights_in_dots(cells: Cells, graph: Graph, height: int) -> list[int]:
    """Return the heights of the values of a graph in dots: at least 1, and 0 for None."""
    floor, span, most = graph.floor, max(graph.top - graph.floor, 1e-9), DOTS * height
    known: dict[float | None, int] = {None: 0}
    for value in cells:
        if value not in known:
            fraction = (value - floor) / span if value is not None and math.isfinite(value) else 0.0
            known[value] = max(1, min(most, round(fraction * most)))
    return [known[value] for value in cells]


def _limit_line_row_by_cell(
    limits: Cells, heights: Sequence[int], heights_per_row: int, scale_top: float
) -> list[int]:
    """Return the row of the graph in which each cell of a limit line is drawn, counted from 0 at
    the bottom. `heights` are the heights of the limit's values in a unit of which a row has
    `heights_per_row`. The row is -1 where no line is drawn, because the limit is None or at the top
    of the scale."""
    return [
        -1 if value is None or value >= 0.995 * scale_top else (height - 1) // heights_per_row
        for value, height in zip(limits, heights, strict=True)
    ]


def _draw_faint_band(
    drawn: Row, lowest_dot_heights: Sequence[int], row: int, graph_role: str
) -> Row:
    """Return row `row` of a graph of several GPUs, counted from 0 at the bottom, faint where all of
    it is above the lowest of them."""
    below = DOTS * row
    lowest = [
        max(pair) > below
        for pair in zip(lowest_dot_heights[::2], lowest_dot_heights[1::2], strict=True)
    ]
    return merge_runs(
        (char, "band" if its == graph_role and not solid else its)
        for (char, its), solid in zip(_split_into_characters(drawn), lowest, strict=True)
    )


def bar_height_eighths(value: float | None, floor: float, top: float, max_height: int) -> int:
    """Return the height of a value's bar on the scale from `floor` to `top`, in eighths of a row,
    from 1 to `max_height`; 0 for None. In a graph of one row, a value at `top` fills the row, and
    no other value does. In a higher graph no bar reaches `max_height`, so that the graph does not
    touch the row above."""
    if value is None or not math.isfinite(value):
        return 0
    fraction = (value - floor) / max(top - floor, 1e-9)
    if max_height > EIGHTHS:
        return max(1, min(max_height - 1, round(fraction * (max_height - 1))))
    if fraction >= 0.995:
        return EIGHTHS
    return max(1, min(EIGHTHS - 1, int(fraction * (EIGHTHS - 1)) + 1))


def _heights_in_eighths(cells: Cells, graph: Graph, height: int) -> list[int]:
    """Return the heights of the bars in the cells of a graph, in eighths of a row."""
    floor, top, most = graph.floor, graph.top, EIGHTHS * height
    # a value of an idle GPU comes in many cells
    known = {value: bar_height_eighths(value, floor, top, most) for value in set(cells)}
    return [known[value] for value in cells]


def highest_value_or_zero(cells: Iterable[float | None]) -> float:
    """Return the highest value that is not None; 0.0 if there is none."""
    return max(known_values(cells), default=0.0)


def mean_value(values: Sequence[float]) -> float | None:
    """Return the mean of the values; None if there are none."""
    if not values:
        return None
    return sum(values) / len(values)


def _are_cells_at_limit(cells: Cells, limits: Cells) -> list[bool]:
    """Return for each cell whether its value is at least AT_LIMIT of the limit; False if either is
    not known."""
    return [
        v is not None and v >= AT_LIMIT * (at or math.inf)
        for v, at in zip(cells, limits, strict=True)
    ]


@lru_cache(maxsize=64)
def _characters_by_level(height: int, levels: str) -> tuple[str, ...]:
    """Return for each row of a graph, from top to bottom, the characters of a bar by its height in
    eighths of a row."""
    most = EIGHTHS * height
    rows = []
    for below in reversed(range(0, most, EIGHTHS)):
        characters = (_level_character(level - below, levels) for level in range(most + 1))
        rows.append("".join(characters))
    return tuple(rows)


def _bar_character_at_level(level: int) -> str:
    return _level_character(level, G.levels)


def _level_character(level: int, levels: str) -> str:
    if level <= 0:
        return " "
    return levels[min(level, EIGHTHS) - 1]


def _draw_limit_lines(
    text: str,
    cells_at_limit: Sequence[bool],
    limit_line_rows: Sequence[Sequence[int]],
    row: int,
    graph_role: str,
) -> Row:
    """Return row `row` of a graph, counted from 0 at the bottom, with the limit lines drawn over
    its characters `text`. `cells_at_limit` says for each cell whether its value is at the limit.
    `limit_line_rows` has, for each line, the row in which each cell of the line is drawn.

    A blank cell on a line shows the line. Any other cell on a line has the role "limited" if its
    value is at the limit. In a graph of one row, every cell at the limit has that role.
    """
    crossed = cells_at_limit
    if limit_line_rows:
        crossed = [row in rows for rows in zip(*limit_line_rows, strict=True)]
    if not any(crossed):
        return ((text, graph_role),)
    cells: list[Run] = []
    for char, at_limit, on_line in zip(text, cells_at_limit, crossed, strict=True):
        if on_line and char == " ":
            cells.append((G.line, "limit"))
        else:
            cells.append((char, "limited" if on_line and at_limit else graph_role))
    return merge_runs(cells)


def _draw_banded_row(
    highest_heights: Sequence[int], lowest_heights: Sequence[int], row: int, graph_role: str
) -> Row:
    """Return row `row`, counted from 0 at the bottom, of a graph of several GPUs. `lowest_heights`
    and `highest_heights` are the heights of the lowest and the highest value in each cell, in
    eighths of a row. The bars are solid up to `lowest_heights`, and faint from there up to
    `highest_heights`."""
    below = EIGHTHS * row
    return merge_runs(
        _banded_cell(hi - below, lo - below, graph_role)
        for hi, lo in zip(highest_heights, lowest_heights, strict=True)
    )


def _banded_cell(highest_height: int, lowest_height: int, graph_role: str) -> Run:
    if highest_height >= EIGHTHS > lowest_height > 0:
        return _bar_character_at_level(lowest_height), f"{graph_role} on band"
    if lowest_height > 0:
        return _bar_character_at_level(lowest_height), graph_role
    if highest_height > 0:
        return _bar_character_at_level(highest_height), "band"
    return _bar_character_at_level(highest_height), graph_role


def _highlight_cell(row: Row, cursor: int | None) -> Row:
    """Return the row with its cell number `cursor` on the background of the time cursor. For None,
    return the row unchanged."""
    if cursor is None:
        return row
    cells = list(_split_into_characters(row))
    cells[cursor] = (cells[cursor][0], "lit")
    return merge_runs(cells)


def _split_into_characters(row: Row) -> Iterator[Run]:
    return ((c, role) for text, role in row for c in text)
