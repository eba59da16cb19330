"""A few kinds of plots as inline SVG. Text and axes take the page's colour (currentColor), so that they are readable in
light and dark and in print; the two series colours are told apart on both, also without colour vision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.report.format_values import escape

BLUE, ORANGE, GREY = "#3a7fc2", "#d1762a", "#8a8f98"
WIDTH = 720.0
_FONT = 12
_FAINT = 0.16
Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Series:
    """`kind`: "line", "step" or "dots" (with a line through them). `label` stands at its end."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    color: str = BLUE
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class SvgAxis:
    title: str
    low: float
    high: float
    log: bool = False

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)

    def scale(self, start: float, end: float) -> Scale:
        """Value to place."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        span = (high - low) or 1.0

        def place(value: float) -> float:
            at = math.log10(max(value, self.low)) if self.log else value
            return start + (at - low) / span * (end - start)

        return place


def number(value: float) -> str:
    """A tick's text: short, without trailing zeros."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}".replace("-", "−")


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, within [low, high]."""
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


class Canvas:
    """Shapes in order; `svg` ends it. Coordinates are pixels from the upper left."""

    def __init__(self, title: str, height: float, width: float = WIDTH) -> None:
        self.title, self.height, self.width = title, height, width
        self.shapes: list[str] = []

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        color: str = "currentColor",
        width: float = 1.0,
        opacity: float = 1.0,
        dash: str = "",
    ) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:g}"'
            f' stroke-opacity="{opacity:g}"{dashes}/>'
        )

    def path(self, points: Iterable[tuple[float, float]], color: str, width: float = 1.8) -> None:
        steps = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
        self.shapes.append(
            f'<path d="{steps}" fill="none" stroke="{color}" stroke-width="{width:g}" stroke-linejoin="round"'
            ' stroke-linecap="round"/>'
        )

    def dot(self, x: float, y: float, color: str, radius: float = 3.2, *, hollow: bool = False) -> None:
        fill = "none" if hollow else color
        self.shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{color}" stroke-width="1.6"/>'
        )

    def band(self, x1: float, x2: float, y1: float, y2: float) -> None:
        self.shapes.append(
            f'<rect x="{x1:.1f}" y="{y1:.1f}" width="{max(0.0, x2 - x1):.1f}" height="{y2 - y1:.1f}"'
            ' fill="currentColor" fill-opacity="0.06"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        *,
        color: str = "currentColor",
        opacity: float = 1.0,
        weight: str = "",
    ) -> None:
        bold = f' font-weight="{weight}"' if weight else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" fill-opacity="{opacity:g}"{bold}>'
            f"{escape(text)}</text>"
        )

    def svg(self) -> str:
        title = escape(self.title)
        return (
            f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' role="img" aria-label="{title}" font-size="{_FONT}"><title>{title}</title>{"".join(self.shapes)}</svg>'
        )


def chart(
    title: str,
    x: SvgAxis,
    y: SvgAxis,
    series: Sequence[Series],
    *,
    height: float = 260.0,
    marks: Sequence[tuple[float, str]] = (),
    window: tuple[float, float] | None = None,
    x_names: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over an x axis. `marks`: (x, label) as vertical lines; `window`: a stretch of x that is shaded; `x_names`:
    ticks instead of the axis' own."""
    canvas = Canvas(title, height)
    left, right, top, bottom = 58.0, WIDTH - 96.0, 26.0, height - 40.0
    across, up = x.scale(left, right), y.scale(bottom, top)
    if window is not None:
        canvas.band(max(left, across(window[0])), min(right, across(window[1])), top, bottom)
    _grid(canvas, x, y, across, up, (left, right, top, bottom), x_names)
    label_ends: list[float] = []  # of the labels so far, one line below the other where they would touch
    for at, label in marks:
        canvas.line(across(at), top, across(at), bottom, opacity=0.55, dash="4 3")
        line = next((i for i, end in enumerate(label_ends) if end < across(at)), len(label_ends))
        label_ends[line : line + 1] = [across(at) + 10 + 7 * len(label)]
        canvas.text(across(at) + 4, top + 11 + 12 * line, label, opacity=0.8)
    taken: list[float] = []
    # From the top down, so that a label that gives way to another stays below it as its line does.
    for one in sorted(series, key=lambda s: up(s.points[-1][1]) if s.points else 0.0):
        points = [(across(px), up(py)) for px, py in one.points]
        if not points:
            continue
        canvas.path(_steps(points) if one.kind == "step" else points, one.color)
        if one.kind == "dots":
            for px, py in points:
                canvas.dot(px, py, one.color)
        if one.label:
            at = _free(points[-1][1] + 4, taken)
            canvas.text(min(points[-1][0], right) + 8, at, one.label, color=one.color, weight="600")
    return canvas.svg()


def _grid(
    canvas: Canvas,
    x: SvgAxis,
    y: SvgAxis,
    across: Scale,
    up: Scale,
    box: tuple[float, float, float, float],
    names: Sequence[tuple[float, str]],
) -> None:
    left, right, top, bottom = box
    for value in y.ticks():
        canvas.line(left, up(value), right, up(value), opacity=_FAINT)
        canvas.text(left - 7, up(value) + 4, number(value), "end", opacity=0.75)
    for value, label in names or [(v, number(v)) for v in x.ticks()]:
        canvas.line(across(value), bottom, across(value), bottom + 4, opacity=0.5)
        canvas.text(across(value), bottom + 17, label, "middle", opacity=0.75)
    canvas.line(left, bottom, right, bottom, opacity=0.5)
    canvas.text(left - 48, top - 11, y.title, opacity=0.75)
    canvas.text((left + right) / 2, bottom + 34, x.title, "middle", opacity=0.75)


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found


def _free(wanted: float, taken: list[float], gap: float = 14.0) -> float:
    """A height near `wanted` at which no other label stands."""
    at = wanted
    while any(abs(at - other) < gap for other in taken):
        at += gap
    taken.append(at)
    return at


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a forest plot: change with its 95 % interval, in percent. `good`: None where nothing is claimed."""

    label: str
    change: float
    half: float
    text: str
    good: bool | None = None


def forest(title: str, rows: Sequence[Interval], x_title: str) -> str:
    """Intervals about zero, one row each; hollow where the interval holds zero."""
    step, top, left, right = 26.0, 14.0, 178.0, WIDTH - 190.0
    bottom = top + step * len(rows)
    canvas = Canvas(title, bottom + 44)
    reach = max((max(abs(r.change - r.half), abs(r.change + r.half)) for r in rows), default=1.0) * 1.08 or 1.0
    axis = SvgAxis(x_title, -reach, reach)
    across = axis.scale(left, right)
    for value in axis.ticks():
        canvas.line(across(value), top, across(value), bottom, opacity=_FAINT)
        canvas.text(across(value), bottom + 16, f"{'+' if value > 0 else ''}{number(value)}", "middle", opacity=0.75)
    canvas.line(across(0), top - 6, across(0), bottom, opacity=0.7)
    canvas.text((left + right) / 2, bottom + 33, x_title, "middle", opacity=0.75)
    for i, row in enumerate(rows):
        y = top + step * (i + 0.5)
        color = GREY if row.good is None else BLUE if row.good else ORANGE
        canvas.text(left - 12, y + 4, row.label, "end")
        low, high = across(row.change - row.half), across(row.change + row.half)
        canvas.line(low, y, high, y, color=color, width=2)
        for end in (low, high):
            canvas.line(end, y - 4, end, y + 4, color=color, width=2)
        canvas.dot(across(row.change), y, color, 4, hollow=row.good is None)
        canvas.text(right + 14, y + 4, row.text, color=color, weight="600" if row.good is not None else "")
    return canvas.svg()


def dumbbells(title: str, pairs: Sequence[tuple[float, float]], x_title: str) -> str:
    """Raw pairs: one row each, A hollow, B filled."""
    step, top, left, right = 20.0, 24.0, 92.0, WIDTH - 80.0
    bottom = top + step * len(pairs)
    canvas = Canvas(title, bottom + 42)
    values = [v for pair in pairs for v in pair]
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or abs(high) * 0.02 or 1.0
    axis = SvgAxis(x_title, low - margin, high + margin)
    across = axis.scale(left, right)
    for value in axis.ticks():
        canvas.line(across(value), top, across(value), bottom, opacity=_FAINT)
        canvas.text(across(value), bottom + 16, number(value), "middle", opacity=0.75)
    canvas.text((left + right) / 2, bottom + 33, x_title, "middle", opacity=0.75)
    for i, (a, b) in enumerate(pairs):
        y = top + step * (i + 0.5)
        canvas.text(left - 12, y + 4, f"pair {i + 1}", "end", opacity=0.8)
        canvas.line(across(a), y, across(b), y, color=GREY, width=1.6)
        canvas.dot(across(a), y, ORANGE, 4, hollow=True)
        canvas.dot(across(b), y, BLUE, 4)
    if pairs:
        a, b = pairs[0]
        apart = 10 if b >= a else -10
        canvas.text(across(a) - apart, top - 4, "A", "middle", color=ORANGE, weight="600")
        canvas.text(across(b) + apart, top - 4, "B", "middle", color=BLUE, weight="600")
    return canvas.svg()
