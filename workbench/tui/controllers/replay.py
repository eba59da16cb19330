"""The keys of a replay: pause, and play faster or slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.errors import InputError
from workbench.tui.controllers.base import Controller

if TYPE_CHECKING:
    from workbench.session.replay import Replay


class ReplayController(Controller):
    def toggle_pause(self) -> None:
        self.run_or_show_error(lambda: self._replay_session_or_error().toggle_pause())

    def change_speed(self, steps: int) -> None:
        self.run_or_show_error(lambda: self._replay_session_or_error().change_speed(steps))

    def _replay_session_or_error(self) -> Replay:
        """Return the session if it plays a recording. Raise InputError if it works on a host."""
        from workbench.session.replay import Replay

        if not isinstance(self.session, Replay):
            raise InputError(
                "this key works in a replay, but the screen shows a host",
                next_step="`workbench replay FILE` shows a recording",
            )
        return self.session
