"""Comparisons, experiments and sweeps as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.bench import BenchResult, Comparison, MetricChange
from workbench.model.experiment import Arm, Experiment
from workbench.model.sweep import Sweep
from workbench.report import plots
from workbench.report.blocks import Alert, Block, Facts, Heading, Items, Table, Text
from workbench.report.format_values import NA, figure, metric_title, percent, value_text
from workbench.report.result_blocks import SIMULATED, conditions, overview, workload


def comparison_blocks(compared: Comparison, *, level: int = 2) -> list[Block]:
    """What differs, what it did, and how far that carries."""
    found: list[Block] = [Heading("What differs between A and B", level)]
    if compared.differences:
        rows = tuple(
            (str(d["kind"]), str(d["name"]), value_text(d["a"]), value_text(d["b"])) for d in compared.differences
        )
        found.append(Table(("kind", "name", "A", "B"), rows))
    else:
        found.append(Text("Nothing: the same configuration."))
    if compared.warnings:
        found.append(Alert("warning", "Not like for like", compared.warnings))
    found.append(Heading("What it did", level))
    forest = plots.changes(compared.metrics)
    found += [forest] if forest else []
    found.append(metric_table(compared.metrics))
    if compared.notes:
        found.append(Items(compared.notes))
    return found


def metric_table(metrics: Sequence[MetricChange]) -> Table:
    rows = tuple(
        (
            metric_title(m.metric),
            m.unit,
            figure(m.a),
            figure(m.b),
            percent(m.change_pct, m.interval_pct),
            m.verdict,
        )
        for m in metrics
    )
    return Table(("metric", "unit", "A", "B", "B against A", "verdict"), rows, frozenset({2, 3, 4}))


def experiment_blocks(experiment: Experiment, results: Sequence[BenchResult]) -> list[Block]:
    """`results`: those of its runs, in the order in which they were made. Their secrets are to be masked already."""
    spec = experiment.spec
    found: list[Block] = [SIMULATED] if experiment.simulated else []
    if experiment.verdict:
        found.append(Text(experiment.verdict, lead=True))
    if experiment.state != "done":
        found.append(
            Alert(
                "warning",
                f"The experiment is {experiment.state}",
                tuple(
                    filter(
                        None,
                        (
                            f"{experiment.pairs_done} of at most {spec.pairs} pairs are complete.",
                            experiment.error or "",
                        ),
                    )
                ),
            )
        )
    found += [Heading("Design"), Facts(_design(experiment)), _arms(spec.a, spec.b)]
    if experiment.note:
        found.append(Items(tuple(experiment.note.splitlines())))
    compared = experiment.comparison
    if compared is not None:
        found += comparison_blocks(compared)
        chosen = next((m for m in compared.metrics if m.metric == spec.metric), None)
        raw = plots.raw_pairs(chosen) if chosen else None
        found += [Heading("Raw pairs"), *([raw] if raw else []), _pairs(compared.metrics)]
    found += [Heading("Runs"), _runs(experiment)]
    if results:
        found += [overview(results), Heading("Conditions of the first run"), *conditions(results[0])]
        found += [Heading("Workload"), Facts(workload(results[0]))]
    return found


def _design(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    spec = experiment.spec
    until = f", or until the interval is ± {spec.until_pct:g} % or narrower" if spec.until_pct else ""
    rows = [
        ("metric chosen beforehand", metric_title(spec.metric)),
        ("pairs", f"{experiment.pairs_done} complete; planned: {spec.pairs}{until}, in {experiment.order}"),
        ("unit", "one run: requests of a run share the engine's state"),
        ("restarts", "the server was restarted for each change" if experiment.restarts else "none was needed"),
        (
            "smallest difference that could be shown",
            f"{figure(experiment.smallest_pct, '%')}" if experiment.smallest_pct is not None else NA,
        ),
        (
            "start temperature",
            f"matched within {spec.match_temperature_c:g} °C" if spec.match_temperature_c else "not matched",
        ),
    ]
    if spec.order_seed is not None:
        rows.append(("seed of the order", str(spec.order_seed)))
    if experiment.discarded:
        rows.append(("first runs discarded", ", ".join(run.arm for run in experiment.discarded)))
    if experiment.extensions:
        rows.append(("extended after the outcome was seen", f"{experiment.extensions} times"))
    return tuple(rows)


def _arms(a: Arm, b: Arm) -> Table:
    def words(arm: Arm) -> str:
        parts = [
            *([arm.target.words] if arm.target else []),
            *arm.sets,
            *(f"without {name}" for name in arm.unsets),
            *arm.envs,
            *arm.gpu.words,
        ]
        return ", ".join(parts) or "the base as it is"

    return Table(("arm", "changes on the common base"), (("A", words(a)), ("B", words(b))))


def _pairs(metrics: Sequence[MetricChange]) -> Table:
    """Every metric of every pair, so that anyone can compute it again."""
    rows = []
    for metric in metrics:
        for i, (a, b) in enumerate(metric.pairs, start=1):
            ratio = 100 * (b / a - 1) if a and b is not None else None
            rows.append((f"{metric_title(metric.metric)}, {metric.unit}", str(i), figure(a), figure(b), percent(ratio)))
    return Table(("metric", "pair", "A", "B", "B against A"), tuple(rows), frozenset({1, 2, 3, 4}))


def _runs(experiment: Experiment) -> Table:
    rows = tuple(
        (
            str(run.place + 1),
            str(run.pair + 1) if run.pair >= 0 else NA,
            run.arm,
            run.state if not run.error else f"{run.state}: {run.error}",
            f"#{run.result_id}" if run.result_id is not None else NA,
            figure(run.value),
            f"{run.took_s:.0f} s" if run.took_s is not None else NA,
        )
        for run in experiment.runs
    )
    head = ("order", "pair", "arm", "state", "result", metric_title(experiment.spec.metric), "took")
    return Table(head, rows, frozenset({0, 1, 5, 6}))


def sweep_blocks(swept: Sweep, results: Sequence[BenchResult]) -> list[Block]:
    """`results`: those of its points, in order."""
    found: list[Block] = [SIMULATED] if swept.simulated else []
    knee = plots.knee_of(swept)
    if knee is not None:
        found.append(Text(f"Knee at {knee.label}: {swept.knee_text.removeprefix(f'{knee.label}: ')}", lead=True))
    elif swept.knee_text:
        found.append(Text(swept.knee_text, lead=True))
    if swept.state != "done":
        found.append(Alert("warning", f"The sweep is {swept.state}", (swept.error,) if swept.error else ()))
    found += plots.sweep(swept)
    found += [Heading("Points"), _points(swept)]
    if swept.notes:
        found.append(Items(swept.notes))
    if swept.experiment_id is not None or swept.confirmed is not None:
        found.append(Text(_confirmation(swept)))
    elif swept.kind == "flag":
        found.append(Text("One screening run each: differences between points are not confirmed."))
    if results:
        found += [Heading("Conditions of the first point"), *conditions(results[0])]
        found += [Heading("Workload"), Facts(workload(results[0]))]
    return found


def _confirmation(swept: Sweep) -> str:
    """What the pairs said of the best value. Sweeps of before did not keep it."""
    by = f"experiment {swept.experiment_id}" if swept.experiment_id is not None else "pairs against the start"
    if swept.confirmed is None:
        return f"The best value was compared with the start by {by}, which says what it showed."
    return f"The best value was {'' if swept.confirmed else 'not '}confirmed by {by}."


def _points(swept: Sweep) -> Table:
    optional = [
        (name, head)
        for name, head in (
            ("tok_per_joule", "tok/J"),
            ("power_w", "W"),
            ("sm_mhz", "SM MHz"),
            ("temperature_c", "°C"),
            ("ttft_p50_ms", "TTFT p50 ms"),
            ("ttft_p99_ms", "TTFT p99 ms"),
            ("itl_mean_ms", "ITL mean ms"),
        )
        if any(getattr(p, name) is not None for p in swept.points)
    ]
    rows = []
    for i, p in enumerate(swept.points):
        state = f"{p.state}: {p.error}" if p.error else p.state
        knee = " (knee)" if i == swept.knee else ""
        forced = [p.in_force or NA] if any(q.in_force for q in swept.points) else []
        ids = ", ".join(f"#{number}" for number in p.result_ids) or NA
        known = (figure(getattr(p, name)) for name, _ in optional)
        rows.append((p.label + knee, figure(p.tok_s), *known, *forced, ids, state))
    forced_head = ["in force"] if any(q.in_force for q in swept.points) else []
    head = (swept.name, "tok/s", *(h for _, h in optional), *forced_head, "results", "state")
    return Table(head, tuple(rows), frozenset(range(1, 2 + len(optional))))
