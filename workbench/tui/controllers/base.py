"""The base class of the controllers. It gives them the session, its state, and the services of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.tui.clipboard import copy

if TYPE_CHECKING:
    from textual.app import App

    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers


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
        """Copy `text` to the clipboard and report the outcome. `what` names the text."""
        self.attempt(copy(self.app, text), lambda outcome: self.say(f"{what} {outcome}"))
