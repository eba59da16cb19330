"""The design of an A/B experiment: which run comes next, when there are enough pairs, and what the
pairs show. All functions are pure. An arm is one of the two compared configurations, A or B.

  discarded: A    pair 0: A B    pair 1: A B    pair 2: B A    …

The first run is discarded, because it is slower than all others on a cold machine. The two runs of
a pair follow each other, in a random order drawn from a stored seed. A slow drift of the machine
then widens the interval and does not look like a difference between A and B. A disturbance in every
fourth run cannot always hit the same arm, as it could with the fixed order A B B A.

The verdict comes from Student's t interval on log(B/A), with one value per pair. If the arms differ
in something that only a restart changes, each run gets its own server. If two neighbouring runs of
different pairs shared a server, these pairs would be alike and the interval too narrow
(docs/REFERENCE.md, "What an experiment can show").

If the number of pairs is not fixed beforehand, the interval is wider. An experiment that ends once
its interval is narrow enough uses the confidence level `NOMINAL_LEVEL_UNTIL_SURE` instead of 95 %,
because it would otherwise select intervals that are narrow by chance. Whenever a finished
experiment is extended, the allowed chance of a false alarm is divided by four. Division by two
would give up to 8 % of false alarms if only experiments without a result are extended. Both values
come from simulation (tests/benchmarks/bench_experiments.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from workbench.bench import twins
from workbench.bench.compare import DIFFERENCES_OF_ARM_KIND, compare, failed_requests_text
from workbench.bench.experiment_disturbances import (
    MeasuredRun,
    describe_disturbances,
    shared_compiled_code_note,
)
from workbench.bench.metric_changes import (
    BETTER,
    CONFIDENCE_LEVEL,
    WORSE,
    difference_and_error_of_means,
    downgrade_verdicts_to_hints,
    find_metric,
    variance,
)
from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Comparison,
    MetricChange,
    format_half_width,
)
from workbench.model.counts import count_of
from workbench.model.distribution import PERCENTILES
from workbench.model.errors import InputError
from workbench.model.experiment import (
    INTERRUPTED,
    OPTIONS,
    WARM_UP,
    Arm,
    Experiment,
    ExperimentRun,
    ExperimentSpec,
    RunState,
    side_label,
)
from workbench.model.known_values import known_values
from workbench.model.quality import BROKEN, DIFFERS, QualityResult
from workbench.model.series_state import SeriesState
from workbench.model.slo import OF_AN_SLO
from workbench.model.student_t import detectable_shift_in_errors, t_quantile

MEASURED_STATES = (RunState.DONE, RunState.DROPPED, RunState.DISCARDED)
_UNFINISHED_STATES = (RunState.PLANNED, RunState.STARTING, RunState.MEASURING)
# nominal; the interval at the end then contains the truth in 94 to 96.5 %, whatever the width
NOMINAL_LEVEL_UNTIL_SURE = 0.965
MIN_PAIRS_UNTIL_SURE = 5  # the spread of fewer pairs is too often too small by chance
EXTENSION_ALARM_DIVISOR = 4.0  # each extension divides the chance of a false alarm by this
DEFAULT_MAX_PAIRS_UNTIL_SURE = 16  # maximum number of pairs if the user gives none
MAX_PAIRS = 64
_MAX_ORDER_LEAD_PAIRS = 2  # pairs by which one order inside the pairs may always lead the other
MAX_TRIES_PER_PAIR = 3  # attempts at a pair
# Runs of one arm must be alike, so the differences between the runs of a pair are those between the
# arms.
DIFFERENCES_IN_PAIR = frozenset(chain.from_iterable(DIFFERENCES_OF_ARM_KIND.values()))
_MIN_POWER_RUN_S = 2.0  # drivers report power as a mean over 1 s
STATISTICAL_POWER = 0.8  # share of experiments that show "the smallest difference"
_SPEED_METRICS = (
    "output_tok_s",
    "request_s",
    "prompt_tok_s",
    "per_stream_tok_s",
    "whole_run_tok_s",
)
_EFFICIENCY_METRICS = ("tok_per_joule", "net_tok_per_joule")
_CHANGE_VERBS = {  # by metric, if it is lower and if it is higher
    **dict.fromkeys(_SPEED_METRICS, ("is slower", "is faster")),
    **dict.fromkeys(_EFFICIENCY_METRICS, ("gives less per joule", "gives more per joule")),
}
_NEEDS_OF_METRICS: tuple[tuple[Collection[str], Callable[[BenchSpec], bool], str], ...] = (
    (
        ("ttft_ms", "itl_ms", "tpot_ms", "ttft_from_schedule_ms"),
        lambda shape: shape.stream,
        "answers that are not streamed (--no-stream) have no first token and no gaps",
    ),
    (
        ("ttft_from_schedule_ms", "e2e_from_schedule_ms"),
        lambda shape: shape.has_schedule,
        "only requests with a --rate or a --trace have a schedule",
    ),
    (
        OF_AN_SLO,
        lambda shape: bool(shape.slo),
        "without limits (--slo) there are no requests that keep them",
    ),
)


# -- the design ------------------------------------------------------------------------------------


def starts_server_for_each_run(a: Arm, b: Arm, on_two_hosts: bool = False) -> bool:
    """Return whether each run of the experiment starts its own server. This is so in an experiment
    on two hosts (`on_two_hosts`), and if A and B differ in something that only a restart changes.
    Servers that already run, or that Workbench did not start, are never restarted."""
    if on_two_hosts:
        return True
    targets = known_values((a.target, b.target))
    if not targets:
        return (a.sets, a.unsets, a.envs) != (b.sets, b.unsets, b.envs)
    if replace(a, gpu=b.gpu) == b:
        return False
    return len(targets) < 2 or any(target.plan is not None for target in targets)


def plan_json_of_arm(spec: ExperimentSpec, name: str) -> Mapping[str, Any]:
    """Return the launch plan of A or of B (`name`) as JSON. The plan is empty for a server that
    already runs."""
    target = arm_of(spec, name).target
    if target is None:
        return spec.plan
    return target.plan or {}


def changes_gpu_settings(spec: ExperimentSpec) -> bool:
    """Return whether A or B changes GPU settings."""
    return bool(spec.a.gpu or spec.b.gpu)


def check_experiment_spec(spec: ExperimentSpec) -> ExperimentSpec:
    """Return `spec` unchanged if the experiment can be carried out. Raises InputError for an
    unknown metric, or an invalid number of pairs, interval width, longest duration or start
    temperature."""
    find_metric(spec.metric)
    if not 1 <= spec.pairs <= MAX_PAIRS:
        raise InputError(
            f"invalid number of pairs of an experiment: {spec.pairs}",
            next_step=f"use 1 to {MAX_PAIRS} pairs; 3 can show a difference of 5 %, 5 a "
            "difference of 2 %",
        )
    twins.check_twin_hosts_and_pairs(spec)
    if spec.until_pct is not None:
        if not 0 < spec.until_pct < 100:
            raise InputError(
                f"invalid width of the interval for --until: ± {spec.until_pct:g} %",
                next_step="use a width such as 2 (for ± 2 %)",
            )
        if spec.pairs < MIN_PAIRS_UNTIL_SURE:
            raise InputError(
                "an experiment that ends once its interval is narrow enough needs at least "
                f"{MIN_PAIRS_UNTIL_SURE} pairs",
                next_step=f"set the highest number of pairs to {MIN_PAIRS_UNTIL_SURE} or more; "
                f"{DEFAULT_MAX_PAIRS_UNTIL_SURE} is the default",
            )
    for option in OPTIONS:
        value = getattr(spec, option.field)
        if value is not None:
            option.require_valid(value)
    return spec


def require_measurable_metric(metric: str, load_spec: BenchSpec) -> None:
    """Raise InputError if no run of the workload `load_spec` can have a value of `metric`, for
    example TTFT without streaming, or if there is no such metric."""
    why = _why_not_measurable(metric, load_spec)
    if why:
        raise InputError(
            f"{metric} cannot be measured: {why}",
            next_step="use another --metric or another workload",
        )


def _why_not_measurable(metric: str, load_spec: BenchSpec) -> str:
    name, _, part = metric.partition(".")
    for names, is_met, why in _NEEDS_OF_METRICS:
        if name in names and not is_met(load_spec):
            return why
    percentile = PERCENTILES.get(part)
    if percentile and name != "itl_ms" and load_spec.requests < percentile.least_values:
        return (
            f"{percentile.title} needs {percentile.least_values:,} requests in each run, and the "
            f"workload has {load_spec.requests:,}"
        )
    needs_power = find_metric(metric).unit in ("W", "J", "tok/J")  # InputError: no such metric
    seconds = load_spec.seconds
    if needs_power and seconds is not None and 0 < seconds < _MIN_POWER_RUN_S:
        return f"a run shorter than {_MIN_POWER_RUN_S:g} s has no power reading"
    return ""


def arm_order_of_pair(spec: ExperimentSpec, pair: int) -> tuple[str, str]:
    """Return "A" and "B" in the order in which these two runs of pair number `pair` are made."""
    if spec.order_seed is None:
        a_first = pair % 2 == 0
    elif spec.twins:
        a_first = twins.does_a_run_first(spec, pair)
    else:
        a_first = _draw_pair_orders(spec.order_seed, pair + 1)[pair]
    return ("A", "B") if a_first else ("B", "A")


def _draw_pair_orders(seed: int, pairs: int) -> list[bool]:
    """Return for each of the first `pairs` pairs whether A runs first.

    Each pair's order is drawn, except that neither order may lead the other by more than two pairs,
    or by more than the square root of the number of pairs if that is larger. Otherwise a quarter of
    all experiments with three pairs would have one order only, and a drift of the machine would
    look like a difference between A and B. The limit holds after every pair, so it also holds for
    experiments that end by their width or are extended. This is the "big stick" design of Soares
    and Wu (Communications in Statistics A 12, 1983).
    """
    orders: list[bool] = []
    lead = 0  # pairs with A first, minus pairs with B first
    for pair in range(pairs):
        a_first = random.Random(f"{seed} {pair}").random() < 0.5
        most = max(_MAX_ORDER_LEAD_PAIRS, math.isqrt(pair + 1))
        if abs(lead + _plus_one_if_a_first(a_first)) > most:
            a_first = not a_first
        lead += _plus_one_if_a_first(a_first)
        orders.append(a_first)
    return orders


def _plus_one_if_a_first(a_first: bool) -> int:
    return 1 if a_first else -1


def arm_of(spec: ExperimentSpec, side: str) -> Arm:
    """Return the configuration (A or B) that a side of the experiment measures. A side is named "A"
    or, on two hosts, for example "B on gpu-box-2"."""
    return spec.a if side.startswith("A") else spec.b


def workload_seed_of_pair(spec: ExperimentSpec, pair: int) -> int:
    """Return the workload seed of pair number `pair`. Both runs of a pair use this seed, so that
    their requests have equal lengths and arrivals."""
    return spec.seed + pair


# -- the next run ----------------------------------------------------------------------------------


def next_run_to_make(experiment: Experiment) -> ExperimentRun:
    """Return the next run to make: the first missing run of the first pair that is not complete."""
    spec, pair, done = (
        experiment.spec,
        experiment.completed_pairs,
        _done_runs_by_pair_and_arm(experiment),
    )
    arm = next(name for name in arm_order_of_pair(spec, pair) if (pair, name) not in done)
    return ExperimentRun(len(experiment.runs), pair, arm, host=twins.host_of_arm(spec, pair, arm))


def _done_runs_by_pair_and_arm(experiment: Experiment) -> dict[tuple[int, str], ExperimentRun]:
    """Return the runs that are done, by (pair, arm)."""
    return {(run.pair, run.arm): run for run in experiment.runs if run.state == RunState.DONE}


def create_warm_up_run(experiment: Experiment, arm: str, host: str | None = None) -> ExperimentRun:
    """Return a new run of A or B (`arm`) whose result will be discarded, because the machine is
    still cold. `host` is the host of the run in an experiment on two hosts, otherwise None."""
    return ExperimentRun(len(experiment.runs), WARM_UP, arm, host=host)


def arm_and_host_by_side(spec: ExperimentSpec) -> Mapping[str, tuple[str, str | None]]:
    """Return {side: ("A" or "B", host)} for each side of the experiment. The sides are "A" and "B"
    with the host None. In an experiment on two hosts, they are A and B on each host, such as "B on
    gpu-box-2"."""
    hosts: Sequence[str | None] = spec.twins or (None,)
    return {side_label(arm, host): (arm, host) for arm in "AB" for host in hosts}


def add_or_replace_run(experiment: Experiment, run: ExperimentRun) -> Experiment:
    """Return the experiment with `run` added, or put in place of the run with the same `place`. If
    the run failed, the other run of its pair is dropped too, because the whole pair is made
    again."""
    runs = [*experiment.runs[: run.place], run, *experiment.runs[run.place + 1 :]]
    if run.state == RunState.FAILED:
        why = f"the other run of its pair failed (run {run.place + 1})"
        for place, other in enumerate(runs):
            if (other.pair, other.state) == (run.pair, RunState.DONE):
                runs[place] = _mark_run_dropped(other, why)
    return replace(experiment, runs=tuple(runs))


def _mark_run_dropped(run: ExperimentRun, why: str) -> ExperimentRun:
    return replace(run, state=RunState.DROPPED, error=why)


def count_failed_runs(experiment: Experiment, pair: int) -> int:
    """Return how many runs of pair number `pair` failed. Interrupted runs are not counted."""
    return sum(
        r.pair == pair and r.state == RunState.FAILED and r.error != INTERRUPTED
        for r in experiment.runs
    )


def prepare_experiment_to_resume(experiment: Experiment) -> Experiment:
    """Return an interrupted experiment in a state from which the experiment can continue.

    A run that was in progress counts as failed. If only one run of the current pair is done, that
    run is dropped, because the other run of the pair would be made much later.
    """
    pair = experiment.completed_pairs

    def fail_or_drop_interrupted(run: ExperimentRun) -> ExperimentRun:
        run = mark_run_failed_if_unfinished(run, INTERRUPTED)
        if (run.pair, run.state) == (pair, RunState.DONE):
            return _mark_run_dropped(
                run, "the experiment was interrupted before the other run of its pair"
            )
        return run

    return replace(
        experiment,
        runs=tuple(map(fail_or_drop_interrupted, experiment.runs)),
        state=SeriesState.RUNNING,
        error=None,
    )


def mark_run_failed_if_unfinished(run: ExperimentRun, why: str) -> ExperimentRun:
    """Return `run` as a failed run, with `why` as its error, if it is planned or in progress.
    Return any other run unchanged."""
    if run.state not in _UNFINISHED_STATES:
        return run
    return replace(run, state=RunState.FAILED, error=why)


def why_metric_is_unusable(summary: BenchSummary, metric: str) -> str | None:
    """Return why a run has no value of `metric` above 0, which a ratio needs. None if it has
    one."""
    value = find_metric(metric).value_in(summary)
    if value:
        return None
    if value == 0:
        return f"{metric} was 0, and a ratio needs more"
    name, _, part = metric.partition(".")
    found = getattr(summary, name)
    percentile = PERCENTILES.get(part)
    if percentile is not None and found is not None:
        return f"{metric} was not measured: {found.count} values, and {percentile.least_values_sentence}"
    why = summary.absent.get(name, "the result has no value")
    return f"{metric} was not measured: {why}"


def why_result_is_unusable(summary: BenchSummary, metric: str) -> str | None:
    """Return why the result of a run cannot be used in a comparison (invalid result, failed
    requests, no value of `metric`). None if the result can be used."""
    if summary.refused:
        return f"invalid result: {'; '.join(summary.refused)}"
    if summary.requests_failed:
        return failed_requests_text(summary)
    return why_metric_is_unusable(summary, metric)


# -- when there are enough pairs -------------------------------------------------------------------


def why_enough_pairs(experiment: Experiment) -> str | None:
    """Return why the experiment needs no further pair, or None if it needs one. The reason is the
    number of pairs or the width of the interval. An experiment never ends because of its verdict.
    """
    spec, done = experiment.spec, experiment.completed_pairs
    if spec.until_pct is None:
        return f"all {spec.pairs} pairs are done" if done >= spec.pairs else None
    if (
        done >= MIN_PAIRS_UNTIL_SURE
        and twins.are_hosts_balanced(spec, done)
        and _interval_half_width_pct(experiment) <= spec.until_pct
    ):
        return f"the interval is within ± {spec.until_pct:g} %"
    if done < spec.pairs:
        return None
    return f"± {spec.until_pct:g} % was not reached within {spec.pairs} pairs, the maximum"


def _interval_half_width_pct(experiment: Experiment) -> float:
    """Return the half width of the interval of the chosen metric; infinity if there is none."""
    change = _change_of_chosen_metric(experiment)
    if change is None or change.interval_pct is None:
        return math.inf
    return change.interval_pct


def estimate_pairs_needed(experiment: Experiment) -> int:
    """Return the number of pairs that the experiment will probably need. If the user asked for an
    interval of a certain width, the number is estimated from the spread of the pairs so far."""
    spec, done = experiment.spec, experiment.completed_pairs
    if spec.until_pct is None:
        return spec.pairs
    ratios = _log_ratio_of_each_pair(_change_of_chosen_metric(experiment))
    least = MIN_PAIRS_UNTIL_SURE + len(spec.twins) // 2
    lost = 2 if spec.twins else 1  # degrees of freedom that the estimates take
    if len(ratios) <= lost:
        return min(spec.pairs, least)
    spread = variance(ratios)
    if spec.twins:
        kinds = [twins.are_arm_hosts_swapped(spec, pair) for pair in range(len(ratios))]
        spread = twins.variance_within_groups(ratios, kinds)
    probability = (1 + confidence_level(experiment)) / 2
    for pairs in range(max(done, least), spec.pairs):
        width = 100 * t_quantile(probability, pairs - lost) * math.sqrt(spread / pairs)
        if width <= spec.until_pct and twins.are_hosts_balanced(spec, pairs):
            return pairs
    return spec.pairs


def count_remaining_runs(experiment: Experiment) -> int:
    pair, done = experiment.completed_pairs, _done_runs_by_pair_and_arm(experiment)
    half = not done.keys().isdisjoint(((pair, "A"), (pair, "B")))
    return max(0, 2 * (estimate_pairs_needed(experiment) - pair) - half)


def estimate_remaining_s(experiment: Experiment) -> float | None:
    """Return the estimated seconds until the experiment ends, from the durations of its runs so
    far. None before the first run has ended."""
    took = known_values(run.took_s for run in experiment.runs if run.state in MEASURED_STATES)
    if not took:
        return None
    return count_remaining_runs(experiment) * fmean(took)


# -- the result ------------------------------------------------------------------------------------


def confidence_level(experiment: Experiment) -> float:
    """Return the confidence level with which the experiment's interval is computed, for example
    0.95."""
    base = CONFIDENCE_LEVEL if experiment.spec.until_pct is None else NOMINAL_LEVEL_UNTIL_SURE
    return 1.0 - (1.0 - base) / EXTENSION_ALARM_DIVISOR**experiment.extensions


def list_complete_pairs(experiment: Experiment) -> list[tuple[ExperimentRun, ExperimentRun]]:
    """Return the complete pairs of the experiment as (run of A, run of B), in the order of the
    pairs."""
    done = _done_runs_by_pair_and_arm(experiment)
    pairs = sorted({pair for pair, _ in done})
    return [(done[n, "A"], done[n, "B"]) for n in pairs if done.keys() >= {(n, "A"), (n, "B")}]


def evaluate_experiment(
    experiment: Experiment,
    results: Mapping[int, BenchResult],
    quality: Sequence[QualityResult] = (),
) -> Experiment:
    """Return `experiment` with three fields computed from its complete pairs: `comparison`,
    `verdict` (a sentence) and `smallest_pct`, the smallest difference in percent that it could have
    shown. `results` maps result ids to results. A pair whose results are not in it is left out.
    `quality` has the measured comparisons of answers, the newest first; the experiment's own one is
    among them."""
    spec, level = experiment.spec, confidence_level(experiment)
    pairs: list[tuple[BenchResult, BenchResult]] = []
    kinds: list[bool] = []
    for a, b in list_complete_pairs(experiment):
        of_pair = known_values(results.get(run.result_id or 0) for run in (a, b))
        if len(of_pair) == 2:
            pairs.append((of_pair[0], of_pair[1]))
            if spec.twins:
                kinds.append(twins.are_arm_hosts_swapped(spec, a.pair))
    if not pairs:
        experiment = replace(experiment, comparison=None, smallest_pct=None)
        return replace(experiment, verdict=_verdict_sentence(experiment))
    left, right = zip(*pairs, strict=True)
    comparison = compare(
        left,
        right,
        paired=True,
        chosen_metric=spec.metric,
        level=level,
        arms=DIFFERENCES_IN_PAIR,
        swapped=kinds,
        quality=quality,
        own_quality_id=experiment.quality_id,
    )
    experiment = replace(experiment, comparison=comparison)
    comparison = replace(
        comparison,
        notes=(
            *_disturbance_sentences(experiment, pairs),
            *comparison.notes,
            *_notes_on_choice_and_confidence(experiment),
        ),
    )
    experiment = replace(experiment, comparison=comparison)
    change = comparison.metrics[0]
    smallest_pct = _smallest_detectable_change_pct(change, level, kinds)
    experiment = replace(experiment, smallest_pct=smallest_pct)
    verdict = _verdict_sentence(experiment)
    if experiment.state != SeriesState.DONE:
        comparison = replace(comparison, metrics=downgrade_verdicts_to_hints(comparison.metrics))
        if comparison.machine is not None:
            [machine] = downgrade_verdicts_to_hints([comparison.machine])
            comparison = replace(comparison, machine=machine)
    return replace(
        experiment,
        comparison=comparison,
        verdict=verdict,
        measured=_measured_change_text(change),
    )


def _measured_change_text(change: MetricChange) -> str:
    """Return a measured change in percent with its interval; "" without an interval."""
    if change.interval_pct is None:
        return ""
    return f"{change.change_pct:+.1f} % ± {format_half_width(change.interval_pct)}"


def _unsigned_change_text(change: MetricChange) -> str:
    """Return a measured change with its interval, without its sign."""
    return _measured_change_text(change).lstrip("+-")


def _disturbance_sentences(
    experiment: Experiment, pairs: Sequence[tuple[BenchResult, BenchResult]]
) -> Iterator[str]:
    """Yield sentences about disturbances that the runs show, such as an outlier or a trend. In an
    experiment on two hosts, the difference between the hosts is removed first."""
    factors = _metric_factor_of_second_host(experiment)
    measured = {
        run.place: MeasuredRun(run, run.value / factors.get(run.host, 1.0))
        for run in experiment.runs
        if run.value
    }
    seen = []
    for a, b in list_complete_pairs(experiment):
        if a.place in measured and b.place in measured:
            seen.append((measured[a.place], measured[b.place]))
    discarded = known_values(measured.get(run.place) for run in experiment.discarded_runs)
    yield from describe_disturbances(seen, discarded)
    if experiment.restarts:
        arms = [result.conditions for result in pairs[0]]
        eager = [made.flags.get("enforce-eager") is True for made in arms]
        note = shared_compiled_code_note([made.engine for made in arms], eager)
        if note is not None:
            yield note


def _metric_factor_of_second_host(experiment: Experiment) -> dict[str | None, float]:
    """Return {second host: the factor by which the chosen metric is higher there than on the
    first}. {} in an experiment on one host."""
    machine = _change_between_hosts(experiment)
    if machine is None:
        return {}
    return {experiment.spec.twins[1]: 1 + (machine.change_pct or 0.0) / 100}


def _change_of_chosen_metric(experiment: Experiment) -> MetricChange | None:
    if experiment.comparison is None:
        return None
    return experiment.comparison.metrics[0]


def _change_between_hosts(experiment: Experiment) -> MetricChange | None:
    """Return the difference between the two hosts; None in an experiment on one host."""
    if experiment.comparison is None:
        return None
    return experiment.comparison.machine


def _log_ratio_of_each_pair(change: MetricChange | None) -> list[float]:
    """Return log(B/A) of each pair; none without a change."""
    if change is None:
        return []
    return [math.log(b / a) for a, b in change.pairs if a and b]


def _smallest_detectable_change_pct(
    change: MetricChange, level: float, swapped: Sequence[bool]
) -> float | None:
    """Return the smallest true difference, in percent, that four of five experiments like this one
    would show. None for fewer than three pairs, whose scatter is unreliable. `level` is the
    confidence level. `swapped` says for each pair on two hosts whether A and B had swapped
    hosts."""
    if change.interval_pct is None or len(change.pairs) < 3:
        return None
    known: list[float] = []  # an interval is known only if all values are known and above 0
    logs_of_a, logs_of_b = [], []
    for a, b in change.pairs:
        if a and b:
            known += (a, b)
            logs_of_a.append(math.log(a))
            logs_of_b.append(math.log(b))
    resolution = find_metric(change.metric).smallest_relative_difference(min(known))
    _, error = difference_and_error_of_means(logs_of_a, logs_of_b, True, resolution, swapped)
    if error is None:
        return None
    return 100 * math.expm1(
        min(
            50.0,
            detectable_shift_in_errors(error.df, round(1 - level, 9), STATISTICAL_POWER)
            * error.size,
        )
    )


def _notes_on_choice_and_confidence(experiment: Experiment) -> list[str]:
    notes = [
        f"{experiment.spec.metric} was chosen before the start; another metric is called better or "
        "worse only if the "
        "difference remains after Holm's correction for the number of metrics"
    ]
    if experiment.spec.twins:
        notes.append(
            "A and B were swapped between the two machines, so the machines' difference is left "
            "out of the change; a "
            "change that is not the same on both machines shows as spread"
        )
    looks = []
    if experiment.spec.until_pct is not None:
        looks.append("the result was examined after every pair")
    if experiment.extensions:
        looks.append("more pairs were requested after the result was seen")
    if looks:
        notes.append(
            f"{' and '.join(looks)}, so a {100 * confidence_level(experiment):.4g} % interval is used, which "
            "still contains the "
            "true difference in about 95 % of experiments"
        )
    return notes


def _verdict_sentence(experiment: Experiment) -> str:
    """Return the verdict of the experiment as one sentence for the user. In an experiment on two
    hosts, the sentence also gives the difference between them. "" for a running experiment without
    a complete pair."""
    said = _chosen_metric_change_sentence(experiment)
    machine = _change_between_hosts(experiment)
    if not said or machine is None or not _measured_change_text(machine):
        return said
    first, second = experiment.spec.twins
    if machine.verdict in (BETTER, WORSE):
        verb, size = _verb_for_change_direction(machine), _unsigned_change_text(machine)
        return f"{said}; {second} {verb} than {first} by {size} with the same configuration"
    seen = _measured_change_text(machine)
    return f"{said}; no difference between the machines is shown: {second} against {first} {seen}"


def _chosen_metric_change_sentence(experiment: Experiment) -> str:
    """Return the part of the verdict about the change of the chosen metric from A to B. "" for a
    running experiment without a complete pair."""
    done, comparison = experiment.completed_pairs, experiment.comparison
    if comparison is None or comparison.metrics[0].change_pct is None:
        return "" if experiment.state == SeriesState.RUNNING else "no claim: no pair is complete"
    change = comparison.metrics[0]
    if change.interval_pct is None:
        return (
            f"no claim: {count_of(done, 'pair')} cannot be distinguished from the noise "
            "between runs"
        )
    of_metric = f"({_metric_title_of_change(change)}, {done} pairs)"
    seen = f"{_measured_change_text(change)} {of_metric}"
    claim = f"B {_verb_for_change_direction(change)} by {_unsigned_change_text(change)} {of_metric}"
    if experiment.state == SeriesState.RUNNING:
        return f"so far {seen}"
    if experiment.state != SeriesState.DONE:
        return f"no claim: the experiment was not finished; so far {seen}"
    if len(change.pairs) < done:
        return f"no claim: the results of {done - len(change.pairs)} of {done} pairs were deleted"
    if broken := comparison.broken_answer_clause:
        return f"no claim: {claim}, but {broken}"
    if not comparison.like_for_like:
        said = f"no claim: the runs are not comparable ({comparison.warnings[0]}); measured {seen}"
        return add_quality_to_claim(said, comparison)
    if change.verdict in (BETTER, WORSE):
        if experiment.spec.a == experiment.spec.b:
            return (
                f"two equal configurations differ by {seen}: something other than the "
                "configuration affects the runs"
            )
        claim = add_quality_to_claim(claim, comparison)
        return "; ".join(filter(None, (claim, comparison.content)))
    none = add_quality_to_claim(f"no difference that {done} pairs can show: {seen}", comparison)
    if experiment.smallest_pct is None:
        return f"{none}; the smallest difference that so few pairs could have shown is unknown"
    return (
        f"{none}; with this spread, a difference of {experiment.smallest_pct:.1f} % or more would "
        "have been shown "
        "(in 4 of 5 such experiments)"
    )


def add_quality_to_claim(claim: str, comparison: Comparison) -> str:
    """Return a claim about speed, followed by what is known about the answers: "B is faster by 31 %
    ± 2; quality not measured". The claim alone if nothing that changes the answers differs."""
    if not comparison.quality:
        return claim
    joint = ", but" if comparison.quality_verdict in (DIFFERS, BROKEN) else ";"
    return f"{claim}{joint} {comparison.quality}"


_RATE_TITLES = {
    "output_tok_s": "output tok/s",
    "request_s": "requests/s",
    "goodput_request_s": "goodput requests/s",
    "goodput_tok_s": "goodput tok/s",
}


def _metric_title_of_change(change: MetricChange) -> str:
    if change.metric in _RATE_TITLES:
        return _RATE_TITLES[change.metric]
    return change.metric.replace("_ms.", " ").replace("_", " ")


def _verb_for_change_direction(change: MetricChange) -> str:
    lower, higher = _CHANGE_VERBS.get(change.metric, ("is lower", "is higher"))
    return higher if (change.change_pct or 0) > 0 else lower
