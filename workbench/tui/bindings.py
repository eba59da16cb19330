"""The keys of the main screen, of its pages and lists, and of the fleet (the screen with several
hosts). The footer, the help page and the palette (the list of actions) show these keys.

A key that belongs to no pane works everywhere on the main screen. While an input has the focus,
letters are typed into that input. The table contains no key that the programs tmux and screen use,
and no two keys that terminals cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from textual.binding import Binding, BindingType

from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers
    from workbench.tui.fleet.screen import FleetScreen  # noqa: F401  (in the text of a type)

T = TypeVar("T")

SHOWN = {
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "left_parenthesis": "(",
    "right_parenthesis": ")",
    "right_curly_bracket": "}",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "plus": "+",
    "minus": "-",
    "slash": "/",
    "question_mark": "?",
    "exclamation_mark": "!",
    "full_stop": ".",
    "ctrl+p": "^p",
    "colon": ":",
    "f1": "F1",
    "escape": "esc",
}


@dataclass(frozen=True)
class ScreenKey(Generic[T]):
    """A key with the method that it runs. `run` gets the object that has this method: the
    controllers for a key of the main screen, and the fleet's screen for a key of the fleet.

    `where` names the pane, page or list in which the key works; "" is the whole main screen.
    `footer` is the key's position among the keys in the footer, and 0 means that the footer does
    not show the key.
    """

    key: str
    label: str
    help: str
    run: Callable[[T], Awaitable[None] | None]
    footer: int = 0
    where: str = ""

    @property
    def name_on_keyboard(self) -> str:
        """Return the key as it is printed on a keyboard: "/" for the Textual name "slash"."""
        return SHOWN.get(self.key, self.key)

    @property
    def id(self) -> str:
        return f"{self.where or 'screen'} {self.key}"


Key = ScreenKey["Controllers"]
FleetKey = ScreenKey["FleetScreen"]


# two keys each
def change_gpu_settings(controllers: Controllers) -> Awaitable[None]:
    return controllers.gpu.open_settings_form()


def explain_visible_terms(controllers: Controllers) -> None:
    controllers.explain.explain_visible_terms()


def open_palette(controllers: Controllers) -> Awaitable[None]:
    return controllers.palette.open_palette()


def open_result_plot(controllers: Controllers) -> None:
    controllers.results.open_plot()


TIME_KEYS: tuple[Key, ...] = (
    Key(
        "left_square_bracket",
        "Back",
        "go back in time: show every value of an earlier second",
        lambda c: c.timeline.move_cursor(-1),
    ),
    Key(
        "right_square_bracket",
        "Forward",
        "go forward in time, at the end to now",
        lambda c: c.timeline.move_cursor(1),
    ),
    Key(
        "left_curly_bracket",
        "Far back",
        "go back in time by ten cells of the graphs",
        lambda c: c.timeline.move_cursor(-10),
    ),
    Key(
        "right_curly_bracket",
        "Far forward",
        "go forward in time by ten cells",
        lambda c: c.timeline.move_cursor(10),
    ),
    Key(
        "less_than_sign",
        "Event before",
        "go back in time to the event before",
        lambda c: c.timeline.move_to_event(-1),
    ),
    Key(
        "greater_than_sign",
        "Event after",
        "go forward in time to the next event",
        lambda c: c.timeline.move_to_event(1),
    ),
    Key("0", "Now", "return to now", lambda c: c.timeline.move_to_now()),
    Key(
        "plus",
        "Zoom in",
        "make a cell of the graphs shorter: 300, 60, 15, 5, 1 s",
        lambda c: c.timeline.zoom_time_axis(-1),
    ),
    Key(
        "minus",
        "Zoom out",
        "make a cell of the graphs longer: 1, 5, 15, 60, 300 s",
        lambda c: c.timeline.zoom_time_axis(1),
    ),
    Key(
        "F",
        "Fold GPUs",
        "draw equal GPUs together in one row, or each in a row of its own",
        lambda c: c.timeline.toggle_row_per_gpu(),
    ),
)

REPLAY_KEYS: tuple[Key, ...] = (
    Key("P", "Pause", "pause a replay, and go on", lambda c: c.replay.toggle_pause()),
    Key(
        "left_parenthesis",
        "Slower",
        "play a replay at half the speed",
        lambda c: c.replay.change_speed(-1),
    ),
    Key(
        "right_parenthesis",
        "Faster",
        "play a replay at twice the speed",
        lambda c: c.replay.change_speed(1),
    ),
)

SCREEN_KEYS: tuple[Key, ...] = (
    Key(
        "p",
        "Preset",
        "pick a preset: type letters of its name, enter loads it",
        lambda c: c.search.open_preset_search(),
        3,
    ),
    Key(
        "slash",
        "Find",
        "find a flag by name; filter the presets; search the log",
        lambda c: c.search.open_active_pane_search(),
        4,
    ),
    Key(
        "s",
        "Start",
        "start or restart the server: shows the plan first",
        lambda c: c.servers.start_server(),
        5,
    ),
    Key(
        "Z",
        "Go back",
        "after a failed restart: start again what ran before",
        lambda c: c.servers.restart_previous_server(),
    ),
    Key(
        "A",
        "Apply",
        "apply all that the preset carries: launch, settings, warm-up",
        lambda c: c.apply.ask_to_apply_preset(),
    ),
    Key(
        "x",
        "Stop",
        "stop the server: all its processes and no others",
        lambda c: c.servers.stop_server(),
        9,
    ),
    Key(
        "b",
        "Bench",
        "benchmark the server; if it is starting, when it is READY",
        lambda c: c.bench.open_bench_form(),
        6,
    ),
    Key(
        "c",
        "Compare",
        "compare the marked results A and B, else the last two",
        lambda c: c.results.compare_marked_results(),
        10,
    ),
    Key(
        "Q",
        "Answers",
        "are the answers of B the same as those of A? show it, measure it",
        lambda c: c.quality.open_quality_page(),
    ),
    Key(
        "full_stop",
        "Again",
        "restart with the plan, bench, compare",
        lambda c: c.bench.restart_and_repeat_benchmark(),
        7,
    ),
    Key(
        "g",
        "GPU",
        "power limit, clocks and other GPU settings: shows the commands",
        change_gpu_settings,
        8,
    ),
    Key(
        "r",
        "Revert",
        "restore every GPU setting to its previous value, at once",
        lambda c: c.gpu.revert_settings(),
        11,
    ),
    Key(
        "T",
        "Keep trial",
        "keep the GPU settings that are on trial",
        lambda c: c.gpu.confirm_trial_settings(),
    ),
    Key(
        "V",
        "Verify",
        "put load on the server, and show which GPU settings are in force",
        lambda c: c.gpu.check_settings_under_load(),
        15,
    ),
    Key(
        "X",
        "A/B",
        "measure the changed plan or GPU setting against the running server; show the experiment",
        lambda c: c.experiments.open_measurement_page_or_form(),
        13,
    ),
    Key(
        "S",
        "Sweep",
        "benchmark at several values of a GPU setting, concurrency or flag",
        lambda c: c.sweeps.open_measurement_page_or_form(),
        14,
    ),
    Key(
        "N",
        "Tune",
        "search a configuration that serves better than the plan, and prove it: shows the plan first",
        lambda c: c.tunes.open_measurement_page_or_form(),
    ),
    Key(
        "K",
        "Cancel",
        "cancel the benchmark, sweep, experiment or copy that is running",
        lambda c: c.bench.cancel_measurement(),
    ),
    Key("u", "Undo", "undo the last edit of the plan", lambda c: c.plan.undo_plan_edit(), 12),
    Key("U", "Redo", "redo the edit that was undone", lambda c: c.plan.redo_plan_edit()),
    Key(
        "v",
        "Command",
        "show the full command, its environment and all findings",
        lambda c: c.plan.show_command(),
        16,
    ),
    Key(
        "M",
        "Fits",
        "show which quantizations, GPUs and context lengths of the model fit",
        lambda c: c.plan.open_fit_page(),
    ),
    Key(
        "y",
        "Copy",
        "copy the command (OSC 52; in tmux into its buffer too)",
        lambda c: c.plan.copy_command(),
        17,
    ),
    Key(
        "Y",
        "Copy as",
        "copy the plan as a script, service, container, job or recipe",
        lambda c: c.recipes.copy_plan_as_recipe(),
    ),
    Key(
        "w", "Save", "save the plan as your own preset", lambda c: c.plan.save_plan_as_preset(), 18
    ),
    Key("n", "New", "make a new preset from the plan", lambda c: c.plan.save_plan_as_preset()),
    Key(
        "h",
        "Host",
        "work on another host, or check it; clusters are listed with their servers",
        lambda c: c.hosts.pick_host(),
        19,
    ),
    Key(
        "O",
        "Fleet",
        "show all hosts at once: GPUs, servers, token rates; enter opens one",
        lambda c: c.fleet.open_fleet(),
    ),
    Key(
        "C",
        "Models",
        "list the models on this host; hash, copy and download them",
        lambda c: c.models.open_models_page(),
    ),
    Key(
        "H",
        "Doctor",
        "examine the host: what is missing or does not fit, and the fix",
        lambda c: c.hosts.open_doctor_page(),
    ),
    Key(
        "D",
        "Demo",
        "work on simulated GPUs: nothing of this host is used",
        lambda c: c.hosts.switch_to_simulated_host(),
    ),
    Key(
        "R",
        "Retry",
        "connect again to a host that could not be reached",
        lambda c: c.hosts.reconnect_host(),
    ),
    *REPLAY_KEYS,
    Key(
        "z",
        "Zoom",
        "show the focused pane on the whole screen, and back",
        lambda c: c.view.toggle_pane_zoom(),
        20,
    ),
    Key(
        "W",
        "In force",
        "compare what was asked of the server with what is in force",
        lambda c: c.servers.open_settings_in_force(),
    ),
    Key(
        "exclamation_mark",
        "Alerts",
        "show the rules of the alerts, their state, and the last alerts",
        lambda c: c.alerts.open_alerts_page(),
    ),
    Key(
        "J",
        "Nights",
        "show the newest night of the watches",
        lambda c: c.view.open_newest_watch_night(),
    ),
    Key(
        "l",
        "Activity",
        "list every command that changed the host",
        lambda c: c.view.open_activity(),
    ),
    Key(
        "question_mark",
        "Explain",
        "explain the flag under the cursor and the terms on the screen",
        explain_visible_terms,
        1,
    ),
    Key("f1", "Keys", "list every key", lambda c: c.explain.open_key_list()),
    Key("ctrl+p", "palette", "list every action by name", open_palette, 99),
    Key("colon", "palette", "list every action by name", open_palette),
    Key(
        "q",
        "Quit",
        "leave; servers keep running unless you choose otherwise",
        lambda c: c.view.quit(),
        2,
    ),
    *TIME_KEYS,
    Key("tab", "Next pane", "go to the next pane", lambda c: c.view.activate_next_pane(1)),
    Key(
        "shift+tab",
        "Previous pane",
        "go to the previous pane",
        lambda c: c.view.activate_next_pane(-1),
    ),
    Key(
        "escape",
        "Back",
        "close the search, the message, the zoom or the GPUs pane",
        lambda c: c.view.close_topmost(),
    ),
)


def copy_keys_for_view(view: str, *keys: Key) -> tuple[Key, ...]:
    """Return copies of `keys` that work only in the pane, page or list named `view`."""
    return tuple(replace(key, where=view) for key in keys)


HOST_KEYS = copy_keys_for_view(
    "hosts",
    Key("ctrl+n", "add", "write a host to hosts.toml", lambda c: c.hosts.add_host()),
    Key(
        "ctrl+t",
        "check",
        "check the host or the cluster under the cursor: what is missing there, and the fix",
        lambda c: c.hosts.open_host_check(),
    ),
)

ALERT_KEYS = copy_keys_for_view(
    "alerts",
    Key(
        "t",
        "Test",
        "raise a test alert with all effects that are on",
        lambda c: c.alerts.raise_test_alert(),
    ),
    Key(
        "a",
        "All on/back",
        "turn the bell, the mark and the title on for all rules, or set them back",
        lambda c: c.alerts.toggle_all_alert_rules(),
    ),
)

CHECK_KEYS = copy_keys_for_view(
    "check",
    Key("R", "Again", "check the host or the cluster again", lambda c: c.checks.run_check()),
    Key("o", "Open", "work on this host or cluster", lambda c: c.checks.switch_to_checked_host()),
    Key(
        "s",
        "Start",
        "go to the cluster and start the plan there: shows the plan first",
        lambda c: c.checks.start_server(),
    ),
    Key(
        "x",
        "Stop",
        "stop the server of the cluster, on all its nodes",
        lambda c: c.checks.stop_server(),
    ),
)

MODEL_KEYS = copy_keys_for_view(
    "models",
    Key(
        "enter",
        "Files",
        "list the files of the model with their sizes and hashes",
        lambda c: c.models.show_selected_files(),
    ),
    Key(
        "V",
        "Hash",
        "hash every byte of the model on its host, and compare with the hub",
        lambda c: c.models.hash_model_copy(),
    ),
    Key(
        "c",
        "Copy",
        "copy the model to another host; K cancels",
        lambda c: c.models.copy_model_to_host(),
    ),
    Key(
        "n",
        "Download",
        "download a model with the hub's program on this host",
        lambda c: c.models.download_model(),
    ),
    Key(
        "a",
        "All hosts",
        "list the models of all hosts, or only of this one",
        lambda c: c.models.toggle_all_hosts(),
    ),
    Key("R", "Again", "look for models again", lambda c: c.models.search_models()),
    Key(
        "y",
        "Path",
        "copy the path of the model to the clipboard",
        lambda c: c.models.copy_model_path(),
    ),
)

# The keys of pages and lists that are opened from the main screen.
PAGE_KEYS: tuple[Key, ...] = (*HOST_KEYS, *ALERT_KEYS, *CHECK_KEYS, *MODEL_KEYS)


_FLEET: tuple[FleetKey, ...] = (
    FleetKey(
        "enter",
        "Open",
        "open the host under the cursor; its q or O comes back",
        lambda f: f.open_host(),
        1,
    ),
    FleetKey(
        "slash",
        "Filter",
        "show the hosts whose name, GPUs, servers or state contain words",
        lambda f: f.start_filter_input(),
        2,
    ),
    FleetKey("s", "Sort", "sort by the next column", lambda f: f.sort_by_next_column(), 3),
    FleetKey("S", "Reverse", "sort in the other direction", lambda f: f.reverse_order(), 4),
    FleetKey(
        "R", "Retry", "connect again to a host that refused the login", lambda f: f.retry_login(), 5
    ),
    FleetKey(
        "question_mark",
        "Keys",
        "list the keys of the fleet and its signs",
        lambda f: f.show_keys(),
        6,
    ),
    FleetKey(
        "escape",
        "Back",
        "remove the filter; without one, go back to the host",
        lambda f: f.remove_filter_or_close(),
    ),
    FleetKey("q", "Leave", "leave the fleet; servers keep running", lambda f: f.close_fleet(), 7),
)
FLEET_KEYS = tuple(replace(key, where="fleet") for key in _FLEET)


# The ids of keys that run something on the host. A replay rejects them.
_ACTING = (
    ("screen", ("full_stop", "exclamation_mark", *"sxZbgrTVXSNHCO")),
    ("gpu", ("enter", "L")),
    ("log", "tdE"),
)
ACTING = frozenset(f"{where} {key}" for where, keys in _ACTING for key in keys)


# The ids of the keys of the main screen that act while a page is open. The page takes every other
# key, because that would change what the page covers: the plan and the panes.
_KEYS_ON_PAGES = (
    # act on what stays in sight: the GPU rows, the top row, the command and the progress
    *(key.key for key in (*TIME_KEYS, *REPLAY_KEYS)),
    *"rTVKRZy",
    # show a box first, or another page or screen
    *("full_stop", "exclamation_mark", "question_mark", "f1", "ctrl+p", "colon"),
    *"sAxbgXSNYhDQvMCHWJlOq",
    # close the page and go to a pane
    *("p", "slash", "c", "tab", "shift+tab", "escape"),
    *"123456",
)
ON_PAGES = frozenset(f"screen {key}" for key in _KEYS_ON_PAGES)


def make_textual_bindings(keys: Sequence[ScreenKey[Any]]) -> list[BindingType]:
    """Return Textual bindings for the keys. Each binding calls the method `action_do` of the screen
    with the id of its key."""
    return [
        Binding(
            k.key, f"screen.do('{k.id}')", k.label, show=False, priority=k.key.startswith("ctrl+")
        )
        for k in keys
    ]


def format_key_hints(keys: Sequence[Key], *key_names: str) -> str:
    """Return the key hints for a border, such as "/ find enter load". `key_names` has the Textual
    names of the keys to show, in order. Look each name up in `keys` first, then among the keys of
    the whole main screen."""
    found = [next(k for k in (*keys, *SCREEN_KEYS) if k.key == key) for key in key_names]
    return "  ".join(
        f"{k.name_on_keyboard} {k.label if k.where else k.label[:1].lower() + k.label[1:]}"
        for k in found
    )


FIRST_KEYS_FIELDS = frozenset(
    {
        "host",
        "alterations",
        "guard",
        "plan",
        "servers",
        "run_id",
        "bench",
        "experiment",
        "sweep",
        "goes_back_to",
    }
)


def suggest_next_keys(state: SessionState) -> list[Key]:
    """Return the keys for the most likely next steps of the user, the most likely first. The steps
    depend on the connection, the server, running measurements and altered GPU settings."""
    host = state.host
    wanted: list[str] = []
    if host.link == "failed":
        wanted += ("R", "h")
    if host.telemetry_problem and state.plan is None:
        wanted += ("D", "h")
    if state.alterations and state.trial_left_s is not None:
        wanted += ("T", "r")
    if state.bench.is_running_or_queued or state.running_series or host.model_work is not None:
        wanted.append("K")
    if state.goes_back_to is not None:
        wanted.append("Z")
    if state.plan is None:
        wanted.append("p")
    else:
        wanted += _suggest_server_keys(state)
    if state.alterations:
        wanted.append("r")
    return [next(key for key in SCREEN_KEYS if key.key == name) for name in dict.fromkeys(wanted)]


def _suggest_server_keys(state: SessionState) -> Sequence[str]:
    """Return the keys for the most likely next steps with a plan, by the state of its server."""
    server = state.server
    if server is None:
        return ("s",)
    if server.is_ready and state.bench.last_id is not None:
        return ("b", "full_stop", "X")
    keys = {"ready": ("b", "X"), "starting": ("b", "x"), "unresponsive": ("x",)}
    return keys.get(server.state, ("s",))


def footer_keys() -> list[Key]:
    return sorted((k for k in SCREEN_KEYS if 0 < k.footer < 99), key=lambda k: k.footer)
