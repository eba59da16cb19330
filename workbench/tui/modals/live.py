"""Pages on what is measured now: an experiment and a sweep, drawn anew when they change, looked at again later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.session.state import SessionState
from workbench.tui.countdown import Countdown
from workbench.tui.modals.base import ROOM_AROUND, Modal, TextBody
from workbench.tui.paint import Row
from workbench.tui.widgets.experiment import Trail, experiment_rows
from workbench.tui.widgets.sweep import plots, sweep_rows

if TYPE_CHECKING:
    from workbench.model.sweep import Sweep


class _Body(TextBody):
    """As high as the screen allows: what grows must not move its box."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return viewport.height - ROOM_AROUND


class Live(Modal[str]):
    """esc leaves it running. Other keys are outcomes: "new", "stop", "resume", "list"."""

    def __init__(self, title: str, state: SessionState, words: dict[str, str]) -> None:
        """`words`: outcome -> "key word" for the border, by what can be done now."""
        super().__init__(title)
        self.state, self.words = state, words
        self.countdown = Countdown()
        self.body = _Body(self._rows)
        self.add_class("-wide")
        self.keys = self._keys()

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "choose('new')", show=False), Binding("K", "choose('stop')", show=False),
        Binding("R", "choose('resume')", show=False), Binding("o", "choose('list')", show=False),
        Binding("m", "choose('more')", show=False), Binding("enter,q", "leave", show=False)]  # fmt: skip

    def content(self) -> Sequence[Widget]:
        return (self.body,)

    def _keys(self) -> str:
        shown = [word for outcome, word in self.words.items() if self.possible(outcome)]
        return "   ".join([*shown, "esc " + ("goes on behind" if self.running else "close")])

    def action_choose(self, outcome: str) -> None:
        if outcome in self.words and self.possible(outcome):
            self.dismiss(outcome)

    fixed = False  # shows one of the list, not what is measured now

    def state_changed(self, state: SessionState) -> None:
        if not self.fixed:
            self.state = state
        self.body.repaint()
        keys = self._keys()
        if keys != self.keys and self.is_attached:
            self.keys = keys
            self.say_keys(keys)

    # what the two give
    @property
    def running(self) -> bool:
        return False

    def possible(self, outcome: str) -> bool:
        return (outcome == "stop") == self.running or outcome == "list"

    def _rows(self, width: int) -> list[Row]:
        return []


class ExperimentPage(Live):
    def __init__(self, state: SessionState, trail: Callable[[], Trail]) -> None:
        self.trail = trail
        number = state.experiment.id if state.experiment else ""
        words = {"stop": "K stop", "resume": "R go on", "more": "m two more pairs", "new": "n new", "list": "o others"}
        super().__init__(f"A/B experiment {number}", state, words)

    @property
    def running(self) -> bool:
        return self.state.experiment is not None and self.state.experiment.state == "running"

    def possible(self, outcome: str) -> bool:
        e = self.state.experiment
        if outcome == "resume":
            return e is not None and e.state in ("stopped", "failed")
        if outcome == "more":
            return e is not None and e.state == "done"
        return super().possible(outcome)

    def _rows(self, width: int) -> list[Row]:
        e = self.state.experiment
        if e is None:
            return []
        left = self.countdown.left(e, e.left_s)
        return experiment_rows(e, width, left_s=left, progress=self.state.bench.progress, trail=self.trail())


class SweepPage(Live):
    _plotted: tuple[object, list[Row]] = (None, [])

    def __init__(self, state: SessionState) -> None:
        name = state.sweep.name if state.sweep else ""
        super().__init__(f"Sweep of {name}", state, {"stop": "K stop", "new": "n new"})

    @property
    def running(self) -> bool:
        return self.state.sweep is not None and self.state.sweep.state == "running"

    def possible(self, outcome: str) -> bool:
        return outcome != "list" and super().possible(outcome)

    def _rows(self, width: int) -> list[Row]:
        s = self.state.sweep
        if s is None:
            return []
        height = self.body.content_size.height or self.app.size.height - ROOM_AROUND
        left = self.countdown.left(s, s.left_s)
        return sweep_rows(s, width, height, left_s=left, progress=self.state.bench.progress, draw=self._plots)

    def _plots(self, s: Sweep, width: int, height: int) -> list[Row]:
        """Drawn anew only when a point is new, not with every second."""
        key = (s.points, s.knee, width, height)
        if key != self._plotted[0]:
            self._plotted = key, plots(s, width, height)
        return self._plotted[1]
