"""The page of a result: first the reasons why it is not valid or not reliable, then its metrics,
GPUs, engine and conditions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from workbench.engines.result_limits import titles_and_speed_comparisons
from workbench.model.bench import BenchResult
from workbench.model.conditions_table import condition_labels_and_texts
from workbench.model.counts import count_of
from workbench.model.load_spec import option_texts
from workbench.model.plan import Command
from workbench.model.quality import QualityResult
from workbench.model.secrets import mask_argv, mask_env
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.formats import grouped_setting_texts, measurement_origin_text, setting_label


def result_rows(
    result: BenchResult,
    width: int,
    timeline_rows: Sequence[Row] = (),
    advice_rows: Sequence[Row] = (),
    quality_results: Sequence[QualityResult] = (),
) -> list[Row]:
    """Return the rows of a result's page. `timeline_rows` are rows with graphs of the seconds
    around the benchmark, and `advice_rows` are rows with the most important findings of the
    advisor. `quality_results` are comparisons of answers; the page has a line about each that
    concerns the result."""
    from workbench.engines.answer_settings import find_sides_in_quality_comparisons
    from workbench.report.quality_blocks import answer_comparison_blocks
    from workbench.report.result_blocks import (  # not needed by the first frame
        alert_boxes,
        key_metrics,
        latency_blocks,
        metric_blocks,
    )
    from workbench.tui.block_rows import block_rows, fact_rows

    summary = result.summary
    of = result.conditions
    about = measurement_origin_text(of.host, [of.model or ""], of.preset_id, result.unix_s)
    rows = [*paragraph_rows(about, width, "dim", "  "), *block_rows(alert_boxes(result), width)]
    if result.note or result.tags:
        tags = " ".join(f"#{tag}" for tag in result.tags)
        rows += [*paragraph_rows(f"{result.note}  {tags}".strip(), width, "strong"), ()]
    rows += block_rows([key_metrics(summary)], width)
    rows += fact_rows(titles_and_speed_comparisons(result), width)
    if advice_rows:
        rows += [(), *advice_rows]
    answers = find_sides_in_quality_comparisons(result.conditions, quality_results)
    rows += block_rows(answer_comparison_blocks(answers, with_measures=False), width)
    rows += block_rows(latency_blocks(summary), width)
    if summary.notes or summary.command_output:
        rows.append(())
    for note in summary.notes:
        rows += paragraph_rows(f"! {note}", width, "warn", "  ")
    for line in summary.command_output:
        rows += paragraph_rows(f"| {line}", width, "dim", "  ")
    measured = block_rows(metric_blocks(summary), width)
    return [*rows, *timeline_rows, *measured, *_condition_rows(result, width)]


def result_load_text(result: BenchResult) -> str:
    """Return the load of a result in one line: profile, streams, requests, prompts, warm-up and
    client. If the load was a command of the user, return that command."""
    spec = result.spec
    if spec.command:
        return shlex.join(spec.command)
    prompts = f"{spec.input_tokens} in"
    if spec.trace_name:
        prompts = f"{spec.trace_and_speed_text}, {spec.input_tokens} in on average"
    elif spec.prompts_name:
        prompts = spec.prompts_name
    elif spec.has_real_text:
        prompts += " of real text"
    size = [count_of(spec.concurrency, "stream"), count_of(spec.requests, "request")]
    if spec.rate is not None:
        size.insert(0, f"{spec.rate:g} requests/s {spec.arrival}")
    lengths = f"{prompts} / {spec.max_tokens}"
    if spec.length_spread:
        lengths += f" ±{spec.length_spread * 100:.0f} %"
    warm = f"{result.summary.warmup_requests or spec.warmup} warm-up"
    if spec.until_steady:
        warm += " until steady"
    load = ", ".join([*size, *option_texts(spec), f"{lengths} out", warm])
    return f"{spec.profile}: {load}"


def _condition_rows(result: BenchResult, width: int) -> list[Row]:
    from workbench.tui.block_rows import fact_rows

    c = result.conditions
    facts = [
        ("load", result_load_text(result)),
        *condition_labels_and_texts(c),
        ("settings", ", ".join(grouped_setting_texts(c.gpu_settings)) or "unchanged"),
    ]
    if c.in_force:
        verdicts = (f"{name} {said}" for name, said in setting_labels_and_verdicts(c.in_force))
        facts.append(("under load", ", ".join(verdicts)))
    facts += [("", text) for text in c.findings.values()]
    rows: list[Row] = [(), (("Conditions", "title"),), *fact_rows(facts, width)]
    if command := Command(mask_argv(c.argv), mask_env(c.env)).shell_line:
        rows += [(), *paragraph_rows(f"$ {command}", width, "dim", "  ")]
    return rows


def setting_labels_and_verdicts(in_force: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return pairs (label of a setting, verdict), such as [("GPU0 GPU clocks", "no effect")] for
    {"gpu0.gpu_clocks": "no effect"}."""
    return [(setting_label(name), said) for name, said in in_force.items()]
