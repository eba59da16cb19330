"""The palette: every action of the table, every preset and every host, found by typing a part of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.tui.bindings import KEYS, PANES

if TYPE_CHECKING:
    from workbench.tui.screen import MainScreen

SKIP = ("palette", "back", "next_pane")
NUMBERS = {name: number for number, name in PANES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    help: str
    call: Callable[[], Any]


def everything(main: MainScreen) -> Iterator[Entry]:
    """Actions in the order of the table, then presets, then hosts."""
    seen: set[str] = set()
    for k in KEYS:
        if k.action.startswith(SKIP) or k.action in seen:
            continue
        seen.add(k.action)
        if k.where:  # what works on the item under a pane's cursor says so
            yield Entry(f"{k.where}: {k.label}", k.help, partial(_in_pane, main, NUMBERS[k.where], k.action))
        else:
            yield Entry(f"{k.label} ({k.shown})", k.help, partial(main.run_action, k.action))
    yield Entry("Save a picture", "the screen as SVG in the working directory", main.action_screenshot)
    for preset in main.session.state.presets:
        yield Entry(f"Load {preset.id}", preset.title, partial(main.load, preset))
    for name in main.session.known_hosts():
        yield Entry(f"Host {name}", "", partial(_switch, main, name))


async def _in_pane(main: MainScreen, number: int, action: str) -> None:
    main.go(number)
    await main.run_action(action)


def _switch(main: MainScreen, name: str) -> None:
    main.attempt(main.session.switch_host(name))
