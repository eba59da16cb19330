"""The first row of the main screen: host, server, altered GPU settings and preset. On a simulated
host it always has the word SIMULATED."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.model.run_options import PROCESS
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.setting_commands import PENDING
from workbench.model.unconfirmed_changes import (
    NOT_APPLIED,
    NOT_KNOWN,
    BegunChange,
    split_altered_and_begun_changes,
)
from workbench.session.state import PlanView, ReplayView, SessionState
from workbench.tui.cells import (
    Painted,
    Row,
    cut_text,
    cut_text_middle,
    fit_row,
    join_rows,
    row_width,
)
from workbench.tui.countdown import Countdown
from workbench.tui.formats import (
    altered_setting_texts,
    countdown_text,
    duration_text,
    enclose_nonempty_text,
    short_preset_name,
    time_of_day_text,
)
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.setting_records import GuardView

LEAST_HOST_CELLS = 14
BETWEEN = (f" {G.rule} ", "faint")  # two parts of the row
ALTERED = f"{G.alert} GPU altered"  # without room for the setting
# by whether the host was asked for its servers
NO_SERVER_RUNS: dict[bool, Row] = {
    False: (("~ looking for servers", "dim"),),
    True: ((f"{G.off} no server", "dim"),),
}
# the text by whether it is brief
TRIAL_KEYS = {False: "T keeps, r reverts", True: "T keeps"}
NOT_APPLIED_TEXTS = {
    False: "settings of the preset: not applied (A)",
    True: "preset not applied (A)",
}
_REASON_CELLS = 32  # of the reason why a READY server is READY?
_STALE_AFTER = 3.5  # intervals: three readings are missing

SERVER_WORDS: dict[ServerState, tuple[str, str, str]] = {
    ServerState.STARTING: ("~", "STARTING", "warn"),
    ServerState.READY: (G.on, "READY", "goodb"),
    ServerState.STOPPING: ("~", "STOPPING", "warn"),
    ServerState.STOPPED: (G.off, "stopped", "dim"),
    ServerState.FAILED: ("x", "FAILED", "bad"),
    ServerState.CRASHED: ("x", "CRASHED", "bad"),
    ServerState.UNRESPONSIVE: ("!", "UNRESPONSIVE", "bad"),
    ServerState.UNKNOWN: ("?", "unknown", "warn"),
}


def _state_sign_word_and_role(server: ServerStatus) -> tuple[str, str, str]:
    """Return the sign, the word and the role of a server's state."""
    if server.text_problem:
        return "?", "READY?", "warnb"
    return SERVER_WORDS[server.state]


def server_state_texts(server: ServerStatus | None, now_s: float, *, shortest: bool = False) -> Row:
    """Return the text about the server as a row, such as "● READY vllm :8000 12m41s", or "● READY
    :8000" with `shortest`. For None, the row says that there is no server.

    `now_s` is the Unix time of this machine. The server's times are those of the host, whose clock
    may differ.
    """
    if server is None:
        return NO_SERVER_RUNS[True]
    glyph, word, role = _state_sign_word_and_role(server)
    port = (enclose_nonempty_text(" :", server.port), "text")
    if shortest and server.is_ready:
        return (f"{glyph} {word}", role), port
    runs = [(f"{glyph} {word}", role), (f" {server.engine}", "text"), port]
    if server.state in (ServerState.FAILED, ServerState.CRASHED):
        runs.append((_exit_and_duration_text(server), "text"))
    elif server.state is not ServerState.STOPPED:
        runs += _server_age_texts(server, now_s)
    if server.text is not None and server.text_problem:
        runs.append((f" {cut_text(server.text.kind, _REASON_CELLS)}", "warn"))
    if shortest:
        return tuple(runs)
    if server.run_as != PROCESS:
        runs += _launcher_texts(server, now_s)
    if server.state is ServerState.STARTING and server.phase:
        runs.append((f" {server.phase}", "dim"))
    return tuple(runs)


def _exit_and_duration_text(server: ServerStatus) -> str:
    """Return how a server has ended, and after how long, as in " exit 1 after 2m03s". What is not
    known is left out."""
    text = ""
    if server.exit_signal:
        text = f" {server.exit_signal}"
    elif server.exit_code is not None:
        text = f" exit {server.exit_code}"
    if not server.started_unix_s or not server.ended_unix_s:
        return text
    return f"{text or ' '} after {duration_text(server.ended_unix_s - server.started_unix_s)}"


def _server_age_texts(server: ServerStatus, now_s: float) -> Row:
    since = server.started_unix_s
    if server.is_ready:
        since = server.ready_unix_s
    if not since:
        return ()
    return ((f" {duration_text(now_s - since)}", "text"),)


def _launcher_texts(server: ServerStatus, now_s: float) -> Row:
    """Return what runs a server, how often that has started it again, and how long it may run."""
    runs = [(f" {server.run_as}", "dim")]
    if not server.alive:
        return tuple(runs)
    if server.restarts:
        runs.append((f" restarted {server.restarts}x", "warn"))
    if server.ends_unix_s is not None:
        runs.append((f" {duration_text(max(0.0, server.ends_unix_s - now_s))} left", "dim"))
    return tuple(runs)


def host_link_texts(state: SessionState, now_s: float) -> Row:
    host = state.host
    runs: list[tuple[str, str]] = [(host.name, "strong")]
    if host.name.partition(":")[0] != host.kind:  # "local" and "cluster:NAME" say it
        runs = [(f"{host.name} ", "strong"), (host.kind, "dim")]
    if host.latency_ms is not None and host.link == "connected":
        runs.append((f" {host.latency_ms:.0f}ms", "dim"))
    if host.link == "connecting":
        runs.append((" ~ connecting", "warn"))
    elif host.link == "lost":
        age = duration_text(now_s - (host.lost_since_unix_s or now_s))
        runs.append((f" ! LINK LOST {age} retry {host.retries}", "bad"))
        if state.server and state.server.ended_unix_s is None:
            runs.append((" (server keeps running)", "bad"))
    elif host.link == "failed":
        runs.append((" x NOT CONNECTED (R retries)", "bad"))
    return tuple(runs)


def replay_state_texts(replay: ReplayView) -> Row:
    """Return the text about a replay: the recorded time that the screen shows, and the speed."""
    pace = f"{replay.speed:g}x"
    if replay.ended:
        pace = "ended"
    elif replay.paused:
        pace = "paused"
    return ((f" {time_of_day_text(replay.unix_s)} {pace}", "text"),)


class StatusBar(Painted):
    GROUND = "bar"

    def __init__(self) -> None:
        super().__init__(id="status")
        self.state: SessionState | None = None
        self.trial = Countdown()

    def show(self, state: SessionState) -> None:
        self.state = state
        self.repaint()

    def status_part_rows(
        self, state: SessionState, *, short: bool = False, shortest: bool = False
    ) -> list[Row]:
        """Return the parts of the status bar, the most important ones first: host, server, altered
        GPU settings, preset.

        With `short`, the texts are short, for a small screen. With `shortest` they are shorter
        still, which leaves more room for the warning about altered or unapplied GPU settings.
        """
        now_s = time.time()
        link = host_link_texts(state, now_s)
        if short and state.host.link == "connected":
            link = ((_short_host_name(state, shortest=shortest), "strong"),)
        parts = [link]
        # the servers of a host out of reach are not known
        if state.server is not None:
            parts.append(server_state_texts(state.server, now_s, shortest=shortest))
        elif state.host.link != "failed":
            parts.append(NO_SERVER_RUNS[state.servers_read])
        parts += self.setting_warnings(state, short=short, shortest=shortest)
        if state.plan is not None:
            parts.append(_plan_name_texts(state.plan, short=short))
        return parts

    def setting_warnings(self, state: SessionState, *, short: bool, shortest: bool) -> list[Row]:
        """Return the warnings of the status bar about GPU settings: altered settings, the time left
        of a trial, a missing guard, and settings of the preset that were not applied."""
        unapplied = _unapplied_preset_rows(state, short=short)
        if not state.alterations:
            return unapplied
        guard = state.guard
        parts: list[Row] = [
            ((self._altered_settings_text(state, short=short, shortest=shortest), "warn"),)
        ]
        if guard is not None:
            left = self.trial.remaining_s_now(guard, guard.trial_left_s)
            if left is not None:
                keys = TRIAL_KEYS[short]
                return [((f"{G.alert} GPU trial {countdown_text(left)} ({keys})", "warnb"),)]
            if guard.problem:
                parts.append(_guard_problem_texts(guard, short=short))
        if shortest:
            return parts
        return [*parts, *unapplied]

    @staticmethod
    def _altered_settings_text(state: SessionState, *, short: bool, shortest: bool) -> str:
        """Return the warning about altered GPU settings, with their values before and now. This is
        the only place on the main screen that has them: it is there at every size and on every
        page."""
        altered, begun = split_altered_and_begun_changes(state.alterations, state.telemetry)
        not_applied = {one.change.key for one in begun if one.outcome == NOT_APPLIED}
        if any((one.gpu_uuid, one.setting) not in not_applied for one in state.drift):
            what = f"{G.alert} GPU {_drift_cause_text(state)}"
            if not shortest:
                what += " (r asks)"
            return what
        shown = altered or [one.change for one in begun]
        said, *more = altered_setting_texts(shown, len(state.gpus))
        if more:
            said += f" +{len(more)}"
        word, shortest_word, key = "altered", "", "r reverts"
        if not altered:
            word, shortest_word, key = (
                f"change {_least_certain_outcome(begun)}",
                "begun: ",
                "r clears it",
            )
        if shortest:
            return f"{G.alert} {shortest_word}{said}"
        what = f"{G.alert} GPU {word}: {said}"
        if not short:
            what += f" ({key})"
        return what

    def rows(self, width: int, height: int) -> Sequence[Row]:
        state = self.state
        if state is None:
            return [((" workbench", "strong"),)]
        tail: list[tuple[str, str]] = []
        age = stale_age_s(state)
        if age is not None:
            tail.append((f" STALE {age:.0f} s ", "warnb"))
        if state.host.replay is not None:
            tail += [*replay_state_texts(state.host.replay), (" ", "text"), (" REPLAY ", "reverse")]
        if state.simulated:
            tail += [(" ", "text"), (" SIMULATED ", "reverse")]
        room = max(0, width - row_width(tail))
        return [(*fit_row(self._row_of_fitting_parts(state, room), room), *tail)]

    def _row_of_fitting_parts(self, state: SessionState, max_cells: int) -> Row:
        """Return the parts as one row, as long as `max_cells` cells allow. The name of the preset,
        the last part, may be cut; a warning about GPU settings is shortened instead."""

        def fits(parts: Sequence[Row]) -> bool:
            needed = parts
            if state.plan is not None:
                needed = parts[:-1]
            return row_width(join_rows(needed, BETWEEN)) <= max_cells

        whole = join_rows(self.status_part_rows(state), BETWEEN)
        if row_width(whole) <= max_cells:
            return whole
        brief = self.status_part_rows(state, short=True)
        has_warning = state.alterations or state.unapplied
        if not has_warning or fits(brief):
            return join_rows(brief, BETWEEN)
        least = self.status_part_rows(state, short=True, shortest=True)
        row = join_rows(least, BETWEEN)
        if fits(least) or not state.alterations:
            return row
        named = self._altered_settings_text(state, short=True, shortest=True)
        return tuple((text.replace(named, ALTERED), role) for text, role in row)


def _short_host_name(state: SessionState, *, shortest: bool) -> str:
    name = state.host.name
    if not shortest:
        return name
    if state.host.simulated:  # the end of the row says SIMULATED
        name = name.removeprefix("sim:")
    return cut_text_middle(name, LEAST_HOST_CELLS)


def _plan_name_texts(view: PlanView, *, short: bool) -> Row:
    """Return the name of the plan and how many of its flags were edited: "llama-70b *2"."""
    name = view.plan.preset_id or view.plan.model or "plan"
    if short:
        name = short_preset_name(name, view.plan.engine)
    if not view.edit_count:
        return ((name, "text"),)
    return ((name, "text"), (f" *{view.edit_count}", "warn"))


def _unapplied_preset_rows(state: SessionState, *, short: bool) -> list[Row]:
    if not state.unapplied:
        return []
    return [((f"{G.alert} {NOT_APPLIED_TEXTS[short]}", "warn"),)]


def _guard_problem_texts(guard: GuardView, *, short: bool) -> Row:
    what, role = "! no guard", "bad"
    if guard.running:
        what, role = "! guard: a problem", "warn"
    if not short:
        what += ", 6 says which"
    return ((what, role),)


def _least_certain_outcome(begun: Sequence[BegunChange]) -> str:
    """Return NOT_APPLIED if none of the begun changes was applied, otherwise NOT_KNOWN."""
    if {one.outcome for one in begun} == {NOT_APPLIED}:
        return NOT_APPLIED
    return NOT_KNOWN


def _drift_cause_text(state: SessionState) -> str:
    """Return why altered settings have other values now than those that Workbench set."""
    if state.host.journal_disk_full:
        return "journal cannot be written: its disk is full"
    pending = {a.key for a in state.alterations if a.state == PENDING}
    if pending.issuperset((d.gpu_uuid, d.setting) for d in state.drift):
        return "change was cut off"
    return "changed by someone else"


def stale_age_s(state: SessionState) -> float | None:
    """Return the age of the last GPU reading in seconds if it is too old to be shown as the
    present; None if it is not, or if there is no reading."""
    if state.telemetry is None or state.telemetry_monotonic_s is None:
        return None
    age = time.monotonic() - state.telemetry_monotonic_s
    # a reading that comes more often than once a second may be late without being old
    if age <= _STALE_AFTER * max(1.0, state.telemetry_interval_s):
        return None
    return age
