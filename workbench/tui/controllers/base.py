"""The base class of the controllers. Its attributes are the session, the session's state, and the
services of the screen."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING, Any

from workbench.tui.clipboard import copy

if TYPE_CHECKING:
    from textual.app import App

    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers


async def load(module: str) -> None:
    """Import a module in a thread, unless it is imported already. Importing a large module in the
    thread that handles the keys would delay them by 0.1 s."""
    if module not in sys.modules:
        await asyncio.to_thread(importlib.import_module, module)


class Controller:
    def __init__(self, controllers: Controllers) -> None:
        services = controllers.services
        self.controllers, self.services, self.session = controllers, services, services.session
        self.say, self.attempt, self.try_now = services.say, services.attempt, services.try_now
        self.go, self.pane = services.panes.go, controllers.pane

    @property
    def state(self) -> SessionState:
        return self.session.state

    @property
    def app(self) -> App[Any]:
        return self.services.app

    def copy(self, what: str, text: str) -> None:
        """Copy `text` to the clipboard, and show a message about the outcome. The message begins
        with `what`, a name for the text."""
        self.attempt(copy(self.app, text), lambda outcome: self.say(f"{what} {outcome}"))
