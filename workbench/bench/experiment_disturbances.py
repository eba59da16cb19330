"""Disturbances of an experiment, found in its runs and described in sentences: an outlying pair,
two speeds, a trend, a cold first run, a shared compile cache.

The sentences explain why the experiment's interval is wide, or what it cannot show. They change
neither the interval nor the verdict. Each test raises a false alarm in about 1 of 100 experiments
without disturbances (tests/unit/bench/test_bench_diagnosis.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import mul
from statistics import fmean, median

from workbench.bench import twins
from workbench.bench.metric_changes import sum_of_squared_deviations
from workbench.engines import registry
from workbench.model.counts import format_four_digits
from workbench.model.experiment import ExperimentRun
from workbench.model.lazy_dataclass import dataclass
from workbench.model.student_t import t_cdf, t_quantile

_FALSE_ALARM_SHARE = 0.01
_MIN_RELATIVE_DIFFERENCE = 0.003  # differences below 0.3 % do not matter
# Number of runs of an arm -> share of the variance inside two groups, below which there are two
# speeds: the 1 % quantile for runs of one speed, by simulation (correlated or not).
_TWO_GROUPS_VARIANCE_SHARES = {4: 0.035, 5: 0.05, 6: 0.07, 8: 0.10, 12: 0.15, 16: 0.185, 24: 0.22}
# Number of runs of an arm -> how many times the typical deviation from its arm's median a run may
# be away: the 99 % quantile of the farthest run, by simulation (correlated or not).
_OUTLIER_DEVIATIONS = {3: 9.9, 4: 19.9, 5: 8.8, 6: 12.6, 8: 10.0, 12: 8.2, 16: 7.6, 24: 6.9}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run of an experiment and its value of the chosen metric."""

    run: ExperimentRun
    value: float

    @property
    def log_of_metric(self) -> float:
        return math.log(self.value)

    @property
    def label(self) -> str:
        return f"run {self.run.place + 1} ({self.run.arm})"


Pair = tuple[MeasuredRun, MeasuredRun]  # (run of A, run of B)
Runs = Sequence[MeasuredRun]


def describe_disturbances(
    pairs: Sequence[Pair], discarded: Sequence[MeasuredRun] = ()
) -> Iterator[str]:
    """Yield one sentence for each disturbance that the runs show. `pairs` are the complete pairs as
    (A, B); `discarded` are the discarded runs."""
    if not pairs:
        return
    arms = list(zip(*pairs, strict=True))
    yield from _report_outlying_pairs(pairs, arms)
    groups = _report_two_speeds(arms)
    yield from groups
    if not groups:  # otherwise the trend is a step between the two speeds
        slope = _steady_log_slope_per_run(arms)
        if slope:
            yield _trend_sentence(slope, pairs, arms)
        yield from _report_order_effect(pairs, slope)
        yield from _report_outliers_of_one_arm(arms)
    yield from _report_cold_start(arms, discarded)


def shared_compiled_code_note(engines: Sequence[str | None], eager: Sequence[bool]) -> str | None:
    """Return a note if all runs of A, or all runs of B, shared the code that the engine compiled at
    its first start. Otherwise return None.

    `engines` are the engine names of A and B. `eager` says for A and for B whether the engine runs
    without compiling. Each run of A and B must have started a new server.
    """
    compiled = [
        arm
        for arm, name, off in zip("AB", engines, eager, strict=True)
        if _compiles_at_start(name) and not off
    ]
    if not compiled:
        return None
    return (
        f"all runs of {' and all of '.join(compiled)} share the code compiled at the first start: "
        "the choices of the "
        "compiler and the autotuner are part of the difference, and more pairs do not reveal that; "
        "another experiment "
        "after clearing the compile cache does"
    )


def _compiles_at_start(name: str | None) -> bool:
    engine = registry.find_engine(name)
    return engine is not None and engine.compiles_at_first_start


def _report_outlying_pairs(pairs: Sequence[Pair], arms: Sequence[Runs]) -> Iterator[str]:
    """Yield a sentence for each pair whose ratio B/A is far from the ratios of all other pairs,
    compared with their spread. `arms` are the runs of A and the runs of B."""
    count = len(pairs)
    if count < 4:
        return
    ratios = _log_ratios(pairs)
    deviations = list(zip(*map(_deviations_from_median, arms), strict=True))
    limit = t_quantile(1 - _FALSE_ALARM_SHARE / (2 * count), count - 2)
    for place, (ratio, pair) in enumerate(zip(ratios, pairs, strict=True)):
        rest = [*ratios[:place], *ratios[place + 1 :]]
        centre, size = fmean(rest), math.sqrt(sum_of_squared_deviations(rest) / (count - 2))
        farthest = limit * size * math.sqrt(1 + 1 / (count - 1))
        if abs(ratio - centre) <= max(_MIN_RELATIVE_DIFFERENCE, farthest):
            continue
        worst = max((0, 1), key=lambda side: abs(deviations[place][side]))
        off = _format_log_as_percent(deviations[place][worst])
        yield (
            f"pair {pair[0].run.pair + 1} is an outlier: {_format_log_as_percent(ratio)}, the others "
            f"{_format_log_as_percent(centre)} with a spread of {100 * size:.1f} %; {pair[worst].label} is "
            f"{off} from its arm's median"
        )


def _report_two_speeds(arms: Sequence[Runs]) -> list[str]:
    share = _threshold_for_run_count(_TWO_GROUPS_VARIANCE_SHARES, min(map(len, arms)))
    if share is None:
        return []
    splits = list(map(_split_slow_and_fast_runs, arms))
    whole = math.fsum(map(_sum_of_squared_log_deviations, arms))
    inside = math.fsum(map(_sum_of_squared_log_deviations, chain.from_iterable(splits)))
    gaps = [_mean_log_metric(high) - _mean_log_metric(low) for low, high in splits]
    if inside >= share * whole or max(gaps) < 2 * _MIN_RELATIVE_DIFFERENCE:
        return []
    speeds = []
    for arm, (low, high), gap in zip("AB", splits, gaps, strict=True):
        if gap >= max(gaps) / 3:
            slow, fast = _speed_text(low), _speed_text(high)
            speeds.append(f"{arm} {len(low)} runs near {slow} and {len(high)} near {fast}")
    step = _position_of_speed_change(splits)
    if step is not None:
        why = (
            f"the change came before run {step + 1} and stayed (throttling, other load, "
            "another clock)"
        )
    else:
        why = (
            "probably each start of a server, or the placement of its memory, selects one of "
            "the two"
        )
    return [f"the runs have two speeds: {', '.join(speeds)}: {why}"]


def _threshold_for_run_count(thresholds: Mapping[int, float], run_count: int) -> float | None:
    """Return the threshold for this number of runs, or for the next smaller number that
    `thresholds` has. None if `thresholds` has no such number."""
    known = max((number for number in thresholds if number <= run_count), default=None)
    return None if known is None else thresholds[known]


def _speed_text(runs: Runs) -> str:
    return format_four_digits(math.exp(_mean_log_metric(runs)))


def _split_slow_and_fast_runs(arm: Runs) -> tuple[Runs, Runs]:
    """Return (slower runs, faster runs) of A or of B. Each group has at least two runs, and the
    sorted runs are cut where the variance inside the two groups is least."""
    ranked = sorted(arm, key=lambda r: r.value)
    cut = min(
        range(2, len(ranked) - 1),
        key=lambda at: (
            _sum_of_squared_log_deviations(ranked[:at])
            + _sum_of_squared_log_deviations(ranked[at:])
        ),
    )
    return ranked[:cut], ranked[cut:]


def _position_of_speed_change(splits: Sequence[tuple[Runs, Runs]]) -> int | None:
    """Return the position, in the order of measurement, of the first run with a new speed if all
    later runs have this speed too. None if slow and fast runs alternate. `splits` has (slower runs,
    faster runs) of A and of B."""
    low, high = map(_positions_in_measuring_order, zip(*splits, strict=True))
    for before, after in ((low, high), (high, low)):
        if max(before) < min(after):
            return min(after)
    return None


def _positions_in_measuring_order(groups: Iterable[Runs]) -> list[int]:
    """Return the positions of runs in the order of measurement."""
    return [run.run.place for run in chain.from_iterable(groups)]


def _steady_log_slope_per_run(arms: Sequence[Runs]) -> float:
    """Return the change of log(metric) from run to run if the metric rises or falls steadily over
    the order of the runs, otherwise 0. The difference between A and B is removed first. `arms` are
    the runs of A and the runs of B."""
    df = sum(map(len, arms)) - len(arms) - 1
    if df < 3:
        return 0.0
    points = []
    for arm in arms:
        mean_place, mean_log = fmean(_positions_in_measuring_order([arm])), _mean_log_metric(arm)
        for run in arm:
            place = run.run.place
            points.append((place, place - mean_place, run.log_of_metric - mean_log))
    _, xs, ys = zip(*sorted(points), strict=True)
    width = _inner_product(xs, xs)
    if not width:
        return 0.0
    slope = _inner_product(xs, ys) / width
    if abs(slope) * _steps_from_first_to_last_run(arms) < 2 * _MIN_RELATIVE_DIFFERENCE:
        return 0.0
    rest = [y - slope * x for x, y in zip(xs, ys, strict=True)]
    error = math.sqrt(_inner_product(rest, rest) / df / width)
    if not error:
        return slope
    # Neighbouring runs are correlated, which looks like a trend: this reduces the number of
    # independent runs.
    fewer = _effective_sample_fraction(rest)
    chance = 2 * t_cdf(-abs(slope) / error * math.sqrt(fewer), df * fewer)
    return slope if chance <= _FALSE_ALARM_SHARE / 3 else 0.0


def _steps_from_first_to_last_run(arms: Sequence[Runs]) -> int:
    """Return the number of steps from the first run to the last one."""
    places = _positions_in_measuring_order(arms)
    return max(places) - min(places)


def _trend_sentence(slope: float, pairs: Sequence[Pair], arms: Sequence[Runs]) -> str:
    in_all = _format_log_as_percent(slope * _steps_from_first_to_last_run(arms))
    return (
        f"the runs have a trend: {_format_log_as_percent(slope, 2)} from run to run, {in_all} from the "
        f"first to the last; {_order_effect_text(slope, pairs)} "
        "(a warm machine or --match-temperature narrows the interval)"
    )


def _report_order_effect(pairs: Sequence[Pair], slope: float) -> Iterator[str]:
    """Yield a sentence if the second run of a pair clearly differs from the first one, whichever
    arm it is, beyond what the trend `slope` explains. Too few pairs to tell yield none.

    In pairs that begin with A this effect adds to log(B/A), in the others it is subtracted, as the
    difference between two machines is in an experiment on two hosts (twins.py)."""
    b_first = [not _did_a_run_first(pair) for pair in pairs]
    found = twins.separate_host_effect(_log_ratios(pairs), b_first, 0.0)
    if found is None or not found.error:
        return
    steps = fmean([abs(b.run.place - a.run.place) for a, b in pairs])
    effect = found.machine - slope * steps
    limit = t_quantile(1 - _FALSE_ALARM_SHARE / 2, found.df) * found.error
    if abs(effect) <= max(_MIN_RELATIVE_DIFFERENCE, limit):
        return
    beside = "besides the trend, " if slope else ""
    yield (
        f"{beside}the second run of a pair is {_format_log_as_percent(effect)} from the first, whichever arm it "
        f"is; {_order_effect_text(effect, pairs)}"
    )


def _order_effect_text(effect: float, pairs: Sequence[Pair]) -> str:
    """Return which part of an order effect goes into the difference between A and B. `effect` is by
    how much the second run of a pair differs, as a logarithm. The part depends on how often A ran
    first."""
    first, count = sum(map(_did_a_run_first, pairs)), len(pairs)
    share = (2 * first - count) / count
    moved = _format_log_as_percent(effect * share)
    if first in (0, count):
        leader = "A" if first else "B"
        return (
            f"{leader} ran first in all {count} pairs, so {moved} of the "
            "difference between A and B comes from the order of the runs, not from the arms"
        )
    moves = f"moves the difference by {moved}" if share else "does not move it"
    return f"A ran first in {first} of {count} pairs, so this widens the interval and {moves}"


def _did_a_run_first(pair: Pair) -> bool:
    return pair[0].run.place < pair[1].run.place


def _report_outliers_of_one_arm(arms: Sequence[Runs]) -> Iterator[str]:
    """Yield a sentence if all outlying runs belong to one arm. The mean of an arm that has outliers
    now and then is not known from few runs, and the interval does not show that."""
    count = min(map(len, arms))
    times = _threshold_for_run_count(_OUTLIER_DEVIATIONS, count)
    if times is None:
        return
    away = list(chain.from_iterable(map(_deviations_from_median, arms)))
    sizes = sorted(map(abs, away))
    typical = median(sizes[2 * (count % 2) :])  # a middle run is its arm's median: it is 0 away
    limit = max(4 * _MIN_RELATIVE_DIFFERENCE, times * typical)
    outlying: dict[str, list[str]] = {}
    for run, each in zip(chain.from_iterable(arms), away, strict=True):
        if abs(each) > limit:
            outlying.setdefault(run.run.arm, []).append(
                f"{run.label} {_format_log_as_percent(each)}"
            )
    if len(outlying) != 1:
        return
    [(name, runs)] = outlying.items()
    yield (
        f"only {name} has outliers: {', '.join(runs)} from its median; if {name} itself causes them, "
        f"the interval may miss its long-term mean, because it depends on how many of {count} runs "
        "they hit: more pairs tell"
    )


def _effective_sample_fraction(residuals: Sequence[float]) -> float:
    """Return the effective number of independent runs as a share (0 to 1) of all runs, estimated
    from the correlation of successive runs. `residuals` are the residuals of a fitted line, not all
    0, treated as an AR(1) series. The estimated correlation r of n runs is too low by (2 + 4 r) /
    n, so this amount is added."""
    r = _inner_product(residuals, residuals[1:]) / _inner_product(residuals, residuals)
    r = min(max(r + (2 + 4 * r) / len(residuals), 0.0), 0.9)
    return (1 - r) / (1 + r)


def _report_cold_start(arms: Sequence[Runs], discarded: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield a sentence if the first discarded run is far from the other runs of the same
    configuration, compared with the spread inside A and inside B. `arms` are the runs of A and the
    runs of B."""
    df = sum(map(len, arms)) - len(arms)
    for first in discarded[:1]:
        arm = [run for run in chain.from_iterable(arms) if run.run.arm == first.run.arm]
        if min(len(arm), df) < 2:
            continue
        away = first.log_of_metric - _mean_log_metric(arm)
        size = math.sqrt(math.fsum(map(_sum_of_squared_log_deviations, arms)) / df)
        limit = t_quantile(1 - _FALSE_ALARM_SHARE / 2, df) * size * math.sqrt(1 + 1 / len(arm))
        if abs(away) > max(4 * _MIN_RELATIVE_DIFFERENCE, limit):
            yield (
                f"the discarded first run is {_format_log_as_percent(away)} from the other runs of "
                f"{first.run.arm}: a cold start"
            )


def _log_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Return log(B/A) of each pair."""
    return [b.log_of_metric - a.log_of_metric for a, b in pairs]


def _log_metric_values(runs: Runs) -> list[float]:
    return [run.log_of_metric for run in runs]


def _deviations_from_median(arm: Runs) -> list[float]:
    """Return by how much log(metric) of each run is away from the median of its arm."""
    logs = _log_metric_values(arm)
    centre = median(logs)
    return [log - centre for log in logs]


def _mean_log_metric(runs: Runs) -> float:
    return fmean(_log_metric_values(runs))


def _sum_of_squared_log_deviations(runs: Runs) -> float:
    return sum_of_squared_deviations(_log_metric_values(runs))


def _inner_product(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(map(mul, a, b))


def _format_log_as_percent(log: float, digits: int = 1) -> str:
    return f"{100 * math.expm1(log):+.{digits}f} %"
