"""Which keys of the main screen act while a page or a box lies over it: every key on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from textual import events

from workbench.tui.bindings import ON_PAGES
from workbench.tui.panes import KEYS, MAIN_KEYS, SCREEN

CLOSING = ("escape", "q")  # close the page, and nothing else
PAGES = {
    "keys": ("plan", "f1"),
    "terms": ("plan", "question_mark"),
    "command": ("plan", "v"),
    "fits": ("plan", "M"),
    "preset": ("plan", "1 i"),
    "activity": ("altered", "l"),
    "alerts": ("ready", "exclamation_mark"),
    "experiment": ("experiment", "X"),
    "experimented": ("experimented", "5 enter"),
    "sweep": ("swept", "S"),
    "tune": ("tuning", "N"),
    "tuned": ("tuned", "N"),
    "result": ("compare", "4 enter"),
    "plot": ("compare", "4 t"),
    "differences": ("compare", "5 d"),
}
BOXES = {
    "palette": ("plan", "ctrl+p"),
    "start": ("plan", "s"),
    "flag": ("plan", "2 enter"),
    "copy-as": ("plan", "Y"),
    "save": ("plan", "w"),
    "hosts": ("plan", "h"),
    "stop": ("ready", "x"),
    "bench": ("ready", "b"),
    "sweep-form": ("ready", "S"),
    "tune-form": ("ready", "N"),
    "tune-plan": ("ready", "N enter"),
    "how-sure": ("compare", "X"),
    "experiment-form": ("compare", "X down down down enter"),
    "gpu-settings": ("altered", "g"),
    "leave": ("altered", "q"),
    "leave-from-page": ("altered", "f1 ctrl+q"),
    "fleet": ("plan", "O"),
}


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the ids of the keys that have acted, in place of what they do."""
    ids: list[str] = []
    yield ids
    ids.clear()


async def press_every_key(d: Any, acted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Press each key of the main screen, as the terminal does."""
    for key in MAIN_KEYS:
        recorded = replace(key, run=lambda _, id=key.id: acted.append(id))
        monkeypatch.setitem(KEYS, key.id, recorded)
    for name in (*dict.fromkeys(key.key for key in SCREEN), "ctrl+q", "ctrl+c"):
        await d.app.try_handling_key(events.Key(name, None))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_takes_the_keys_but_for_those_listed(
    drive: Any, monkeypatch: pytest.MonkeyPatch, acted: list[str], name: str
) -> None:
    """u undid an edit that nobody saw."""
    stage, keys = PAGES[name]

    async def scenario(d: Any) -> None:
        await d.press(*keys.split())
        await d.until(lambda: d.app.main.panes.pages.visible_page is not None, f"a page: {d.text}")
        page = d.app.main.panes.pages.visible_page
        page.keys, page.close_page = dict, lambda: None
        await press_every_key(d, acted, monkeypatch)
        own = {f"screen {key}" for key in (*CLOSING, *page.OWN)}
        listed = {key.id for key in SCREEN if key.id in ON_PAGES} - own
        assert set(acted) - {"screen q"} == listed  # q by ctrl+q
        assert d.app.main.panes.pages.visible_page is page

    drive(scenario, stage=stage)


@pytest.mark.parametrize("name", BOXES)
def test_a_box_takes_every_key(
    drive: Any, monkeypatch: pytest.MonkeyPatch, acted: list[str], name: str
) -> None:
    stage, keys = BOXES[name]

    async def scenario(d: Any) -> None:
        await d.press(*keys.split())
        await d.until(lambda: d.app.screen is not d.app.main, f"a box: {d.text}")
        box = d.app.screen
        monkeypatch.setattr(box, "dismiss", lambda *_: None)
        await press_every_key(d, acted, monkeypatch)
        assert acted == [] and d.app.screen is box

    drive(scenario, stage=stage)


def test_the_list_names_keys_of_the_main_screen_with_all_numbers() -> None:
    assert {key.id for key in SCREEN} >= ON_PAGES
    assert {key.id for key in SCREEN if key.key.isdigit()} <= ON_PAGES
