"""The styles in which texts and graphs are drawn, in four themes. A text or graph has a role, such
as "warn", and a theme gives each role a style.

Blue means good, orange means attention, and bold red means bad. Blue is also the colour of A, and
orange that of B. These are colours of Okabe and Ito, which colour-blind users can distinguish, or
similar ones, and a word or a sign always says the same as the colour. Every style has a background,
because Textual's line API draws none and the mode without colours (NO_COLOR) needs a style on every
segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.style import Style

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a theme. `grounds` are the backgrounds by name. The contrast ratio of a text
    is at least 4.5 on each background, and that of a graph at least 3 on the background "ground",
    also in a terminal with 256 colours."""

    grounds: Mapping[str, str]
    text: str
    dim: str
    strong: str
    good: str
    warn: str
    bad: str
    faint: str  # separators
    band: str  # the range of several GPUs
    field: str  # an input, and the cursor of a list without the focus
    line: str  # borders
    select: tuple[str, str]  # text and ground of the cursor
    lit: str  # ground of the cursor of the time axis
    graphs: Mapping[str, str]
    # of graphs over time: the lower third of the scale, and the upper one
    low: Mapping[str, str]
    high: Mapping[str, str]
    dark: bool = True


_DARK_GRAPHS = {
    "util": "#5fafd7",
    "power": "#af87d7",
    "sm": "#5faf87",
    "vram": "#5f87af",
    "temp": "#d787af",
    "mem": "#87af87",
    "pcie": "#87afaf",
}
_DARK_LOW = {"util": "#0087af", "power": "#875faf", "sm": "#00875f", "spark": "#0087af"}
_DARK_HIGH = {"util": "#87d7ff", "power": "#d7afff", "sm": "#87d7af", "spark": "#87d7ff"}
_DARK_GROUNDS = {"ground": "#121212", "bar": "#262626", "box": "#1c1c1c"}
PALETTES: Mapping[str, Palette] = {
    "dark": Palette(
        _DARK_GROUNDS,
        text="#d0d0d0",
        dim="#9e9e9e",
        strong="#ffffff",
        good="#56b4e9",
        warn="#e69f00",
        bad="#ff5f00",
        faint="#767676",
        band="#626262",
        field="#303030",
        line="#5f8787",
        select=("#121212", "#d7d7d7"),
        lit="#5f5f5f",
        graphs=_DARK_GRAPHS,
        low=_DARK_LOW,
        high=_DARK_HIGH,
    ),
    "light": Palette(
        {"ground": "#ffffff", "bar": "#f0f0f0", "box": "#ffffff"},
        text="#1c1c1c",
        dim="#585858",
        strong="#000000",
        good="#005f87",
        warn="#875f00",
        bad="#af0000",
        faint="#767676",
        band="#8a8a8a",
        field="#dadada",
        line="#5f8787",
        select=("#ffffff", "#303030"),
        lit="#bcbcbc",
        graphs={
            "util": "#005faf",
            "power": "#875faf",
            "sm": "#00875f",
            "vram": "#5f5faf",
            "temp": "#af5f87",
            "mem": "#5f8700",
            "pcie": "#5f5f87",
        },
        low={"util": "#5f87d7", "power": "#8787af", "sm": "#5f875f", "spark": "#5f87af"},
        high={"util": "#000087", "power": "#5f0087", "sm": "#005f00", "spark": "#00005f"},
        dark=False,
    ),
    "high-contrast": Palette(
        {"ground": "#000000", "bar": "#000000", "box": "#000000"},
        text="#ffffff",
        dim="#d0d0d0",
        strong="#ffffff",
        good="#87d7ff",
        warn="#ffd700",
        bad="#ff8787",
        faint="#b2b2b2",
        band="#767676",
        field="#3a3a3a",
        line="#d0d0d0",
        select=("#000000", "#ffff00"),
        lit="#5f5f5f",
        graphs={
            "util": "#87d7ff",
            "power": "#d7afff",
            "sm": "#87ffaf",
            "vram": "#87afff",
            "temp": "#ffafd7",
            "mem": "#afffaf",
            "pcie": "#afffff",
        },
        low={"util": "#5fafd7", "power": "#af87d7", "sm": "#5fd787", "spark": "#5fafd7"},
        high={"util": "#afffff", "power": "#ffd7ff", "sm": "#afffd7", "spark": "#afffff"},
    ),
    # Only colours that a terminal of 256 colours has: it does not replace them by others.
    "256": Palette(
        _DARK_GROUNDS,
        text="#d0d0d0",
        dim="#9e9e9e",
        strong="#ffffff",
        good="#5fafd7",
        warn="#d7af00",
        bad="#ff5f00",
        faint="#767676",
        band="#626262",
        field="#303030",
        line="#5f8787",
        select=("#121212", "#d7d7d7"),
        lit="#5f5f5f",
        graphs=_DARK_GRAPHS,
        low=_DARK_LOW,
        high=_DARK_HIGH,
    ),
}
DEFAULT = "dark"

# role -> (colour of the palette, bold)
TEXT_ROLES: Mapping[str, tuple[str, bool]] = {
    "text": ("text", False),
    "dim": ("dim", False),
    "strong": ("strong", True),
    "head": ("dim", False),
    "title": ("good", True),
    "good": ("good", False),
    "goodb": ("good", True),
    "warn": ("warn", False),
    "warnb": ("warn", True),
    "bad": ("bad", True),
    "key": ("warn", True),
    "a": ("good", True),
    "b": ("warn", True),
    "limit": ("warn", False),
    "limited": ("warn", False),
}
GRAPH_ROLES: Mapping[str, str] = {"spark": "good", "faint": "faint", "fan": "dim", "band": "band"}
LOW, HIGH = " low", " high"  # behind the role of a graph whose brightness shows the level
LEVELLED = frozenset(_DARK_LOW)
ON_BAND = " on band"  # the lowest of several GPUs in front of the highest


class _Current:
    """The name and the palette of the theme that is drawn now. The function `use` sets both."""

    name = DEFAULT
    palette = PALETTES[DEFAULT]


def current_theme_name() -> str:
    return _Current.name


def select_theme(name: str) -> None:
    """Draw with the theme `name` from now on. Widgets must draw their rows again to show the
    theme."""
    _Current.name, _Current.palette = name, PALETTES[name]
    style.cache_clear()


def colour_and_is_bold(role: str, palette: Palette) -> tuple[str, bool]:
    """Return the colour of a role in a palette, and whether the role is bold."""
    if role in TEXT_ROLES:
        name, bold = TEXT_ROLES[role]
        return str(getattr(palette, name)), bold
    for level, colours in ((LOW, palette.low), (HIGH, palette.high)):
        if role.endswith(level):
            return colours[role.removesuffix(level)], False
    return palette.graphs.get(role) or str(getattr(palette, GRAPH_ROLES[role])), False


@lru_cache(maxsize=256)
def style(role: str, background: str = "ground") -> Style:
    """Return the style of a role such as "warn" on a background such as "box". The role "select" is
    the row under the cursor of the focused list, and "rest" the row under the cursor of any other
    list."""
    palette = _Current.palette
    back = palette.grounds[background]
    if role == "select":
        return Style(color=palette.select[0], bgcolor=palette.select[1], bold=True)
    if role == "rest":
        return Style(color=palette.text, bgcolor=palette.field)
    if role == "lit":  # the cursor of the time axis
        return Style(color=palette.strong, bgcolor=palette.lit)
    if role.endswith(ON_BAND):
        return Style(
            color=colour_and_is_bold(role.removesuffix(ON_BAND), palette)[0], bgcolor=palette.band
        )
    if role == "reverse":
        return Style(color=palette.warn, bgcolor=back, bold=True, reverse=True)
    colour, bold = colour_and_is_bold(role, palette)
    return Style(color=colour, bgcolor=back, bold=bold)
