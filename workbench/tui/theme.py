"""The styles of the roles: Okabe-Ito colours, which colour-blind users can distinguish.

Sky blue is good (and A), orange needs attention (and B), bold vermillion is bad. Every role also has a word or a sign.
A style always has a ground colour: Textual's line API paints none, and NO_COLOR needs a style on every segment.
"""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style

SKY, ORANGE, VERMILLION = "#56b4e9", "#e69f00", "#d55e00"
TEXT, DIM, STRONG = "#d0d0d0", "#8a8a8a", "#ffffff"

# From the 256 colours of a terminal: it replaces others by the nearest one, which is glaring for a dark blue.
GROUNDS = {"ground": "#121212", "bar": "#262626", "box": "#1c1c1c"}
FIELD, LINE = "#303030", "#5f8787"

_ROLES: dict[str, tuple[str, bool]] = {
    "text": (TEXT, False),
    "dim": (DIM, False),
    "strong": (STRONG, True),
    "head": (DIM, False),
    "title": (SKY, True),
    "good": (SKY, False),
    "goodb": (SKY, True),
    "warn": (ORANGE, False),
    "warnb": (ORANGE, True),
    "bad": (VERMILLION, True),
    "key": (ORANGE, True),
    "a": (SKY, True),
    "b": (ORANGE, True),
    "spark": (SKY, False),
    "faint": ("#585858", False),
    "util": ("#5fafd7", False),
    "power": ("#af87d7", False),
    "sm": ("#5faf87", False),
    "vram": ("#5f87af", False),
    "temp": ("#d787af", False),
    "mem": ("#87af87", False),
    "pcie": ("#87afaf", False),
    "fan": (DIM, False),
    "band": ("#585858", False),
    "limit": (ORANGE, False),
    "limited": (ORANGE, False),
}
ON_BAND = " on band"  # the lowest of several GPUs in front of the highest


@lru_cache(maxsize=256)
def style(role: str, ground: str = "ground") -> Style:
    """Return the style of a role such as "warn" on a ground such as "box". The role "select" is the cursor of the
    focused list, and "rest" that of any other list."""
    back = GROUNDS[ground]
    if role == "select":
        return Style(color="#121212", bgcolor="#d7d7d7", bold=True)
    if role == "rest":
        return Style(color=TEXT, bgcolor=FIELD)
    if role == "lit":  # the cursor of the time axis
        return Style(color=STRONG, bgcolor="#5f5f5f")
    if role.endswith(ON_BAND):
        return Style(color=_ROLES[role.removesuffix(ON_BAND)][0], bgcolor=_ROLES["band"][0])
    if role == "reverse":
        return Style(color=ORANGE, bgcolor=back, bold=True, reverse=True)
    colour, bold = _ROLES[role]
    return Style(color=colour, bgcolor=back, bold=bold)
