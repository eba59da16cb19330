"""Pages on what is measured now: an experiment and a sweep, drawn anew when they change, looked at again later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

STOPPING = "stopping: what was measured is kept, settings are given back"
Left = Callable[[object, "float | None"], "float | None"]  # (what is measured, its left_s) -> seconds left now
Do = Callable[[Any, str], None]  # (page, outcome): asks it of the session


class _Body(TextBody):
    """As high as the screen allows: what grows must not move its box."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return viewport.height - ROOM_AROUND


class Live(Modal[str]):
    """esc leaves it running. "new" and "list" are outcomes; what acts on the measurement itself (`do`) keeps the page
    open, and the page says what was asked for until the session's state shows it."""

    LEAVING = ("new", "list")

    def __init__(self, state: SessionState, words: dict[str, str], left: Left, do: Do) -> None:
        """`words`: outcome -> "key word" for the border, where it can be done now. `left`: the screen's countdown."""
        super().__init__("")
        self.state, self.words, self.left, self.do = state, words, left, do
        self.asked, self.blank = "", False
        self.notice: Notice | None = None
        self._before: object = None
        self.body = _Body(self._rows)
        self.add_class("-wide")
        self.box_title, self.keys = self.title_now, self._keys()

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "choose('new')", show=False),
        Binding("K", "choose('stop')", show=False),
        Binding("R", "choose('resume')", show=False),
        Binding("o", "choose('list')", show=False),
        Binding("m", "choose('more')", show=False),
        Binding("enter,q", "leave", show=False),
    ]

    def content(self) -> Sequence[Widget]:
        return (self.body,)

    def _keys(self) -> str:
        shown = [word for outcome, word in self.words.items() if self.possible(outcome) and not self.asked]
        return "   ".join([*shown, "esc " + ("goes on behind" if self.running or self.asked else "close")])

    def action_choose(self, outcome: str) -> None:
        if self.asked or outcome not in self.words or not self.possible(outcome):
            return
        if outcome in self.LEAVING:
            self.dismiss(outcome)
        else:
            self.do(self, outcome)

    def ask(self, text: str, *, blank: bool = False) -> None:
        """`text` was asked of the session. `blank`: what was shown before has nothing to do with it."""
        self.asked, self.blank, self._before, self.notice = text, blank, self.measured, None
        self._draw()

    def _answered(self) -> None:
        self.asked, self.blank = "", False

    def request_failed(self, state: SessionState) -> None:
        """Stop waiting: the session raised an error, and a message shows it. Close the page if it has no content."""
        self.state_changed(state)
        nothing = self.blank
        self.asked, self.blank = "", False
        if nothing and self.app.screen is self:
            self.dismiss(None)
        else:
            self._draw()

    def state_changed(self, state: SessionState) -> None:
        self.state = state
        if self.asked and self.measured is not self._before and (self.asked != STOPPING or not self.running):
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
        """A message for the person, while this page lies over the place of messages."""
        if notice.level in (Level.WARN, Level.ERROR):
            self.notice = notice
            self._draw()

    def _rows(self, width: int) -> list[Row]:
        top: list[Row] = [((f"~ {self.asked}", "warn"),), ()] if self.asked else []
        if self.notice is not None:
            top += [*notice_rows(self.notice, width), ()]
        height = self.body.content_size.height or self.app.size.height - ROOM_AROUND
        return top if self.blank else [*top, *self.rows_of(width, height - len(top))]

    # what the two give
    @property
    def title_now(self) -> str:
        return ""

    @property
    def measured(self) -> Experiment | Sweep | None:
        """What the session measures now, or did last."""
        return None

    @property
    def shown(self) -> Experiment | Sweep | None:
        return self.measured

    @property
    def running(self) -> bool:
        return self.shown is not None and self.shown.state == "running"

    def possible(self, outcome: str) -> bool:
        return (outcome == "stop") == self.running or outcome == "list"

    def rows_of(self, width: int, height: int) -> list[Row]:
        return []

    @property
    def left_s(self) -> float | None:
        """What the page says is what the header says."""
        return self.left(self.shown, self.shown.left_s) if self.shown is not None and self.running else None


class ExperimentPage(Live):
    WORDS: ClassVar = {
        "stop": "K stop",
        "resume": "R go on",
        "more": "m two more pairs",
        "new": "n new",
        "list": "o others",
    }

    def __init__(
        self, state: SessionState, left: Left, do: Do, trail: Callable[[int], Trail], fixed: Experiment | None = None
    ) -> None:
        """`fixed`: one of the list, not what is measured now."""
        self.trail, self.fixed = trail, fixed
        super().__init__(state, self.WORDS, left, do)

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
            return False  # another Workbench's
        return super().possible(outcome)

    def rows_of(self, width: int, height: int) -> list[Row]:
        e = self.shown
        if e is None:
            return []
        return experiment_rows(e, width, left_s=self.left_s, now=progress_text(self.state), trail=self.trail(e.id))


class SweepPage(Live):
    _plotted: tuple[object, list[Row]] = (None, [])

    def __init__(self, state: SessionState, left: Left, do: Do) -> None:
        super().__init__(state, {"stop": "K stop", "resume": "R go on", "new": "n new"}, left, do)

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
        """Drawn anew only when a point is new, not with every second."""
        key = (s.points, s.knee, width, height)
        if key != self._plotted[0]:
            self._plotted = key, plots(s, width, height)
        return self._plotted[1]
