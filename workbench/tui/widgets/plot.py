"""Plots of results, and of a sweep's points over the swept value, drawn with plotext 6. Plotting
takes long, so a new GPU reading does not draw them again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import Row, cut_text, merge_runs, pad_text, pad_text_with_gap
from workbench.tui.formats import bar_text, enclose_nonempty_text
from workbench.tui.formats import number_text as number
from workbench.tui.glyphs import ASCII, G
from workbench.tui.widgets.graph import highest_value_or_zero

if TYPE_CHECKING:
    from workbench.session.bench.row import BenchRow

CURVE = frozenset("▖▗▘▝▀▄▌▐▚▞▙▛▜▟█")
POINT, KNEE = G.on, "◆" if G is not ASCII else "#"
NOW = "@"  # where a server is now
PLAIN = str.maketrans(
    {**dict.fromkeys("┌┐└┘┤├┬┴┼", "+"), "─": "-", "│": "|", **dict.fromkeys(CURVE, ".")}
)
LEAST = (24, 8)  # least columns and rows of a plot: fewer rows round away differences
BARS_UP_TO = 8  # results that are bars with numbers; more of them are points
TITLE_CELLS, NUMBER_CELLS = 6, 8
LEAST_SPAN = 0.1  # least height of the y axis, as a share of the largest value
LOG_FROM = 8.0  # from this ratio of the largest x to the smallest, points are at equal distances


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a plot: `sign` is the character that marks the point, and `label` is below the x
    axis."""

    x: float
    y: float
    label: str
    sign: str = POINT


def plot_rows(
    results: Sequence[BenchRow],
    width: int,
    height: int,
    marked_a_id: int | None = None,
    marked_b_id: int | None = None,
) -> list[Row]:
    """Return output tok/s and TTFT p50 of each result, in the order of the result numbers.
    `marked_a_id` and `marked_b_id` are the numbers of the results marked A and B. Up to BARS_UP_TO
    results are bars with their numbers, and so are the newest ones if there is little room. More
    results are points of two plots, one above the other, which no line joins."""
    measured = [r for r in sorted(results, key=lambda r: r.id) if r.output_tok_s is not None]
    done = [r for r in measured if not r.refused]
    if not done:
        why = "no result has a throughput yet."
        if measured:
            why = "every result was rejected."
        return [((f"Nothing to plot: {why} b benchmarks.", "dim"),)]
    rejected = len(measured) - len(done)
    signs = {marked_a_id: "A", marked_b_id: "B"}

    def make_points(field: str) -> list[Point]:
        found = []
        for position, result in enumerate(done):
            value = getattr(result, field)
            if value is not None:
                sign = signs.get(result.id, POINT)
                found.append(Point(position, value, f"#{result.id}", sign))
        return found

    upper = height * 3 // 5
    if len(done) <= BARS_UP_TO or height - upper < LEAST[1]:
        return _bar_rows(done, width, height, signs, rejected)
    title = "output tok/s by result"
    if rejected:
        title += f" ({rejected} rejected left out)"
    rows = curve_rows(make_points("output_tok_s"), width, upper, title, connect_points=False)
    if timed := make_points("ttft_p50_ms"):
        lower = height - upper
        rows += curve_rows(timed, width, lower, "TTFT p50 ms", connect_points=False, role="warn")
    return rows


def _bar_rows(
    results: Sequence[BenchRow],
    width: int,
    height: int,
    marks_by_result_id: Mapping[int | None, str],
    rejected_count: int,
) -> list[Row]:
    """Return a row for each result, with tok/s and TTFT p50 as numbers and as bars from 0. If there
    are more results than rows, only the newest are shown. `marks_by_result_id` marks results by
    their number, and `rejected_count` is the number of results that are left out."""
    shown = results[len(results) - min(len(results), height - 1) :]
    each = (width - TITLE_CELLS - 2 * (NUMBER_CELLS + 2)) // 2
    if each < 4 or not shown:
        return [((cut_text("no room to plot", width), "dim"),)]
    columns = (
        (
            f"tok/s{enclose_nonempty_text(' (', rejected_count, ' rejected)')}",
            "spark",
            [r.output_tok_s for r in shown],
        ),
        ("TTFT p50 ms", "warn", [r.ttft_p50_ms for r in shown]),
    )
    head = pad_text("", TITLE_CELLS)
    for title, *_ in columns:
        head += pad_text_with_gap(title, NUMBER_CELLS + 2 + each)
    rows: list[Row] = [((head, "strong"),)]
    for at, result in enumerate(shown):
        sign = marks_by_result_id.get(result.id, "")
        runs: list[tuple[str, str]] = [
            (pad_text(f"{sign:<2}#{result.id}", TITLE_CELLS), sign.lower() or "dim")
        ]
        for _, role, values in columns:
            value = values[at]
            bar = bar_text(value, highest_value_or_zero(values), each)
            runs += [
                (pad_text(number(value), NUMBER_CELLS, align_right=True), "text"),
                (" ", "text"),
            ]
            runs += [(pad_text(bar, each + 1), role)]
        rows.append(tuple(runs))
    return rows


def curve_rows(
    points: Sequence[Point],
    width: int,
    height: int,
    title: str,
    *,
    connect_points: bool = True,
    role: str = "spark",
    knee_text: str = "",
    extra_points: Sequence[Point] = (),
    limit_x: float | None = None,
) -> list[Row]:
    """Return a plot in `height` rows, of which the first is the title. With `connect_points`, a
    line in the style of `role` connects the points. If `knee_text` is not "", the title also has
    the character that marks the knee of a sweep, followed by `knee_text`, the rule by which the
    knee was found. `extra_points` are drawn too, but no line connects them. `limit_x` is the x of a
    vertical line; None for no line."""
    head: Row = ((cut_text(title, width), "strong"),)
    if knee_text:
        head = (
            *head,
            (f"   {KNEE} ", "warnb"),
            (cut_text(knee_text, max(8, width - len(title) - 6)), "warn"),
        )
    if width < LEAST[0] or height < LEAST[1] or not points:
        return [head]
    lines = _draw_curve(points, width, height - 1, connect_points, extra_points, limit_x)
    return [head, *(_colour_line(line, role) for line in lines)]


def _draw_curve(
    points: Sequence[Point],
    width: int,
    height: int,
    connect_points: bool,
    extra_points: Sequence[Point],
    limit_x: float | None,
) -> list[str]:
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    # the size is the pane's, not the terminal's that plotext finds
    plotext.terminal.limit(False, False)
    figure.plot_size(width, height)
    x, y = zip(*((p.x, p.y) for p in points), strict=True)
    every = [*points, *extra_points]
    heights = [p.y for p in every]
    low, high, ticks = _round_axis_ends_and_ticks(min(heights), max(heights), max(2, height // 4))

    def draw_line(xs: Sequence[float], ys: Sequence[float], marker: str) -> None:
        line = figure.signal(list(xs), list(ys), marker=marker)
        line.lines()
        figure.draw(line)

    if connect_points and len(points) > 1:
        draw_line(x, y, "hd")
    if limit_x is not None:
        draw_line((limit_x, limit_x), (low, high), G.rule)
    by_sign: dict[str, list[Point]] = {}
    for p in every:
        by_sign.setdefault(p.sign, []).append(p)
    for sign, chosen in by_sign.items():
        figure.draw(figure.signal([p.x for p in chosen], [p.y for p in chosen], marker=sign))
    figure.ruler("y").lim(low, high)
    if len(set(x)) == 1:
        figure.ruler("x").lim(x[0] - 1, x[0] + 1)
    step = ticks[1] - ticks[0]
    digits = next((n for n in (0, 1, 2) if abs(step * 10**n - round(step * 10**n)) < 1e-6), None)
    figure.ruler("y").ticks(ticks, [number(t, digits) for t in ticks])
    shown = _points_with_room_for_label(points, width)
    figure.ruler("x").ticks([p.x for p in shown], [p.label for p in shown])
    text: str = plotext.uncolorize(str(figure.build()))
    if G is ASCII:
        text = text.translate(PLAIN)
    return text.splitlines()[:height]


def _round_axis_ends_and_ticks(
    low: float, high: float, step_count: int
) -> tuple[float, float, list[float]]:
    """Return (lowest value, highest value, ticks) of a y axis that contains `low` and `high`. The
    axis has about `step_count` steps, and all its numbers are round. If `low` and `high` are close
    together, the axis is longer than needed, so that the plot does not exaggerate their difference.
    """
    least = LEAST_SPAN * max(abs(low), abs(high))
    if 0 < high - low < least:
        middle = (high + low) / 2
        low, high = middle - least / 2, middle + least / 2
    span = (high - low) or abs(high) or 1.0
    raw = span / step_count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(s * size for s in (1, 2, 2.5, 5, 10) if s * size >= raw * 0.999)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return first * step, last * step, [n * step for n in range(first, last + 1)]


def _points_with_room_for_label(points: Sequence[Point], width: int) -> list[Point]:
    """Return those points whose labels fit below the x axis without touching each other. The last
    point is always among them."""
    room = max(1, width - 10)
    low, high = min(p.x for p in points), max(p.x for p in points)
    cells = room / ((high - low) or 1.0)
    shown: list[Point] = []
    for p in sorted(points, key=lambda p: p.x, reverse=True):
        if not shown or (shown[-1].x - p.x) * cells >= _min_label_distance_cells(shown[-1], p):
            shown.append(p)
    return shown[::-1]


def _min_label_distance_cells(a: Point, b: Point) -> float:
    """Return the least distance of two points, in cells, at which their labels do not touch."""
    return len(a.label) / 2 + len(b.label) / 2 + 2


def x_positions_and_can_connect(swept_values: Sequence[float | None]) -> tuple[list[float], bool]:
    """Return the positions of the values on the x axis, and whether a line may connect the points.

    The position of a number is the number itself. If the numbers have a wide range such as 1 to
    256, the points have equal distances instead. They also have equal distances, and no line, if a
    value is None, which means that it is not a number.
    """
    known = known_values(swept_values)
    evenly = list(map(float, range(len(swept_values))))
    if len(known) < len(swept_values):
        return evenly, False
    if known and min(known) > 0 and max(known) / min(known) >= LOG_FROM:
        return evenly, True
    return known, True


def _colour_line(line: str, role: str) -> Row:
    signs = {POINT: "strong", KNEE: "warnb", NOW: "warnb", "A": "a", "B": "b"}
    if set(line).isdisjoint("│┤|+"):  # the row of labels
        return ((line, "dim"),)
    roles = {**signs, **dict.fromkeys(CURVE, role)}
    return merge_runs((char, roles.get(char, "dim")) for char in line)
