"""The Textual application: the theme, the order of keys, signals, and the main screen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme

from workbench.session.session import Session
from workbench.tui import theme
from workbench.tui.cells import Painted
from workbench.tui.glyphs import ASCII, G
from workbench.tui.interfaces import KeyTaker, OrderedKeys
from workbench.tui.screen import MainScreen
from workbench.tui.textual_private import PlainEnd, is_leaving, run_bindings, when_terminal_hangs_up


def textual_theme(name: str) -> Theme:
    """Return a theme of theme.py as Textual's, for the style sheet."""
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


CLOSE_S = 5.0
TYPED_EARLY = "ctrl+j"  # what a terminal makes of enter before the screen has taken it over


class WorkbenchApp(PlainEnd):
    TITLE = "Workbench"
    CSS_PATH = "workbench.tcss"
    ENABLE_COMMAND_PALETTE = False  # controllers/palette.py looks like the other lists
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        # ctrl+q is a flow-control habit: it must not end the session. q asks first.
        Binding("ctrl+q", "screen.do('screen q')", show=False, priority=True),
        Binding("ctrl+c", "screen.do('screen q')", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._uncoloured: LineFilter | None = None
        self.set_class(G is ASCII, "-ascii")
        self.session = session
        theme.use(self._wanted_theme())
        self.register_theme(textual_theme(theme.current_name()))
        # without its watcher, which would parse all CSS a second time
        self.set_reactive(App.theme, f"workbench-{theme.current_name()}")
        self.stylesheet.set_variables(self.get_css_variables())

    def _wanted_theme(self) -> str:
        """Return the theme of config.toml. Without colours it is always the dark one, whose cursors become reverse
        video."""
        from workbench.store.paths import config_file

        if self.no_color or not config_file().exists():
            return theme.DEFAULT
        from workbench.store.config import ConfigStore

        return ConfigStore().config.ui.theme

    def switch_theme(self, name: str) -> None:
        """Draw the whole screen with another theme."""
        theme.use(name)
        self.register_theme(textual_theme(name))
        self.theme = f"workbench-{name}"
        for screen in self.screen_stack:
            for widget in screen.query(Painted):
                widget.draw_anew()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of the output. With NO_COLOR a filter removes all colours, because Textual's own filter
        leaves shades of grey."""
        if not self.no_color:
            return super().get_line_filters()
        if self._uncoloured is None:
            from workbench.tui.no_color import Uncoloured

            self._uncoloured = Uncoloured()
        return [self._uncoloured]

    def get_default_screen(self) -> Screen[Any]:
        return MainScreen(self.session)

    def on_ready(self) -> None:
        gc.freeze()  # objects of the first frame stay: no collection needs to visit them
        gc.enable()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            # Without a handler both end the process with no cleanup at all, not even `finally`.
            with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
                loop.add_signal_handler(number, self.exit, 128 + number)

        def gone() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.exit, 128 + signal.SIGHUP)

        when_terminal_hangs_up(self, gone)
        self.session.link.ask = self._ask_login

    async def _ask_login(self, prompt: str) -> str | None:
        """Ask for a passphrase, password or code of an ssh login. Return the answer; None if the user declines."""
        from workbench.tui.modals.login import Login

        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def answered(text: str | None) -> None:
            if not answer.done():
                answer.set_result(text)

        self.call_later(lambda: self.push_screen(Login(prompt), answered))
        return await answer

    async def on_unmount(self) -> None:
        """Close the session: its telemetry agent, port forwards and connection. Servers and GPU settings stay as they
        are."""
        with contextlib.suppress(TimeoutError):  # a host that hangs must not block the terminal
            await asyncio.wait_for(self.session.close(), CLOSE_S)

    async def on_event(self, event: events.Event) -> None:
        """Run keys in the order in which they were typed, also if several arrive in one packet.

        Textual runs a binding only after the event has bubbled up from the widget that had the focus when the key
        arrived. Of the keys p and q, q would run before p has moved the focus to the filter.
        """
        if isinstance(event, events.Key) and event.key == TYPED_EARLY:
            event = events.Key("enter", "\r")
        if isinstance(event, events.Key) and not event.is_forwarded and await self._take_key(event):
            return
        await super().on_event(event)

    async def _take_key(self, event: events.Key) -> bool:
        if is_leaving(self):
            return True
        if not isinstance(self.screen, OrderedKeys):
            return False
        try:
            return await self._run_key(event, self.screen.working)
        except Exception as error:  # of an action: a message shows it, and the screen continues
            self.main.services.explain(error)
            return True

    async def _run_key(self, event: events.Key, working: bool) -> bool:
        await self.main.page_opened()  # the key is for the page that the key before has opened
        focused = self.focused
        if working and event.key != "escape":
            return True  # the screen is about to open a page, and this key was not meant for that page
        if await run_bindings(self, event.key, priority=True):
            return True
        if isinstance(focused, KeyTaker) and focused.take_key(event):
            return True
        return await run_bindings(self, event.key)

    @property
    def main(self) -> MainScreen:
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen
