"""The design of an A/B experiment: which run comes next, when it is enough, and what the pairs show. Pure functions.

    discarded: A    pair 0: A B    pair 1: A B    pair 2: B A    …

The first run is discarded: on a cold machine it is slower than all others. Runs of a pair stand beside one another, and
the order inside each pair is drawn from a stored seed. A drift then adds to the spread instead of the difference, and a
disturbance with a period (every fourth run) cannot keep step with the arms, as it can with A B B A. The pair is the
unit: Student's t interval on the logarithm of B/A. Where the arms differ in what only a restart changes, each run has a
server of its own: one start shared by two neighbouring runs would make two pairs alike, and the interval too narrow
(docs/REFERENCE.md, "What an experiment can show").

A number of pairs that is not fixed beforehand is bought with a wider interval: `UNTIL_LEVEL` instead of 95 % where it
ends once the interval is narrow enough, and a quarter of the chance of a false alarm for each extension of a finished
one. Both figures are from simulation (tests/benchmarks/bench_experiments.py): ending by width picks intervals that are
narrow by chance, and half instead of a quarter gives up to 8 % of false alarms where only what showed nothing is
extended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.bench.compare import ARMS, compare
from workbench.bench.experiment_diagnosis import MeasuredRun, compiled_once, diagnosed
from workbench.bench.metric_changes import BETTER, LEVEL, WORSE, average, metric_called, unclaimed, variance
from workbench.bench.student_t import detectable_shift, t_quantile
from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, MetricChange, half_width
from workbench.model.errors import InputError
from workbench.model.experiment import INTERRUPTED, WARM_UP, Arm, Experiment, ExperimentRun, ExperimentSpec

UNTIL_LEVEL = 0.965  # nominal, so that the interval that ended it holds the truth in 94 to 96.5 %, whatever the width
UNTIL_PAIRS = 5  # fewer are not looked at: their spread is too often too small by chance
EXTENDED = 4.0  # each extension divides the chance of a false alarm by this
UNTIL_MOST = 16  # where no number is given
MOST_PAIRS = 64
TRIES = 3  # of a pair
# Runs of one arm must be alike, so what differs between the arms of pairs is what the arms are.
ARMS_OF_PAIRS = frozenset(kind for kinds in ARMS.values() for kind in kinds)
_POWER_S = 2.0  # drivers report power as a mean over 1 s
POWER = 0.8  # at which "the smallest difference" is stated
_FASTER = {"output_tok_s", "request_s", "per_stream_tok_s", "whole_run_tok_s"}
_THRIFTY = {"tok_per_joule", "net_tok_per_joule"}


# -- what is asked for -----------------------------------------------------------------------------------------------


def restarts(a: Arm, b: Arm) -> bool:
    """Whether servers are started for the runs: the arms differ in what only a restart changes. Servers that run, or
    that others started, stay as they are."""
    if a.target is None and b.target is None:
        return (a.sets, a.unsets, a.envs) != (b.sets, b.unsets, b.envs)
    same = replace(a, gpu=b.gpu) == b
    return not same and any(arm.target is None or arm.target.plan is not None for arm in (a, b))


def plan_of(spec: ExperimentSpec, name: str) -> Mapping[str, Any]:
    """The plan that an arm starts from, as JSON; empty for a server that is there already."""
    target = arm_of(spec, name).target
    return spec.plan if target is None else target.plan or {}


def changes_gpus(spec: ExperimentSpec) -> bool:
    return bool(spec.a.gpu or spec.b.gpu)


def checked(spec: ExperimentSpec) -> ExperimentSpec:
    """Raises InputError for a design that cannot be carried out."""
    metric_called(spec.metric)
    if not 2 <= spec.pairs <= MOST_PAIRS:
        raise InputError(f"{spec.pairs} pairs cannot be made", next_step=f"2 to {MOST_PAIRS}: 3 show 5 %, 5 show 2 %")
    if spec.until_pct is not None:
        if not 0 < spec.until_pct < 100:
            raise InputError(f"± {spec.until_pct:g} % is no width of an interval", next_step="for example 2")
        if spec.pairs < UNTIL_PAIRS:
            raise InputError(
                f"until an interval is narrow takes at least {UNTIL_PAIRS} pairs",
                next_step=f"allow {UNTIL_PAIRS} or more; {UNTIL_MOST} is usual",
            )
    for value, name in ((spec.max_minutes, "minutes"), (spec.match_temperature_c, "°C")):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{value:g} {name} cannot be held", next_step="a number above 0")
    return spec


def measurable(metric: str, shape: BenchSpec) -> None:
    """Raises InputError for a metric that no run of this shape has."""
    name = metric.partition(".")[0]
    why = None
    if name in ("ttft_ms", "itl_ms", "tpot_ms", "ttft_from_schedule_ms") and not shape.stream:
        why = "whole answers (--no-stream) have no first token and no gaps"
    elif name in ("ttft_from_schedule_ms", "e2e_from_schedule_ms") and shape.rate is None:
        why = "only a --rate has a schedule"
    elif metric_called(metric).unit in ("W", "J", "tok/J") and (shape.seconds or _POWER_S) < _POWER_S:
        why = f"a run under {_POWER_S:g} s has no watts"
    if why is not None:
        raise InputError(f"{metric} cannot be measured: {why}", next_step="give another --metric, or another load")


def order(spec: ExperimentSpec, pair: int) -> tuple[str, str]:
    """Which arm runs first in this pair."""
    seed = spec.order_seed
    a_first = pair % 2 == 0 if seed is None else random.Random(f"{seed} {pair}").random() < 0.5
    return ("A", "B") if a_first else ("B", "A")


def arm_of(spec: ExperimentSpec, name: str) -> Arm:
    return spec.a if name == "A" else spec.b


def seed_of(spec: ExperimentSpec, pair: int) -> int:
    """The same for both runs of a pair: the same lengths and arrivals."""
    return spec.seed + pair


# -- what comes next -------------------------------------------------------------------------------------------------


def next_run(experiment: Experiment) -> ExperimentRun:
    """The run to make now, first that of a pair that is not complete."""
    pair = experiment.pairs_done
    done = {r.arm for r in experiment.runs if r.pair == pair and r.state == "done"}
    arm = next(name for name in order(experiment.spec, pair) if name not in done)
    return ExperimentRun(len(experiment.runs), pair, arm)


def warm_up(experiment: Experiment, arm: str) -> ExperimentRun:
    """A run to be discarded."""
    return ExperimentRun(len(experiment.runs), WARM_UP, arm)


def with_run(experiment: Experiment, run: ExperimentRun) -> Experiment:
    """The run put in at its place. One that failed takes its partner out: the pair is made again."""
    runs = (*experiment.runs[: run.place], run, *experiment.runs[run.place + 1 :])
    if run.state == "failed":
        why = f"its partner failed (run {run.place + 1})"
        runs = tuple(_dropped(r, why) if (r.pair, r.state) == (run.pair, "done") else r for r in runs)
    return replace(experiment, runs=runs)


def _dropped(run: ExperimentRun, why: str) -> ExperimentRun:
    return replace(run, state="dropped", error=why)


def tries(experiment: Experiment, pair: int) -> int:
    """How many runs of the pair have failed by themselves."""
    return sum(r.pair == pair and r.state == "failed" and r.error != INTERRUPTED for r in experiment.runs)


def resumed(experiment: Experiment) -> Experiment:
    """As an interrupted experiment goes on: what was under way is lost, and half a pair is made again, since its other
    half would be of another hour."""
    pair = experiment.pairs_done

    def now(run: ExperimentRun) -> ExperimentRun:
        run = cut_off(run, INTERRUPTED)
        if run.pair == pair and run.state == "done":
            return _dropped(run, "interrupted before its partner")
        return run

    return replace(experiment, runs=tuple(map(now, experiment.runs)), state="running", error=None)


def cut_off(run: ExperimentRun, why: str) -> ExperimentRun:
    """A run that was under way has failed; any other is as it was."""
    return replace(run, state="failed", error=why) if run.state in ("planned", "starting", "measuring") else run


def unmeasured(summary: BenchSummary, metric: str) -> str | None:
    """Why a run has no value of the metric; None where it has one. Another run of that shape would have none either."""
    if metric_called(metric).of(summary):
        return None
    return f"{metric} was not measured: {summary.absent.get(metric.partition('.')[0], 'no value')}"


def unfit(summary: BenchSummary, metric: str) -> str | None:
    """Why a run's figures are not compared; None where they may be."""
    if summary.refused:
        return f"rejected: {'; '.join(summary.refused)}"
    if summary.requests_failed:
        kinds = ", ".join(f"{n} {kind}" for kind, n in summary.errors.items())
        return f"{summary.requests_failed} of {summary.requests_ok + summary.requests_failed} requests failed ({kinds})"
    return unmeasured(summary, metric)


# -- when it is enough -----------------------------------------------------------------------------------------------


def enough(experiment: Experiment) -> str | None:
    """Why no further pair is needed; None where one is. By the number of pairs or the width of the interval, never by
    the verdict."""
    spec, done = experiment.spec, experiment.pairs_done
    if spec.until_pct is not None and done >= UNTIL_PAIRS:
        width = _chosen_change(experiment)
        if width is not None and width.interval_pct is not None and width.interval_pct <= spec.until_pct:
            return f"the interval is within ± {spec.until_pct:g} %"
    if done < spec.pairs:
        return None
    if spec.until_pct is not None:
        return f"± {spec.until_pct:g} % was not reached: {spec.pairs} pairs were the most"
    return f"{spec.pairs} pairs"


def pairs_wanted(experiment: Experiment) -> int:
    """How many pairs it will take, as far as can be told now."""
    spec, done = experiment.spec, experiment.pairs_done
    if spec.until_pct is None:
        return spec.pairs
    change = _chosen_change(experiment)
    ratios = _log_ratios(change) if change is not None else []
    if len(ratios) < 2:
        return min(spec.pairs, UNTIL_PAIRS)
    size = math.sqrt(variance(ratios))
    for pairs in range(max(done, UNTIL_PAIRS), spec.pairs):
        if 100 * t_quantile((1 + level(experiment)) / 2, pairs - 1) * size / math.sqrt(pairs) <= spec.until_pct:
            return pairs
    return spec.pairs


def runs_left(experiment: Experiment) -> int:
    pair = experiment.pairs_done
    half = any(r.pair == pair and r.state == "done" for r in experiment.runs)
    return max(0, 2 * (pairs_wanted(experiment) - pair) - half)


def left_s(experiment: Experiment) -> float | None:
    """From what the runs so far took; None before the first one has ended."""
    took = [r.took_s for r in experiment.runs if r.took_s is not None and r.state in ("done", "dropped", "discarded")]
    return runs_left(experiment) * average(took) if took else None


# -- what it shows ---------------------------------------------------------------------------------------------------


def level(experiment: Experiment) -> float:
    """Nominal confidence of the interval."""
    base = LEVEL if experiment.spec.until_pct is None else UNTIL_LEVEL
    return 1.0 - (1.0 - base) / EXTENDED**experiment.extensions


def complete_pairs(experiment: Experiment) -> list[tuple[ExperimentRun, ExperimentRun]]:
    """(A, B) in order."""
    done = {(r.pair, r.arm): r for r in experiment.runs if r.state == "done"}
    return [(run, done[pair, "B"]) for (pair, arm), run in sorted(done.items()) if arm == "A" and (pair, "B") in done]


def judged(experiment: Experiment, results: Mapping[int, BenchResult]) -> Experiment:
    """With comparison, smallest difference and verdict of the pairs whose results are given."""
    found = [(results.get(a.result_id or 0), results.get(b.result_id or 0)) for a, b in complete_pairs(experiment)]
    pairs = [(a, b) for a, b in found if a is not None and b is not None]
    if not pairs:
        return replace(experiment, comparison=None, smallest_pct=None, verdict=_sentence(experiment, None))
    comparison = compare(
        [a for a, _ in pairs],
        [b for _, b in pairs],
        paired=True,
        chosen=experiment.spec.metric,
        level=level(experiment),
        arms=ARMS_OF_PAIRS,
    )
    comparison = replace(comparison, notes=(*_diagnosed(experiment, pairs), *comparison.notes, *_notes(experiment)))
    experiment = replace(experiment, comparison=comparison)
    change = comparison.metrics[0]
    experiment = replace(experiment, smallest_pct=_smallest(change, level(experiment)))
    if experiment.state != "done":
        comparison = replace(comparison, metrics=unclaimed(comparison.metrics))
    return replace(experiment, comparison=comparison, verdict=_sentence(experiment, change))


def _diagnosed(experiment: Experiment, pairs: Sequence[tuple[BenchResult, BenchResult]]) -> Iterator[str]:
    """What the runs say of the machine."""
    seen = [[MeasuredRun(run, run.value) for run in pair if run.value] for pair in complete_pairs(experiment)]
    discarded = [MeasuredRun(run, run.value) for run in experiment.discarded if run.value]
    yield from diagnosed([(pair[0], pair[1]) for pair in seen if len(pair) == 2], discarded)
    if experiment.restarts:
        arms = [result.conditions for result in pairs[0]]
        told = compiled_once([c.engine for c in arms], [c.flags.get("enforce-eager") is True for c in arms])
        if told is not None:
            yield told


def _chosen_change(experiment: Experiment) -> MetricChange | None:
    return experiment.comparison.metrics[0] if experiment.comparison is not None else None


def _log_ratios(change: MetricChange) -> list[float]:
    return [math.log(b / a) for a, b in change.pairs if a and b]


def _smallest(change: MetricChange, at_level: float) -> float | None:
    """Percent that a true difference must have to be shown by 4 in 5 such experiments, from the pairs' spread: None for
    two pairs, whose spread may be anything."""
    ratios = _log_ratios(change)
    if change.interval_pct is None or len(ratios) < 3:
        return None
    least = metric_called(change.metric).resolution(min(v for pair in change.pairs for v in pair if v))
    error = math.sqrt(max(2 * least**2, variance(ratios)) / len(ratios))
    return 100 * math.expm1(min(50.0, detectable_shift(len(ratios) - 1, round(1 - at_level, 9), POWER) * error))


def _notes(experiment: Experiment) -> list[str]:
    notes = [
        f"{experiment.spec.metric} was chosen before the start; of the others, only what is left after Holm's "
        "correction for their number is called better or worse"
    ]
    looks = []
    if experiment.spec.until_pct is not None:
        looks.append("the outcome was looked at after every pair")
    if experiment.extensions:
        looks.append("more pairs were asked for after the outcome was seen")
    if looks:
        notes.append(
            f"{' and '.join(looks)}: the interval is a {100 * level(experiment):.4g} % one, so that it still "
            "holds the truth in about 95 %"
        )
    return notes


def _sentence(experiment: Experiment, change: MetricChange | None) -> str:
    """What a person may conclude, and nothing more."""
    done = experiment.pairs_done
    if change is None or change.change_pct is None:
        return "" if experiment.state == "running" else "nothing is claimed: no pair is complete"
    if change.interval_pct is None:
        return f"nothing is claimed: {done} pair{'s' * (done > 1)} cannot be told from the noise between runs"
    seen = f"{change.change_pct:+.1f} % ± {half_width(change.interval_pct)} ({_named(change)}, {done} pairs)"
    if experiment.state == "running":
        return f"so far {seen}"
    if experiment.state != "done":
        return f"nothing is claimed: it was not finished; so far {seen}"
    comparison = experiment.comparison
    if len(change.pairs) < done:
        return f"nothing is claimed: the results of {done - len(change.pairs)} of {done} pairs were deleted"
    if comparison is not None and not comparison.like_for_like:
        return f"nothing is claimed: not like for like ({comparison.warnings[0]}); measured {seen}"
    if change.verdict in (BETTER, WORSE):
        if experiment.spec.a == experiment.spec.b:
            return f"two equal configurations differ by {seen}: something else than the configuration changes the runs"
        size = f"{abs(change.change_pct):.1f} % ± {half_width(change.interval_pct)}"
        return f"B {_is(change)} by {size} ({_named(change)}, {done} pairs)"
    none = f"no difference that {done} pairs can show: {seen}"
    if experiment.smallest_pct is None:
        return f"{none}; what so few could have shown is not known"
    return (
        f"{none}; at this spread one of {experiment.smallest_pct:.1f} % or more would have been seen "
        "(in 4 of 5 such experiments)"
    )


def _named(change: MetricChange) -> str:
    if change.metric == "output_tok_s":
        return "output tok/s"
    return change.metric.replace("_ms.", " ").replace("_", " ")


def _is(change: MetricChange) -> str:
    up = (change.change_pct or 0) > 0
    if change.metric in _FASTER:
        return "is faster" if up else "is slower"
    if change.metric in _THRIFTY:
        return "gives more per joule" if up else "gives less per joule"
    return "is higher" if up else "is lower"
