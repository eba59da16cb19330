"""One table of keys. Footer, help, palette and the person's keymap all come from it.

`where` is "" for keys that work everywhere on the main screen, or the pane in which they work. Letters act only when
no input has the focus. No key that tmux or screen owns, and none that terminals cannot tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Key:
    """`footer` is the place in the footer (lower first; 0: not there)."""

    key: str
    action: str
    label: str
    help: str
    where: str = ""
    footer: int = 0
    group: str = "screen"

    @property
    def shown(self) -> str:
        """The key as a person reads it on a keyboard."""
        names = {"slash": "/", "question_mark": "?", "full_stop": ".", "ctrl+p": "^p", "escape": "esc"}
        return names.get(self.key, self.key)


PANES = {1: "presets", 2: "launch", 3: "log", 4: "results", 5: "compare", 6: "gpu"}

KEYS: tuple[Key, ...] = (
    Key("p", "presets", "Preset", "pick a preset: type letters of its name, enter loads it", "", 1, "launch"),
    Key("slash", "find", "Find", "find a flag by name; in presets filter, in the log search", "", 2, "launch"),
    Key("s", "start", "Start", "start or restart the server: shows the plan first", "", 3, "server"),
    Key("x", "stop", "Stop", "stop the server: all its processes and no other", "", 9, "server"),
    Key("b", "bench", "Bench", "benchmark the server; while it is starting: as soon as it is READY", "", 4, "bench"),
    Key("c", "compare", "Compare", "compare the marked results A and B, else the last two", "", 10, "bench"),
    Key("full_stop", "again", "Again", "restart with the plan, bench, compare with the run before", "", 5, "bench"),
    Key("g", "gpu", "GPU", "GPU settings: power limit, clocks, persistence; shows the commands first", "", 8, "gpu"),
    Key("r", "revert", "Revert", "put every GPU setting back to what it was, at once", "", 11, "gpu"),
    Key("T", "keep_trial", "Keep trial", "keep the GPU settings that are on trial, under guard, until r", "", 0, "gpu"),
    Key("V", "verify", "Verify", "keep the server busy for 8 s and see which GPU settings hold", "", 15, "gpu"),
    Key("X", "experiment", "A/B", "A/B experiment: the one that runs or was last, else a new one", "", 13, "bench"),
    Key("S", "sweep", "Sweep", "measure over values of a GPU setting, the concurrency or a flag", "", 14, "bench"),
    Key("K", "cancel", "Cancel", "cancel what is measuring: benchmark, sweep or experiment", "", 0, "bench"),
    Key("u", "undo", "Undo", "undo the last edit of the plan", "", 12, "launch"),
    Key("U", "redo", "Redo", "redo the edit that was undone", "", 0, "launch"),
    Key("v", "command", "Command", "the full command, its environment and all findings", "", 16, "launch"),
    Key(
        "y", "copy", "Copy", "copy the command: by the terminal (OSC 52), in tmux into its buffer too", "", 17, "launch"
    ),
    Key("Y", "copy_script", "Copy script", "copy the plan as a shell script", "", 0, "launch"),
    Key("w", "save", "Save", "save the plan as a preset of your own", "", 18, "launch"),
    Key("n", "new", "New", "new preset from the plan", "", 0, "launch"),
    Key("h", "host", "Host", "work on another host", "", 19, "screen"),
    Key("R", "try_again", "Retry", "connect again to a host that could not be reached", "", 0, "screen"),
    Key("z", "zoom", "Zoom", "the focused pane on the whole screen, and back", "", 20, "screen"),
    Key("l", "activity", "Activity", "everything that was done to the host, as commands", "", 0, "screen"),
    Key("question_mark", "help", "Help", "this page", "", 6, "screen"),
    Key("ctrl+p", "palette", "palette", "every action by name", "", 99, "screen"),
    Key("q", "quit", "Quit", "leave; servers keep running unless you say otherwise", "", 7, "screen"),
    Key("1", "pane(1)", "Presets", "go to Presets", "", 0, "panes"),
    Key("2", "pane(2)", "Launch", "go to Launch", "", 0, "panes"),
    Key("3", "pane(3)", "Log", "go to Log", "", 0, "panes"),
    Key("4", "pane(4)", "Bench", "go to Bench", "", 0, "panes"),
    Key("5", "pane(5)", "Compare", "go to Compare", "", 0, "panes"),
    Key("6", "pane(6)", "GPUs", "every figure of every GPU, with reasons for what is absent", "", 0, "panes"),
    Key("tab", "next_pane(1)", "Next pane", "next pane", "", 0, "panes"),
    Key("shift+tab", "next_pane(-1)", "Previous pane", "previous pane", "", 0, "panes"),
    Key("escape", "back", "Back", "close the message, the zoom or the search", "", 0, "panes"),
    Key("enter", "load", "load", "load the preset under the cursor", "presets"),
    Key("i", "preset_detail", "detail", "where the preset's numbers come from, and what is wrong with them", "presets"),
    Key("enter", "edit", "edit", "edit the flag under the cursor", "launch"),
    Key("a", "toggle_all", "all/changed", "all flags of the engine, or only those that are set", "launch"),
    Key("E", "add_env", "env", "set an environment variable", "launch"),
    Key("d", "unset", "unset", "remove the flag under the cursor from the plan", "launch"),
    Key("f", "follow", "follow", "follow the log, or hold it still", "log"),
    Key("e", "next_error", "error", "jump to the next error in the log", "log"),
    Key("m", "matches", "matches", "every line of the whole log file that holds what was searched for", "log"),
    Key("o", "runs", "runs", "choose which server run is shown", "log"),
    Key("enter", "detail", "detail", "the result with its conditions", "results"),
    Key("a", "mark_a", "mark A", "mark the result as A", "results"),
    Key("B", "mark_b", "mark B", "mark the result as B", "results"),
    Key("d", "delete", "delete", "delete the result", "results"),
    Key("e", "export", "export", "write the result as JSON, CSV or Markdown", "results"),
    Key("t", "plot", "plot", "plot the results", "results"),
    Key("f", "filter", "filter", "only results that have these words: flags, notes, tags, dates", "results"),
    Key("n", "note", "note", "a note and tags on the result", "results"),
    Key("enter", "experiment_page", "experiment", "the experiment's runs, pairs and intervals", "compare"),
    Key("o", "experiments", "experiments", "choose which experiment is shown, or go on with one", "compare"),
    Key("t", "plot", "plot", "plot A and B", "compare"),
    Key("enter", "gpu", "settings", "change settings", "gpu"),
    Key("L", "leave_on", "leave on", "leave the settings on when Workbench ends", "gpu"),
)


def bindings_for(where: str) -> list[BindingType]:
    """Textual bindings of the screen ("") or of one pane. Ids make them remappable in the person's keymap."""
    made: list[BindingType] = []
    for k in KEYS:
        if k.where == where:
            name = f"{where or 'screen'}.{k.action}"
            action = k.action if not where else f"screen.{k.action}"
            first = k.key == "ctrl+p"
            made.append(Binding(k.key, action, k.label, show=False, id=name, tooltip=k.help, priority=first))
    return made


def hint(where: str, *actions: str) -> str:
    """ "/ filter   enter load": pane keys for a border, taken from the table."""
    known = sorted((k for k in KEYS if k.where in (where, "")), key=lambda k: k.where != where)
    found = [next(k for k in known if k.action == a) for a in actions]
    return "  ".join(f"{k.shown} {k.label if k.where else k.label[:1].lower() + k.label[1:]}" for k in found)


def footer_keys() -> list[Key]:
    return sorted((k for k in KEYS if k.footer and k.footer < 99), key=lambda k: k.footer)
