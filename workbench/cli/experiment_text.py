"""An experiment as terminal text: what it will do, its progress and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from workbench.cli.output import print_message, simulated_suffix
from workbench.model.counts import count_of

if TYPE_CHECKING:
    from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
    from workbench.session.state import SessionState

UNKNOWN_DURATION = (
    "the duration is known after the first run: there is no earlier start or "
    "benchmark like this one"
)


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def format_arm(arm: Arm) -> str:
    return " ".join(arm.target_and_change_texts) or "the base as it is"


def experiment_plan_lines(spec: ExperimentSpec, duration_s: float | None) -> Iterator[str]:
    """Yield lines that describe an experiment before its start: both sides, the number of runs, and
    the expected duration in seconds `duration_s`, which is None if unknown."""
    from workbench.bench import experiment as design

    restarts = design.starts_server_for_each_run(spec.a, spec.b, bool(spec.twins))
    pairs, least = count_of(spec.pairs, "pair"), ""
    if spec.until_pct is not None:
        pairs = f"{design.MIN_PAIRS_UNTIL_SURE} to {spec.pairs} pairs, until ± {spec.until_pct:g} %"
        least = "at least "
    servers, compiling = "all runs on one server", ""
    if restarts:
        servers = "each run on a fresh server"
        compiling = ", and that of each arm that compiles,"
    unchanged = [arm.target for arm in (spec.a, spec.b) if arm.target and not arm.target.plan]
    if len(unchanged) == 2:
        servers = "on servers that are used as they are"
    yield f"A: {format_arm(spec.a)}\nB: {format_arm(spec.b)}"
    yield f"{pairs} in random order, {servers}; the verdict is about {spec.metric}"
    first = f"the first run{compiling}"
    if spec.throw_away:
        first = "the first run of each arm"
    if spec.twins:
        yield f"A and B run on {' and '.join(spec.twins)}, swapped in half of the pairs"
        first += " on each host"
    if spec.throw_away is not False:
        yield f"{first} is discarded"
    if duration_s is None:
        yield UNKNOWN_DURATION
    else:
        yield f"takes {least}about {format_duration(duration_s)}"


def _time_left_suffix(left_s: float | None) -> str:
    if not left_s:
        return ""
    return f"; about {format_duration(left_s)} left"


def experiment_if_changed(state: SessionState, changed: frozenset[str]) -> Experiment | None:
    """Return the running experiment if it is among what has `changed`, otherwise None."""
    return state.experiment if "experiment" in changed else None


def make_experiment_progress_reporter(
    known_runs: int = 0,
) -> Callable[[SessionState, frozenset[str]], None]:
    """Return a listener that prints the progress of an experiment on stderr: each run, and after
    each pair of runs the confidence interval so far.

    The first `known_runs` runs are not printed, because a resumed experiment measured them earlier.
    """
    printed = set(range(known_runs))
    last_id, last_verdict = None, ""

    def report(state: SessionState, changed: frozenset[str]) -> None:
        nonlocal last_id, last_verdict
        now = experiment_if_changed(state, changed)
        if now is None:
            return
        if last_id is None:
            last_id = now.id
            print_message(f"experiment {now.id}")
        for run in now.runs:
            if run.state in ("done", "discarded", "failed") and run.place not in printed:
                printed.add(run.place)
                print_message(_format_run(run))
        if now.verdict.startswith("so far") and last_verdict != now.verdict:
            last_verdict = now.verdict
            print_message(f"  {now.verdict}{_time_left_suffix(now.left_s)}")

    return report


def _format_run(run: ExperimentRun) -> str:
    value = f"{run.value:,.2f}" if run.value is not None else f"{run.state}: {run.error}"
    line = f"  {run.pair_label} {run.side_label}  {value}"
    if run.took_s is not None:
        line += f"  {run.took_s:.0f} s"
    return line


def format_experiment_list_line(experiment: Experiment) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(experiment.unix_s))
    simulated = simulated_suffix(experiment.simulated)
    arms = f"{format_arm(experiment.spec.a)} | {format_arm(experiment.spec.b)}"
    start = f"{experiment.id:<4} {when}  {experiment.host}  {experiment.state:<8}"
    return f"{start} {arms}  {experiment.verdict}{simulated}"


def experiment_lines(experiment: Experiment) -> Iterator[str]:
    """Yield lines that describe an experiment and its outcome: differences, metrics, pairs, failed
    runs, the verdict, and the command to resume it.
    """
    from workbench.report.blocks import Heading, Items
    from workbench.report.formats.terminal import block_lines
    from workbench.report.series_blocks import (
        comparison_blocks,
        engine_choice_blocks,
        experiment_outcome_blocks,
        failed_runs_block,
        raw_pairs_table,
        twin_machine_blocks,
        unfinished_experiment_block,
    )

    simulated = simulated_suffix(experiment.simulated)
    yield f"experiment {experiment.id}  {experiment.state}  {experiment.host}{simulated}"
    yield f"A: {format_arm(experiment.spec.a)}\nB: {format_arm(experiment.spec.b)}"
    if experiment.comparison is not None:
        yield from block_lines(comparison_blocks(experiment.comparison))
        yield from block_lines(twin_machine_blocks(experiment))
        yield from block_lines(
            [Heading("Pairs"), raw_pairs_table(experiment.comparison.metrics[:1])]
        )
    yield from block_lines(engine_choice_blocks(experiment))
    notes = Items(tuple(experiment.note.splitlines()))
    yield from block_lines([*failed_runs_block(experiment), notes])
    yield ""
    yield from block_lines(
        [*experiment_outcome_blocks(experiment), *unfinished_experiment_block(experiment)]
    )
    if experiment.state in ("stopped", "failed"):
        yield f"to resume it: {experiment.resume_command}"
