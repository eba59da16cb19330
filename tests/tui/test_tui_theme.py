"""The themes: contrasts computed as WCAG 2 says, also with the colours of a 256-colour terminal,
and the switch."""

from __future__ import annotations

import pytest
from rich.color import Color, ColorSystem
from support.real_screen import RealScreen, shown

from workbench.store.config import ConfigStore
from workbench.store.config_schema import THEMES
from workbench.tui import theme
from workbench.tui.theme import (
    GRAPH_ROLES,
    HIGH,
    LEVELLED,
    LOW,
    PALETTES,
    TEXT_ROLES,
    colour_and_is_bold,
)

ROUNDED = [False, True]
GRAPHS = sorted(
    {
        *GRAPH_ROLES,
        *(role for palette in PALETTES.values() for role in palette.graphs),
        *(role + level for role in LEVELLED for level in (LOW, HIGH)),
    }
)


def luminance(colour: str, rounded: bool) -> float:
    parsed = Color.parse(colour)
    triplet = (parsed.downgrade(ColorSystem.EIGHT_BIT) if rounded else parsed).get_truecolor()
    linear = [
        v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4
        for v in (c / 255 for c in triplet)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str, rounded: bool) -> float:
    low, high = sorted((luminance(one, rounded), luminance(other, rounded)))
    return (high + 0.05) / (low + 0.05)


def test_the_themes_of_the_configuration_exist() -> None:
    assert set(THEMES) == set(PALETTES) and THEMES[0] == theme.DEFAULT


@pytest.mark.parametrize("rounded", ROUNDED)
@pytest.mark.parametrize("name", THEMES)
def test_every_text_can_be_read_on_every_ground(name: str, rounded: bool) -> None:
    palette = PALETTES[name]
    low = {
        (role, ground): value
        for role in TEXT_ROLES
        for ground, colour in palette.grounds.items()
        if (value := contrast(colour_and_is_bold(role, palette)[0], colour, rounded)) < 4.5
    }
    assert not low
    assert contrast(*palette.select, rounded) >= 4.5
    assert contrast(palette.text, palette.field, rounded) >= 4.5
    assert contrast(palette.strong, palette.lit, rounded) >= 4.5


@pytest.mark.parametrize("rounded", ROUNDED)
@pytest.mark.parametrize("name", THEMES)
def test_every_graph_is_seen_on_its_ground(name: str, rounded: bool) -> None:
    palette = PALETTES[name]
    ground = palette.grounds["ground"]
    low = {
        r: v
        for r in GRAPHS
        if (v := contrast(colour_and_is_bold(r, palette)[0], ground, rounded)) < 3
    }
    assert not low
    assert contrast(palette.line, ground, rounded) >= 3


def test_a_terminal_of_256_colours_has_every_colour_of_its_theme() -> None:
    palette = PALETTES["256"]
    colours = {
        *palette.grounds.values(),
        *(colour_and_is_bold(r, palette)[0] for r in (*TEXT_ROLES, *GRAPHS)),
    }
    levels, greys = (0, 95, 135, 175, 215, 255), {8 + 10 * n for n in range(24)}
    for colour in colours:
        red, green, blue = Color.parse(colour).get_truecolor()
        assert {red, green, blue} <= set(levels) or (red == green == blue and red in greys), colour


@pytest.mark.slow
def test_a_theme_is_changed_in_the_palette_and_kept() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.until("4 x A100")
        strip = s.app.main.strip
        assert strip.render_line(0)._segments[0].style.bgcolor.triplet.hex == "#121212"
        await s.press("colon")
        await s.until("Actions")
        await s.press(*"theme light", "enter")
        await s.until(
            lambda: strip.render_line(0)._segments[0].style.bgcolor.triplet.hex == "#ffffff"
        )
        assert s.app.main.styles.background.hex == "#FFFFFF"
        assert ConfigStore().config.ui.theme == "light"

    try:
        shown(scenario)
    finally:
        theme.select_theme(theme.DEFAULT)
