"""The rows of an experiment's page: the arms A and B, the verdict, each pair and metric as an
interval on a common axis, and the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from workbench.bench import twins
from workbench.bench.experiment import arm_order_of_pair
from workbench.model.bench import format_half_width
from workbench.model.counts import count_of
from workbench.model.experiment import ExperimentRun
from workbench.model.lazy_dataclass import dataclass
from workbench.model.metrics import names_of_narrow_table_metrics, narrow_table_title
from workbench.report.format_values import format_metric_value
from workbench.tui.cells import (
    Row,
    Run,
    justify_row,
    pad_text,
    pad_text_with_gap,
    paragraph_rows,
    rows_beside_label,
    stack_paragraphs,
)
from workbench.tui.formats import (
    duration_text,
    enclose_nonempty_text,
    measurement_origin_text,
    remaining_time_text,
    whole_number_text,
)
from workbench.tui.glyphs import G
from workbench.tui.interval_histories import NO_INTERVALS, IntervalHistory
from workbench.tui.widgets.interval import Axis, change_and_interval_row, make_axis

if TYPE_CHECKING:
    from workbench.model.bench import MetricChange
    from workbench.model.experiment import Arm, Experiment
    from workbench.model.settings import GpuSettings

STATES = {
    "running": ("~", "running", "warn"),
    "stopped": ("=", "stopped", "warn"),
    "done": ("ok", "done", "good"),
    "failed": ("x", "failed", "bad"),
}
RUNS = {
    "planned": G.dot,
    "starting": "~ start",
    "measuring": "~",
    "done": "ok",
    "failed": "x",
    "dropped": "- out",
    "discarded": "- first",
}
RUN_ROLES = {
    "done": "good",
    "failed": "bad",
    "planned": "dim",
    "dropped": "dim",
    "discarded": "dim",
}
VERDICTS = {
    "better": ("BETTER", "goodb"),
    "worse": ("worse", "bad"),
    "no difference shown": ("= none shown", "dim"),
    "hint only": ("? hint only", "dim"),
}
METRIC_ROLES = {True: "strong", False: "text"}  # by whether it decides the experiment
# least width of a table, and its cells for name, value and verdict
PAIR_TABLE_CELLS = ((96, (16, 10, 14)), (0, (13, 7, 12)))
CHANGE = 16  # cells of a change with its interval
PairValues = tuple[int, float, float]  # number of the pair, value of A, value of B


def format_gpu_settings_as_words(gpu: GpuSettings) -> list[str]:
    """Return GPU settings as words of the experiment form, such as "gpu.power-limit=400"."""
    return [f"gpu.{word}" for word in gpu.command_line_words]


def format_arm_as_words(arm: Arm) -> list[str]:
    """Return an arm as the words of the experiment's form: "@PRESET", "flag=value", "-flag"
    (unset), "$NAME=value" and "gpu.SETTING=value"."""
    words = [*arm.sets]
    if arm.target and "://" in arm.target.name:
        words.insert(0, arm.target.description)
    elif arm.target:
        words.insert(0, f"@{arm.target.description}")
    words += [f"-{name}" for name in arm.unsets]
    words += [f"${variable}" for variable in arm.envs]
    return [*words, *format_gpu_settings_as_words(arm.gpu)]


def arm_rows(a: Arm, b: Arm, width: int, unchanged_text: str) -> list[Row]:
    """Return rows with the words of the arms A and B. An arm without words has `unchanged_text`."""
    rows: list[Row] = []
    for name, arm in (("A", a), ("B", b)):
        text = "  ".join(format_arm_as_words(arm)) or unchanged_text
        rows += rows_beside_label(f"{name} ", name.lower(), paragraph_rows(text, width - 2))
    return rows


def experiment_rows(
    e: Experiment,
    width: int,
    *,
    remaining_s: float | None = None,
    bench_progress: str = "",
    interval_history: IntervalHistory = NO_INTERVALS,
) -> list[Row]:
    """Return the rows of an experiment's page. `remaining_s` are the seconds left, None if unknown,
    and `bench_progress` is the progress of the running benchmark as text. `interval_history` has
    the confidence interval after each completed pair."""
    rows = [
        _state_row(e, width, remaining_s, bench_progress),
        *paragraph_rows(experiment_origin_text(e), width, "dim", "  "),
    ]
    rows += arm_rows(e.spec.a, e.spec.b, width, "the plan as it is loaded")
    rows += [(), *_verdict_rows(e, width), ()]
    rows += _pair_and_metric_rows(e, width, interval_history)
    rows += [(), *_run_rows(e, width), (), *paragraph_rows(experiment_design_text(e), width, "dim")]
    return [*rows, *stack_paragraphs(e.note.splitlines(), width, "dim", "  ")]


def experiment_origin_text(e: Experiment) -> str:
    """Return on which host, with which model and preset, and when the experiment began."""
    targets = filter(None, (e.spec.a.target, e.spec.b.target))
    plans = (e.spec.plan, *(target.plan for target in targets))
    models = [str(plan.get("model") or "") for plan in filter(None, plans)]
    return measurement_origin_text(e.host, dict.fromkeys(models), e.spec.preset_id, e.unix_s)


def experiment_design_text(e: Experiment) -> str:
    """Return the design of the experiment in one sentence: pairs, order, restarts and load."""
    spec, bench = e.spec, e.spec.bench
    count = count_of(spec.pairs, "pair")
    if spec.until_pct is not None:
        count = (
            f"until {narrow_table_title(spec.metric)} is known to {G.plus_minus}{spec.until_pct:g} "
            f"%, at most {count}"
        )
    words = {
        "concurrency": "stream",
        "requests": "request",
        "input_tokens": "prompt token",
        "max_tokens": "output token",
    }
    given = (name for name in words if bench.get(name) is not None)
    load = ", ".join(count_of(bench[name], words[name]) for name in given)
    restart = "the server stays up"
    if e.restarts:
        restart = "the server restarts for every run"
    warm = on = ""
    if spec.match_temperature_c is not None:
        warm = f", started within {spec.match_temperature_c:g} C"
    if spec.twins:
        one, two = spec.twins
        on = f"; on twins, host 1 {one} and host 2 {two}, swapped in half of them"
    return f"{count} in {e.side_order_text}{on}; {restart}{warm}{enclose_nonempty_text('; each run ', load)}"


def current_run_text(e: Experiment, bench_progress: str) -> str:
    """Return which run of the experiment is under way, such as "pair 3 of 6, A: measuring 31/64".
    Between two runs, return the phase of the experiment, and after its end "". `bench_progress` is
    the progress of the running benchmark as text."""
    if e.state != "running":
        return ""
    now = next((r for r in e.runs if r.state in ("starting", "measuring")), None)
    if now is None:
        return e.phase
    progress = e.phase.partition(": ")[2] or now.state
    if bench_progress and now.state == "measuring":
        progress = bench_progress
    if now.pair < 0:
        return f"discarded run, {now.side_label}: {progress}"
    pairs = f"{e.spec.pairs}"
    if e.spec.until_pct is not None:
        pairs = f"at most {pairs}"
    return f"pair {now.pair + 1} of {pairs}, {now.side_label}: {progress}"


def _state_row(e: Experiment, width: int, remaining_s: float | None, bench_progress: str) -> Row:
    sign, word, role = STATES.get(e.state, ("?", e.state, "warn"))
    text = current_run_text(e, bench_progress)
    if not text and e.state in ("stopped", "failed"):
        text = f"{e.completed_pairs} of {e.spec.pairs} pairs are kept; press R to resume"
    left: Row = ((f"{sign} {word}", role), (enclose_nonempty_text("  ", text), "text"))
    right: list[Run] = []
    if e.state == "running" and remaining_s is not None:
        right.append((f"{remaining_time_text(remaining_s)} ", "strong"))
    if e.simulated:
        right.append((" SIMULATED ", "reverse"))
    return justify_row(left, tuple(right), width)


def _verdict_rows(e: Experiment, width: int) -> list[Row]:
    from workbench.report.series_blocks import (
        experiment_outcome_blocks,
        unfinished_experiment_block,
    )  # not for the first frame
    from workbench.tui.block_rows import block_rows

    rows = block_rows(experiment_outcome_blocks(e), width)
    if e.state != "running":
        return [*rows, *block_rows(unfinished_experiment_block(e), width)]
    if e.verdict:
        return rows
    # the row of the state says how far it is
    text = "no claim yet, an interval needs two pairs."
    if e.comparison is not None:
        text = "the interval below still narrows."
    return [
        *paragraph_rows(f"{e.completed_pairs} of {e.spec.pairs} pairs: {text}", width, "text"),
        *rows,
    ]


def complete_pair_values(e: Experiment) -> list[PairValues]:
    """Return (pair number, value of A, value of B) for each complete pair. The values are those of
    the metric that decides the experiment."""
    values_by_pair: dict[int, dict[str, float]] = {}
    for run in e.runs:
        if run.state == "done" and run.value is not None:
            values_by_pair.setdefault(run.pair, {})[run.arm] = run.value
    pairs = []
    for pair, values in sorted(values_by_pair.items()):
        if values.keys() == {"A", "B"}:
            pairs.append((pair, values["A"], values["B"]))
    return pairs


def _shown_metrics(e: Experiment) -> list[MetricChange]:
    if e.comparison is None:
        return []
    changes = {m.metric: m for m in e.comparison.metrics if m.change_pct is not None}
    shown = dict.fromkeys((e.spec.metric, *names_of_narrow_table_metrics()))
    return [changes[name] for name in shown if name in changes]


def _half_width_text(half_width_pct: float | None) -> str:
    """Return half the width of an interval as " ±1.2"; "" without an interval."""
    if half_width_pct is None:
        return ""
    return f" {G.plus_minus}{format_half_width(half_width_pct)}"


@dataclass(frozen=True, slots=True)
class _PairTable:
    """The layout of a table of pairs and metrics: the widths in cells of name, value and verdict,
    and the axis on which the table draws changes with their confidence intervals."""

    name: int
    value: int
    verdict: int
    axis: Axis

    def head_row(self, title: str) -> Row:
        return (
            (
                self.name_and_values_text(title, "A", "B")
                + pad_text("change", 9, True)
                + " " * (CHANGE - 9),
                "head",
            ),
            ("  ", "text"),
            (self.axis.label_text(), "head"),
        )

    def name_and_values_text(self, name: str, *values: str) -> str:
        """Return the beginning of a row as text: its name, then the values aligned in columns."""
        cells = (pad_text(value, self.value, True) for value in values)
        return pad_text(name, self.name) + "".join(cells)

    def make_row(
        self,
        name: str,
        values: tuple[str, str],
        change_pct: float,
        half_width_pct: float | None,
        role: str,
        verdict: Run = ("", "dim"),
        bar_role: str = "",
    ) -> Row:
        """Return a row of the table: name, values of A and B, change in percent, interval, verdict.
        `half_width_pct` is half the width of the interval in percentage points, None without an
        interval. `bar_role` is the role of the interval's bar, by default `role`."""
        changed = pad_text(f"{change_pct:+.1f} %", 9, True)
        changed += pad_text(_half_width_text(half_width_pct), CHANGE - 9)
        change_role = verdict[1]
        if change_role == "dim":
            change_role = role
        return (
            (self.name_and_values_text(name, *values), role),
            (changed, change_role),
            ("  ", "text"),
            *change_and_interval_row(self.axis, change_pct, half_width_pct, bar_role or role),
            verdict,
        )

    def metric_row(self, m: MetricChange, is_deciding: bool) -> Row:
        word = m.verdict
        if m.interval_pct is None:
            word = ""
        word, role = VERDICTS.get(m.verdict, (word, "dim"))
        verdict = (pad_text(f"  {word}", self.verdict + 2), role)
        if role == "dim":
            role = "text"
        return self.make_row(
            narrow_table_title(m.metric, m.unit),
            (format_metric_value(m.metric, m.a), format_metric_value(m.metric, m.b)),
            m.change_pct or 0.0,
            m.interval_pct,
            METRIC_ROLES[is_deciding],
            verdict,
            bar_role=role,
        )


def _pair_and_metric_rows(
    e: Experiment, width: int, interval_history: IntervalHistory
) -> list[Row]:
    """Return the table of an experiment. It has a row for each pair and for each metric. From
    `interval_history` it also has a row for each earlier confidence interval of the metric that
    decides the experiment."""
    pairs, metrics = complete_pair_values(e), _shown_metrics(e)
    if not pairs:
        return []
    name, value, verdict = next(cells for least, cells in PAIR_TABLE_CELLS if width >= least)
    changes = {pair: (b / a - 1) * 100 for pair, a, b in pairs if a}
    spans = [(m.change_pct or 0.0, m.interval_pct) for m in metrics]
    spans += [(change, None) for change in changes.values()]
    axis = make_axis(spans, min(61, width - name - 2 * value - CHANGE - verdict - 4))
    table = _PairTable(name, value, verdict, axis)
    rows = [table.head_row(narrow_table_title(e.spec.metric))]
    shown = partial(format_metric_value, e.spec.metric)
    for pair, a, b in pairs:
        name_of = f"pair {pair + 1}"
        if e.spec.twins and twins.are_arm_hosts_swapped(e.spec, pair):
            name_of += " swap"
        change = changes.get(pair, 0.0)
        rows.append(table.make_row(name_of, (shown(a), shown(b)), change, None, "dim"))
    for count, (change, half) in sorted(interval_history.items()):
        if count < e.completed_pairs:
            rows.append(table.make_row(f"after {count}", ("", ""), change, half, "faint"))
    if len(pairs) == 1:  # the row of the pair shows the metric that decides
        metrics = [m for m in metrics if m.metric != e.spec.metric]
    rows += [table.metric_row(m, m.metric == e.spec.metric) for m in metrics]
    return [*rows, *_host_difference_rows(e, table)]


def _host_difference_rows(e: Experiment, table: _PairTable) -> list[Row]:
    """Return the row with the difference between the two hosts of an experiment on twins, which are
    hosts of the same type. The column of A has the mean of the first host, and the column of B that
    of the second host. Return [] for an experiment on one host."""
    if e.comparison is None:
        return []
    machine = e.comparison.machine
    if machine is None or machine.change_pct is None:
        return []
    values = (
        format_metric_value(machine.metric, machine.a),
        format_metric_value(machine.metric, machine.b),
    )
    return [
        ((table.name_and_values_text("host", "1", "2"), "head"),),
        table.make_row("machine", values, machine.change_pct, machine.interval_pct, "text"),
    ]


def interval_history_rows(
    e: Experiment, width: int, interval_history: IntervalHistory
) -> list[Row]:
    """Return a row for each number of completed pairs, with the change of the metric that decides
    the experiment and its confidence interval. All rows share one axis, so that the user sees the
    interval become narrower. Return [] if the change is not known yet."""
    primary = e.change_of_deciding_metric
    if primary is None or primary.change_pct is None:
        return []
    spans = {
        count: span for count, span in sorted(interval_history.items()) if count < e.completed_pairs
    }
    now = (primary.change_pct, primary.interval_pct)
    name = 10
    axis = make_axis([now, *spans.values()], min(61, width - name - CHANGE - 2))
    rows: list[Row] = [
        (
            (
                pad_text(narrow_table_title(e.spec.metric), name + CHANGE + 2) + axis.label_text(),
                "head",
            ),
        )
    ]
    role = VERDICTS.get(primary.verdict, ("", "strong"))[1]
    if role == "dim":
        role = "strong"
    for count, (change, half) in {**spans, e.completed_pairs: now}.items():
        its = "faint"
        if count == e.completed_pairs:
            its = role
        text = pad_text(count_of(count, "pair"), name)
        text += pad_text(f"{change:+.1f} %{_half_width_text(half)}", CHANGE)
        rows.append(
            ((text, its), ("  ", "text"), *change_and_interval_row(axis, change, half, its))
        )
    return rows


def begun_and_planned_runs(e: Experiment) -> tuple[ExperimentRun, ...]:
    """Return the runs so far and, while the experiment is running, the planned runs. If the
    experiment ends when its confidence interval is narrow enough, only the runs of the next pair
    count as planned."""
    if e.state != "running":
        return e.runs
    begun = {(r.pair, r.arm) for r in e.runs if r.state not in ("dropped", "failed")}
    pairs = e.spec.pairs
    if e.spec.until_pct is not None:
        pairs = min(pairs, e.completed_pairs + 1)
    runs = list(e.runs)
    for pair in range(pairs):
        for arm in arm_order_of_pair(e.spec, pair):
            if (pair, arm) not in begun:
                host = twins.host_of_arm(e.spec, pair, arm)
                runs.append(ExperimentRun(len(runs), pair, arm, host=host))
    return tuple(runs)


def count_done_and_total_runs(e: Experiment) -> tuple[int, int]:
    """Return (number of completed runs, number of all runs, those planned included). Runs that the
    experiment has dropped or discarded are not counted."""
    count = Counter[str](run.state for run in begun_and_planned_runs(e))
    return count["done"], count.total() - count["dropped"] - count["discarded"]


def _run_rows(e: Experiment, width: int) -> list[Row]:
    """Return the table of the runs, with one column for each run. If the columns are wider than
    `width`, the table continues below."""
    # not for the first frame
    from workbench.report.series_blocks import engine_choice_blocks, failed_runs_block
    from workbench.tui.block_rows import block_rows

    each, label = 9, 12
    columns = max(2, (width - label) // each)
    rows: list[Row] = []
    runs = begun_and_planned_runs(e)
    for start in range(0, len(runs), columns):
        part = runs[start : start + columns]
        for name, cell in _line_names_and_cell_makers(e, part):
            row = [(pad_text(name, label), "dim")]
            for text, role in map(cell, part):
                row.append((pad_text_with_gap(text, each), role))
            rows.append(tuple(row))
    return [*rows, *block_rows([*failed_runs_block(e), *engine_choice_blocks(e)], width)]


def _line_names_and_cell_makers(
    e: Experiment, runs: Sequence[ExperimentRun]
) -> list[tuple[str, Callable[[ExperimentRun], Run]]]:
    """Return the lines of the table of the runs as pairs: the name of the line, and the function
    that returns the line's cell for a run."""
    hosts: dict[str | None, str] = {}
    hosts.update(zip(e.spec.twins or (), "12", strict=False))

    def value_cell(run: ExperimentRun) -> Run:
        if run.value is None:
            return "", "text"
        return format_metric_value(e.spec.metric, run.value), "text"

    def duration_cell(run: ExperimentRun) -> Run:
        if run.took_s is None:
            return "", "dim"
        return duration_text(run.took_s), "dim"

    lines: list[tuple[str, Callable[[ExperimentRun], Run]]] = [
        ("run", lambda r: (f"{r.place + 1} {r.arm}", r.arm.lower())),
        ("", lambda r: (RUNS.get(r.state, r.state), RUN_ROLES.get(r.state, "warn"))),
        (narrow_table_title(e.spec.metric), value_cell),
        ("took", duration_cell),
    ]
    if hosts:
        lines.insert(1, ("host", lambda r: (hosts.get(r.host, ""), "text")))
    if any(run.start_temperature_c is not None for run in runs):
        lines.append(("start", lambda r: (whole_number_text(r.start_temperature_c, " C"), "dim")))
    return lines
