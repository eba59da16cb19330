"""The confidence intervals that an experiment had after each completed pair of runs. The page of
the experiment draws them, so that the user sees the interval become narrower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment

# complete pairs -> (change, half width of its interval) in percent
IntervalHistory = Mapping[int, tuple[float, float]]
NO_INTERVALS: IntervalHistory = {}


class IntervalHistories:
    """Stores, for each experiment, the confidence interval after each completed pair of runs."""

    def __init__(self) -> None:
        self._histories: dict[int, dict[int, tuple[float, float]]] = {}  # by experiment id

    def record_interval(self, experiment: Experiment | None) -> None:
        """Store the present confidence interval of the metric that decides `experiment`. Do nothing
        if it is None or has no interval yet."""
        if experiment is None:
            return
        change = experiment.change_of_deciding_metric
        if change is None or change.change_pct is None or change.interval_pct is None:
            return
        history = self._histories.setdefault(experiment.id, {})
        history[experiment.completed_pairs] = (change.change_pct, change.interval_pct)

    def interval_history(self, experiment_id: int) -> IntervalHistory:
        """Return the recorded intervals of an experiment by number of pairs; {} if there are
        none."""
        return self._histories.get(experiment_id, {})
