"""The confidence intervals that an experiment had after each completed pair of runs. The page of
the experiment draws them, so that the user sees the interval become narrower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment

# complete pairs -> (change, half width of its interval) in percent
Trail = Mapping[int, tuple[float, float]]


class IntervalTrails:
    """Stores, for each experiment, the confidence interval after each completed pair of runs."""

    def __init__(self) -> None:
        self._trails: dict[int, dict[int, tuple[float, float]]] = {}  # experiment id -> trail

    def record(self, e: Experiment | None) -> None:
        """Store the present confidence interval of the metric that decides the experiment `e`. Do
        nothing if `e` is None or has no interval yet."""
        if e is None or e.comparison is None:
            return
        for metric in e.comparison.metrics:
            if (
                metric.metric == e.spec.metric
                and metric.change_pct is not None
                and metric.interval_pct is not None
            ):
                self._trails.setdefault(e.id, {})[e.completed_pairs] = (
                    metric.change_pct,
                    metric.interval_pct,
                )

    def trail_of(self, experiment_id: int) -> Trail:
        return self._trails.get(experiment_id, {})
