"""The mean and scatter of each metric over several runs of the same benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, mean, stdev

from workbench.model.bench import BenchSummary
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass
from workbench.model.metrics import METRICS, metric_value, spread_metric_names


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one metric over several runs. `cv_pct` is the sample standard deviation in
    percent of the mean, or None for a single run."""

    metric: str  # in JSON, such as "ttft_p50_ms"
    unit: str
    values: tuple[float, ...]
    geometric_mean: float
    cv_pct: float | None
    name: str = ""  # in the table of metrics, such as "ttft_ms.p50"


def spread_of_each_metric(summaries: Sequence[BenchSummary]) -> tuple[Spread, ...]:
    """Return the mean and scatter of each metric over the valid results among `summaries`. Metrics
    without any value are left out."""
    usable = [s for s in summaries if not s.refused]
    found = []
    for metric in spread_metric_names():
        name, _, part = metric.partition(".")
        known = known_values(metric_value(summary, metric) for summary in usable)
        values = tuple(value for value in known if value > 0)
        if values:
            spread = Spread(
                metric=f"{name.removesuffix('_ms')}_{part}_ms" if part else name,
                unit=METRICS[name].unit,
                values=values,
                geometric_mean=round(geometric_mean(values), 4),
                cv_pct=_coefficient_of_variation_pct(values),
                name=metric,
            )
            found.append(spread)
    return tuple(found)


def _coefficient_of_variation_pct(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation in percent of the mean; None for a single value."""
    if len(values) < 2:
        return None
    return round(100 * stdev(values) / mean(values), 3)
