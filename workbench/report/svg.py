"""Plots as inline SVG.

Text and axes have the text colour of the page (currentColor), so that they are readable on light
and dark pages and in print. The two series differ in brightness as well as in colour, for readers
without colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from workbench.model.lazy_dataclass import dataclass
from workbench.report.format_values import MINUS, escape_markup

BLUE, ORANGE, GREY = "#3a7fc2", "#d1762a", "#8a8f98"
INK = "currentColor"
WIDTH = 720.0
_GRID_OPACITY = 0.16
Point = tuple[float, float]
TickName = tuple[float, str]  # value, text
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of a plot. It is drawn as steps, or with `dots` as dots joined by lines. Its points
    are in order of x. `label` is written beside the last point."""

    points: Sequence[Point]
    label: str = ""
    color: str = BLUE
    dots: bool = False


@dataclass(frozen=True, slots=True)
class SvgAxis:
    """An axis with its title and the range of its values. `log` makes the scale logarithmic, which
    needs values above 0.
    """

    title: str
    low: float
    high: float
    log: bool = False

    def ticks(self) -> list[float]:
        ticks = _log_ticks if self.log else _linear_ticks
        return ticks(self.low, self.high)

    def scale(self, start: float, end: float) -> Scale:
        """Return the function that maps a value to its position in pixels. The position is `start`
        for the value `low` and `end` for `high`.
        """
        measure = self._log10_clamped_to_low if self.log else float
        low, high = measure(self.low), measure(self.high)
        span = (high - low) or 1.0
        return lambda value: start + (measure(value) - low) / span * (end - start)

    def _log10_clamped_to_low(self, value: float) -> float:
        return math.log10(max(value, self.low))


def _linear_ticks(low: float, high: float, wanted_count: int = 5) -> list[float]:
    """Return about `wanted_count` round numbers from `low` to `high` at equal distances, which are
    1, 2 or 5 times a power of ten; [low] for an empty or infinite range."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / wanted_count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= rough), power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    numbers = [step * 10.0**decade for decade in decades for step in steps]
    within = [number for number in numbers if low * 0.999 <= number <= high * 1.001]
    return within or [low, high]


def _tick_text(value: float, sign: bool = False) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    if sign and value > 0:
        text = f"+{text}"
    return text.replace("-", MINUS)


class _Plot:
    """The SVG elements of a plot with an x axis, in the order in which they are drawn. Coordinates
    are in pixels from the upper left corner. The area of the data lies between `left`, `right`,
    `top` and `bottom`.
    """

    def __init__(
        self, title: str, x: SvgAxis, top: float, left: float, right: float, bottom: float
    ) -> None:
        self.left, self.right, self.top, self.bottom = left, right, top, bottom
        self.across = x.scale(left, right)
        self._title, self._x, self._elements = escape_markup(title), x, list[str]()

    def add_element(self, tag: str, content: str = "", /, **attributes: str | float) -> None:
        written = []
        for name, value in attributes.items():
            if not isinstance(value, str):
                value = f"{round(value, 2):.6g}"
            written.append(f' {name.replace("_", "-")}="{value}"')
        self._elements.append(f"<{tag}{''.join(written)}>{content}</{tag}>")

    def draw_line(
        self, start: Point, end: Point, opacity: float = 1.0, color: str = INK, **style: str | float
    ) -> None:
        (x1, y1), (x2, y2) = start, end
        self.add_element(
            "line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_opacity=opacity, **style
        )

    def draw_dot(self, at: Point, color: str, *, hollow: bool = False) -> None:
        """Draw a point at `at`, only its outline if `hollow`."""
        fill = "none" if hollow else color
        self.add_element(
            "circle", cx=at[0], cy=at[1], r=3.6, fill=fill, stroke=color, stroke_width=1.6
        )

    def draw_text(
        self, at: Point, text: str, anchor: str = "start", opacity: float = 1.0, color: str = INK
    ) -> None:
        """Write `text` at `at`, bold unless it has the colour of normal text. `anchor` is SVG's
        text-anchor."""
        weight = 400 if color == INK else 600
        style = {"fill_opacity": opacity, "font_weight": weight}
        self.add_element(
            "text", escape_markup(text), x=at[0], y=at[1], text_anchor=anchor, fill=color, **style
        )

    def draw_x_axis(
        self, names: Sequence[TickName], top: float, opacity: float = _GRID_OPACITY
    ) -> None:
        """Add the x axis: a vertical line from `top` to the bottom at each tick, below them the
        names of the ticks, and below these the title.
        """
        for value, name in names:
            self.draw_line((self.across(value), top), (self.across(value), self.bottom), opacity)
            self.draw_text((self.across(value), self.bottom + 17), name, "middle", 0.75)
        self.draw_text(
            ((self.left + self.right) / 2, self.bottom + 34), self._x.title, "middle", 0.75
        )

    def to_svg(self) -> str:
        return (
            f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} '
            f'{self.bottom + 42:g}"'
            f' role="img" aria-label="{self._title}" font-size="12"><title>{self._title}</title>'
            f"{''.join(self._elements)}</svg>"
        )


def curves_svg(
    title: str,
    x: SvgAxis,
    y: SvgAxis,
    series: Sequence[Series],
    *,
    height: float = 260.0,
    marks: Sequence[TickName] = (),
    x_names: Sequence[TickName] = (),
) -> str:
    """Return an SVG plot of curves. `marks` are (x position, label) of vertical lines. `x_names`
    are (position, name) of the ticks on the x axis; without them, the ticks are at round numbers.
    """
    plot = _Plot(title, x, top=26.0, left=58.0, right=WIDTH - 96.0, bottom=height - 42.0)
    up = y.scale(plot.bottom, plot.top)
    for value in y.ticks():
        plot.draw_line((plot.left, up(value)), (plot.right, up(value)), _GRID_OPACITY)
        plot.draw_text((plot.left - 7, up(value) + 4), _tick_text(value), "end", 0.75)
    plot.draw_text((plot.left - 48, plot.top - 11), y.title, opacity=0.75)
    plot.draw_x_axis(x_names or _tick_names(x), plot.bottom + 4, 0.5)
    plot.draw_line((plot.left, plot.bottom), (plot.right, plot.bottom), 0.5)
    _draw_marks(plot, marks)
    placed = []
    for one in series:
        if one.points:
            placed.append((one, [(plot.across(px), up(py)) for px, py in one.points]))
    lowest_label = 0.0
    # From the top down, so that the labels of lines that end close together are in the order of the
    # lines.
    for one, points in sorted(placed, key=lambda item: item[1][-1][1]):
        _draw_curve(plot, points, one.color, dots=one.dots)
        if one.label:
            lowest_label = max(points[-1][1] + 4, lowest_label + 14)
            at = (min(points[-1][0], plot.right) + 8, lowest_label)
            plot.draw_text(at, one.label, color=one.color)
    return plot.to_svg()


def _tick_names(axis: SvgAxis, *, sign: bool = False) -> list[TickName]:
    return [(value, _tick_text(value, sign)) for value in axis.ticks()]


def _draw_curve(plot: _Plot, points: Sequence[Point], color: str, *, dots: bool) -> None:
    corners = points if dots else _step_points(points)
    path = "M" + " L".join(f"{px:.1f} {py:.1f}" for px, py in corners)
    plot.add_element(
        "path", d=path, fill="none", stroke=color, stroke_width=1.8, stroke_linejoin="round"
    )
    if dots:
        for point in points:
            plot.draw_dot(point, color)


def _draw_marks(plot: _Plot, marks: Sequence[TickName]) -> None:
    label_ends: list[float] = []  # x at which the last label of each line ends
    for value, label in marks:
        x = plot.across(value)
        plot.draw_line((x, plot.top), (x, plot.bottom), 0.55, stroke_dasharray="4 3")
        line = next((i for i, end in enumerate(label_ends) if end < x), len(label_ends))
        label_ends[line : line + 1] = [x + 10 + 7 * len(label)]
        plot.draw_text((x + 4, plot.top + 11 + 12 * line), label, opacity=0.8)


def _step_points(points: Sequence[Point]) -> list[Point]:
    steps = [points[0]]
    for x, y in points[1:]:
        steps += [(x, steps[-1][1]), (x, y)]
    return steps


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a forest plot: a change with the half width of its confidence interval, both in
    percent. `good` says whether the change is an improvement; None if the measurement does not show
    a change."""

    label: str
    change: float
    half: float
    text: str
    good: bool | None = None


def forest_svg(title: str, rows: Sequence[Interval], x_title: str) -> str:
    """Return an SVG plot with one row for each change and its interval, around a line at zero. The
    dot of a row is hollow if the measurement does not show a change."""
    reach = max((abs(row.change) + row.half for row in rows), default=1.0) * 1.08 or 1.0
    x = SvgAxis(x_title, -reach, reach)
    plot = _Plot(
        title, x, top=14.0, left=178.0, right=WIDTH - 190.0, bottom=14.0 + 26.0 * len(rows)
    )
    across = plot.across
    plot.draw_x_axis(_tick_names(x, sign=True), plot.top)
    plot.draw_line((across(0), plot.top - 6), (across(0), plot.bottom), 0.7)
    colors = {None: GREY, True: BLUE, False: ORANGE}
    for i, row in enumerate(rows):
        y, color = plot.top + 26.0 * (i + 0.5), colors[row.good]
        low, high = across(row.change - row.half), across(row.change + row.half)
        plot.draw_text((plot.left - 12, y + 4), row.label, "end")
        plot.draw_line((low, y), (high, y), color=color, stroke_width=2)
        for end in (low, high):
            plot.draw_line((end, y - 4), (end, y + 4), color=color, stroke_width=2)
        plot.draw_dot((across(row.change), y), color, hollow=row.good is None)
        plot.draw_text((plot.right + 14, y + 4), row.text, color=color)
    return plot.to_svg()


def dumbbells_svg(title: str, pairs: Sequence[Point], x_title: str) -> str:
    """Return an SVG plot with one row for each pair of values (A, B): A is a hollow dot, and B a
    filled dot. `pairs` must not be empty."""
    values = [value for pair in pairs for value in pair]
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.02 or 1.0
    x = SvgAxis(x_title, low - margin, high + margin)
    plot = _Plot(title, x, top=24.0, left=92.0, right=WIDTH - 80.0, bottom=24.0 + 20.0 * len(pairs))
    across = plot.across
    plot.draw_x_axis(_tick_names(x), plot.top)
    for i, (a, b) in enumerate(pairs):
        y = plot.top + 20.0 * (i + 0.5)
        plot.draw_text((plot.left - 12, y + 4), f"pair {i + 1}", "end", 0.8)
        plot.draw_line((across(a), y), (across(b), y), color=GREY, stroke_width=1.6)
        plot.draw_dot((across(a), y), ORANGE, hollow=True)
        plot.draw_dot((across(b), y), BLUE)
    a, b = pairs[0]
    outside = 10 if b >= a else -10
    plot.draw_text((across(a) - outside, plot.top - 4), "A", "middle", color=ORANGE)
    plot.draw_text((across(b) + outside, plot.top - 4), "B", "middle", color=BLUE)
    return plot.to_svg()
