"""Pane 2, Launch: the flags of the plan under edit with their values, defaults and findings. A
changed flag shows its old and its new value, and the value of the running server. Help on the flag
under the cursor is below."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from workbench.model.counts import count_of
from workbench.model.flags import FlagRow, Origin
from workbench.session.state import PlanView, SessionState
from workbench.tui.bindings import Key, copy_keys_for_view, make_textual_bindings
from workbench.tui.cells import (
    Row,
    Run,
    cut_paragraph_rows,
    cut_text,
    cut_text_middle,
    join_rows,
    pad_text,
    paragraph_rows,
    row_width,
    rows_beside_label,
    width_of,
)
from workbench.tui.formats import flag_default_text, flag_value_text
from workbench.tui.glyphs import LEVELS, G
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.pick_list import PickList
from workbench.tui.widgets.running_rows import served_plan_state

if TYPE_CHECKING:
    from workbench.model.plan import PlanDifference
    from workbench.session.session import Session
    from workbench.tui.controllers import Controllers

RUN_AS = "run-as"
RowKey = tuple[bool, str]  # whether it is a variable of the environment, and its name
GAP = ("  ", "text")
SERVED_WORDS = {"starting": "starts", "running": "runs"}
# what makes the running server have the changes of the plan
CHANGE_KEYS = (("s", "restarts"), (".", "measures"), ("X", "tests"))
_LEAST_FOR_TWO = 10  # cells in which an old and a new value can still be read
_FIXED_ROWS = 2  # the model and the program stay at the top
NOT_FLAGS = ("executable", RUN_AS)  # rows about the start that are no flags of the engine


class Launch(Pane, PickList):
    NAME, TITLE = "launch", "Launch"
    FIELDS = frozenset({"plan", "host", "servers", "run_id"})
    KEYS = copy_keys_for_view(
        "launch",
        Key("enter", "edit", "edit the flag under the cursor", lambda c: c.plan.edit_flag()),
        Key(
            "a",
            "all",
            "all flags of the engine, or only those that are set",
            lambda c: c.pane_of_type(Launch).toggle_all_flags(),
        ),
        Key(
            "o",
            "group",
            "go to a group of flags, such as memory",
            lambda c: c.plan.pick_flag_group(),
        ),
        Key(
            "n",
            "next group",
            "go to the next group of flags",
            lambda c: c.plan.go_to_adjacent_group(1),
        ),
        Key(
            "B",
            "group before",
            "go to the group of flags before",
            lambda c: c.plan.go_to_adjacent_group(-1),
        ),
        Key(
            "e",
            "engine",
            "choose the program that starts the engine",
            lambda c: c.plan.choose_engine_program(),
        ),
        Key(
            "L",
            "launcher",
            "choose what runs the server: a process, or a launcher such as systemd",
            lambda c: c.plan.choose_launcher(),
        ),
        Key("E", "env", "set an environment variable", lambda c: c.plan.add_environment_variable()),
        Key(
            "f",
            "fix",
            "apply the fix of a finding, first of the flag under the cursor",
            lambda c: c.plan.fix_finding(),
        ),
        Key(
            "d",
            "unset",
            "remove the flag under the cursor from the plan",
            lambda c: c.plan.unset_flag(),
        ),
    )
    HINTS = ("enter", "a", "o", "question_mark")
    SEARCH = "letters of a flag, or a group such as memory"
    SEARCH_HINT = "enter edit  esc back"
    BINDINGS = make_textual_bindings(KEYS)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.query_text = ""
        self.all = False
        # the changes of the plan that the running server does not have
        self._changes: tuple[PlanDifference, ...] = ()
        # by row, how it differs from the preset and from the running server
        self._edits: Mapping[RowKey, PlanDifference] = {}
        self._unlike: Mapping[RowKey, PlanDifference] = {}
        self._differing: set[RowKey] = set()  # rows that differ from one of them
        # "running" or "starting" for a server of a known plan, "" without one
        self._served = ""
        self._filled_from: tuple[object, ...] = ()  # the plan, the host, the changes and the server

    def show(self, state: SessionState) -> None:
        self.state = state
        self._changes, self._served = (), served_plan_state(self.session, state)
        if self._served:
            self._changes = tuple(self.session.servers.changes_against_running())
        self._edits, self._unlike = {}, {}
        if state.plan is not None:
            self._edits = _changes_by_row_key(state.plan, state.plan.changes)
            self._unlike = _changes_by_row_key(state.plan, self._changes)
        self._differing = {*self._edits, *self._unlike}
        shown = (state.plan, state.host, self._changes, self._served)
        if shown != self._filled_from:
            self._filled_from = shown
            self._show_flags(keep_cursor=True)

    @property
    def title_detail(self) -> str:
        plan = self.session.state.plan
        if self.query_text:
            return f"/{self.query_text}"
        if plan is None:
            return ""
        return engine_title(plan)

    @property
    def footer_keys(self) -> list[Key]:
        """Return the keys for the footer of a small terminal. If the engine's program was not found
        on the host, the first key is the one that chooses the program."""
        plan = self.session.state.plan
        if plan is None:
            return []
        keys = super().footer_keys
        if plan.installed_problem:
            keys = [*self._keys_with_names("e"), *keys]
        return keys

    # search
    def apply_search(self, text: str, controllers: Controllers) -> None:
        self.lit, self.query_text = True, text
        self._show_flags(keep_cursor=False)

    def end_search(self, controllers: Controllers) -> None:
        self.lit, self.query_text = False, ""
        self._show_flags(keep_cursor=True)

    async def submit_search(self, text: str, controllers: Controllers) -> None:
        """Open the editor for the flag that matches the search best. If no flag matches, open it
        for a new flag named `text`."""
        row = self.current_item
        if row is None and text.strip():
            row = FlagRow(text.strip().lstrip("-"), None, None, Origin.DEFAULT, None)
        await controllers.search.close_search_input()
        if row is not None:
            await controllers.plan.edit_flag_row(row)

    def toggle_all_flags(self) -> None:
        self.all = not self.all
        self._show_flags(keep_cursor=True)

    # groups
    @property
    def group_names(self) -> tuple[str, ...]:
        """Return the names of the groups of all flags, in the order of the list."""
        return tuple(
            dict.fromkeys(row.editor_section for row in self.session.plans.flag_rows("all"))
        )

    def move_to_group(self, group_name: str) -> None:
        """List all flags, and move the cursor to the first flag of the group `group_name`."""
        self.all, self.query_text = True, ""
        self._show_flags(keep_cursor=True)
        self._move_cursor_below_heading(self.items.index(group_name))

    def move_to_adjacent_group(self, direction: int) -> None:
        """Move the cursor to the first flag of the next group (`direction` 1) or of the group
        before (`direction` -1). With -1, a cursor inside a group first moves to the first flag of
        that group."""
        if not self.all or self.query_text:
            self.move_to_group(self.group_names[0])
            return
        heads = [n for n, item in enumerate(self.items) if self.is_heading(item)]
        found = bisect_right(heads, self.cursor)
        if direction < 0:
            found = bisect_left(heads, self.cursor - 1) - 1
        if 0 <= found < len(heads):
            self._move_cursor_below_heading(heads[found])

    def _move_cursor_below_heading(self, heading_index: int) -> None:
        self.top = heading_index
        self.cursor = self._nearest_item_index(heading_index, 1)
        self.repaint()

    def is_heading(self, item: Any) -> bool:
        return isinstance(item, str)

    def _show_flags(self, keep_cursor: bool) -> None:
        if self.state.plan is None:
            self.set_items(())
        elif self.query_text:
            self.set_items(
                self.session.plans.flag_rows("all", self.query_text), keep_cursor=keep_cursor
            )
        elif self.all:
            self.set_items(self._flags_with_headings(), keep_cursor=keep_cursor)
        else:
            self.set_items(self._sort_changed_first(self.state.plan.rows), keep_cursor=keep_cursor)

    def _sort_changed_first(self, rows: Sequence[FlagRow]) -> Sequence[FlagRow]:
        """Return the rows in this order: the model and the program, the changed flags, the others.
        So a pane of few rows shows what is changed. The port is the last changed flag, because it
        changes most and matters least."""

        def rank(row: FlagRow) -> int:
            if not self._is_edited_or_differs(row):
                return 2
            return int(row.name == "port")

        return [*rows[:_FIXED_ROWS], *sorted(rows[_FIXED_ROWS:], key=rank)]

    def _is_edited_or_differs(self, row: FlagRow) -> bool:
        """Return whether the user has edited the row, or its value differs from that of the preset
        or of the running server."""
        key = (row.is_env, row.name)
        return row.origin is Origin.EDITED or key in self._differing

    def _flags_with_headings(self) -> list[FlagRow | str]:
        """Return the rows of all flags, with a heading above each group."""
        items: list[FlagRow | str] = []
        every = self.session.plans.flag_rows("all")
        for heading, rows in groupby(every, key=lambda row: row.editor_section):
            items += [heading, *rows]
        return items

    def item_key(self, item: Any) -> Hashable:
        if isinstance(item, str):
            return item
        return item.is_env, item.name

    def _name_value_default_widths(self, width: int) -> tuple[int, int, int]:
        flags = [item for item in self.items if not self.is_heading(item)][:60]
        longest = max((len(flag.name) for flag in flags), default=20)
        longest_default = max(map(len, map(_flag_default_text, flags)), default=0)
        most = 16  # flag and value are more important
        if width < 44:
            most = 0
        elif width < 60:
            most = 10
        default = min(most, max(8, longest_default + 1))
        name = max(16, min(longest + 2, width - 3 - 10 - default, 44))
        return name, max(8, min(width - 4 - name - default, 28)), default

    def rows_above_items(self, width: int) -> list[Row]:
        if not self.items:
            return []
        name, value, default = self._name_value_default_widths(width)
        return [
            (
                (pad_text("   flag", name + 3), "head"),
                (pad_text("value", value), "head"),
                (pad_text("default", default), "head"),
            )
        ]

    def item_row(self, item: FlagRow | str, width: int) -> Row:
        if isinstance(item, str):
            return ((f" {item}", "title"),)
        name_w, value_w, default_w = self._name_value_default_widths(width)
        key = (item.is_env, item.name)
        edit, unlike = self._edits.get(key), self._unlike.get(key)
        edited = self._is_edited_or_differs(item)
        mark, mark_role = LEVELS.get(item.level, (" ", "text"))
        unset = item.origin is Origin.DEFAULT and item.value is None and not edited
        value, default, name = flag_value_text(item.value), _flag_default_text(item), item.name
        if item.is_env:
            name = f"${name}"
        if default in ("", "-") and len(value) >= value_w and not unset:
            # a long value takes the room of an absent default
            value_w, default_w, default = value_w + default_w, 0, ""
        role, sign = "text", " "
        if unset:
            role = "dim"
        shown: Row = ((pad_text(cut_text_middle(value, value_w - 1), value_w - 1), role),)
        if edited:
            sign = "+"
            shown = changed_value_texts(value, edit, unlike, self._served, value_w + default_w)
        head = (
            (sign, "warn"),
            (mark, mark_role),
            (" ", "text"),
            (pad_text(name, name_w - 1), role),
            (" ", "text"),
        )
        gap = value_w - row_width(shown)
        if edited and (not default or gap < 1):
            gap, default_w = gap + default_w, 0
        return (*head, *shown, (" " * gap, "text"), (pad_text(default, default_w), "dim"))

    def rows_below_items(self, width: int, height: int) -> list[Row]:
        plan = self.state.plan
        if plan is None:
            return []
        rows: list[Row] = self._changes_not_in_server_rows(width)
        if not self.all and not self.query_text:
            more = max(0, plan.total_flags - sum(map(_is_engine_flag_with_value, plan.rows)))
            flags = f"{more} more flags"
            if plan.catalog_asked:
                flags += " of its own list"
            rows.append(((f"   + {flags} (a: all, /: find)", "dim"),))
        item: FlagRow | None = self.current_item
        if item is None or height < 10:
            return rows
        about = self._flag_help_rows(item, width)
        if height < 22:
            about = about[:3]
        return [*rows, (), *about[:8], *self._finding_rows(item, width)]

    def _changes_not_in_server_rows(self, width: int) -> list[Row]:
        """Return a row that counts the changes of the plan that the running server does not have,
        with the keys that make it have them; [] if there are none."""
        if not self._changes:
            return []
        number = len(self._changes)
        full = f" {count_of(number, 'change is', 'changes are')} not running: "
        brief = f" {count_of(number, 'change')} not running: "
        sizes = ((full, CHANGE_KEYS), (brief, CHANGE_KEYS[:2]), (brief, CHANGE_KEYS[:1]))
        for count, keys in sizes:
            words = join_rows([((key, "key"), (f" {word}", "warn")) for key, word in keys], GAP)
            if row_width(((count, "warn"), *words)) <= width:
                return [((count, "warn"), *words)]
        return [((cut_text(f" {number} not running: s", width), "warn"),)]

    def _flag_help_rows(self, item: FlagRow, width: int) -> list[Row]:
        lines = paragraph_rows(f"{item.name} {flag_description(item)}", width, "dim")
        first = lines[0][0][0]
        if first.startswith(item.name):
            lines[0] = ((item.name, "strong"), (first[len(item.name) :], "dim"))
        return lines

    def _finding_rows(self, item: FlagRow, width: int) -> list[Row]:
        if not item.finding:
            return []
        text, role = flag_finding_text_and_role(item)
        return cut_paragraph_rows(text, width, 3, role)

    def rows_without_items(self, width: int) -> list[Row]:
        if self.query_text:
            rows = paragraph_rows(f"No flag matches “{self.query_text}”.", width, "dim")
            return [
                *rows,
                *paragraph_rows(
                    "Press enter to set it nevertheless: unknown flags are passed on and marked.",
                    width,
                    "dim",
                ),
            ]
        if self.state.plan is None:
            return _first_steps_rows(self.state, width)
        return paragraph_rows(
            "No flag is set. Press / to find a flag, or a to list all flags.", width, "dim"
        )


def _flag_default_text(row: FlagRow) -> str:
    """Return the default of a flag; "" for a variable, which has none."""
    if row.is_env:
        return ""
    return flag_default_text(row.default)


def flag_finding_text_and_role(row: FlagRow) -> Run:
    """Return the finding about a flag, behind the sign of its level, and the role of the text."""
    sign, role = LEVELS.get(row.level, ("i", "dim"))
    return f"{sign} {row.finding}", role


def _is_engine_flag_with_value(row: FlagRow) -> bool:
    """Return whether the row is a flag of the engine with a value."""
    if row.is_env or row.value is None:
        return False
    return row.name.partition(".")[0] not in NOT_FLAGS


def _changes_by_row_key(
    plan: PlanView, changes: Sequence[PlanDifference]
) -> Mapping[RowKey, PlanDifference]:
    """Return the changes by the key of the row that shows each of them."""
    if not changes:
        return {}
    own_names = {"model": plan.rows[0].name, "run as": RUN_AS}
    found: dict[RowKey, PlanDifference] = {}
    for change in changes:
        name = own_names.get(change.kind, change.name)
        if change.kind == "run option":
            name = f"{RUN_AS}.{change.name}"
        found[change.kind == "env", name] = change
    return found


def changed_value_texts(
    value: str,
    preset_change: PlanDifference | None,
    server_difference: PlanDifference | None,
    server_state: str,
    max_cells: int,
) -> Row:
    """Return the value of a changed row in at most `max_cells` cells: the old value, the new one,
    and what the running server has. `preset_change` is the change of the preset, and
    `server_difference` the difference from the running server. `server_state` is "running" or
    "starting" for a server of a known plan, "" without one. With little room, the words about the
    server go first: the row below the flags counts the changes that it does not have. Then both
    values are cut."""
    old = arrow = ""
    if before := preset_change or server_difference:
        old = flag_value_text(before.a)
        arrow = f"{old} {G.becomes} "
    running, role = value, "dim"
    if server_difference is not None:
        running, role = flag_value_text(server_difference.a), "warn"
    notes = []
    if server_state:
        brief = SERVED_WORDS[server_state]
        notes = [f"  {server_state}: {running}", f"  {brief} {running}", f" {brief} {running}"]
    for note in (*notes, ""):
        if width_of(arrow + value + note) < max_cells:
            return ((arrow, "dim"), (value, "warn"), (note, role))
    if not arrow or max_cells < _LEAST_FOR_TWO:
        return ((cut_text_middle(value, max_cells - 1), "warn"),)
    both = max_cells - 1 - width_of(f" {G.becomes} ")
    new = cut_text_middle(value, max(both // 2, both - width_of(old)))
    old = cut_text_middle(old, both - width_of(new))
    return ((f"{old} {G.becomes} ", "dim"), (new, "warn"))


def flag_description(item: FlagRow) -> str:
    """Return the description of a flag or variable: its range or choices, and its help."""
    spec = item.spec
    if spec is None:
        if item.is_env:
            return "environment variable of the server process"
        return "not in the flag list of this engine version: passed unchanged"
    kind = f"{spec.kind} {range_text(spec.minimum, spec.maximum)}".rstrip()
    if spec.choices:
        kind = f"one of {', '.join(spec.choices[:8])}"
        if len(spec.choices) > 8:
            kind += f" {G.more}"
    if spec.deprecated:
        kind += " (deprecated)"
    return f"{kind}. {spec.help}"


def engine_title(plan: PlanView) -> str:
    """Return the installed engine with its version, or the engine's name if the host does not have
    it."""
    if plan.installed:
        return plan.installed
    if plan.installed_problem:
        return f"{plan.plan.engine} (not found)"
    return plan.plan.engine


NEXT_KEYS: tuple[tuple[str, str], ...] = (
    ("p", "pick a preset: type letters of its name, enter"),
    ("s", "start its server; the plan is shown first"),
    ("b", "benchmark; then change one flag, and . measures again"),
)


WITHOUT_GPU_KEYS = (
    ("D", "try everything on simulated GPUs"),
    ("h", "work on another host, over SSH"),
    ("H", "what this host lacks, and what to do about it"),
    ("p", "look at the presets, and make the command of one"),
)


def _first_steps_rows(state: SessionState, width: int) -> list[Row]:
    rows = [
        *paragraph_rows("Tune a server: load a setup, change one thing, measure.", width, "strong"),
        (),
    ]
    problem, keys = state.host.telemetry_problem, NEXT_KEYS
    if problem is not None:
        keys = WITHOUT_GPU_KEYS
        text = f"No GPU can be read on {state.host.name}: {problem}"
        rows += [*paragraph_rows(text, width, "warn"), ()]
    for key, text in keys:
        rows += rows_beside_label(f" {key:<3}", "key", paragraph_rows(text, width - 4))
    more = (
        "No plan yet. In the Presets pane, i shows the source of a preset's numbers; F1 lists "
        "every key."
    )
    return [*rows, (), *paragraph_rows(more, width, "dim")]


def range_text(minimum: float | None, maximum: float | None) -> str:
    """Return the range of a flag's value as ">=1", "0..1" or "<=64"; "" without limits."""
    if minimum is None and maximum is None:
        return ""
    if minimum is None:
        return f"<={maximum:g}"
    if maximum is None:
        return f"{G.at_least}{minimum:g}"
    return f"{minimum:g}..{maximum:g}"
