"""The panes of the main screen, in the order of their numbers, and the table of all keys of the
main screen.

A pane is a subclass of `Pane` in a file of its own, with a title, keys, and the state fields that
it draws.

base, frame                the interface of a pane, and the border around it
presets, launch, log       panes 1 to 3; log_lines shortens lines for a narrow log
results, compare, gpus     panes 4 to 6
result_groups              the list of results, with each series as one row
search                     the input row above a pane
"""

from __future__ import annotations

from typing import Any

from workbench.tui.bindings import FLEET_KEYS, PAGE_KEYS, SCREEN_KEYS, Key, ScreenKey
from workbench.tui.panes.base import Pane
from workbench.tui.panes.compare import Compare
from workbench.tui.panes.gpus import GpuPane
from workbench.tui.panes.launch import Launch
from workbench.tui.panes.log import LogPane
from workbench.tui.panes.presets import Presets
from workbench.tui.panes.results import Results

PANES: tuple[type[Pane], ...] = (Presets, Launch, LogPane, Results, Compare, GpuPane)


def _make_number_key(number: int, pane: type[Pane]) -> Key:
    text = pane.HELP or f"go to {pane.TITLE}"
    return Key(str(number), pane.TITLE, text, lambda c: c.services.panes.activate_pane(pane.NAME))


SCREEN: tuple[Key, ...] = (
    *SCREEN_KEYS,
    *(_make_number_key(n, pane) for n, pane in enumerate(PANES, 1)),
)
MAIN_KEYS: tuple[Key, ...] = (*SCREEN, *(key for pane in PANES for key in pane.KEYS))
KEYS: dict[str, Key] = {key.id: key for key in MAIN_KEYS}
ALL_KEYS: tuple[ScreenKey[Any], ...] = (*MAIN_KEYS, *PAGE_KEYS, *FLEET_KEYS)
# Where keys work besides the panes: name -> title.
PLACES = {
    "hosts": "List of hosts",
    "alerts": "Alerts",
    "check": "Check",
    "models": "Models",
    "fleet": "Fleet",
}
