"""Comparisons, experiments and sweeps as blocks of a document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from workbench.advisor.verdicts import format_verdict
from workbench.model.bench import BenchResult, Comparison, MetricChange
from workbench.model.counts import count_of
from workbench.model.experiment import Arm, Experiment, ExperimentRun, RunState
from workbench.model.known_values import known_values
from workbench.model.metrics import metric_title, narrow_table_title
from workbench.model.settings import format_stored_setting_value, label_with_gpu
from workbench.model.sweep import UNFINISHED, PointState, Sweep, SweepPoint
from workbench.model.tune import TUNE
from workbench.report import plots
from workbench.report.blocks import (
    Alert,
    Block,
    Facts,
    Heading,
    Table,
    TextBlock,
    Wording,
    bulleted_list,
    simulated_alert,
)
from workbench.report.format_values import (
    NA,
    change_text,
    format_metric_value,
    number_text,
    percent_change,
    setting_text,
)
from workbench.report.result_blocks import condition_blocks, results_overview_table, workload_facts
from workbench.report.tune_blocks import tune_blocks

_POINT_METRICS = {  # field of SweepPoint -> metric, in the order of the columns
    "slo_pct": "slo_pct",
    "goodput_request_s": "goodput_request_s",
    "tok_s": "output_tok_s",
    "tok_per_joule": "tok_per_joule",
    "limit_pct": "limit_pct",
    "power_w": "power_w",
    "sm_mhz": "sm_mhz",
    "temperature_c": "temperature_c",
    "ttft_p50_ms": "ttft_ms.p50",
    "ttft_p90_ms": "ttft_ms.p90",
    "itl_mean_ms": "itl_ms.mean",
}
_OF_LOAD = (
    "slo_pct",
    "tok_s",
    "goodput_request_s",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "itl_mean_ms",
)  # first, over loads
_RESULTS_IMPORTANCE = len(_POINT_METRICS)  # the ids of results go before any metric
_VERDICTS = {  # verdict -> its short form, its mark
    "better": ("better", "good"),
    "worse": ("worse", "bad"),
    "no difference shown": ("none shown", ""),
    "hint only": ("hint only", ""),
}
_MOST_VALUES = 3  # of one arm, in the table of what the engines use
_QUALITY_MARKS = {"same": "good", "differs": "bad", "broken": "bad"}


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks that describe a comparison: first the differences in the conditions, then
    the changes of the metrics with their verdicts."""
    blocks = [
        *quality_line_block(comparison),
        *difference_blocks(comparison),
        *like_for_like_blocks(comparison),
        *answer_text_blocks(comparison),
        Heading("Effect"),
    ]
    forest = plots.metric_change_plot(comparison.metrics)
    if forest is not None:
        blocks.append(forest)
    return [*blocks, metric_change_table(comparison.metrics), *bulleted_list(comparison.notes)]


def difference_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks with the differences between the conditions of A and B. The preset and the
    port come last, because they matter least."""
    title = Heading("What differs between A and B")
    if not comparison.differences:
        return [title, TextBlock("Nothing: the configurations are the same.")]
    ranked = sorted(comparison.differences, key=lambda d: d["name"] in ("preset_id", "port"))
    rows = tuple((str(d["kind"]), *_difference_row(d)) for d in ranked)
    return [title, Table(("kind", "name", "A", "B"), rows, importance=(1, 0, 0, 0))]


def _difference_row(difference: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name of what differs and its values in A and B. A GPU setting has its label and
    its unit."""
    name, values = str(difference["name"]), (difference["a"], difference["b"])
    if difference["kind"] == "gpu setting":
        a, b = (_gpu_setting_text(name, value) for value in values)
        return label_with_gpu(name), a, b
    a, b = map(setting_text, values)
    return name, a, b


def _gpu_setting_text(name: str, value: Any) -> str:
    return NA if value is None else format_stored_setting_value(name, value)


def quality_line_block(comparison: Comparison) -> list[Block]:
    """Return the block with one line that says whether B answers the same as A; [] if nothing
    differs that changes the answers."""
    if not comparison.quality:
        return []
    why = ", ".join(comparison.answer_changes)
    mark = _QUALITY_MARKS.get(comparison.quality_verdict, "warning")
    return [TextBlock(f"{comparison.quality} (A and B differ in {why})", mark=mark)]


def like_for_like_blocks(comparison: Comparison) -> list[Block]:
    """Return the block that says whether A and B are like for like, with the number of runs."""
    if comparison.warnings:
        return [Alert("warning", "Not like for like", comparison.warnings)]
    runs = f"{count_of(comparison.runs_a, 'run')} of A, {comparison.runs_b} of B"
    if any(metric.pairs for metric in comparison.metrics):
        runs += ", in pairs"
    return [TextBlock(f"Like for like: {runs}.")]


def answer_text_blocks(comparison: Comparison) -> list[Block]:
    """Return the blocks with what A and B answered; [] if the text of neither was checked."""
    rows = tuple(
        (side, text.excerpt or NA) for side, text in comparison.sides_and_texts if text is not None
    )
    if not rows:
        return []
    return [Heading("What A and B answered"), Facts(rows)]


def metric_change_table(metrics: Sequence[MetricChange]) -> Table:
    """Return the table of the changes of the metrics from A to B, with their verdicts."""
    rows, marks = [], []
    for m in metrics:
        short_verdict, mark = _VERDICTS.get(m.verdict, (m.verdict, ""))
        rows.append(
            (
                Wording(metric_title(m.metric), narrow_table_title(m.metric, m.unit)),
                Wording(m.unit, ""),
                format_metric_value(m.metric, m.a),
                format_metric_value(m.metric, m.b),
                change_text(m.change_pct, m.interval_pct),
                Wording(m.verdict, short_verdict),
            )
        )
        marks.append(mark)
    head = ("metric", Wording("unit", ""), "A", "B", Wording("B against A", "change"), "verdict")
    return Table(head, tuple(rows), frozenset({2, 3, 4}), tuple(marks))


def experiment_blocks(experiment: Experiment, results: Sequence[BenchResult]) -> list[Block]:
    """Return the blocks that describe an experiment. `results` are the results of its runs, in the
    order of measurement. Secrets must be masked already.
    """
    spec, comparison = experiment.spec, experiment.comparison
    blocks = simulated_alert(experiment.simulated)
    blocks += [*experiment_outcome_blocks(experiment), *unfinished_experiment_block(experiment)]
    blocks += [Heading("Design"), Facts(_design_rows(experiment)), _arms_table(spec.a, spec.b)]
    blocks += bulleted_list(experiment.note.splitlines())
    if comparison is not None:
        blocks += [*comparison_blocks(comparison), *twin_machine_blocks(experiment)]
        blocks.append(Heading("Raw pairs"))
        change = experiment.change_of_deciding_metric
        if change is not None and (plot := plots.raw_pairs_plot(change)) is not None:
            blocks.append(plot)
        blocks.append(raw_pairs_table(comparison.metrics))
    blocks += [*engine_choice_blocks(experiment), Heading("Runs"), _runs_table(experiment)]
    if results:
        blocks += [results_overview_table(results), *_condition_blocks_of_first(results, "run")]
    return blocks


def experiment_outcome_blocks(experiment: Experiment) -> list[Block]:
    """Return the blocks that say what an experiment has found: its verdict, what that says about
    the advice that it tests, and the smallest difference that it could show."""
    blocks: list[Block] = []
    if experiment.verdict:
        blocks.append(TextBlock(experiment.verdict, lead=True, mark=_verdict_mark(experiment)))
    if tested := format_verdict(experiment):
        blocks.append(TextBlock(f"the advice: {tested}"))
    if experiment.smallest_pct is not None:
        smallest = f"{experiment.smallest_pct:.1f} %"
        if smallest not in experiment.verdict:  # a verdict without a difference names it already
            text = f"The smallest difference that this design can show is {smallest}."
            blocks.append(TextBlock(text))
    return blocks


def _verdict_mark(experiment: Experiment) -> str:
    chosen, compared = experiment.change_of_deciding_metric, experiment.comparison
    if chosen is None or compared is None:
        return ""
    _, mark = _VERDICTS.get(chosen.verdict, ("", ""))
    answers_differ = _QUALITY_MARKS.get(compared.quality_verdict) == "bad"
    if mark == "good" and answers_differ:
        return ""  # faster with other answers is not simply better
    return mark


def unfinished_experiment_block(experiment: Experiment) -> list[Block]:
    """Return the block that says how far an experiment is and what ended it; [] if it is done."""
    if experiment.state == "done":
        return []
    pairs = f"{experiment.completed_pairs} of at most {experiment.spec.pairs} pairs are complete."
    return [_unfinished_state_alert("experiment", experiment.state, pairs, experiment.error)]


def failed_runs_block(experiment: Experiment) -> list[Block]:
    """Return the block that says why runs failed or were dropped; [] if none were."""
    lines = [
        f"run {run.place + 1}, {run.pair_label} {run.side_label}: {run.state}: {run.error}"
        for run in experiment.runs
        if run.error
    ]
    return bulleted_list(lines)


def twin_machine_blocks(experiment: Experiment) -> list[Block]:
    """Return the blocks about the difference between the two machines of an experiment that
    compares machines of the same kind; [] for any other experiment."""
    if experiment.comparison is None or experiment.comparison.machine is None:
        return []
    machine = experiment.comparison.machine
    first, second = experiment.spec.twins
    row = (
        metric_title(machine.metric),
        machine.unit,
        format_metric_value(machine.metric, machine.a),
        format_metric_value(machine.metric, machine.b),
        change_text(machine.change_pct, machine.interval_pct),
        machine.verdict,
    )
    head = ("metric", "unit", first, second, f"{second} against {first}", "verdict")
    return [
        Heading("The machines, with the same configuration"),
        Table(head, (row,), frozenset({2, 3, 4})),
    ]


def engine_choice_blocks(experiment: Experiment) -> list[Block]:
    """Return the blocks about what the engines of A and B report that they use, and how long their
    starts took; [] if no run has either. An engine chooses much by itself, and another version
    chooses otherwise."""
    counted = [run for run in experiment.runs if run.state == RunState.DONE]
    runs_a = [run for run in counted if run.arm == "A"]
    runs_b = [run for run in counted if run.arm == "B"]
    rows, marks = [], []
    for name in dict.fromkeys(chain.from_iterable(run.chosen for run in counted)):
        a, b = _distinct_engine_choices(runs_a, name), _distinct_engine_choices(runs_b, name)
        differ = a and b and a.keys().isdisjoint(b)
        marks.append("warning" if differ else "")
        rows.append((name, _values_text(a), _values_text(b)))
    times = (_start_time_range_text(runs_a), _start_time_range_text(runs_b))
    if set(times) != {NA}:
        rows.append(("ready after", *times))
        marks.append("")
    if not rows:
        return []
    return [Heading("What the engines use"), Table(("", "A", "B"), tuple(rows), marks=tuple(marks))]


def _distinct_engine_choices(runs: Sequence[ExperimentRun], name: str) -> dict[str, None]:
    """Return the different values that the engine chose for a setting in these runs, as keys in the
    order of the runs. A run without the setting has "n/a"."""
    return dict.fromkeys(run.chosen.get(name, NA) for run in runs)


def _values_text(values: Collection[str]) -> str:
    """Return the different values of an arm as text: all, or the first and the number of the
    others; "n/a" before its first run."""
    if not values:
        return NA
    first, *others = values
    if len(others) < _MOST_VALUES:
        return ", ".join(values)
    return f"{first} and {len(others)} others"


def _start_time_range_text(runs: Sequence[ExperimentRun]) -> str:
    """Return how long the starts of these runs took, such as "41 to 44 s"; n/a if no run has it."""
    seconds = known_values(run.ready_after_s for run in runs)
    if not seconds:
        return NA
    low, high = min(seconds), max(seconds)
    if round(low) == round(high):
        return f"{low:.0f} s"
    return f"{low:.0f} to {high:.0f} s"


def _condition_blocks_of_first(results: Sequence[BenchResult], what: str) -> list[Block]:
    first = results[0]
    conditions = [Heading(f"Conditions of the first {what}"), *condition_blocks(first)]
    return [*conditions, Heading("Workload"), Facts(workload_facts(first))]


def _design_rows(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    spec = experiment.spec
    pairs = f"{experiment.completed_pairs} complete; planned: {spec.pairs}"
    if spec.until_pct:
        pairs += f", or until the interval is ± {spec.until_pct:g} % or narrower"
    restarts = "none was needed"
    if experiment.restarts:
        restarts = "the server was restarted for each change"
    matched = "not matched"
    if spec.match_temperature_c:
        matched = f"matched within {spec.match_temperature_c:g} °C"
    rows = [
        ("metric chosen beforehand", metric_title(spec.metric)),
        ("pairs", f"{pairs}, in {experiment.side_order_text}"),
        ("unit", "one run: requests of a run share the engine's state"),
        ("restarts", restarts),
        ("smallest difference that could be shown", number_text(experiment.smallest_pct, "%")),
        ("start temperature", matched),
    ]
    if spec.twins:
        rows.append(("twins", f"{' and '.join(spec.twins)}, A and B swapped in half of the pairs"))
    if spec.order_seed is not None:
        rows.append(("seed of the order", str(spec.order_seed)))
    if experiment.discarded_runs:
        sides = ", ".join(run.side_label for run in experiment.discarded_runs)
        rows.append(("first runs discarded", sides))
    if experiment.extensions:
        times = count_of(experiment.extensions, "time")
        rows.append(("extended after the outcome was seen", times))
    return tuple(rows)


def _arms_table(a: Arm, b: Arm) -> Table:
    rows = (("A", _arm_changes_text(a)), ("B", _arm_changes_text(b)))
    return Table(("arm", "changes on the common base"), rows)


def _arm_changes_text(arm: Arm) -> str:
    return ", ".join(arm.target_and_change_texts) or "the base as it is"


def raw_pairs_table(metrics: Sequence[MetricChange]) -> Table:
    """Return a table with the values of every metric in every pair of runs, from which readers can
    compute the outcome themselves."""
    rows = []
    for metric in metrics:
        name = metric.metric
        title = ", ".join(filter(None, (metric_title(name), metric.unit)))
        for i, (a, b) in enumerate(metric.pairs, start=1):
            values = (format_metric_value(name, a), format_metric_value(name, b))
            rows.append((title, str(i), *values, change_text(percent_change(a, b))))
    return Table(("metric", "pair", "A", "B", "B against A"), tuple(rows), frozenset({1, 2, 3, 4}))


def _runs_table(experiment: Experiment) -> Table:
    metric, rows = experiment.spec.metric, []
    for run in experiment.runs:
        pair = result = took = NA
        if run.pair >= 0:
            pair = str(run.pair + 1)
        if run.result_id is not None:
            result = f"#{run.result_id}"
        if run.took_s is not None:
            took = f"{run.took_s:.0f} s"
        state = ": ".join(filter(None, (run.state, run.error)))
        value = format_metric_value(metric, run.value)
        rows.append((str(run.place + 1), pair, run.side_label, state, result, value, took))
    head = ("order", "pair", "arm", "state", "result", metric_title(metric), "took")
    return Table(head, tuple(rows), frozenset({0, 1, 5, 6}))


def sweep_blocks(
    sweep: Sweep, results: Sequence[BenchResult], final: Experiment | None = None
) -> list[Block]:
    """Return the blocks that describe a sweep. `results` are those of its points, in order, and
    `final` is the experiment of a tune. Secrets must be masked already."""
    blocks = simulated_alert(sweep.simulated)
    if sweep.kind == TUNE:
        blocks += tune_blocks(sweep, final)
    else:
        blocks += [*sweep_finding_blocks(sweep), *plots.sweep_plots(sweep)]
        blocks += [Heading("Points"), points_table(sweep), *sweep_note_blocks(sweep)]
    if results:
        blocks += _condition_blocks_of_first(results, "point")
    return blocks


def sweep_finding_blocks(sweep: Sweep) -> list[Block]:
    """Return the blocks that say what a sweep has found, and what ended it if it is not done."""
    blocks: list[Block] = []
    if sweep.quality:
        blocks.append(TextBlock(sweep.quality, lead=True, mark="warning"))
    text = sweep.knee_text
    if sweep.searched_result_name == "capacity":
        text = f"Capacity: {text}"
    elif (knee := plots.find_knee_point(sweep)) is not None:
        text = f"Knee at {knee.label}: {text.removeprefix(f'{knee.label}: ')}"
    if sweep.knee_text:
        blocks.append(TextBlock(text, lead=True))
    if sweep.state != "done":
        blocks.append(_unfinished_state_alert("sweep", sweep.state, sweep.error))
    return blocks


def _unfinished_state_alert(kind: str, state: str, *details: str | None) -> Alert:
    lines = tuple(filter(None, details))
    if state == "failed":
        return Alert("failed", f"The {kind} has failed", lines)
    return Alert("warning", f"The {kind} is {state}", lines)


def sweep_note_blocks(sweep: Sweep) -> list[Block]:
    """Return the blocks with the notes of a sweep, and with a sentence on whether its best value
    was confirmed if the sweep compared it or starts servers."""
    blocks = bulleted_list(sweep.notes)
    if sweep.experiment_id is not None or sweep.confirmed is not None:
        blocks.append(TextBlock(_confirmation_sentence(sweep)))
    elif sweep.sweep_kind.starts_servers:
        text = "One screening run each: differences between points are not confirmed."
        blocks.append(TextBlock(text))
    return blocks


def _confirmation_sentence(sweep: Sweep) -> str:
    """Return one sentence on whether an experiment confirmed the sweep's best value. For a sweep
    that was stored without this outcome, as by older versions, the sentence names the experiment
    that has it."""
    by = "pairs against the baseline"
    if sweep.experiment_id is not None:
        by = f"experiment {sweep.experiment_id}"
    if sweep.confirmed is None:
        return f"The best value was compared with the baseline by {by}, which shows the outcome."
    was = "was" if sweep.confirmed else "was not"
    return f"The best value {was} confirmed by {by}."


def points_table(sweep: Sweep) -> Table:
    """Return the table of the points of a sweep. A failed point has no values, because its result
    is not valid."""
    columns = _point_columns(sweep)
    judged = {}
    for name, title in (("in_force", "in force"), ("slo_verdict", "SLO")):
        if any(getattr(point, name) for point in sweep.points):
            judged[name] = title
    rows, marks = [], []
    for index, point in enumerate(sweep.points):
        label, *cells = _point_row(point, columns, judged)
        if index == sweep.knee:
            label += f" ({sweep.searched_result_name})"
        rows.append((label, *cells))
        marks.append(_point_mark(sweep, index))
    head = (
        sweep.name,
        *map(narrow_table_title, columns.values()),
        *judged.values(),
        "results",
        "state",
    )
    return Table(
        head=head,
        rows=tuple(rows),
        numeric=frozenset(range(1, 1 + len(columns))),
        marks=tuple(marks),
        importance=(0, *range(len(columns)), *[0] * len(judged), _RESULTS_IMPORTANCE, 0),
    )


def _point_row(
    point: SweepPoint, columns: Mapping[str, str], verdict_fields: Iterable[str]
) -> tuple[str, ...]:
    missing = "" if point.state in (*UNFINISHED, PointState.SKIPPED) else NA
    state = ": ".join(filter(None, (point.state, point.error)))
    values = [missing] * len(columns)
    if point.state == PointState.DONE:
        values = [format_metric_value(of, getattr(point, name)) for name, of in columns.items()]
    verdicts = [getattr(point, name) or missing for name in verdict_fields]
    results = ", ".join(f"#{result}" for result in point.result_ids) or missing
    return point.label, *values, *verdicts, results, state


def _point_columns(sweep: Sweep) -> dict[str, str]:
    """Return {field of a point: its metric} for the columns of the table, the most important first.
    A metric that no point has is left out, except for the throughput."""
    done = [point for point in sweep.points if point.state == PointState.DONE]
    shown = []
    for name in _POINT_METRICS:
        is_measured = any(getattr(point, name) is not None for point in done)
        if is_measured or name == "tok_s":
            shown.append(name)
    if sweep.sweep_kind.varies_load:
        shown.sort(key=(*_OF_LOAD, *shown).index)
    return {name: _POINT_METRICS[name] for name in shown}


def _point_mark(sweep: Sweep, index: int) -> str:
    point = sweep.points[index]
    if point.state == PointState.FAILED:
        return "bad"
    if point.state in (PointState.PLANNED, PointState.SKIPPED):
        return "dim"
    if point.state == PointState.MEASURING or point.in_force not in (None, "yes"):
        return "warning"
    if index == sweep.knee:
        return "good"
    return ""
