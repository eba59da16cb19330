"""Pane 5, Compare: two results, or the arms of an experiment, with the change of each metric and a
verdict on the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.model.series_state import SeriesState
from workbench.session.bench.row_changes import noise_pct_hiding_throughput_change
from workbench.session.state import SessionState
from workbench.tui.bindings import (
    Key,
    copy_keys_for_view,
    format_key_hints,
    make_textual_bindings,
    open_result_plot,
)
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import enclose_nonempty_text
from workbench.tui.interval_histories import IntervalHistories
from workbench.tui.panes.base import Pane
from workbench.tui.widgets.comparison import (
    QUALITY_COMES,
    QUALITY_UNDER_WAY,
    comparison_rows,
    replace_unmeasured_quality_text,
    speed_verdict_rows,
)
from workbench.tui.widgets.scrolled import Scrolled

if TYPE_CHECKING:
    from workbench.model.bench import Comparison
    from workbench.model.experiment import Experiment
    from workbench.session.session import Session


class Compare(Pane, Scrolled):
    NAME, TITLE, AREA = "compare", "Compare", "bottom"
    FIELDS = frozenset(
        {"comparison", "experiment", "results", "mark_a", "mark_b", "b_chosen", "bench", "quality"}
    )
    KEYS = copy_keys_for_view(
        "compare",
        Key(
            "enter",
            "experiment",
            "show the experiment with its runs, pairs and intervals",
            lambda c: c.experiments.open_latest_experiment(),
        ),
        Key(
            "o",
            "experiments",
            "choose which experiment is shown, or resume one",
            lambda c: c.experiments.pick_earlier_measurement(),
        ),
        Key(
            "i",
            "timelines",
            "show power, clock, utilization and tokens per second of A and B over time, one over "
            "the other",
            lambda c: c.results.show_timelines(),
        ),
        Key(
            "d",
            "differs",
            "show what differs between A and B: command, environment, versions, GPU settings, host",
            lambda c: c.results.show_differences(),
        ),
        Key("t", "plot", "plot the results", open_result_plot),
    )
    BINDINGS = make_textual_bindings(KEYS)

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.of_experiment = session.state.experiment is not None
        self.interval_histories = IntervalHistories()

    def show(self, state: SessionState) -> None:
        """Draw the comparison of two results, or the experiment if that has changed more
        recently."""
        before, self.state = self.state, state
        self.interval_histories.record_interval(state.experiment)
        if before.comparison is not state.comparison:
            self.top, self.of_experiment = 0, False
        if before.experiment is not state.experiment:
            self.of_experiment = state.experiment is not None
        if _drawn_state_key(before) != _drawn_state_key(state):
            self.repaint()

    @property
    def shows_only_sentence(self) -> bool:
        state = self.session.state
        return state.comparison is None and state.experiment is None

    @property
    def key_hints(self) -> str:
        if self.session.state.experiment:
            return format_key_hints(self.KEYS, "c", "enter", "d", "o")
        return format_key_hints(self.KEYS, "c", "t", "d", "o")

    @property
    def _shown_experiment(self) -> Experiment | None:
        """The experiment that the pane shows; None while it shows two results or nothing."""
        if not self.of_experiment:
            return None
        return self.state.experiment

    @property
    def title_detail(self) -> str:
        state = self.state
        if self._shown_experiment is not None:
            return f"experiment {self._shown_experiment.id}"
        if state.comparison is None:
            return ""
        return enclose_nonempty_text("B is ", self._reason_b_is_compared(state, state.comparison))

    def all_rows(self, width: int, height: int) -> list[Row]:
        state, experiment = self.state, self._shown_experiment
        if experiment is not None:
            return self._experiment_rows(experiment, width)
        if state.comparison is None:
            return paragraph_rows(_empty_pane_text(state), width, "dim")
        comparison = state.comparison
        if state.running_quality is not None:
            comparison = replace_unmeasured_quality_text(comparison, QUALITY_UNDER_WAY)
        which = self._reason_b_is_compared(state, comparison)
        noise = _throughput_noise_pct(state, comparison)
        return [
            *speed_verdict_rows(comparison, width, noise),
            *comparison_rows(comparison, width, which),
        ]

    @staticmethod
    def _reason_b_is_compared(state: SessionState, comparison: Comparison) -> str:
        """Return why the compared result B is this one: the user has marked or selected it. Return
        "" if the comparison is not that of the results marked A and B."""
        if (comparison.a, comparison.b) != (state.mark_a, state.mark_b):
            return ""
        if state.b_chosen:
            return "marked: B unmarks"
        return "selected"

    def _experiment_rows(self, e: Experiment, width: int) -> list[Row]:
        """Return the verdict of the experiment, one row per completed pair with the confidence
        interval after that pair, then the comparison over all pairs so far."""
        if e.comparison is None:
            done = f"{e.completed_pairs} of {e.spec.pairs} pairs, an interval needs two pairs"
            return paragraph_rows(
                f"Experiment {e.id}: {done}. Press enter to see the experiment.", width, "dim"
            )
        from workbench.tui.widgets.experiment import interval_history_rows

        rows = interval_history_rows(e, width, self.interval_histories.interval_history(e.id))
        if e.verdict:
            rows = [*paragraph_rows(e.verdict, width, "strong"), *rows]
        comparison = e.comparison
        if e.state == SeriesState.RUNNING and e.spec.quality:
            comparison = replace_unmeasured_quality_text(comparison, QUALITY_COMES)
        return [*rows, *comparison_rows(comparison, width)]


def _throughput_noise_pct(state: SessionState, comparison: Comparison) -> float | None:
    """Return how many percent the throughput of the two results may differ by chance. Return None
    if their change is larger, or if B is not listed."""
    a, b = state.find_result(comparison.a), state.find_result(comparison.b)
    if b is None:
        return None
    return noise_pct_hiding_throughput_change(b, a)


def _drawn_state_key(state: SessionState) -> tuple[object, ...]:
    """Return a key of the parts of the state that the pane draws. With an equal key, the pane looks
    the same."""
    under_way = state.bench.is_running_or_queued
    parts = (state.comparison, state.experiment, state.results, state.mark_a, state.mark_b)
    measures_quality = state.running_quality is not None
    return *map(id, parts), state.b_chosen, under_way, measures_quality


def _empty_pane_text(state: SessionState) -> str:
    have = len(state.results)
    if have < 2:
        then = "Press b to run a benchmark."
        if state.bench.is_running_or_queued:
            then = "A benchmark is under way."
        elif state.running_quality is not None:
            then = "A comparison of answers is under way."
        return f"Nothing to compare: {have} of 2 results. {then}"
    if (state.mark_a is None) == (state.mark_b is None):
        return (
            "Press c to compare the last two results. To choose others, mark them with a and B in "
            "the Bench pane."
        )
    marked, other = "B", "a"
    if state.mark_b is None:
        marked, other = "A", "B"
    return f"{marked} is marked. Press {other} in the Bench pane for the other one, then c."
