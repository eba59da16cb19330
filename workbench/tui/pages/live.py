"""The pages of an experiment, of a sweep and of a tune. They show a running measurement as it
proceeds, or an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.model.operating_map import point_of_live_server
from workbench.model.sweep import Sweep
from workbench.tui.cells import Row
from workbench.tui.formats import bench_progress_text
from workbench.tui.interval_histories import IntervalHistory
from workbench.tui.pages.base import Keys, Page
from workbench.tui.widgets.experiment import experiment_rows
from workbench.tui.widgets.sweep import (
    operating_map_rows,
    sweep_rows,
    tune_rows,
    user_operating_map,
)

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment
    from workbench.session.state import SessionState
    from workbench.tui.widgets.sweep import ServerRates

_SWEEP_WORDS = {"stop": ("K", "Stop"), "resume": ("R", "Resume"), "new": ("n", "New")}
STOPPING = "stopping: complete runs are kept, settings are reverted"
RemainingSeconds = Callable[["SessionState"], "float | None"]  # of the running measurement now
RunPageAction = Callable[[Any, str], Any]  # (page, action): does what the key asks for


class MeasurementPage(Page):
    """The page of an experiment or a sweep. Closing the page does not stop the measurement.

    A key of the page calls `run_page_action(page, action)` with the name of an action, such as
    "stop", which the session carries out. The page shows that the action was requested until the
    session's state has changed.
    """

    # action -> key and its word, shown while the action is possible
    WORDS: ClassVar[Mapping[str, tuple[str, str]]]
    KIND: ClassVar[str]
    OWN = "KRnom"

    def __init__(
        self,
        state: SessionState,
        compute_remaining_s: RemainingSeconds,
        run_page_action: RunPageAction,
    ) -> None:
        """`compute_remaining_s` returns the seconds left of the running measurement. The progress
        row of the main screen uses the same function, so that page and row show the same number.
        `run_page_action` is called with the page and an action when the user presses a key."""
        super().__init__("", lambda width: [], self._keys_possible_now, kind=type(self).__name__)
        self.state, self.compute_remaining_s, self.run_page_action = (
            state,
            compute_remaining_s,
            run_page_action,
        )
        self.request, self.hides_rows = "", False
        self._before: object = None  # the measurement when the request was made
        self.title = self.current_title

    def _keys_possible_now(self) -> Keys:
        keys: dict[str, tuple[str, Callable[[], Any]]] = {}
        if self.request:
            return keys
        for action, (key, word) in self.WORDS.items():
            if self.is_action_possible(action):
                keys[key] = (word, partial(self.run_page_action, self, action))
        return keys

    def show_requested_action(self, text: str, *, hide_rows: bool = False) -> None:
        """Show that the user has requested an action, until the session's state changes. `text`
        describes the action, such as "stopping". With `hide_rows`, hide the rows of the previous
        measurement meanwhile."""
        self.request, self.hides_rows, self._before = text, hide_rows, self.latest_measurement
        self.draw()

    def _clear_requested_action(self) -> None:
        self.request, self.hides_rows = "", False

    def clear_failed_request(self, state: SessionState) -> None:
        """Stop showing that an action is requested, because it has failed. A message of the main
        screen shows the error. Close the page if it has no measurement to show."""
        self.show(state)
        nothing = self.hides_rows
        self.request, self.hides_rows = "", False
        if nothing:
            self.close_page()
        else:
            self.draw()

    def show(self, state: SessionState) -> None:
        self.state = state
        goes_on = self.request == STOPPING and self.shows_running_measurement
        if self.request and self.latest_measurement is not self._before and not goes_on:
            self._clear_requested_action()
        self.draw()

    def draw(self) -> None:
        self.title = self.current_title
        super().draw()

    def all_rows(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        if self.request:
            rows += [((f"~ {self.request}", "warn"),), ()]
        if not self.hides_rows:
            rows += self.make_rows_or_error_rows(self.measurement_rows, width, height - len(rows))
        return rows

    # of a subclass
    @property
    def current_title(self) -> str:
        """Return the title: the kind of the measurement, and which one is shown."""
        if self.shown_measurement is None or self.hides_rows:
            return self.KIND
        return f"{self.KIND} {self.measurement_name(self.shown_measurement)}"

    def measurement_name(self, measurement: Any) -> str:
        return str(measurement.id)

    @property
    def latest_measurement(self) -> Experiment | Sweep | None:
        """Return the newest measurement of the page's kind, running or ended; None if there is
        none. Each subclass says which that is."""
        return None

    @property
    def shown_measurement(self) -> Experiment | Sweep | None:
        """Return the sweep or experiment on the page; None if there is none."""
        return self.latest_measurement

    @property
    def shows_running_measurement(self) -> bool:
        return self.shown_measurement is not None and self.shown_measurement.state == "running"

    def is_action_possible(self, action: str) -> bool:
        """Return whether the action `action` of a key, such as "stop", is possible now."""
        if action == "resume":
            return self.is_resumable
        return action == "list" or (action == "stop") == self.shows_running_measurement

    @property
    def is_resumable(self) -> bool:
        return isinstance(self.latest_measurement, Sweep) and self.latest_measurement.can_be_resumed

    def measurement_rows(self, width: int, height: int) -> list[Row]:
        return []

    @property
    def remaining_s(self) -> float | None:
        """Return the seconds left of the running measurement, as the progress row of the main
        screen shows them. Return None if the time is unknown, if the measurement has ended, or if
        another Workbench carries it out."""
        if (
            not self.shows_running_measurement
            or self.shown_measurement is not self.latest_measurement
        ):
            return None
        return self.compute_remaining_s(self.state)


class ExperimentPage(MeasurementPage):
    KIND = "A/B experiment"
    WORDS: ClassVar = {
        "stop": ("K", "Stop"),
        "resume": ("R", "Resume"),
        "more": ("m", "Two more pairs"),
        "new": ("n", "New"),
        "list": ("o", "Others"),
    }

    def __init__(
        self,
        state: SessionState,
        compute_remaining_s: RemainingSeconds,
        run_page_action: RunPageAction,
        interval_history: Callable[[int], IntervalHistory],
        earlier_experiment: Experiment | None = None,
    ) -> None:
        """`interval_history` maps the id of an experiment to the confidence intervals after each of
        its pairs. `earlier_experiment` is an earlier experiment that the user chose from the list.
        If it is None, the page follows the experiment that is running or ran last."""
        self.interval_history, self.earlier_experiment = interval_history, earlier_experiment
        super().__init__(state, compute_remaining_s, run_page_action)

    def _clear_requested_action(self) -> None:
        super()._clear_requested_action()
        self.earlier_experiment = None

    @property
    def latest_measurement(self) -> Experiment | None:
        return self.state.experiment

    @property
    def shown_measurement(self) -> Experiment | None:
        return self.earlier_experiment or self.latest_measurement

    def is_action_possible(self, action: str) -> bool:
        if action == "more":
            return self._has_ended_in_state("done")
        if action == "stop" and self.earlier_experiment is not None:
            return False  # another Workbench runs it
        return super().is_action_possible(action)

    @property
    def is_resumable(self) -> bool:
        return self._has_ended_in_state("stopped", "failed")

    def _has_ended_in_state(self, *end_states: str) -> bool:
        """Return whether the experiment on the page is in one of `end_states`. Return False if the
        experiment is part of a sweep, because the sweep resumes it."""
        e = self.shown_measurement
        return e is not None and e.sweep_id is None and e.state in end_states

    def measurement_rows(self, width: int, height: int) -> list[Row]:
        e = self.shown_measurement
        if e is None:
            return []
        return experiment_rows(
            e,
            width,
            remaining_s=self.remaining_s,
            bench_progress=bench_progress_text(self.state),
            interval_history=self.interval_history(e.id),
        )


class SweepPage(MeasurementPage):
    KIND = "Sweep"
    WORDS: ClassVar = _SWEEP_WORDS
    _plotted: tuple[object, list[Row]] = (None, [])  # the key and the rows of the last plots

    def measurement_name(self, measurement: Sweep) -> str:
        return f"of {measurement.name}"

    @property
    def latest_measurement(self) -> Sweep | None:
        return self.state.sweep

    def measurement_rows(self, width: int, height: int) -> list[Row]:
        s = self.latest_measurement
        if s is None:
            return []
        return sweep_rows(
            s,
            width,
            height,
            remaining_s=self.remaining_s,
            bench_progress=bench_progress_text(self.state),
            draw_plots=self._cached_plot_rows,
        )

    def _cached_plot_rows(self, s: Sweep, width: int, height: int) -> list[Row]:
        """Return the plots of the sweep. Draw the plots again only if a point, the size, the knee
        (the point beyond which more gains little) or the server's present rates have changed."""
        live = self._live_server_rates(s)
        key = (s.points, s.knee, width, height, live)
        if key != self._plotted[0]:
            self._plotted = key, operating_map_rows(s, width, height, live)
        return self._plotted[1]

    def _live_server_rates(self, s: Sweep) -> ServerRates | None:
        """Return the tokens per second that a user and a GPU get now, with two digits, so that they
        seldom change: plotting takes long. Return None if the sweep is no search for users, or if
        the rates are unknown."""
        found = user_operating_map(s)
        if found is None:
            return None
        now = point_of_live_server(s, self.state.engine, found.gpus)
        if now is None:
            return None
        return float(f"{now.user_tok_s:.2g}"), float(f"{now.gpu_tok_s:.2g}")


class TunePage(MeasurementPage):
    KIND = "Tune"
    WORDS: ClassVar = _SWEEP_WORDS

    @property
    def latest_measurement(self) -> Sweep | None:
        return self.state.tune

    def measurement_rows(self, width: int, height: int) -> list[Row]:
        s = self.latest_measurement
        if s is None:
            return []
        now = bench_progress_text(self.state)
        return tune_rows(
            s, self.state.experiment, width, remaining_s=self.remaining_s, bench_progress=now
        )
