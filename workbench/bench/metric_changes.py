"""The change of each metric from A to B over several runs: geometric means, their ratio, its interval, a verdict.

The unit is the run. For several runs on each side: Welch's t interval on the logarithms. For runs made in pairs: the
paired t interval. A metric that was chosen beforehand is tested at the full level; each of the others gets a verdict
only if it remains significant after Holm's correction over all of them (which tests the smallest p-values first,
against ever larger levels), otherwise a hint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.bench.student_t import t_cdf, t_quantile
from workbench.model.bench import BenchResult, BenchSummary, MetricChange
from workbench.model.errors import InputError
from workbench.model.metrics import LATENCY, METRICS, metrics_of, value_of

BETTER, WORSE, NO_DIFFERENCE = "better", "worse", "no difference shown"
HINT, SINGLE_PAIR, NOT_MEASURED = "hint only", "single pair", "not measured"
LEVEL = 0.95
_P99_NEEDS = 1000  # samples in a run, below which p99 is a handful of values: p90 is shown instead
_COMPARED = {name: metric for name, metric in METRICS.items() if metric.higher_is_better is not None}
_LATENCIES = tuple(metric.name for metric in metrics_of(LATENCY) if metric.name in _COMPARED)
_PARTS = ("mean", "p50", "p90", "p99")

_RESOLUTION_SHARE = 0.0005  # of every metric: windows begin and end at whole chunks
_RESOLUTION = {"W": 0.5, "ms": 0.01}  # drivers report whole watts or few digits; kernel timestamps have jitter

Pick = Callable[[BenchSummary], float | None]


@dataclass(frozen=True, slots=True)
class ResultMetric:
    """A metric that can be compared."""

    name: str  # "output_tok_s", "ttft_ms.p50"
    unit: str
    higher_is_better: bool

    def resolution(self, value: float) -> float:
        """Return how finely one run resolves the metric, as a share of `value`. A smaller spread between runs is
        chance."""
        return max(_RESOLUTION_SHARE, _RESOLUTION.get(self.unit, 0.0) / value)

    def of(self, summary: BenchSummary) -> float | None:
        """Return the metric's value in a result, or None."""
        return value_of(summary, self.name)


def metric_called(name: str) -> ResultMetric:
    """Return the metric of that name. Raises InputError that lists the names."""
    base, _, part = name.partition(".")
    parts = _PARTS if base in _LATENCIES else ("",)
    if base in _COMPARED and part in parts:
        return ResultMetric(name, _COMPARED[base].unit, bool(_COMPARED[base].higher_is_better))
    known = [f"{each}.p50" if each in _LATENCIES else each for each in _COMPARED]
    raise InputError(f"no metric is called {name!r}", next_step=f"one of {', '.join(known)} (or .mean, .p90, .p99)")


def shown_metrics(runs: Sequence[BenchResult], chosen: str | None = None) -> tuple[ResultMetric, ...]:
    """Return the metrics of a comparison, the chosen one first."""
    names = ["output_tok_s", "tok_per_joule"]
    for latency in _LATENCIES:
        counts = [d.count for r in runs if (d := getattr(r.summary, latency)) is not None]
        if METRICS[latency].optional and not counts:
            continue
        tail = "p99" if counts and min(counts) >= _P99_NEEDS else "p90"
        names += [f"{latency}.{part}" for part in ("mean", "p50", tail)]
    names += ["per_stream_tok_s", "request_s", "power_w"]
    return tuple(metric_called(name) for name in dict.fromkeys([*([chosen] if chosen else []), *names]))


def changes(
    left: Sequence[BenchResult],
    right: Sequence[BenchResult],
    *,
    paired: bool = False,
    chosen: str | None = None,
    level: float = LEVEL,
) -> tuple[MetricChange, ...]:
    """Return the change of each metric. `chosen` is the metric that was named before the runs were made."""
    found = [
        _change(metric, [metric.of(r.summary) for r in left], [metric.of(r.summary) for r in right], paired, level)
        for metric in shown_metrics((*left, *right), chosen)
    ]
    if chosen is None:
        return tuple(change for change, _ in found)
    stand = _holm([p for _, p in found[1:]], 1 - level)
    others = (_hinted(change, stands) for (change, _), stands in zip(found[1:], stand, strict=True))
    return (found[0][0], *others)


def _change(
    metric: ResultMetric, xs: list[float | None], ys: list[float | None], paired: bool, level: float
) -> tuple[MetricChange, float | None]:
    """Return the change and its p-value. With geometric means, a change by a factor and back cancels out."""
    name, unit, higher = metric.name, metric.unit, metric.higher_is_better
    pairs = tuple(zip(xs, ys, strict=True)) if paired else ()
    a, b = _positive(xs), _positive(ys)
    if a is None or b is None:
        x, y = _plain_mean(xs), _plain_mean(ys)
        return MetricChange(name, unit, x, y, None, None, higher, NOT_MEASURED, pairs), None
    log_a, log_b = [math.log(v) for v in a], [math.log(v) for v in b]
    centre = average(log_b) - average(log_a)
    ratio = math.exp(centre)
    verdict, interval, p = SINGLE_PAIR, None, None
    error = _standard_error(log_a, log_b, paired, metric.resolution(min(*a, *b)))
    if error is not None:
        half = t_quantile((1 + level) / 2, error.df) * error.size
        # Of the interval's two sides, which differ a little in percent, the one towards zero: it holds 0 exactly
        # where the verdict says so.
        interval = 100 * ratio * abs(math.expm1(-half if centre > 0 else half))
        p = _p_value(centre, error)
        verdict = NO_DIFFERENCE
        if abs(centre) > half:
            verdict = BETTER if (centre > 0) == higher else WORSE
    mean_a, mean_b = (v[0] if len(v) == 1 else math.exp(average(logs)) for v, logs in ((a, log_a), (b, log_b)))
    return MetricChange(name, unit, mean_a, mean_b, 100 * (ratio - 1), interval, higher, verdict, pairs), p


@dataclass(frozen=True, slots=True)
class _Error:
    size: float  # of mean(b) - mean(a)
    df: float


def _standard_error(a: list[float], b: list[float], paired: bool, resolution: float) -> _Error | None:
    """Return the standard error of mean(b) - mean(a) and its degrees of freedom; None if there are too few runs.
    `resolution` is the least scatter that is assumed for a run."""
    if len(a) < 2 or len(b) < 2:
        return None
    least = resolution**2
    if paired:
        spread = max(2 * least, variance([y - x for x, y in zip(a, b, strict=True)]))
        return _Error(math.sqrt(spread / len(a)), len(a) - 1)
    u, v = max(least, variance(a)) / len(a), max(least, variance(b)) / len(b)
    df = (u + v) ** 2 / (u * u / (len(a) - 1) + v * v / (len(b) - 1))
    return _Error(math.sqrt(u + v), df)


def _p_value(centre: float, error: _Error) -> float:
    """Return the two-sided p-value of no difference."""
    return 2 * t_cdf(-abs(centre) / error.size, error.df)


def _holm(ps: Sequence[float | None], alpha: float) -> list[bool]:
    """Return which hypotheses are rejected by Holm's procedure, which limits the chance of any false rejection to
    `alpha`."""
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    stand = [False] * len(ps)
    for rank, (p, place) in enumerate(known):
        if p > alpha / (len(known) - rank):
            break
        stand[place] = True
    return stand


def _hinted(change: MetricChange, stands: bool) -> MetricChange:
    return change if stands or change.verdict not in (BETTER, WORSE) else replace(change, verdict=HINT)


def unclaimed(found: Iterable[MetricChange]) -> tuple[MetricChange, ...]:
    """Return the same changes without claims, for runs that are not comparable or not complete yet."""
    return tuple(_hinted(change, False) for change in found)


def _positive(values: list[float | None]) -> list[float] | None:
    """Return the values if all of them exist and are above 0, as logarithms need; otherwise None."""
    known = [v for v in values if v is not None and v > 0]
    return known if len(known) == len(values) else None


def _plain_mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return average(known) if known else None


def average(values: Iterable[float]) -> float:
    known = tuple(values)
    return math.fsum(known) / len(known)


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more values."""
    mean = average(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
