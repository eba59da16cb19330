"""Copying to the clipboard. Outside tmux, the terminal copies the text when it receives the escape
sequence OSC 52. Inside tmux, the program tmux copies the text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.hosts.local import LocalHost
from workbench.model.errors import HostError

if TYPE_CHECKING:
    from textual.app import App

TMUX_S = 3.0  # timeout of a tmux command
BY_TERMINAL = "sent to the terminal by OSC 52: a terminal that does not allow OSC 52 ignores it"
IN_MULTIPLEXER = (
    "sent by OSC 52, which tmux and screen pass on only if configured (tmux: set -s "
    "set-clipboard on)"
)
IN_TMUX = "copied into tmux's buffer (prefix ] pastes it)"
TO_TERMINAL = (
    f"{IN_TMUX} and sent to the terminal: a terminal that does not allow OSC 52 ignores it"
)
OFF = (
    f"{IN_TMUX} only, because set-clipboard is off; `tmux set -s set-clipboard external` "
    "reaches the clipboard too"
)


async def copy_to_clipboard_and_describe(
    app: App[Any], text: str, env: Mapping[str, str] = os.environ
) -> str:
    """Copy `text` to the clipboard, and return a message about the outcome. `env` is the
    environment of this process, which says whether tmux or screen is in use."""
    if env.get("TMUX"):
        said = await _copy_with_tmux_and_describe(text)
        if said:
            return said
    app.copy_to_clipboard(text)
    inside = env.get("TMUX") or env.get("STY") or env.get("TERM", "").startswith(("tmux", "screen"))
    return IN_MULTIPLEXER if inside else BY_TERMINAL


async def _copy_with_tmux_and_describe(text: str) -> str | None:
    """Copy `text` into tmux's paste buffer with `tmux load-buffer`. Return a message about the
    outcome; None if tmux failed.

    By default tmux ignores OSC 52 of the programs inside it. Since tmux 3.2, `load-buffer -w` also
    fills the clipboard of the terminal.
    """
    setting = await run_tmux_and_read_output(("show-options", "-sv", "set-clipboard"))
    if await run_tmux_and_read_output(("load-buffer", "-w", "-"), text) is not None:
        return OFF if setting == "off" else TO_TERMINAL
    return (
        IN_TMUX if await run_tmux_and_read_output(("load-buffer", "-"), text) is not None else None
    )


async def run_tmux_and_read_output(arguments: Sequence[str], input_text: str = "") -> str | None:
    """Run a command of tmux with `input_text` as its input. Return what it printed; None if it
    failed."""
    try:
        done = await LocalHost().run(
            ["tmux", *arguments], input=input_text.encode(), timeout_s=TMUX_S
        )
    except HostError:
        return None
    return done.out.strip() if done.returncode == 0 else None
