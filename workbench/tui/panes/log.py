"""Pane 3, Log: the log of the selected server run. Only the visible lines are read and coloured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.binding import Binding

from workbench.model.counts import count_of
from workbench.model.findings import Finding, Level
from workbench.model.job import ANY_SCHEDULER
from workbench.model.server_run import ServerState, launcher_and_state_text
from workbench.session.state import SessionState
from workbench.tui.bindings import Key, copy_keys_for_view, make_textual_bindings
from workbench.tui.cells import Row, cut_paragraph_rows, cut_text, paragraph_rows
from workbench.tui.glyphs import G
from workbench.tui.panes.base import Pane
from workbench.tui.panes.log_lines import (
    OWN,
    format_log_line,
    is_access_line,
    is_workbench_poll,
    line_group_key,
)

if TYPE_CHECKING:
    from workbench.session.session import Session
    from workbench.tui.controllers import Controllers

LOOK_BACK, CHUNK = 2000, 100  # most lines that are read to fill the pane
# of "3 Log" and of what Textual leaves free around a title, less the padding of the pane
TITLE_CELLS = 9
ROOMY = 12  # rows from which a known line has two rows for its cause and two for its fix
FAILED = (ServerState.FAILED, ServerState.CRASHED, ServerState.UNRESPONSIVE)
ROLES = {"error": "bad", "warn": "warn", "info": "text", "": "text"}
LogRow = tuple[Row, bool]  # a row, and whether it is a log line


class LogPane(Pane):
    NAME, TITLE = "log", "Log"
    FIELDS = frozenset({"log_revision", "servers", "servers_read", "run_id", "plan"})
    KEYS = copy_keys_for_view(
        "log",
        Key(
            "f",
            "follow",
            "follow the log, or stop at this position",
            lambda c: c.pane_of_type(LogPane).toggle_follow(),
        ),
        Key(
            "e",
            "error",
            "jump to the next error in the log",
            lambda c: c.servers.go_to_next_log_error(),
        ),
        Key(
            "m",
            "matches",
            "list every line of the whole log file that contains the searched text",
            lambda c: c.servers.list_log_matches(),
        ),
        Key(
            "i",
            "known lines",
            "list what is known of the log: cause and fix",
            lambda c: c.servers.show_log_findings(),
        ),
        Key(
            "t",
            "restart",
            "restart the unit, container or job of this run",
            lambda c: c.servers.restart_server(),
        ),
        Key(
            "d",
            "uninstall",
            "stop the server of this run, and remove the unit that its start has installed",
            lambda c: c.servers.uninstall_unit(),
        ),
        Key(
            "a",
            "ask",
            "ask the server for text again, and say whether its text is an answer",
            lambda c: c.servers.probe_served_text(),
        ),
        Key("o", "runs", "choose which server run is shown", lambda c: c.servers.pick_server_run()),
        Key(
            "E",
            "endpoint",
            "copy the address of the server, or write its endpoint file",
            lambda c: c.servers.show_endpoint_entry(),
        ),
        Key(
            "J",
            "jobs",
            f"list your jobs of {ANY_SCHEDULER} on this host",
            lambda c: c.servers.pick_run_by_job(),
        ),
    )
    HINTS = ("f", "e", "slash")
    SEARCH = "text in the log"
    BINDINGS = [  # noqa: RUF012
        *make_textual_bindings(KEYS),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+u", "scroll_page(-1)", show=False),
        Binding("pagedown,ctrl+d", "scroll_page(1)", show=False),
        Binding("home", "move(-100000000)", show=False),
        Binding("end,G", "follow_end", show=False),
        Binding("left", "shift(-20)", show=False),
        Binding("right", "shift(20)", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.view = session.log
        self.follow = True
        self.top = 0
        self.left = 0
        self.search = ""
        self.hit: int | None = None
        # line to draw in the middle, once the number of rows is known
        self.centre: int | None = None
        self.in_sight = 0  # lines of the log that are drawn; explanations take rows, too

    @property
    def title_detail(self) -> str:
        server = self.session.state.server
        if server is None:
            return ""
        found = paused = ""
        if self._has_log_findings:
            found = f"{count_of(len(server.findings), 'finding')} (i)"
        if not self.follow:
            paused = "PAUSED"
        run = server.run_id[-4:]
        forms = (
            (f"{server.engine} {run}", found, paused),
            (run, found, paused),
            (found, paused),
            (paused or found,),
        )
        texts = ["  ".join(filter(None, form)) for form in forms]
        room = self.content_size.width - TITLE_CELLS
        return next((text for text in texts if len(text) <= room or room < 0), texts[-1])

    @property
    def _has_log_findings(self) -> bool:
        """Whether something is known of the log of a server that is alive."""
        server = self.session.state.server_with_process
        return server is not None and bool(server.findings)

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self.post_message(self.TitleChanged())

    @property
    def tab_badge(self) -> str:
        if self.session.state.ready_server is None:
            return ""
        return G.on

    @property
    def footer_keys(self) -> list[Key]:
        keys = super().footer_keys
        if self._has_log_findings:
            keys = [*self._keys_with_names("i"), *keys]
        return keys

    # search
    def apply_search(self, text: str, controllers: Controllers) -> None:
        self.search = text

    async def submit_search(self, text: str, controllers: Controllers) -> None:
        controllers.servers.search_log(text)

    def show(self, state: SessionState) -> None:
        changed_run = self.state.run_id != state.run_id
        self.state = state
        if changed_run:
            self.follow, self.top, self.hit = True, 0, None
        self.repaint()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        total = len(self.view)
        if total == 0:
            return self._empty_log_rows(width, height)
        failure = self._failure_rows(width, height)
        room = max(1, height - len(failure))
        last = max(0, total - room)
        if self.follow:
            self.top = last
        if self.centre is not None:
            self.top, self.centre = self.centre - room // 2, None
        self.top = max(0, min(self.top, total - 1))
        shown: list[tuple[str, Row]] = []
        if self.follow and not self.left:
            for raw, count in self._read_newest_lines_and_counts(total, room):
                shown.append((raw, self._repeated_line_row(raw, count, width)))
        else:
            for number, raw in enumerate(self.view.lines(self.top, room), self.top):
                shown.append((raw, self._line_row(raw, width, number == self.hit)))
        explained = self._rows_with_explanations(shown, width, room)
        if self.follow:
            explained = explained[-room:]
        explained = explained[:room]
        self.in_sight = sum(is_line for _, is_line in explained)
        return [*(row for row, _ in explained), *[()] * (room - len(explained)), *failure]

    def _rows_with_explanations(
        self, shown: Sequence[tuple[str, Row]], width: int, height: int
    ) -> list[LogRow]:
        """Return the log lines `shown`, with rows that explain them. An explanation has cause and
        fix, and follows the first line of each kind that Workbench can explain."""
        server = self.state.server
        if server is None:
            return [(row, True) for _, row in shown]
        explained: set[str] = set()
        if server.state in FAILED:
            explained.update(finding.code for finding in server.findings[:2])
        most = 2 if height >= ROOMY else 1
        rows: list[LogRow] = []
        for raw, row in shown:
            rows.append((row, True))
            finding = self.view.explain(raw, server.engine)
            if finding is not None and finding.code not in explained:
                explained.add(finding.code)
                rows += [(row, False) for row in log_explanation_rows(finding, width, most)]
        return rows

    def _read_newest_lines_and_counts(
        self, total_lines: int, max_rows: int
    ) -> list[tuple[str, int]]:
        """Return the newest of the log's `total_lines` lines, as many as fit into `max_rows` rows,
        as pairs (line, count). Successive lines about the same HTTP request share one row, and
        `count` is their number. Requests with which Workbench watches the server share one row too,
        at the newest of them, wherever they are among the other lines."""
        # line, text that it shares with others, their number
        shown: list[tuple[str, str, int]] = []
        polls = 0
        for end in range(total_lines, max(0, total_lines - LOOK_BACK), -CHUNK):
            start = max(0, end - CHUNK)
            for raw in reversed(self.view.lines(start, end - start)):
                kind = line_group_key(raw)
                if kind == OWN:
                    polls += 1
                    if polls > 1:
                        continue
                if kind and shown and shown[-1][1] == kind:
                    shown[-1] = (*shown[-1][:2], shown[-1][2] + 1)
                elif len(shown) == max_rows:
                    break
                else:
                    shown.append((raw, kind, 1))
            else:
                continue
            break
        counts = {OWN: polls}
        return [(raw, counts.get(kind, count)) for raw, kind, count in reversed(shown)]

    def _repeated_line_row(self, raw_line: str, repeat_count: int, width: int) -> Row:
        if is_workbench_poll(raw_line):
            text = f"Workbench asked {count_of(repeat_count, 'time')}"
            return ((cut_text(text, width), "dim"),)
        if repeat_count == 1:
            return self._line_row(raw_line, width, False)
        number = f"  x{repeat_count}"
        return (*self._line_row(raw_line, width - len(number), False), (number, "dim"))

    def _line_row(self, raw_line: str, width: int, is_match: bool) -> Row:
        if is_match:
            return (
                (cut_text(self._visible_match_text(raw_line, width), width).ljust(width), "rest"),
            )
        role = "dim"
        if not is_access_line(raw_line):
            role = ROLES.get(self.view.level_of_line(raw_line), "text")
        text = raw_line[self.left :]
        if not self.left:
            text = format_log_line(raw_line, width)
        return ((cut_text(text, width), role),)

    def _visible_match_text(self, raw_line: str, width: int) -> str:
        """Return the part of the line that a search found, beginning so that the searched text is
        within `width` cells. In a log scrolled to the right, return the line from there on."""
        if self.left:
            return raw_line[self.left :]
        at = raw_line.lower().find(self.search.lower())
        if at < 0 or not self.search:
            return format_log_line(raw_line, width)
        start = max(0, at - width // 3)
        if start == 0 or at + len(self.search) <= width:
            return raw_line
        return G.more + raw_line[start + 1 :]

    def _failure_rows(self, width: int, height: int) -> list[Row]:
        """Return rows with the reason and the known causes of a failed server; [] if the server has
        not failed."""
        server = self.state.server
        if server is None or server.state not in FAILED:
            return []
        rows: list[Row] = [()]
        if server.reason:
            rows += paragraph_rows(f"x {server.reason}", width, "bad")
        for finding in server.findings[:2]:
            rows += paragraph_rows(f"! {finding.text}", width, "warn")
            if finding.fix:
                rows += paragraph_rows(f"  fix: {finding.fix}", width, "text", "  ")
        room = max(5, height - 4)
        if len(rows) > room:
            rows[room - 1 :] = [((G.more, "dim"),)]
        rows.append((("s starts again   e next error", "dim"),))
        return rows

    def _empty_log_rows(self, width: int, height: int) -> list[Row]:
        server = self.state.server
        if server is None:
            return paragraph_rows(_no_selected_run_text(self.state), width, "dim")
        if rows := self._failure_rows(width, height):
            return rows
        rows = paragraph_rows(f"{server.state}: nothing in the log yet.", width, "dim")
        if runs_as := launcher_and_state_text(server, time.time()):
            rows += paragraph_rows(runs_as, width, "text", "  ")
        return rows

    # position
    def action_move(self, by: int) -> None:
        if self.follow and by > 0:
            return  # nothing is below; the rows that explain lines differ while the pane follows
        explained = max(0, self.content_size.height - self.in_sight)  # rows that hide as many lines
        last = min(max(0, len(self.view) - self.content_size.height + explained), len(self.view))
        self.top = max(0, min(last, self.top + by))
        # at the end of the log the pane follows it again
        self.follow = self.top == last and (by > 0 or last == 0)
        self.repaint()
        self.post_message(self.TitleChanged())

    def action_scroll_page(self, by: int) -> None:
        self.action_move(by * max(1, self.in_sight - 2))

    def action_follow_end(self) -> None:
        self.follow, self.hit = True, None
        self.repaint()
        self.post_message(self.TitleChanged())

    def action_shift(self, by: int) -> None:
        self.left = max(0, self.left + by)
        self.repaint()

    def toggle_follow(self) -> None:
        self.follow = not self.follow
        if self.follow:
            self.hit = None
        self.repaint()
        self.post_message(self.TitleChanged())

    def move_to_line_with(self, text: str, *, from_last_match: bool = False) -> bool:
        """Move to a line that contains `text`, and return whether there is such a line. Search
        backwards from the end of the log or, with `from_last_match`, forwards from the line found
        last. If `text` is "", end the search and return True."""
        self.search = text
        if not text:
            self.hit = None
            self.repaint()
            return True
        if not from_last_match:
            return self._show_line(
                self.view.find_line_number(text, len(self.view) - 1, backwards=True)
            )
        found = self.view.find_line_number(text, self._line_number_after_match)
        if found is None:
            found = self.view.find_line_number(text, 0)
        return self._show_line(found)

    @property
    def _line_number_after_match(self) -> int:
        """The number of the line behind the one that was found last; 0 if none was found."""
        if self.hit is None:
            return 0
        return self.hit + 1

    def show_first_error(self) -> None:
        """Move to the line that gives the reason of the server's failure. If there is none, move to
        the first line with an error."""
        self.hit = None
        server = self.session.state.server
        if server is not None and server.reason:
            at = self.view.find_line_number(server.reason, 0)
            if at is not None and self._show_line(at):
                return
        self.move_to_next_error()

    def move_to_next_error(self) -> bool:
        """Move to the next line with an error, and after the last error to the first one. Return
        whether the log has an error."""
        total, start = len(self.view), self._line_number_after_match
        for begin, end in ((start, total), (0, start)):
            for chunk in range(begin, end, 2000):
                for offset, line in enumerate(self.view.lines(chunk, min(2000, end - chunk))):
                    if self.view.level_of_line(line) == "error":
                        return self._show_line(chunk + offset)
        return False

    def _show_line(self, line_number: int | None) -> bool:
        """Move to the line and mark it, and return True. For None, end the mark and return
        False."""
        self.hit = line_number
        if line_number is not None:
            self.follow = False
            self.top = self.centre = line_number
        self.repaint()
        self.post_message(self.TitleChanged())
        return line_number is not None


def _no_selected_run_text(state: SessionState) -> str:
    """Return what the pane says while no run is selected."""
    if not state.servers_read:
        return "Looking for servers on this host."
    if state.servers:
        start = "s starts the plan" if state.plan else "p loads a preset, s starts it"
        ended = count_of(len(state.servers), "run has", "runs have")
        return f"No server runs. {ended} ended here: o lists them, {start}."
    if state.plan:
        return "No server has run yet. Press s to start the plan."
    return "No server has run yet. Press p to load a preset, then s to start it."


def log_explanation_rows(finding: Finding, width: int, max_rows: int) -> list[Row]:
    """Return the explanation of a log line: its cause and its fix, each in at most `max_rows` rows.
    If the line needs no action, return one dim row with the cause."""
    if finding.level is Level.INFO:
        return [((cut_text(f"  = {finding.text}", width), "dim"),)]
    role = "warn"
    if finding.level is Level.ERROR:
        role = "bad"
    return [
        *cut_paragraph_rows(f"  ! {finding.text}", width, max_rows, role, "    "),
        *cut_paragraph_rows(f"    fix: {finding.fix}", width, max_rows, "text", "    "),
    ]
