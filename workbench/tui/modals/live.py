"""The pages of an experiment and of a sweep. They follow a measurement that runs, or show an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.widget import Widget

from workbench.model.findings import Level
from workbench.session.state import Notice, SessionState
from workbench.tui.cells import Row, border_text
from workbench.tui.formats import progress_text
from workbench.tui.interval_trails import Trail
from workbench.tui.modals.base import ROOM_AROUND, Modal, TextBody
from workbench.tui.widgets.bars import notice_rows
from workbench.tui.widgets.experiment import experiment_rows
from workbench.tui.widgets.sweep import plots, sweep_rows

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.model.sweep import Sweep

STOPPING = "stopping: complete runs are kept, settings are reverted"
Left = Callable[[object, "float | None"], "float | None"]  # (measurement, its left_s) -> seconds left now
Do = Callable[[Any, str], None]  # (page, outcome): requests the outcome from the session


class _Body(TextBody):
    """A text that always takes the height of the screen, so that a growing text does not move the box."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return viewport.height - ROOM_AROUND


class Live(Modal[str]):
    """The page of a measurement. Escape closes the page, and the measurement goes on.

    A key has an outcome, such as "stop". The outcomes "new" and "list" close the page. For other outcomes the page
    calls `do`, stays open, and shows the request until the session's state shows its effect.
    """

    WORDS: ClassVar[Mapping[str, str]]  # outcome -> key and word in the border, shown if the outcome is possible
    LEAVING = ("new", "list")

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "choose('new')", show=False),
        Binding("K", "choose('stop')", show=False),
        Binding("R", "choose('resume')", show=False),
        Binding("o", "choose('list')", show=False),
        Binding("m", "choose('more')", show=False),
        Binding("enter,q", "leave", show=False),
    ]

    def __init__(self, state: SessionState, left: Left, do: Do) -> None:
        """`left` is the countdown of the status bar, so that the page and the status bar show the same time left."""
        super().__init__("", wide=True)
        self.state, self.left, self.do = state, left, do
        self.request, self.blank = "", False
        self.notice: Notice | None = None
        self._before: object = None  # the measurement when the request was made
        self.body = _Body(self._rows)
        self.box_title, self.keys = self.title_now, self._keys()

    def content(self) -> Sequence[Widget]:
        return (self.body,)

    def _keys(self) -> str:
        shown = [word for outcome, word in self.WORDS.items() if self.possible(outcome) and not self.request]
        return "   ".join([*shown, "esc " + ("keep it running" if self.running or self.request else "close")])

    def action_choose(self, outcome: str) -> None:
        if self.request or outcome not in self.WORDS or not self.possible(outcome):
            return
        if outcome in self.LEAVING:
            self.dismiss(outcome)
        else:
            self.do(self, outcome)

    def ask(self, text: str, *, blank: bool = False) -> None:
        """Show the request `text` until it takes effect. With `blank`, hide the rows of the previous measurement."""
        self.request, self.blank, self._before, self.notice = text, blank, self.measured, None
        self._draw()

    def _answered(self) -> None:
        self.request, self.blank = "", False

    def request_failed(self, state: SessionState) -> None:
        """Remove the request from the page, because it failed; the error is shown as a message. Close the page if it is
        empty."""
        self.state_changed(state)
        nothing = self.blank
        self.request, self.blank = "", False
        if nothing and self.app.screen is self:
            self.dismiss(None)
        else:
            self._draw()

    def state_changed(self, state: SessionState) -> None:
        self.state = state
        if self.request and self.measured is not self._before and (self.request != STOPPING or not self.running):
            self._answered()
        self._draw()

    def _draw(self) -> None:
        if not self.is_attached:
            return
        self.body.repaint()
        box, keys, title = self.query_one(".box"), self._keys(), self.title_now
        if keys != self.keys:
            self.keys = keys
            box.border_subtitle = border_text(keys)
        if title != self.box_title:
            self.box_title = title
            box.border_title = border_text(title)

    def show_notice(self, notice: Notice) -> None:
        """Show a warning or an error on the page, because the page covers the message row of the main screen."""
        if notice.level in (Level.WARN, Level.ERROR):
            self.notice = notice
            self._draw()

    def _rows(self, width: int) -> list[Row]:
        top: list[Row] = [((f"~ {self.request}", "warn"),), ()] if self.request else []
        if self.notice is not None:
            top += [*notice_rows(self.notice, width), ()]
        height = self.body.content_size.height or self.app.size.height - ROOM_AROUND
        return top if self.blank else [*top, *self.rows_of(width, height - len(top))]

    # of a subclass
    @property
    def title_now(self) -> str:
        return ""

    @property
    def measured(self) -> Experiment | Sweep | None:
        """Return the sweep or experiment that runs or ran last; None if there is none."""
        return None

    @property
    def shown(self) -> Experiment | Sweep | None:
        """Return the sweep or experiment on the page; None if there is none."""
        return self.measured

    @property
    def running(self) -> bool:
        return self.shown is not None and self.shown.state == "running"

    def possible(self, outcome: str) -> bool:
        """Return whether the key with the outcome `outcome`, such as "stop", can be used now."""
        return (outcome == "stop") == self.running or outcome == "list"

    def rows_of(self, width: int, height: int) -> list[Row]:
        return []

    @property
    def left_s(self) -> float | None:
        """Return the seconds left of the running measurement, as the status bar shows them; None if unknown, or if it
        has ended."""
        return self.left(self.shown, self.shown.left_s) if self.shown is not None and self.running else None


class ExperimentPage(Live):
    WORDS: ClassVar = {
        "stop": "K stop",
        "resume": "R resume",
        "more": "m two more pairs",
        "new": "n new",
        "list": "o others",
    }

    def __init__(
        self, state: SessionState, left: Left, do: Do, trail: Callable[[int], Trail], fixed: Experiment | None = None
    ) -> None:
        """`trail` returns the earlier intervals of an experiment by its id. `fixed` is an experiment that the user
        chose from the list; None for the one in the state."""
        self.trail, self.fixed = trail, fixed
        super().__init__(state, left, do)

    def _answered(self) -> None:
        super()._answered()
        self.fixed = None

    @property
    def title_now(self) -> str:
        e = self.shown
        return "A/B experiment" + (f" {e.id}" if e is not None and not self.blank else "")

    @property
    def measured(self) -> Experiment | None:
        return self.state.experiment

    @property
    def shown(self) -> Experiment | None:
        return self.fixed or self.measured

    def possible(self, outcome: str) -> bool:
        e = self.shown
        if outcome == "resume":
            return e is not None and e.state in ("stopped", "failed")
        if outcome == "more":
            return e is not None and e.state == "done"
        if outcome == "stop" and self.fixed is not None:
            return False  # another Workbench runs it
        return super().possible(outcome)

    def rows_of(self, width: int, height: int) -> list[Row]:
        e = self.shown
        if e is None:
            return []
        return experiment_rows(e, width, left_s=self.left_s, now=progress_text(self.state), trail=self.trail(e.id))


class SweepPage(Live):
    WORDS: ClassVar = {"stop": "K stop", "resume": "R resume", "new": "n new"}
    _plotted: tuple[object, list[Row]] = (None, [])  # the key and the rows of the last plots

    @property
    def title_now(self) -> str:
        s = self.measured
        return "Sweep" + (f" of {s.name}" if s is not None and not self.blank else "")

    @property
    def measured(self) -> Sweep | None:
        return self.state.sweep

    def possible(self, outcome: str) -> bool:
        if outcome == "resume":
            return self.measured is not None and self.measured.resumable
        return outcome != "list" and super().possible(outcome)

    def rows_of(self, width: int, height: int) -> list[Row]:
        s = self.measured
        if s is None:
            return []
        return sweep_rows(s, width, height, left_s=self.left_s, now=progress_text(self.state), draw=self._plots)

    def _plots(self, s: Sweep, width: int, height: int) -> list[Row]:
        """Return the plots of the sweep. They are drawn again only if a point, the knee or the size has changed."""
        key = (s.points, s.knee, width, height)
        if key != self._plotted[0]:
            self._plotted = key, plots(s, width, height)
        return self._plotted[1]
