"""The palette: a list of every action of the keys, every preset and every host. Typing words of a
name or of a task filters the list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from workbench.model import fuzzy
from workbench.model.lazy_dataclass import dataclass
from workbench.session.hosts.names import LOCAL_HOST_NAME
from workbench.store.config_schema import THEMES
from workbench.tui.bindings import ON_PAGES, PAGE_KEYS, REPLAY_KEYS, Key
from workbench.tui.cells import pad_text, width_of
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.base import Choice, PickModal
from workbench.tui.panes import MAIN_KEYS, PANES, PLACES

LEFT_OUT = ("ctrl+p", "colon", "escape", "tab", "shift+tab")
NAME_CELLS = 22
TITLES = {pane.NAME: pane.TITLE for pane in PANES} | PLACES
NAME_MATCH_BONUS = (
    100.0  # more for an entry whose name or task has the words than for one with other words
)
# less than any score: a preset or a host is chosen by its name, and stands below the actions
AFTER_ACTIONS = 10_000.0
# id of a key -> the words of the tasks in README.md for which it is the key
TASKS = {
    "screen N": "overnight better configuration",
    "screen S": "users capacity rate search",
    "screen X": "experiment twins compare machines",
    "screen J": "watch night regression",
    "screen A": "preset whole",
    "screen M": "quantization context memory",
    "screen Q": "quality kld",
    "screen C": "download",
    "screen Y": "export script",
    "screen h": "container cluster",
    "screen b": "trace replay traffic load",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the palette. `tasks` has further words that find it."""

    name: str
    help: str
    call: Callable[[], Awaitable[None] | None]
    tasks: str = ""
    after_actions: bool = False

    def match_score(self, query: str) -> float | None:
        """Return how well the entry matches the words of `query`, the higher the better; None for
        no match."""
        named = fuzzy.word_score(query, f"{self.name} {self.tasks}")
        found = fuzzy.word_score(query, f"{self.name} {self.tasks} {self.help}")
        if found is None:
            return None
        if named is not None:
            found = named + NAME_MATCH_BONUS
        if self.after_actions:
            found -= AFTER_ACTIONS
        return found


class PaletteController(Controller):
    async def open_palette(self) -> None:
        entries = list(self._list_entries())
        items = []
        for number, entry in enumerate(entries):
            name = pad_text(entry.name, max(NAME_CELLS, width_of(entry.name)))
            items.append((str(number), f"{name}  {entry.help}", "text"))

        def run_chosen_action(number: str | None) -> None:
            if number is not None:
                self.services.screen.call_later(entries[int(number)].call)

        def score_choice(query: str, choice: Choice) -> float | None:
            return entries[int(choice[0])].match_score(query)

        picker = PickModal("Actions", items, filter=True, free=False, score=score_choice)
        await self.app.push_screen(picker.add_class("-wide"), run_chosen_action)

    def _list_entries(self) -> Iterator[Entry]:
        actions: dict[object, Key] = {}  # two keys may run one action
        replay = self.state.host.replay is not None
        for key in (*MAIN_KEYS, *PAGE_KEYS):
            if key.key not in LEFT_OUT and (replay or key not in REPLAY_KEYS):
                actions.setdefault(key.run, key)
        for key in actions.values():
            name = f"{key.label} ({key.name_on_keyboard})"
            if key.where:
                name = f"{TITLES[key.where]}: {key.label}"
            yield Entry(name, key.help, partial(self._run_key_action, key), TASKS.get(key.id, ""))
        yield Entry(
            "Capture a trace",
            "record your own traffic with a command, to benchmark with it",
            self._explain_trace_capture,
            "traffic",
        )
        yield Entry(
            "Save a picture",
            "the screen as SVG in the working directory",
            self.controllers.view.save_picture,
        )
        for theme in THEMES:
            yield Entry(
                f"Theme {theme}",
                "colours of the screen",
                partial(self.controllers.view.switch_and_store_theme, theme),
            )
        yield Entry(
            "Explain a word",
            "find a word of the screen by its name",
            self.controllers.explain.pick_and_explain_term,
        )
        for preset in self.state.presets:
            load = partial(self.controllers.plan.load_preset, preset)
            yield Entry(f"Load {preset.id}", preset.title, load, after_actions=True)
        for host in self.session.hosts.known_hosts():
            switch = partial(self.controllers.hosts.switch_host, host.name)
            yield Entry(f"Host {host.name}", host.label, switch, after_actions=True)

    def _explain_trace_capture(self) -> None:
        host, workbench = self.state.host.name, "workbench"
        if host != LOCAL_HOST_NAME:
            workbench += f" --host {host}"
        self.show_message(
            "a command captures a trace of your traffic, without its text",
            next_step=f"run {workbench} trace capture {self.state.run_id or 'RUN'}; then b replays "
            "its file (field trace file)",
        )

    async def _run_key_action(self, key: Key) -> None:
        """Run the action of `key`. If the key belongs to a pane, go to that pane first. The action
        then uses the item under the cursor of the pane. Close the pages that cover what it
        changes."""
        if key.where not in PLACES and key.id not in ON_PAGES:
            self.services.pages.close_all()
        if key.where in self.services.panes.frames:
            self.go_to_pane(key.where)
        running = key.run(self.controllers)
        if running is not None:
            await running
