"""The change of each metric from A to B over several runs: geometric means, their ratio, its
interval and a verdict.

Each run gives one value. Unpaired runs use Welch's t interval on the logarithms, and pairs of runs
use the paired t interval. For pairs on two hosts, the difference between the hosts is removed
(twins.py). The metric that was chosen before the runs is tested at the full level. Every other
metric gets the verdict "better" or "worse" only if its difference remains significant after Holm's
correction for the number of metrics. Otherwise it gets "hint only".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import sub
from statistics import fmean

from workbench.bench import twins
from workbench.model.bench import BenchResult, BenchSummary, MetricChange
from workbench.model.distribution import highest_shared_percentile
from workbench.model.errors import InputError
from workbench.model.known_values import known_values, mean_or_none, values_if_all_known
from workbench.model.lazy_dataclass import dataclass
from workbench.model.metrics import COMPARED_PARTS, LATENCY, METRICS, metric_value, metrics_of_group
from workbench.model.multiple_tests import rejected_by_holm_procedure
from workbench.model.slo import OF_AN_SLO
from workbench.model.student_t import t_cdf, t_quantile

BETTER, WORSE, NO_DIFFERENCE = "better", "worse", "no difference shown"
HINT, SINGLE_PAIR, NOT_MEASURED = "hint only", "single pair", "not measured"
WITHHELD = "withheld"
CONFIDENCE_LEVEL = 0.95
_COMPARED_METRICS = {
    name: metric for name, metric in METRICS.items() if metric.higher_is_better is not None
}
_COMPARED_LATENCIES = tuple(
    metric.name for metric in metrics_of_group(LATENCY) if metric.name in _COMPARED_METRICS
)
_LATENCY_STATISTICS = ("mean", *COMPARED_PARTS)
_PARTS_OF_METRIC = {
    **dict.fromkeys(_COMPARED_METRICS, ("",)),
    **dict.fromkeys(_COMPARED_LATENCIES, _LATENCY_STATISTICS),
}

_WINDOW_RESOLUTION_SHARE = 0.0005  # of every metric: windows begin and end at whole chunks
# drivers report whole watts or few digits; kernel timestamps have jitter
_RESOLUTION_BY_UNIT = {"W": 0.5, "ms": 0.01}

PickMetric = Callable[[BenchSummary], float | None]


@dataclass(frozen=True, slots=True)
class ResultMetric:
    """A metric by which results can be compared."""

    name: str  # "output_tok_s", "ttft_ms.p50"
    unit: str
    higher_is_better: bool

    def smallest_relative_difference(self, value: float) -> float:
        """Return the smallest relative difference from `value` that one run can measure, for
        example 0.0005 (0.05 %). A smaller difference means nothing, even if several runs happen to
        agree more closely."""
        return max(_WINDOW_RESOLUTION_SHARE, _RESOLUTION_BY_UNIT.get(self.unit, 0.0) / value)

    def value_in(self, summary: BenchSummary) -> float | None:
        """Return this metric's value in `summary`; None if it was not measured."""
        return metric_value(summary, self.name)

    def values_in(self, runs: Iterable[BenchResult]) -> list[float | None]:
        """Return this metric's value in each run; None for a run in which it was not measured."""
        return [self.value_in(run.summary) for run in runs]

    def largest_measurement_error_share(self, runs: Sequence[BenchResult]) -> float:
        """Return by how much the value of one of `runs` may be wrong at most, as a share of it: 0
        if its times are exact. More runs do not reduce it, because all may be wrong in the same
        direction."""
        latency = self.name.partition(".")[0]
        largest = 0.0
        for run, value in zip(runs, self.values_in(runs), strict=True):
            if value:
                largest = max(largest, run.summary.unsure_ms.get(latency, 0.0) / value)
        return largest


def withheld_reason(metric: str, runs: Iterable[BenchResult]) -> str:
    """Return why the first of `runs` that withheld `metric`, such as "ttft_ms.p50", did so; "" if
    none did."""
    name = metric.partition(".")[0]
    for run in runs:
        if reason := run.summary.withheld_reason(name):
            return reason
    return ""


def find_metric(name: str) -> ResultMetric:
    """Return the metric of that name, such as "output_tok_s" or "ttft_ms.p50". Raises InputError,
    which lists the valid names."""
    base, _, part = name.partition(".")
    if part in _PARTS_OF_METRIC.get(base, ()):
        declared = _COMPARED_METRICS[base]
        return ResultMetric(name, declared.unit, bool(declared.higher_is_better))
    known = [f"{each}.p50" if parts[0] else each for each, parts in _PARTS_OF_METRIC.items()]
    *others, last = (f".{each}" for each in _LATENCY_STATISTICS if each != "p50")
    raise InputError(
        f"no metric is called {name!r}",
        next_step=f"use one of {', '.join(known)}; {', '.join(others)} and {last} are possible in "
        "place of .p50",
    )


def choose_compared_metrics(
    runs: Sequence[BenchResult], chosen_metric: str | None = None
) -> tuple[ResultMetric, ...]:
    """Return the metrics that a comparison of `runs` shows, with the metric `chosen_metric` by the
    user first. Of the percentiles of latencies it has the highest that each run has.
    """
    names = ["output_tok_s", "tok_per_joule"]
    if any(run.spec.endpoint == "embeddings" for run in runs):
        names[:0] = ["request_s", "prompt_tok_s"]
    for latency in _COMPARED_LATENCIES:
        latencies = known_values(getattr(run.summary, latency) for run in runs)
        if METRICS[latency].optional and not latencies:
            continue
        tail = highest_shared_percentile(latencies).name
        names += (f"{latency}.mean", f"{latency}.p50", f"{latency}.{tail}")
    if len({run.spec.slo for run in runs}) == 1:
        names += (name for name in OF_AN_SLO if any(metric_value(r.summary, name) for r in runs))
    names += ["per_stream_tok_s", "request_s", "power_w"]
    if chosen_metric:
        names.insert(0, chosen_metric)
    return tuple(map(find_metric, dict.fromkeys(names)))


def metric_changes(
    runs_of_a: Sequence[BenchResult],
    runs_of_b: Sequence[BenchResult],
    *,
    paired: bool = False,
    chosen_metric: str | None = None,
    level: float = CONFIDENCE_LEVEL,
    swapped: Sequence[bool] = (),
) -> tuple[MetricChange, ...]:
    """Return the change of each metric from `runs_of_a` to `runs_of_b`. `chosen_metric` is the
    metric that was named before the runs were made; its change comes first. `level` is the
    confidence level of the intervals. For pairs on two hosts, `swapped` says for each pair whether
    A and B had swapped hosts."""
    runs = (*runs_of_a, *runs_of_b)
    changes: list[MetricChange] = []
    p_values: list[float | None] = []
    for metric in choose_compared_metrics(runs, chosen_metric):
        error_share = metric.largest_measurement_error_share(runs)
        xs, ys = metric.values_in(runs_of_a), metric.values_in(runs_of_b)
        change, p_value = _change_and_p_value_of_metric(
            metric, xs, ys, paired, level, swapped, error_share
        )
        changes.append(_mark_change_if_withheld(change, runs))
        p_values.append(p_value)
    if chosen_metric is None:
        return tuple(changes)
    stand = rejected_by_holm_procedure(p_values[1:], 1 - level)
    return (changes[0], *map(_downgrade_verdict_unless_confirmed, changes[1:], stand))


def change_between_hosts(
    metric: ResultMetric,
    a: Sequence[BenchResult],
    b: Sequence[BenchResult],
    swapped: Sequence[bool],
    level: float,
) -> MetricChange | None:
    """Return the change of a metric from the first of two hosts to the second one, with the same
    configuration. `swapped` says for each pair whether B ran on the first host. None if all pairs
    are swapped, or if none is."""
    if len(set(swapped)) < 2:
        return None
    first, second = metric.values_in(a), metric.values_in(b)
    # On each host, a swapped pair has the other arm: seen from the hosts, the arms are what is
    # swapped.
    for place, is_swapped in enumerate(swapped):
        if is_swapped:
            first[place], second[place] = second[place], first[place]
    return _change_and_p_value_of_metric(metric, first, second, True, level, swapped)[0]


def _geometric_mean(values: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]  # exactly
    return math.exp(fmean(map(math.log, values)))


def _change_and_p_value_of_metric(
    metric: ResultMetric,
    xs: list[float | None],
    ys: list[float | None],
    paired: bool,
    level: float,
    swapped: Sequence[bool] = (),
    possible_error_share: float = 0.0,
) -> tuple[MetricChange, float | None]:
    """Return the change of `metric` from values `xs` to values `ys`, and the p-value of the
    hypothesis that nothing changed.

    The p-value is None if there is no interval. Means are geometric, so that a change by a factor
    and its inverse cancel out. `possible_error_share` is the share by which each value may be
    wrong; the interval is wider by it.
    """
    name, unit, higher = metric.name, metric.unit, metric.higher_is_better
    pairs = tuple(zip(xs, ys, strict=True)) if paired else ()
    a, b = _values_if_all_positive(xs), _values_if_all_positive(ys)
    if a is None or b is None:
        x, y = _plain_mean(xs), _plain_mean(ys)
        return MetricChange(name, unit, x, y, None, None, higher, NOT_MEASURED, pairs), None
    log_a, log_b = list(map(math.log, a)), list(map(math.log, b))
    resolution = metric.smallest_relative_difference(min(*a, *b))
    centre, error = difference_and_error_of_means(log_a, log_b, paired, resolution, swapped)
    ratio = math.exp(centre)
    verdict, interval, p = SINGLE_PAIR, None, None
    if error is not None:
        half = t_quantile((1 + level) / 2, error.df) * error.size + possible_error_share
        # Of the interval's two sides, which differ a little in percent, the one towards zero: it
        # holds 0 exactly where the verdict says so.
        interval = 100 * ratio * abs(math.expm1(-half if centre > 0 else half))
        p = _two_sided_p_value(max(0.0, abs(centre) - possible_error_share), error)
        verdict = NO_DIFFERENCE
        if abs(centre) > half:
            verdict = BETTER if (centre > 0) == higher else WORSE
    mean_a, mean_b = _geometric_mean(a), _geometric_mean(b)
    return MetricChange(
        name, unit, mean_a, mean_b, 100 * (ratio - 1), interval, higher, verdict, pairs
    ), p


@dataclass(frozen=True, slots=True)
class StandardError:
    """The standard error of mean(b) - mean(a), with its degrees of freedom."""

    size: float
    df: float


def difference_and_error_of_means(
    a: list[float], b: list[float], paired: bool, resolution: float, swapped: Sequence[bool] = ()
) -> tuple[float, StandardError | None]:
    """Return (mean of b - mean of a, standard error of this difference). The standard error is None
    if there are too few runs. `resolution` is the smallest standard deviation that is assumed for a
    run. With `swapped` (pairs on two hosts), the difference between the hosts is removed
    (twins.py)."""
    if not swapped:
        return fmean(b) - fmean(a), _standard_error(a, b, paired, resolution)
    found = twins.separate_host_effect(list(map(sub, b, a)), swapped, 2 * resolution**2)
    if found is None:
        return fmean(b) - fmean(a), None
    if found.error is None:
        return found.change, None
    return found.change, StandardError(found.error, found.df)


def _standard_error(
    a: list[float], b: list[float], paired: bool, resolution: float
) -> StandardError | None:
    """Return the standard error of mean(b) - mean(a) with its degrees of freedom, or None if a side
    has fewer than two runs. `resolution` is the smallest standard deviation that is assumed for a
    run."""
    if min(len(a), len(b)) < 2:
        return None
    least = resolution**2
    if paired:
        spread = max(2 * least, variance(list(map(sub, b, a))))
        return StandardError(math.sqrt(spread / len(a)), len(a) - 1)
    u, v = max(least, variance(a)) / len(a), max(least, variance(b)) / len(b)
    df = (u + v) ** 2 / (u * u / (len(a) - 1) + v * v / (len(b) - 1))
    return StandardError(math.sqrt(u + v), df)


def _two_sided_p_value(centre: float, error: StandardError) -> float:
    """Return the two-sided p-value of the hypothesis that A and B do not differ. `centre` is the
    measured difference of the logarithms."""
    return 2 * t_cdf(-abs(centre) / error.size, error.df)


def _mark_change_if_withheld(change: MetricChange, runs: Sequence[BenchResult]) -> MetricChange:
    """Return `change` with the verdict "withheld" if it has no values because a run withheld
    them."""
    if change.verdict != NOT_MEASURED or not withheld_reason(change.metric, runs):
        return change
    return replace(change, verdict=WITHHELD)


def _downgrade_verdict_unless_confirmed(change: MetricChange, is_confirmed: bool) -> MetricChange:
    if is_confirmed or change.verdict not in (BETTER, WORSE):
        return change
    return replace(change, verdict=HINT)


def downgrade_verdicts_to_hints(
    changes: Iterable[MetricChange], *, of_latency: str = ""
) -> tuple[MetricChange, ...]:
    """Return the changes with "hint only" in place of the verdicts "better" and "worse", for runs
    that are not comparable or not complete. `of_latency` limits this to one latency, such as
    "itl_ms"; "" means all metrics."""
    downgraded = []
    for change in changes:
        latency = change.metric.partition(".")[0]
        is_of_other_metric = bool(of_latency) and latency != of_latency
        downgraded.append(
            _downgrade_verdict_unless_confirmed(change, is_confirmed=is_of_other_metric)
        )
    return tuple(downgraded)


def _values_if_all_positive(values: list[float | None]) -> list[float] | None:
    known = values_if_all_known(values)
    if known is None or min(known) <= 0:
        return None
    return known


def _plain_mean(values: list[float | None]) -> float | None:
    return mean_or_none(known_values(values))


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more values."""
    return sum_of_squared_deviations(values) / (len(values) - 1)


def sum_of_squared_deviations(values: Sequence[float]) -> float:
    """Return the sum of the squared deviations from the mean."""
    mean = fmean(values)
    return math.fsum((v - mean) ** 2 for v in values)
