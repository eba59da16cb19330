"""The Textual application that shows one host. It opens the main screen, runs the keys in order,
and asks the user the questions of SSH logins."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from workbench.session.session import Session
from workbench.tui.interfaces import KeyHandler, OrderedKeys
from workbench.tui.screen import MainScreen
from workbench.tui.textual_private import is_app_exiting, run_bound_action
from workbench.tui.themed_app import ThemedApp

CLOSE_S = 5.0


class WorkbenchApp(ThemedApp):
    BINDINGS: ClassVar[list[BindingType]] = [
        # ctrl+q is a flow-control habit: it must not end the session. q asks first.
        Binding("ctrl+q", "screen.do('screen q')", show=False, priority=True),
        Binding("ctrl+c", "screen.do('screen q')", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def get_default_screen(self) -> Screen[Any]:
        return MainScreen(self.session)

    def on_mount(self) -> None:
        self.session.link.ask = self.ask_login

    async def on_unmount(self) -> None:
        """Close the session: its telemetry agent, port forwards and connection. Servers and GPU
        settings stay as they are. If the terminal is gone, benchmarks are finished before."""
        if self.hung_up:
            await self.session.finish_benchmarks_without_screen()
        with contextlib.suppress(TimeoutError):  # a host that hangs must not block the terminal
            await asyncio.wait_for(self.session.close(), CLOSE_S)

    async def try_handling_key(self, event: events.Key) -> bool:
        if is_app_exiting(self):
            return True
        if not isinstance(self.screen, OrderedKeys):
            return False
        self.session.plans.start_importing_modules()
        try:
            return await self._try_key_handlers(event, self.screen.is_busy)
        except Exception as error:  # of an action: a message shows it, and the screen continues
            self.main.services.show_error(error)
            return True

    async def _try_key_handlers(self, event: events.Key, is_busy: bool) -> bool:
        # the key is for the page that the key before has opened
        await self.main.wait_until_page_opened()
        focused = self.focused
        if is_busy and event.key != "escape":
            # the screen is about to open a page, and this key was not meant for that page
            return True
        if await run_bound_action(self, event.key, priority=True):
            return True
        # the fleet has no widget with the focus
        taker = focused if focused is not None else self.screen
        if isinstance(taker, KeyHandler) and taker.try_handling_key(event):
            return True
        return await run_bound_action(self, event.key)

    @property
    def main(self) -> MainScreen:
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen
