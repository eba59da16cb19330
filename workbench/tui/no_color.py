"""Output without colours, as the variable NO_COLOR requests. Bold text stays bold. Text on a light
background, such as the row under a cursor, is shown in reverse video."""

from __future__ import annotations

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

LIGHT = 0.4  # brightness, 0..1, from which a ground is taken for a cursor


@lru_cache(maxsize=1024)
def remove_colour(style: Style) -> Style:
    ground = style.bgcolor
    light = (
        ground is not None
        and not ground.is_default
        and Color.from_rich_color(ground).brightness > LIGHT
    )
    return Style(bold=style.bold, reverse=bool(style.reverse) or light, underline=style.underline)


class Uncoloured(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and remove_colour(style), control)
            for text, style, control in segments
        ]
