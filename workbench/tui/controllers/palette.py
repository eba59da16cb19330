"""The palette: a list of every action of the keys, every preset and every host. Typing a part of a
name filters the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from workbench.model.lazy_dataclass import dataclass
from workbench.store.config_schema import THEMES
from workbench.tui.bindings import PAGE_KEYS, REPLAY_KEYS, Key
from workbench.tui.cells import pad, width_of
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.base import PickModal
from workbench.tui.panes import MAIN_KEYS, PANES, PLACES

LEFT_OUT = ("ctrl+p", "colon", "escape", "tab", "shift+tab")
NAME_CELLS = 22
TITLES = {pane.NAME: pane.TITLE for pane in PANES} | PLACES


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    help: str
    call: Callable[[], Awaitable[None] | None]


class PaletteController(Controller):
    async def open(self) -> None:
        entries = list(self._entries())
        items = [
            (str(n), f"{pad(e.name, max(NAME_CELLS, width_of(e.name)))}  {e.help}", "text")
            for n, e in enumerate(entries)
        ]

        def chosen(number: str | None) -> None:
            if number is not None:
                self.services.screen.call_later(entries[int(number)].call)

        await self.app.push_screen(
            PickModal("Actions", items, filter=True, free=False).add_class("-wide"), chosen
        )

    def _entries(self) -> Iterator[Entry]:
        actions: dict[object, Key] = {}  # two keys may run one action
        replay = self.state.host.replay is not None
        for key in (*MAIN_KEYS, *PAGE_KEYS):
            if key.key not in LEFT_OUT and (replay or key not in REPLAY_KEYS):
                actions.setdefault(key.run, key)
        for key in actions.values():
            name = (
                f"{TITLES[key.where]}: {key.label}" if key.where else (f"{key.label} ({key.shown})")
            )
            yield Entry(name, key.help, partial(self._run, key))
        yield Entry(
            "Save a picture",
            "the screen as SVG in the working directory",
            self.controllers.view.save_picture,
        )
        for theme in THEMES:
            yield Entry(
                f"Theme {theme}",
                "colours of the screen",
                partial(self.controllers.view.use_theme, theme),
            )
        yield Entry(
            "Explain a word",
            "find a word of the screen by its name",
            self.controllers.explain.pick_word,
        )
        for preset in self.state.presets:
            yield Entry(
                f"Load {preset.id}", preset.title, partial(self.controllers.plan.load, preset)
            )
        for host in self.session.hosts.known():
            yield Entry(
                f"Host {host.name}", host.label, partial(self.controllers.hosts.switch, host.name)
            )

    async def _run(self, key: Key) -> None:
        """Run the action of `key`. If the key belongs to a pane, go to that pane first. The action
        then uses the item under the cursor of the pane."""
        if key.where in self.services.panes.frames:
            self.go(key.where)
        running = key.run(self.controllers)
        if running is not None:
            await running
