"""The base class of the controllers. Its attributes are the session, the session's state, and the
services of the screen."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.model.findings import Level
from workbench.tui.clipboard import copy_to_clipboard_and_describe
from workbench.tui.modals.ask import concurrent_measurement_question

if TYPE_CHECKING:
    from textual.app import App

    from workbench.model.server_run import ServerStatus
    from workbench.session.state import SessionState
    from workbench.tui.controllers import Controllers

T = TypeVar("T")


async def import_module_in_thread(module: str) -> None:
    """Import a module in a thread, unless it is imported already. Importing a large module in the
    thread that handles the keys would delay them by 0.1 s."""
    if module not in sys.modules:
        await asyncio.to_thread(importlib.import_module, module)


class Controller:
    def __init__(self, controllers: Controllers) -> None:
        services = controllers.services
        self.controllers, self.services, self.session = controllers, services, services.session
        self.show_message, self.run_in_background, self.run_or_show_error = (
            services.show_message,
            services.run_in_background,
            services.run_or_show_error,
        )
        self.go_to_pane, self.pane_of_type = services.panes.activate_pane, controllers.pane_of_type

    @property
    def state(self) -> SessionState:
        return self.session.state

    @property
    def app(self) -> App[Any]:
        return self.services.app

    @property
    def is_searching_servers(self) -> bool:
        """Whether nobody knows yet if a server runs on the host."""
        state = self.state
        return state.server is None and not state.servers_read and state.host.link != "failed"

    def ready_server_or_show_message(self, purpose: str) -> ServerStatus | None:
        """Return the selected server if it is READY. Otherwise say that `purpose`, such as "a
        sweep", needs one, and return None."""
        server = self.state.ready_server
        if server is not None:
            return server
        if self.is_searching_servers:
            self.show_server_search_message(f"{purpose} needs a server that is READY")
        else:
            text = f"{purpose} needs a server that is READY, and there is none"
            self.show_message(text, Level.WARN, "press s to start a server")
        return None

    def show_server_search_message(self, unmet_need: str) -> None:
        """Show a message that says `unmet_need`, such as "a benchmark needs a server", and that
        Workbench still looks for the host's servers."""
        text = f"{unmet_need}, and Workbench still looks for servers on {self.state.host.name}"
        self.show_message(text, next_step="press the key again when the top row names a server")

    def run_measurement(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        on_result: Callable[[T], None] | None = None,
        *,
        on_error: Callable[[], None] | None = None,
        outlives_screen: bool = False,
    ) -> None:
        """Run `work`, a measurement, in the background, as `run_in_background` does. If somebody
        else measures on this host, ask whether to measure beside them, and call `on_error` if the
        user declines."""
        from workbench.gpu.measurement_lock import HostOccupied

        async def measure_despite_others() -> T:
            with self.session.measurement_lock.allow_work_while_others_measure():
                return await work()

        def ask_to_measure_anyway(host_occupied: Exception) -> None:
            def measure_if_accepted(yes: bool | None) -> None:
                if yes:
                    self.run_in_background(
                        measure_despite_others,
                        on_result,
                        on_error=on_error,
                        outlives_screen=outlives_screen,
                    )
                elif on_error is not None:
                    on_error()

            self.app.push_screen(
                concurrent_measurement_question(host_occupied), measure_if_accepted
            )

        async def measure_or_ask_consent() -> Sequence[T]:
            try:
                return [await work()]
            except HostOccupied as occupied:
                ask_to_measure_anyway(occupied)
                return []

        def report_outcome(outcomes: Sequence[T]) -> None:
            for outcome in outcomes:
                if on_result is not None:
                    on_result(outcome)

        self.run_in_background(
            measure_or_ask_consent,
            report_outcome,
            on_error=on_error,
            outlives_screen=outlives_screen,
        )

    def copy_text(self, text_name: str, text: str) -> None:
        """Copy `text` to the clipboard, and show a message about the outcome. The message begins
        with `text_name`, a name for the text."""
        self.run_in_background(
            copy_to_clipboard_and_describe(self.app, text),
            lambda outcome: self.show_message(f"{text_name} {outcome}"),
        )
