"""Conversion of a report to a document: titled blocks, for the formats that people read."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model.bench import BenchResult, Comparison
from workbench.model.counts import count_of
from workbench.model.experiment import Experiment
from workbench.model.sweep import Sweep
from workbench.report.blocks import SIMULATED, Block, Document, Fold, Heading, simulated_alert
from workbench.report.content import Report
from workbench.report.format_values import utc_time
from workbench.report.quality_blocks import answer_comparison_blocks, quality_blocks
from workbench.report.result_blocks import (
    result_blocks,
    result_subtitle,
    result_title,
    results_overview_table,
)
from workbench.report.series_blocks import comparison_blocks, experiment_blocks, sweep_blocks


def document_from_report(report: Report) -> Document:
    """Return the report as a document. Secrets in the report must be masked already."""
    if report.experiment is not None:
        return _experiment_document(report, report.experiment)
    if report.sweep is not None:
        return _sweep_document(report, report.sweep)
    if len(report.results) == 1:
        (result,) = report.results
        blocks = result_blocks(result, report.samples.get(result.id, ()))
        blocks += answer_comparison_blocks(report.answers.get(result.id, ()), with_measures=True)
        return Document(
            result_title(result), result_subtitle(result), tuple(blocks), report.simulated
        )
    return _several_results_document(report)


def _experiment_document(report: Report, experiment: Experiment) -> Document:
    model = _model_of_results(report) or str(experiment.spec.plan.get("model", ""))
    title = f"A/B experiment: {model}".rstrip(": ")
    subtitle = f"Experiment {experiment.id} · {experiment.host} · {utc_time(experiment.unix_s)}"
    blocks = [
        *experiment_blocks(experiment, report.results),
        *_quality_section(report),
        *_collapsed_result_blocks(report),
    ]
    return Document(title, subtitle, tuple(blocks), report.simulated)


def _sweep_document(report: Report, sweep: Sweep) -> Document:
    places = (f"Sweep {sweep.id}", sweep.host, _model_of_results(report), utc_time(sweep.unix_s))
    subtitle = " · ".join(filter(None, places))
    blocks = [*sweep_blocks(sweep, report.results), *_collapsed_result_blocks(report)]
    return Document(f"Sweep of {sweep.name}", subtitle, tuple(blocks), report.simulated)


def _model_of_results(report: Report) -> str:
    return next((result.conditions.model for result in report.results), "")


def _several_results_document(report: Report) -> Document:
    blocks = [*simulated_alert(report.simulated), results_overview_table(report.results)]
    if report.comparison is not None:
        blocks += [*comparison_blocks(report.comparison), *_quality_section(report)]
    for result in report.results:
        blocks += [
            Heading(f"#{result.id}: {result_title(result)}"),
            *_result_blocks_inside_report(report, result),
        ]
    numbers = ", ".join(f"#{result.id}" for result in report.results)
    newest = max((result.unix_s for result in report.results), default=0.0)
    title = _several_results_title(report.comparison, report.results)
    return Document(title, f"{numbers} · {utc_time(newest)}", tuple(blocks), report.simulated)


def _several_results_title(comparison: Comparison | None, results: Sequence[BenchResult]) -> str:
    if comparison is None:
        return count_of(len(results), "benchmark")
    if len(results) > 2:
        return (
            f"B ({count_of(comparison.runs_b, 'run')}) against A "
            f"({count_of(comparison.runs_a, 'run')})"
        )
    return f"B #{comparison.b} against A #{comparison.a}"


def _quality_section(report: Report) -> list[Block]:
    if report.quality is None:
        return []
    return quality_blocks(report.quality)


def _collapsed_result_blocks(report: Report) -> list[Block]:
    """Return one block for each result of an experiment or sweep. It shows the details of the
    result when the reader opens it."""
    return [
        Fold(f"Result #{result.id}", tuple(_result_blocks_inside_report(report, result)))
        for result in report.results
    ]


def _result_blocks_inside_report(report: Report, result: BenchResult) -> list[Block]:
    """Return a result's blocks for use inside a larger report. Their headings are one level lower.
    The SIMULATED alert is left out, because the larger report shows it at its top.
    """
    blocks = result_blocks(result, report.samples.get(result.id, ()))
    blocks += answer_comparison_blocks(report.answers.get(result.id, ()), with_measures=False)
    inner: list[Block] = []
    for block in blocks:
        if isinstance(block, Heading):
            inner.append(Heading(block.text, block.level + 1))
        elif block is not SIMULATED:
            inner.append(block)
    return inner
