"""The base class of the two applications, for one host and for a fleet: the theme, the order of
keys, signals, and the end of the application when the terminal hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from textual import events
from textual.app import App
from textual.filter import LineFilter
from textual.theme import Theme

from workbench.hosts.login_question import LoginQuestion
from workbench.tui import theme
from workbench.tui.cells import Painted
from workbench.tui.glyphs import ASCII, G
from workbench.tui.textual_private import TerminalApp, watch_terminal_hangup


def textual_theme(name: str) -> Theme:
    """Return the theme `name` as a Textual theme, whose colours the style sheet uses."""
    palette = theme.PALETTES[name]
    return Theme(
        name=f"workbench-{name}",
        primary=palette.good,
        secondary=palette.warn,
        warning=palette.warn,
        error=palette.bad,
        success=palette.good,
        accent=palette.warn,
        foreground=palette.text,
        background=palette.grounds["ground"],
        surface=palette.grounds["box"],
        panel=palette.grounds["bar"],
        dark=palette.dark,
        variables={
            **{f"wb-{ground}": colour for ground, colour in palette.grounds.items()},
            "wb-field": palette.field,
            "wb-text": palette.text,
            "wb-strong": palette.strong,
            "wb-dim": palette.dim,
            "wb-line": palette.line,
            "wb-sky": palette.good,
            "wb-orange": palette.warn,
        },
    )


TYPED_EARLY = "ctrl+j"  # what a terminal makes of enter before the screen has taken it over


def replace_ctrl_j_with_enter(event: events.Event) -> events.Event:
    """Return `event`, but the enter key in place of ctrl+j. A terminal sends ctrl+j if the user
    typed enter before the screen was drawn."""
    early = isinstance(event, events.Key) and event.key == TYPED_EARLY
    return events.Key("enter", "\r") if early else event


class ThemedApp(TerminalApp):
    """An application with the theme of config.toml. It ends on SIGTERM or SIGHUP, and when its
    terminal hangs up."""

    TITLE = "Workbench"
    CSS_PATH = Path(__file__).with_name("workbench.tcss")
    ENABLE_COMMAND_PALETTE = False  # controllers/palette.py looks like the other lists
    AUTO_FOCUS = None

    def __init__(self) -> None:
        super().__init__()
        self.hung_up = False  # whether the terminal is gone
        self._uncoloured: LineFilter | None = None
        self.set_class(G is ASCII, "-ascii")
        theme.select_theme(self._initial_theme_name())
        self.register_theme(textual_theme(theme.current_theme_name()))
        # without its watcher, which would parse all CSS a second time
        self.set_reactive(App.theme, f"workbench-{theme.current_theme_name()}")
        self.stylesheet.set_variables(self.get_css_variables())

    def _initial_theme_name(self) -> str:
        """Return the name of the theme in config.toml. With NO_COLOR, return the default dark
        theme, because its cursors can be shown in reverse video."""
        from workbench.store.paths import config_file

        if self.no_color or not config_file().exists():
            return theme.DEFAULT
        from workbench.store.config import ConfigStore

        return ConfigStore().config.ui.theme

    def switch_theme(self, name: str) -> None:
        """Draw the whole screen with the theme `name`."""
        theme.select_theme(name)
        self.register_theme(textual_theme(name))
        self.theme = f"workbench-{name}"
        for screen in self.screen_stack:
            for widget in screen.query(Painted):
                widget.redraw_all_rows()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of the output. With NO_COLOR a filter removes all colours, because
        Textual's own filter leaves shades of grey."""
        if not self.no_color:
            return super().get_line_filters()
        if self._uncoloured is None:
            from workbench.tui.no_color import Uncoloured

            self._uncoloured = Uncoloured()
        return [self._uncoloured]

    def on_ready(self) -> None:
        sys.path_importer_cache.clear()  # lists of directories, made again for the next import
        gc.collect()  # what the imports have left would stay for ever: 0.5 MiB
        gc.freeze()  # objects of the first frame stay: no collection needs to visit them
        gc.enable()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            # Without a handler both end the process with no cleanup at all, not even `finally`.
            with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                loop.add_signal_handler(number, self.end_on_signal, number)

        def end_on_hangup() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.end_on_signal, signal.SIGHUP)

        watch_terminal_hangup(self, end_on_hangup)

    def end_on_signal(self, number: signal.Signals) -> None:
        """End the application because of a signal."""
        self.hung_up = self.hung_up or number == signal.SIGHUP
        self.exit(128 + number)

    async def on_event(self, event: events.Event) -> None:
        """Run keys in the order in which they were typed, even if several arrive in one packet.

        Textual would run the action of a key only after the event has bubbled up from the widget
        that had the focus when the key arrived. If the user types p (focus the filter) and q, then
        q would quit instead of being typed into the filter.
        """
        event = replace_ctrl_j_with_enter(event)
        if (
            isinstance(event, events.Key)
            and not event.is_forwarded
            and await self.try_handling_key(event)
        ):
            return
        await super().on_event(event)

    async def try_handling_key(self, event: events.Key) -> bool:
        """Run the action of a key now, and return True. Return False if Textual has to handle the
        key. This base class leaves every key to Textual."""
        return False

    async def ask_login(self, question: LoginQuestion) -> str | None:
        """Ask for a passphrase, password or code of an ssh login. Return the answer; None if the
        user declines."""
        from workbench.tui.modals.login import Login

        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def set_answer(text: str | None) -> None:
            if not answer.done():
                answer.set_result(text)

        self.call_later(lambda: self.push_screen(Login(question), set_answer))
        return await answer
