"""Rows of the main screen: the tabs, the command with its findings, the message, and the keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from textual import events
from textual.geometry import Offset

from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level
from workbench.session.state import Notice, PlanView, SessionState
from workbench.tui.bindings import ON_PAGES, SHOWN, Key, footer_keys
from workbench.tui.cells import (
    Painted,
    Row,
    Run,
    cut_text,
    fit_row,
    join_runs,
    justify_row,
    paragraph_rows,
    row_width,
    rows_beside_label,
    width_of,
)
from workbench.tui.glyphs import LEVELS, G
from workbench.tui.widgets.running_rows import (
    running_command_rows,
    running_flags_row,
    served_plan_state,
)

if TYPE_CHECKING:
    from workbench.model.plan import Command
    from workbench.session.session import Session
    from workbench.tui.bindings import Key
    from workbench.tui.pages.base import Page

SIGNED_COLUMNS = 60  # from here on a row has room for the command and a sign
LEADING_KEYS = 5  # of the situation and of the only pane, so that ? has room beside them
FIRST = (
    ("p", "pick a preset"),
    ("s", "start its server"),
    ("b", "benchmark"),
    ("?", "what is this"),
)
COMMAND_KEYS: Row = (("   v ", "key"), ("full command", "dim"), ("   y ", "key"), ("copy", "dim"))
FEWER_COMMAND_KEYS: Row = (("   v ", "key"), ("more", "dim"))
# the row of checks without errors, and the keys beside it, the widest first
CHECKED_SIZES = (
    ("ok 0 errors", COMMAND_KEYS),
    ("ok", COMMAND_KEYS),
    ("ok", COMMAND_KEYS[:2]),
    ("ok", FEWER_COMMAND_KEYS),
)
FIRST_WITHOUT_GPU = (
    ("D", "demo without a GPU"),
    ("h", "another host"),
    ("p", "pick a preset"),
    ("?", "what is this"),
)


class TabRow(Painted):
    """The tabs of a small screen, which shows one pane at a time."""

    GROUND = "bar"

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__(id="tabs")
        self.titles, self.active = titles, 1
        self.badges: dict[int, str] = {}

    def show(self, active_tab: int, badges: dict[int, str]) -> None:
        self.active, self.badges = active_tab, badges
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        tabs: list[Run] = []
        roles = {self.active: "select"}
        for number, name in enumerate(self.titles, 1):
            text = f"{number} {name} {self.badges.get(number, '')}".rstrip()
            role = roles.get(number, "text")
            tabs.append((f" {text} ", role))
        gap = " " * (1 + (width >= 90))
        if row_width(tabs) + len(tabs) * len(gap) > width:
            gap = ""
        row: list[Run] = []
        for tab in tabs:
            row += [tab, (gap, "text")]
        return [tuple(row)]

    async def on_click(self, event: events.Click) -> None:
        name = run_text_at_cell(self._painted, event.get_content_offset(self)).strip()[:1]
        if name.isdecimal():
            await self.screen.run_action(f"do('screen {name}')")


def run_text_at_cell(rows: Sequence[Row], offset: Offset | None) -> str:
    """Return the text of the run (text, role) that covers the cell `offset` of `rows`; "" if none
    does, or if `offset` is None."""
    if offset is None or not 0 <= offset.y < len(rows):
        return ""
    end = 0
    for text, _ in rows[offset.y]:
        end += width_of(text)
        if offset.x < end:
            return text
    return ""


class CommandBar(Painted):
    """Two rows: the exact command of the plan, with a sign whether it is what runs, and the number
    of its errors and warnings."""

    FIELDS = frozenset({"plan", "host", "servers", "run_id"})

    def __init__(self, session: Session) -> None:
        super().__init__(id="command")
        self.session = session
        self.state = session.state

    def show(self, state: SessionState) -> None:
        self.state = state
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        plan = self.state.plan
        if self.state.host.replay is not None:
            return [
                (("$ ", "strong"), ("a recording: nothing can be started or changed here", "dim")),
                (),
            ]
        if plan is None:
            first_keys = FIRST
            if self.state.host.telemetry_problem:
                first_keys = FIRST_WITHOUT_GPU
            return [
                (("$ ", "strong"), ("no plan yet", "dim")),
                _first_step_keys_row(width, first_keys),
            ]
        command = plan.start_command
        if command is None:
            why = ("the plan gives no command: press v to see why", "bad")
            return [(("x ", "bad"), why), self._plan_checks_row(plan, width)]
        sign = self._running_server_sign()
        if sign is None or width < SIGNED_COLUMNS:
            return [self._command_row(command, width), self._plan_checks_row(plan, width)]
        flags = self.session.servers.changed_flags_of_running_server()
        if _start_problem_texts(plan):
            flags = ()  # the problem takes their place
        if self.session.servers.changes_against_running():
            unlike: Run = (f" {G.off} not running", "warn")
            first: Row = (*self._command_row(command, width - width_of(unlike[0])), unlike)
            if not flags:
                return [first, self._plan_checks_row(plan, width)]
            runs: Run = (f"{sign[0].strip()} with", sign[1])
            return [first, running_flags_row(runs, flags, _flag_row_ends_widest_first(plan), width)]
        if not flags:
            first = (*self._command_row(command, width - width_of(sign[0])), sign)
            return [first, self._plan_checks_row(plan, width)]
        line = replace(command, env={}).shell_line  # the variables stand among the flags
        running = self.session.servers.running_plan()
        assert running is not None  # its sign says so
        with_flags = (f"{sign[0]} with", sign[1])
        return running_command_rows(
            line, running.model, with_flags, flags, _flag_row_ends_widest_first(plan), width
        )

    def _running_server_sign(self) -> Run | None:
        """Return the sign of a server that runs or starts with a known plan; None without one."""
        signs = {"starting": (" ~ starting", "warn"), "running": (f" {G.on} running", "good")}
        return signs.get(served_plan_state(self.session, self.state))

    @staticmethod
    def _command_row(command: Command, width: int) -> Row:
        """Return the shell command in one row. If it is longer than `width`, the environment
        variables are replaced by their number, and the end is cut."""
        line, count = command.shell_line, ""
        if len(line) > width - 2 and command.env:
            line, count = replace(command, env={}).shell_line, f"[{len(command.env)} env] "
        return fit_row(
            (("$ ", "strong"), (count, "dim"), (cut_text(line, width - 2 - len(count)), "text")),
            width,
        )

    @staticmethod
    def _plan_checks_row(plan: PlanView, width: int) -> Row:
        """Return a row with the number of errors and warnings, the memory estimate, the first error
        and, at the right, key hints. If the row is longer than `width`, first the key hints and
        then the estimate are shortened."""
        problems, errors = _start_problem_texts(plan), _count_errors(plan)
        estimates: Sequence[str] = ("",)
        if plan.memory and not errors:
            estimates = _memory_estimates_longest_first(plan.memory)
        for memory, (good, keys) in product(estimates, CHECKED_SIZES):
            counted = (good, "good")
            if errors:
                counted = (f"x {count_of(errors, 'error')}", "bad")
            checks = [
                counted,
                _warning_count_text(plan),
                *_memory_estimate_texts(plan, memory),
                *problems,
            ]
            left = join_runs(checks, ("   ", "text"))
            if row_width((*left, *keys)) <= width:
                break
        return justify_row(left, keys, width)


def _findings_of_level(plan: PlanView, level: Level) -> list[Finding]:
    return [finding for finding in plan.findings if finding.level is level]


def _count_errors(plan: PlanView) -> int:
    return len(_findings_of_level(plan, Level.ERROR))


def _start_problem_texts(plan: PlanView) -> list[Run]:
    """Return the texts about what prevents a start: an unusable program, and the first error."""
    problems: list[Run] = []
    if plan.installed_problem:
        problem = plan.installed_problem.partition(";")[0]
        problems.append((f"! {problem} (2 e: its program)", "warn"))
    problems += [(error.text, "bad") for error in _findings_of_level(plan, Level.ERROR)[:1]]
    return problems


def _warning_count_text(plan: PlanView) -> Run:
    """Return the number of warnings about the plan, as a text with the role that colours it."""
    count = len(_findings_of_level(plan, Level.WARN))
    if count == 0:
        return "0 warnings", "dim"
    return f"! {count_of(count, 'warning')}", "warn"


def _memory_estimate_texts(plan: PlanView, text: str) -> list[Run]:
    """Return `text`, a form of the plan's memory estimate, with its role: a warning if the plan
    warns about the memory. Return [] if `text` is ""."""
    if not text:
        return []
    for finding in plan.memory_findings:
        if finding.level is Level.WARN:
            return [(text, "warn")]
    return [(text, "text")]


def _flag_row_ends_widest_first(plan: PlanView) -> list[Row]:
    """Return the forms of the end of a row behind the flags of the running server, the widest one
    first: the warnings, and the keys that show the whole command."""
    warned: Row = ()
    if _findings_of_level(plan, Level.WARN):
        warned = (("   ", "text"), _warning_count_text(plan))
    return [(*warned, *keys) for keys in (COMMAND_KEYS, COMMAND_KEYS[:2], FEWER_COMMAND_KEYS)]


def _memory_estimates_longest_first(text: str) -> tuple[str, ...]:
    """Return the memory estimate `text` and shorter forms of it, the longest first. The shortest
    form has only the amount of memory."""
    brief = text.partition(" (")[0]
    return tuple(
        dict.fromkeys((text, brief, brief.replace("full-length ", ""), brief.partition(", ")[0]))
    )


def _first_step_keys_row(width: int, keys: Sequence[tuple[str, str]]) -> Row:
    row: list[tuple[str, str]] = []
    for key, text in keys:
        row += [(f" {key} ", "key"), (f"{text}  ", "dim")]
    return fit_row(tuple(row), width)


def _cut_to_max_rows(rows: list[Row], max_rows: int, width: int) -> list[Row]:
    """Return the first `max_rows` rows. If rows are left out, the last one ends with "…"."""
    if len(rows) <= max_rows:
        return rows
    kept = rows[:max_rows]
    kept[-1] = (*fit_row(kept[-1], width - 1), (G.more, "text"))
    return kept


def notice_rows(notice: Notice, width: int, max_rows: int | None = None) -> list[Row]:
    """Return a message with its next step below it. If both take more than `max_rows` rows, the
    next step is cut to the rows that the message leaves, at least one, and then the message."""
    sign, role = LEVELS[notice.level]
    room = max(10, width - 2)
    text_role = "text"
    if notice.level is Level.ERROR:
        text_role = "strong"
    lines = paragraph_rows(notice.text, room, text_role)
    after: list[Row] = []
    if notice.next_step:
        after = paragraph_rows(f"next: {notice.next_step}", room, "text", "      ")
    if max_rows is not None:
        after = _cut_to_max_rows(after, max(1, max_rows - len(lines)), room)
        lines = _cut_to_max_rows(lines, max_rows - len(after), room)
    if notice.level in (Level.HINT, Level.INFO):
        role = "good"
    return rows_beside_label(f"{sign} ", role, [*lines, *after])


class NoticeBar(Painted):
    """A message with its next step. The row is hidden while there is no message, and the escape key
    removes the message."""

    GROUND = "bar"
    MOST_ROWS = 4

    def __init__(self) -> None:
        super().__init__(id="notice")
        self.notice: Notice | None = None

    def show(self, notice: Notice | None, width: int) -> None:
        self.notice = notice
        self.display = notice is not None
        if self.display:
            self.styles.height = max(1, len(self._notice_rows(width)))
        self._painted = []
        self.repaint()

    def _notice_rows(self, width: int) -> list[Row]:
        if self.notice is None:
            return []
        return notice_rows(self.notice, width - 5, self.MOST_ROWS)  # "esc" is beside them

    def rows(self, width: int, height: int) -> Sequence[Row]:
        rows = self._notice_rows(width)
        if rows and width > 40:
            last = rows[0]
            rows[0] = justify_row(last, ((" esc", "dim"),), width)
        return rows


ShownKey = tuple[str, str, str]  # key as printed, label, id


class Footer(Painted):
    """The row of keys: first those of the open page, then as many keys of the main screen as fit,
    the most needed ones first. The last one is always the key of the palette, the list of all
    actions."""

    GROUND = "bar"

    def __init__(self) -> None:
        super().__init__(id="footer")
        self.page: Page | None = None
        self._first: tuple[Key, ...] = ()  # needed in the present situation
        self._pane: tuple[Key, ...] = ()  # of the only visible pane
        self._keys_hidden = False

    def set_keys_hidden(self, hidden: bool) -> None:
        """Hide or show the keys. They are hidden while a box lies over the main screen, because the
        box handles every key."""
        if hidden is not self._keys_hidden:
            self._keys_hidden = hidden
            self.repaint()

    def show_likely_next_keys(self, keys: Sequence[Key]) -> None:
        """Show these keys before the other keys of the main screen, because the user most likely
        needs them next."""
        if tuple(keys) != self._first:
            self._first = tuple(keys)
            self.repaint()

    def show_pane_keys(self, keys: Sequence[Key]) -> None:
        """Show the keys of the visible pane. Only a small terminal needs this, because it shows one
        pane without a border. `keys` is () if several panes are visible."""
        if tuple(keys) != self._pane:
            self._pane = tuple(keys)
            self.repaint()

    def show_page_keys(self, page: Page | None) -> None:
        """Show the keys of the open page `page` and those of the main screen. For None, no page is
        open, so show only the keys of the main screen."""
        if page is None and self.page is None:
            return
        self.page = page
        self.repaint()

    def _shown_keys(self) -> list[ShownKey]:
        """Return every key to show, the most important key first.
        The id identifies the key in the table of keys. For a key of the open page, it is the name
        by which Textual knows the key."""
        first, page = self._first, self.page
        if page is None:
            pane = self._pane[: max(0, LEADING_KEYS - len(first))]
            keys = {k.key: k for k in (*first, *pane, *footer_keys())}.values()
            return [(k.name_on_keyboard, k.label, k.id) for k in keys]
        shown = [("esc", "Close", "escape")]
        for key, (word, _) in page.keys().items():
            shown.append((SHOWN.get(key, key), word, key))
        taken = {"q", "escape", *page.OWN, *page.keys()}
        for k in {k.key: k for k in (*first, *footer_keys())}.values():
            if k.key not in taken and k.id in ON_PAGES:
                shown.append((k.name_on_keyboard, k.label, k.id))
        return shown

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if self._keys_hidden:
            return [()]
        tail: Row = ((" ^p", "key"), (" palette", "text"))
        room = width - row_width(tail)
        row: list[tuple[str, str]] = []
        for key, word, _ in self._shown_keys():
            room -= len(key) + len(word) + 3
            if room < 0:
                break
            row += [(f" {key}", "key"), (f" {word} ", "text")]
        return [(*fit_row(tuple(row), width - row_width(tail)), *tail)]

    async def on_click(self, event: events.Click) -> None:
        clicked = run_text_at_cell(self._painted, event.get_content_offset(self)).strip()
        keys = (*self._shown_keys(), ("^p", "palette", "screen ctrl+p"))
        found = next((name for key, word, name in keys if clicked in (key, word)), None)
        if not found:
            return
        if self.page and await self.app.run_action(f"press('{found}')", self.page):
            return
        await self.screen.run_action(f"do('{found}')")
