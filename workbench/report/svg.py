"""Plots as inline SVG. Text and axes take the page's colour (currentColor), so that they are readable in light and dark
and in print. The two series colours differ in brightness too, for readers without colour vision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workbench.report.format_values import MINUS, escape

BLUE, ORANGE, GREY = "#3a7fc2", "#d1762a", "#8a8f98"
WIDTH = 720.0
_GRID_OPACITY = 0.16
Point = tuple[float, float]
TickName = tuple[float, str]  # value, text
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of x, drawn as steps, or with `dots` as points joined by lines. `label` is at the last point."""

    points: Sequence[Point]
    label: str = ""
    color: str = BLUE
    dots: bool = False


@dataclass(frozen=True, slots=True)
class SvgAxis:
    """A range of values; `log` makes the scale logarithmic, for values above 0."""

    title: str
    low: float
    high: float
    log: bool = False

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)

    def scale(self, start: float, end: float) -> Scale:
        """Return the function that maps a value to a pixel, `low` to `start` and `high` to `end`."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        span = (high - low) or 1.0

        def place(value: float) -> float:
            at = math.log10(max(value, self.low)) if self.log else value
            return start + (at - low) / span * (end - start)

        return place


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten, within [low, high]."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= rough), power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    found = [m * 10.0**d for d in decades for m in steps if low * 0.999 <= m * 10.0**d <= high * 1.001]
    return found or [low, high]


def _tick_text(value: float, sign: bool = False) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return ("+" if sign and value > 0 else "") + text.replace("-", MINUS)


class _Drawing:
    """SVG elements in the order in which they are painted. Coordinates are pixels from the upper left."""

    def __init__(self, title: str, height: float) -> None:
        self._title, self._height = escape(title), height
        self._elements: list[str] = []

    def _add(self, tag: str, content: str = "", /, **attributes: str | float) -> None:
        written = []
        for name, value in attributes.items():
            text = value if isinstance(value, str) else f"{round(value, 2):.6g}"
            written.append(f' {name.replace("_", "-")}="{text}"')
        self._elements.append(f"<{tag}{''.join(written)}>{content}</{tag}>")

    def line(
        self, start: Point, end: Point, opacity: float = 1.0, color: str = "currentColor", **style: str | float
    ) -> None:
        (x1, y1), (x2, y2) = start, end
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_opacity=opacity, **style)

    def path(self, points: Sequence[Point], color: str) -> None:
        d = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._add("path", d=d, fill="none", stroke=color, stroke_width=1.8, stroke_linejoin="round")

    def dot(self, at: Point, color: str, *, hollow: bool = False) -> None:
        self._add("circle", cx=at[0], cy=at[1], r=3.6, fill="none" if hollow else color, stroke=color, stroke_width=1.6)

    def text(
        self, at: Point, text: str, anchor: str = "start", opacity: float = 1.0, color: str = "currentColor"
    ) -> None:
        """Add a text; one in a colour of its own is bold."""
        self._add(
            "text",
            escape(text),
            x=at[0],
            y=at[1],
            text_anchor=anchor,
            fill=color,
            fill_opacity=opacity,
            font_weight=400 if color == "currentColor" else 600,
        )

    def x_axis(
        self,
        axis: SvgAxis,
        across: Scale,
        top: float,
        bottom: float,
        names: Sequence[tuple[float, str]],
        opacity: float,
    ) -> None:
        """Add a line from `top` to `bottom` at each tick, the ticks' names below, and the title below these."""
        for value, name in names:
            self.line((across(value), top), (across(value), bottom), opacity)
            self.text((across(value), bottom + 17), name, "middle", 0.75)
        middle = (across(axis.low) + across(axis.high)) / 2
        self.text((middle, bottom + 34), axis.title, "middle", 0.75)

    def svg(self) -> str:
        return (
            f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {self._height:g}" role="img"'
            f' aria-label="{self._title}" font-size="12"><title>{self._title}</title>{"".join(self._elements)}</svg>'
        )


def chart(
    title: str,
    x: SvgAxis,
    y: SvgAxis,
    series: Sequence[Series],
    *,
    height: float = 260.0,
    marks: Sequence[tuple[float, str]] = (),
    x_names: Sequence[tuple[float, str]] = (),
) -> str:
    """Return lines over an x axis. `marks` are vertical lines with labels; `x_names` replace the ticks of the axis."""
    drawing = _Drawing(title, height)
    left, right, top, bottom = 58.0, WIDTH - 96.0, 26.0, height - 40.0
    across, up = x.scale(left, right), y.scale(bottom, top)
    for value in y.ticks():
        drawing.line((left, up(value)), (right, up(value)), _GRID_OPACITY)
        drawing.text((left - 7, up(value) + 4), _tick_text(value), "end", 0.75)
    drawing.text((left - 48, top - 11), y.title, opacity=0.75)
    names = x_names or [(value, _tick_text(value)) for value in x.ticks()]
    drawing.x_axis(x, across, bottom + 4, bottom, names, 0.5)
    drawing.line((left, bottom), (right, bottom), 0.5)
    _draw_marks(drawing, [(across(value), label) for value, label in marks], top, bottom)
    placed = [(one, [(across(px), up(py)) for px, py in one.points]) for one in series if one.points]
    lowest_label = 0.0
    # From the top down, so that the labels of lines that end close together are in the order of the lines.
    for one, points in sorted(placed, key=lambda item: item[1][-1][1]):
        drawing.path(points if one.dots else _steps(points), one.color)
        for point in points if one.dots else ():
            drawing.dot(point, one.color)
        if one.label:
            lowest_label = max(points[-1][1] + 4, lowest_label + 14)
            drawing.text((min(points[-1][0], right) + 8, lowest_label), one.label, color=one.color)
    return drawing.svg()


def _draw_marks(drawing: _Drawing, marks: Sequence[tuple[float, str]], top: float, bottom: float) -> None:
    """Draw vertical lines with labels, a label one line lower if it would touch another."""
    label_ends: list[float] = []  # x at which the last label of each line ends
    for x, label in marks:
        drawing.line((x, top), (x, bottom), 0.55, stroke_dasharray="4 3")
        line = next((i for i, end in enumerate(label_ends) if end < x), len(label_ends))
        label_ends[line : line + 1] = [x + 10 + 7 * len(label)]
        drawing.text((x + 4, top + 11 + 12 * line), label, opacity=0.8)


def _steps(points: Sequence[Point]) -> list[Point]:
    """Return the points of a curve that keeps each height until the next x."""
    steps = [points[0]]
    for x, y in points[1:]:
        steps += [(x, steps[-1][1]), (x, y)]
    return steps


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a forest plot: a change with the half width of its 95 % interval, in percent. `good` is None if nothing
    is claimed."""

    label: str
    change: float
    half: float
    text: str
    good: bool | None = None


def forest(title: str, rows: Sequence[Interval], x_title: str) -> str:
    """Return intervals around zero, one row each; the dot is hollow if nothing is claimed."""
    step, top, left, right = 26.0, 14.0, 178.0, WIDTH - 190.0
    bottom = top + step * len(rows)
    drawing = _Drawing(title, bottom + 44)
    reach = max((abs(row.change) + row.half for row in rows), default=1.0) * 1.08 or 1.0
    axis = SvgAxis(x_title, -reach, reach)
    across = axis.scale(left, right)
    drawing.x_axis(axis, across, top, bottom, [(v, _tick_text(v, sign=True)) for v in axis.ticks()], _GRID_OPACITY)
    drawing.line((across(0), top - 6), (across(0), bottom), 0.7)
    colors = {None: GREY, True: BLUE, False: ORANGE}
    for i, row in enumerate(rows):
        y, color = top + step * (i + 0.5), colors[row.good]
        low, high = across(row.change - row.half), across(row.change + row.half)
        drawing.text((left - 12, y + 4), row.label, "end")
        drawing.line((low, y), (high, y), color=color, stroke_width=2)
        for end in (low, high):
            drawing.line((end, y - 4), (end, y + 4), color=color, stroke_width=2)
        drawing.dot((across(row.change), y), color, hollow=row.good is None)
        drawing.text((right + 14, y + 4), row.text, color=color)
    return drawing.svg()


def dumbbells(title: str, pairs: Sequence[Point], x_title: str) -> str:
    """Return pairs of values, at least one, a row each: A hollow, B filled."""
    step, top, left, right = 20.0, 24.0, 92.0, WIDTH - 80.0
    bottom = top + step * len(pairs)
    drawing = _Drawing(title, bottom + 42)
    values = [value for pair in pairs for value in pair]
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.02 or 1.0
    axis = SvgAxis(x_title, low - margin, high + margin)
    across = axis.scale(left, right)
    drawing.x_axis(axis, across, top, bottom, [(v, _tick_text(v)) for v in axis.ticks()], _GRID_OPACITY)
    for i, (a, b) in enumerate(pairs):
        y = top + step * (i + 0.5)
        drawing.text((left - 12, y + 4), f"pair {i + 1}", "end", 0.8)
        drawing.line((across(a), y), (across(b), y), color=GREY, stroke_width=1.6)
        drawing.dot((across(a), y), ORANGE, hollow=True)
        drawing.dot((across(b), y), BLUE)
    a, b = pairs[0]
    outside = 10 if b >= a else -10
    drawing.text((across(a) - outside, top - 4), "A", "middle", color=ORANGE)
    drawing.text((across(b) + outside, top - 4), "B", "middle", color=BLUE)
    return drawing.svg()
