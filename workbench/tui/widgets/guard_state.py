"""The rows about the guard, the process on the host that reverts GPU settings. They are part of the
GPUs pane and of the report of a change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import duration_text, enclose_nonempty_text, time_of_day_text
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.setting_records import GuardView
    from workbench.session.state import SessionState


def guard_rows(guard: GuardView, trial_left_s: float | None, width: int) -> list[Row]:
    """Return rows about the guard: when it will revert GPU settings, and what it did last.
    `trial_left_s` are the seconds until the end of a trial. For None, show the number that the
    guard reported last, if it reported one."""
    if not guard.running:
        if guard.problem:
            return paragraph_rows(f"! no guard: {guard.problem}", width, "warn", "  ")
    elif not guard.guarding:
        text = f"! the guard (pid {guard.pid}) does not guard the settings: {guard.problem}"
        return paragraph_rows(text, width, "warn", "  ")
    rows: list[Row] = []
    for text in filter(None, (guard.problem, guard.note)):
        rows += paragraph_rows(f"! guard: {text}", width, "warn", "  ")
    left = guard.trial_left_s
    if trial_left_s is not None:
        left = trial_left_s
    if left is not None:
        rows += paragraph_rows(
            f"{G.alert} on trial: reverted in {left:.0f} s unless you press T", width, "warnb", "  "
        )
    if guard.running:
        conditions = []
        if guard.heartbeat_s is not None:
            conditions.append(f"Workbench is silent for {guard.heartbeat_s:g} s")
        limits = sorted(set(guard.temperature_limits_c.values()))
        if limits:
            conditions.append(f"a GPU passes {'/'.join(f'{t:g}' for t in limits)} C")
        name = f"guard{enclose_nonempty_text(' (pid ', guard.pid, ')')}"
        text = f"{name}: never by itself: left on deliberately"
        if conditions:
            text = f"{name} reverts the settings if {' or '.join(conditions)}"
        rows += paragraph_rows(text, width, "text", "  ")
    if guard.did:
        rows += paragraph_rows(_guard_action_text(guard.did, guard.did_unix_s), width, "warn", "  ")
    more = []
    if guard.heartbeat_s is not None and guard.heartbeat_age_s is not None:
        more.append(f"heard from Workbench {duration_text(guard.heartbeat_age_s)} ago")
    if guard.log:
        more.append(f"log {guard.log}")
    if more:
        rows += paragraph_rows(f"  {', '.join(more)}", width, "dim", "    ")
    return rows


def guard_deadline_passed_text(state: SessionState) -> str:
    """Return a text that says that the guard has reverted the altered settings, although the link
    is lost and nobody can read them. "" if the link is not lost, or before the guard's deadline."""
    deadline = state.guard_deadline_unix_s
    if state.host.link != "lost" or deadline is None or time.time() < deadline:
        return ""
    if all(a.state == "kept" for a in state.alterations):
        return ""
    return f"the guard has reverted by now (deadline {time_of_day_text(deadline)})"


def _guard_action_text(action: str, unix_s: float | None) -> str:
    who = "the guard"
    if unix_s:
        who += f" at {time_of_day_text(unix_s)}"
    return f"{G.alert} {who}: {action}"
