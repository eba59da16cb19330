"""The Textual application of a fleet. It ends when the user opens a host or leaves."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from workbench.session.fleet.fleet import Fleet
from workbench.tui.fleet.screen import FleetScreen, FleetView
from workbench.tui.textual_private import is_app_exiting, run_bound_action
from workbench.tui.themed_app import ThemedApp


class FleetApp(ThemedApp):
    """The application that shows the hosts of `fleet`. When it has ended, `opened` is the name of
    the host that the user opened; None if the user left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "do_nothing", show=False, priority=True),
        # over a list of keys; the screen itself has a meaning for it
        Binding("ctrl+c", "do_nothing", show=False),
    ]

    def __init__(self, fleet: Fleet, view: FleetView) -> None:
        super().__init__()
        self.fleet, self.view = fleet, view
        self.opened: str | None = None

    def get_default_screen(self) -> Screen[Any]:
        return FleetScreen(self.fleet, self.view, self._exit_with_host)

    def action_do_nothing(self) -> None:
        """Do nothing for ctrl+q and, while the list of keys is open, for ctrl+c, because both would
        otherwise end the application. Users of terminal flow control press ctrl+q out of habit."""

    def _exit_with_host(self, opened_host: str | None) -> None:
        self.opened = opened_host
        self.exit(0)

    async def try_handling_key(self, event: events.Key) -> bool:
        if is_app_exiting(self) or not isinstance(self.screen, FleetScreen):
            return is_app_exiting(self)
        return self.screen.try_handling_key(event) or await run_bound_action(self, event.key)
