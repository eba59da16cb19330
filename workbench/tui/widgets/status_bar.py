"""The first row of the main screen: host, server, altered GPU settings and preset. On a simulated
host it always has the word SIMULATED."""

from __future__ import annotations

import time
from collections.abc import Sequence

from workbench.model.run_options import PROCESS
from workbench.model.server_run import ServerState, ServerStatus
from workbench.session.state import ReplayView, SessionState
from workbench.tui.cells import Painted, Row, cut, cut_middle, fit, joined, row_width
from workbench.tui.countdown import Countdown
from workbench.tui.formats import altered_on, clock, countdown, elapsed, preset_name
from workbench.tui.glyphs import G

LEAST_HOST_CELLS = 14
BETWEEN = (f" {G.rule} ", "faint")  # two parts of the row
ALTERED = f"{G.alert} GPU altered"  # without room for the setting
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


def _word_of(server: ServerStatus) -> tuple[str, str, str]:
    """Return the sign, the word and the role of a server's state."""
    return ("?", "READY?", "warnb") if server.text_problem else SERVER_WORDS[server.state]


def server_runs(server: ServerStatus | None, now_s: float, *, least: bool = False) -> Row:
    """Return the text about the server as a row, such as "● READY vllm :8000 12m41s", or "● READY
    :8000" with `least`. For None, the row says that there is no server.

    `now_s` is the Unix time of this machine. The server's times are those of the host, whose clock
    may differ.
    """
    if server is None:
        return ((f"{G.off} no server", "dim"),)
    glyph, word, role = _word_of(server)
    if least and server.state is ServerState.READY:
        return ((f"{glyph} {word}", role), (f" :{server.port}" if server.port else "", "text"))
    runs: list[tuple[str, str]] = [(f"{glyph} {word}", role), (f" {server.engine}", "text")]
    if server.port:
        runs.append((f" :{server.port}", "text"))
    if server.state in (ServerState.FAILED, ServerState.CRASHED):
        code = server.exit_signal or (
            f"exit {server.exit_code}" if server.exit_code is not None else ""
        )
        lived = ""
        if server.started_unix_s and server.ended_unix_s:
            lived = f" after {elapsed(server.ended_unix_s - server.started_unix_s)}"
        runs.append((f" {code}{lived}".rstrip(), "text"))
    elif server.state is not ServerState.STOPPED:
        since = server.ready_unix_s if server.state is ServerState.READY else server.started_unix_s
        if since:
            runs.append((f" {elapsed(now_s - since)}", "text"))
    if server.text is not None and server.text_problem:
        runs.append((f" {cut(server.text.kind, _REASON_CELLS)}", "warn"))
    if server.run_as != PROCESS and not least:
        runs.append((f" {server.run_as}", "dim"))
        runs += (
            [(f" restarted {server.restarts}x", "warn")] if server.restarts and server.alive else []
        )
        if server.ends_unix_s is not None and server.alive:
            runs.append((f" {elapsed(max(0.0, server.ends_unix_s - now_s))} left", "dim"))
    if server.state is ServerState.STARTING and server.phase and not least:
        runs.append((f" {server.phase}", "dim"))
    return tuple(runs)


def link_runs(state: SessionState, now_s: float) -> Row:
    host = state.host
    # "local" and "cluster:NAME" say it
    kind = host.kind if host.name.partition(":")[0] != host.kind else ""
    runs: list[tuple[str, str]] = [
        (f"{host.name} " if kind else host.name, "strong"),
        (kind, "dim"),
    ]
    if host.latency_ms is not None and host.link == "connected":
        runs.append((f" {host.latency_ms:.0f}ms", "dim"))
    if host.link == "connecting":
        runs.append((" ~ connecting", "warn"))
    elif host.link == "lost":
        age = now_s - host.lost_since_unix_s if host.lost_since_unix_s else 0.0
        alive = state.server is not None and state.server.ended_unix_s is None
        note = " (server keeps running)" if alive else ""
        runs.append((f" ! LINK LOST {elapsed(age)} retry {host.retries}{note}", "bad"))
    elif host.link == "failed":
        runs.append((" x NOT CONNECTED (R retries)", "bad"))
    return tuple(runs)


def replay_runs(replay: ReplayView) -> Row:
    """Return the text about a replay: the recorded time that the screen shows, and the speed."""
    pace = f"{replay.speed:g}x"
    if replay.ended:
        pace = "ended"
    elif replay.paused:
        pace = "paused"
    return ((f" {clock(replay.unix_s)} {pace}", "text"),)


class StatusBar(Painted):
    GROUND = "bar"

    def __init__(self) -> None:
        super().__init__(id="status")
        self.state: SessionState | None = None
        self.trial = Countdown()

    def show(self, state: SessionState) -> None:
        self.state = state
        self.repaint()

    def parts(self, state: SessionState, *, brief: bool = False, least: bool = False) -> list[Row]:
        """Return the parts of the status bar, the most important ones first: host, server, altered
        GPU settings, preset.

        With `brief`, the texts are short, for a small screen. With `least` they are shorter still,
        which leaves more room for the warning about altered or unapplied GPU settings.
        """
        now_s = time.time()
        link = link_runs(state, now_s)
        if brief and state.host.link == "connected":
            name = state.host.name
            if least and state.host.simulated:  # the end of the row says SIMULATED
                name = name.removeprefix("sim:")
            link = ((cut_middle(name, LEAST_HOST_CELLS) if least else name, "strong"),)
        parts = [link]
        # the servers of a host out of reach are not known
        if state.server is not None or state.host.link != "failed":
            known = state.server is not None or state.servers_read
            runs = server_runs(state.server, now_s, least=least)
            parts.append(runs if known else (("~ looking for servers", "dim"),))
        parts += self.guarded(state, brief=brief, least=least)
        if state.plan is not None:
            plan = state.plan
            name = plan.plan.preset_id or plan.plan.model or "plan"
            name = preset_name(name, plan.plan.engine) if brief else name
            parts.append(
                ((name, "text"), *((((f" *{plan.edited}", "warn")),) if plan.edited else ()))
            )
        return parts

    def guarded(self, state: SessionState, *, brief: bool, least: bool) -> list[Row]:
        """Return the warnings of the status bar about GPU settings: altered settings, the time left
        of a trial, a missing guard, and settings of the preset that were not applied."""
        carried: list[Row] = []
        if state.unapplied:
            said = "preset not applied (A)" if brief else "settings of the preset: not applied (A)"
            carried = (
                [((f"{G.alert} {said}", "warn"),)] if not (least and state.alterations) else []
            )
        if not state.alterations:
            return carried
        guard = state.guard
        left = self.trial.left(guard, guard.trial_left_s if guard else None)
        if left is not None:
            keys = "T keeps" if brief else "T keeps, r reverts"
            return [((f"{G.alert} GPU trial {countdown(left)} ({keys})", "warnb"),)]
        parts: list[Row] = [((self._altered(state, brief=brief, least=least), "warn"),)]
        if guard is not None and guard.problem:
            what = "! guard: a problem" if guard.running else "! no guard"
            parts.append(
                ((what + ("" if brief else ", 6 says which"), "warn" if guard.running else "bad"),)
            )
        return [*parts, *carried]

    @staticmethod
    def _altered(state: SessionState, *, brief: bool, least: bool) -> str:
        """Return the warning about altered GPU settings, with their values before and now. This is
        the only place on the main screen that has them: it is there at every size and on every
        page."""
        if state.drift:
            return f"{G.alert} GPU changed by someone else" + ("" if least else " (r asks)")
        gpus = len(state.telemetry.gpus) if state.telemetry is not None else 0
        first, *more = altered_on(state.alterations, gpus or 1)
        more_text = f" +{len(more)}" if more else ""
        if least:
            return f"{G.alert} {first}{more_text}"
        return f"{G.alert} GPU altered: {first}{more_text}" + ("" if brief else " (r reverts)")

    def rows(self, width: int, height: int) -> Sequence[Row]:
        state = self.state
        if state is None:
            return [((" workbench", "strong"),)]
        tail: list[tuple[str, str]] = []
        age = stale_age_s(state)
        if age is not None:
            tail.append((f" STALE {age:.0f} s ", "warnb"))
        if state.host.replay is not None:
            tail += [*replay_runs(state.host.replay), (" ", "text"), (" REPLAY ", "reverse")]
        if state.simulated:
            tail += [(" ", "text"), (" SIMULATED ", "reverse")]
        room = max(0, width - row_width(tail))
        row = joined(self.parts(state), BETWEEN)
        if row_width(row) > room:
            brief = self.parts(state, brief=True)
            row = joined(brief, BETWEEN)
            needed = brief[: -1 if state.plan else None]  # the preset's name may be cut
            if (state.alterations or state.unapplied) and row_width(joined(needed, BETWEEN)) > room:
                least = self.parts(state, brief=True, least=True)
                needed = least[: -1 if state.plan else None]
                row = joined(least, BETWEEN)
                if row_width(joined(needed, BETWEEN)) > room:
                    named = self._altered(state, brief=True, least=True)
                    row = tuple((text.replace(named, ALTERED), role) for text, role in row)
        return [(*fit(row, room), *tail)]


def stale_age_s(state: SessionState) -> float | None:
    """Return the age of the last GPU reading in seconds if it is too old to be shown as the
    present; None if it is not, or if there is no reading."""
    if state.telemetry is None or state.telemetry_monotonic_s is None:
        return None
    age = time.monotonic() - state.telemetry_monotonic_s
    # a reading that comes more often than once a second may be late without being old
    limit = _STALE_AFTER * max(1.0, state.telemetry_interval_s)
    return age if age > limit else None
