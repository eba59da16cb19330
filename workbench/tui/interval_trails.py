"""The earlier intervals of experiments. The page of an experiment draws them, to show how its interval narrowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.model.experiment import Experiment

Trail = Mapping[int, tuple[float, float]]  # complete pairs -> (change, half width of its interval) in percent


class IntervalTrails:
    """The earlier intervals of every experiment that this screen has shown."""

    def __init__(self) -> None:
        self._trails: dict[int, dict[int, tuple[float, float]]] = {}  # experiment id -> trail

    def add(self, e: Experiment | None) -> None:
        """Keep the present interval of the deciding metric. Do nothing for None or for an experiment without an
        interval."""
        if e is None or e.comparison is None:
            return
        for metric in e.comparison.metrics:
            if metric.metric == e.spec.metric and metric.change_pct is not None and metric.interval_pct is not None:
                self._trails.setdefault(e.id, {})[e.pairs_done] = (metric.change_pct, metric.interval_pct)

    def of(self, experiment_id: int) -> Trail:
        return self._trails.get(experiment_id, {})
