"""What an alert does to the terminal: the bell, a notification of the desktop (OSC 9), and the
title of the window.

tmux passes OSC 9 on only inside a sequence of its own, and since 3.3 only if its option
allow-passthrough is on. GNU screen has no such option, so nothing is sent there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from workbench.model.alerts import END, ONCE
from workbench.model.untrusted_text import clean_text
from workbench.tui.clipboard import run_tmux_and_read_output
from workbench.tui.textual_private import write_control_sequence

if TYPE_CHECKING:
    from textual.screen import Screen

    from workbench.model.alerts import Alert

EVENT_TITLE_S = 60.0  # for which the title shows an event
_TITLE_CHARS, _DESKTOP_CHARS = 100, 250
# the terminal keeps the title that was there, and shows it again
_KEEP_TITLE, _FORMER_TITLE = "\x1b[22;2t", "\x1b[23;2t"
_BELL, _ESCAPE = "\a", "\x1b"
NOT_IN_SCREEN = "desktop: GNU screen passes no notifications on"
TMUX_IS_CLOSED = "desktop: tmux passes it on only after `tmux set -g allow-passthrough on`"


def notification_sequence(text: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the escape sequence that shows `text` as a notification of the desktop; "" if the
    terminal multiplexer passes none on. `env` is the environment, which says whether tmux or GNU
    screen is in use."""
    plain = f"{_ESCAPE}]9;{clean_text(text, _DESKTOP_CHARS)}{_BELL}"
    if env.get("TMUX"):
        inner = plain.replace(_ESCAPE, 2 * _ESCAPE)
        return f"{_ESCAPE}Ptmux;{inner}{_ESCAPE}\\"
    if env.get("STY"):
        return ""
    return plain


async def desktop_notification_problem(env: Mapping[str, str] = os.environ) -> str:
    """Return why no notification of the desktop can arrive; "" if no reason is known."""
    if env.get("TMUX"):
        # an older tmux has no such option and passes everything on
        said = await run_tmux_and_read_output(("show-options", "-Apv", "allow-passthrough"))
        if said == "off":
            return TMUX_IS_CLOSED
    elif env.get("STY"):
        return NOT_IN_SCREEN
    return ""


class AlertSignals:
    """Rings the bell, sends a notification and sets the window title for each new alert of a
    session, as the effects of the alert say. `restore_window_title` restores the former title."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._seen = 0  # number of the last alert that was shown
        # by rule and GPUs, the newest last
        self._titles: dict[tuple[str, tuple[int, ...]], Alert] = {}
        self._titled = False

    def signal_new_alerts(self, alerts: Iterable[Alert]) -> None:
        """Signal those of `alerts` that were not signalled before, each by its effects."""
        new = [alert for alert in alerts if alert.number > self._seen]
        if not alerts:  # another host
            self._titles.clear()
        for alert in new:
            self._seen = alert.number
            self._signal_alert(alert)
        self._update_window_title()

    def restore_window_title(self) -> None:
        self._titles.clear()
        self._update_window_title()

    def _signal_alert(self, alert: Alert) -> None:
        if "bell" in alert.effects:
            self._screen.app.bell()
        if "desktop" in alert.effects:
            write_control_sequence(
                self._screen.app, notification_sequence(f"Workbench: {alert.message}")
            )
        if "title" not in alert.effects:
            return
        self._titles = {
            key: kept
            for key, kept in self._titles.items()
            if not _replaces_earlier_alert(alert, key)
        }
        if alert.phase == END:
            return
        self._titles[alert.rule, alert.gpus] = alert
        if alert.phase == ONCE:
            self._screen.set_timer(EVENT_TITLE_S, lambda: self._remove_alert_from_title(alert))

    def _remove_alert_from_title(self, alert: Alert) -> None:
        """Remove an alert from the title, unless a later one of its rule and GPUs has replaced
        it."""
        if self._titles.get((alert.rule, alert.gpus)) is alert:
            del self._titles[alert.rule, alert.gpus]
            self._update_window_title()

    def _update_window_title(self) -> None:
        """Write the newest alert into the title of the window, or give it its former title."""
        was_titled, self._titled = self._titled, bool(self._titles)
        if self._titled:
            newest = next(reversed(self._titles.values()))
            text = clean_text(newest.message, _TITLE_CHARS)
            control = f"{_ESCAPE}]2;{text} - Workbench{_BELL}"
            if not was_titled:
                control = f"{_KEEP_TITLE}{control}"
            write_control_sequence(self._screen.app, control)
        elif was_titled:
            write_control_sequence(self._screen.app, _FORMER_TITLE)


def _replaces_earlier_alert(alert: Alert, rule_and_gpus: tuple[str, tuple[int, ...]]) -> bool:
    """Return whether `alert` replaces an earlier one: it has the same rule, and all GPUs of the
    earlier one."""
    rule, gpus = rule_and_gpus
    return alert.rule == rule and set(gpus) <= set(alert.gpus)
