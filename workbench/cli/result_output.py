"""A benchmark result as terminal text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.cli.output import simulated_suffix

if TYPE_CHECKING:
    from workbench.bench.repeated_runs import Spread
    from workbench.model.bench import BenchResult


def result_json(result: BenchResult) -> dict[str, Any]:
    """Return a result as a JSON object. It has the metrics of the summary at the top level, then
    `spec` and `conditions`. The environment is masked here; the other secrets of `spec` and
    `conditions` are masked when a result is stored.
    """
    from workbench.model.json_records import to_json
    from workbench.model.secrets import mask_env

    summary: dict[str, Any] = to_json(result.summary)
    conditions = to_json(result.conditions)
    conditions["env"] = mask_env(conditions["env"])
    return {
        "id": result.id,
        "unix_s": result.unix_s,
        "simulated": result.conditions.simulated,
        **summary,
        "spec": to_json(result.spec),
        "conditions": conditions,
        "note": result.note,
        "tags": list(result.tags),
    }


_CLIENTS = {"tunnel": " through the ssh tunnel", "host": " by a client on the server's host"}


def result_lines(result: BenchResult) -> Iterator[str]:
    """Yield the lines that `bench` prints for a result: load, throughput, latencies, limits, text
    and notes. Their blocks are those of the reports, which have all other metrics too.
    """
    from workbench.engines.result_limits import titles_and_speed_comparisons
    from workbench.report.blocks import SIMULATED, Facts
    from workbench.report.formats.terminal import block_lines
    from workbench.report.result_blocks import (
        alert_boxes,
        answer_text_fact_blocks,
        key_metrics,
        latency_blocks,
        slo_blocks,
    )

    summary = result.summary
    yield _result_load_and_counts_line(result)
    warnings = [block for block in alert_boxes(result) if block is not SIMULATED]
    yield from block_lines(
        [*warnings, key_metrics(summary), Facts(tuple(titles_and_speed_comparisons(result)))]
    )
    if not result.spec.command:
        yield from block_lines(latency_blocks(summary))
    yield from block_lines([*slo_blocks(summary), *answer_text_fact_blocks(summary)])
    yield ""
    for name, found in result.conditions.findings.items():
        yield f"  setting    {name}: {found}"
    for line in summary.command_output:
        yield f"  | {line}"
    settings = tuple(result.conditions.findings.values())
    for note in summary.notes:
        if not any(found in note for found in settings):  # the verdict on a setting stands above
            yield f"  note: {note}"
    yield f"  all metrics and conditions: workbench results show {result.id}"


def _result_load_and_counts_line(result: BenchResult) -> str:
    from workbench.model.load_spec import option_texts

    summary, spec = result.summary, result.spec
    simulated = simulated_suffix(result.conditions.simulated)
    tunnel = _CLIENTS.get(result.conditions.client, "")
    if spec.command:
        command = " ".join(spec.command)
        return f"#{result.id}  {command}{tunnel}: exit code {summary.command_exit}{simulated}"
    failed = f", {summary.requests_failed} failed" if summary.requests_failed else ""
    load = f"{spec.rate:g} requests/s" if spec.rate else f"concurrency {spec.concurrency}"
    if spec.trace_name:
        load = spec.trace_and_speed_text
    load = ", ".join([load, *option_texts(spec)])
    done = f"{summary.requests_ok} ok{failed}"
    return f"#{result.id}  {spec.profile}: {load}{tunnel}: {done}{simulated}"


def metric_spread_lines(spreads: Sequence[Spread], runs: int, invalid: int) -> Iterator[str]:
    """Yield the lines that `bench --repeat` prints about the scatter of each metric."""
    from workbench.model.metrics import metric_title
    from workbench.report.blocks import Table
    from workbench.report.format_values import format_metric_value
    from workbench.report.formats.terminal import block_lines

    left_out = f", {invalid} of them invalid and left out" if invalid else ""
    yield f"{runs} runs{left_out}: geometric mean, and standard deviation between the runs"
    rows = []
    for one in spreads:
        scatter = "" if one.cv_pct is None else f"± {one.cv_pct:.2f} %"
        mean = format_metric_value(one.name, one.geometric_mean)
        rows.append((metric_title(one.name), one.unit, mean, scatter))
    head = ("metric", "unit", "mean", "scatter")
    yield from block_lines([Table(head, tuple(rows), frozenset({2, 3}))])
