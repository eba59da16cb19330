"""A result as blocks of a document, and several results as one table."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from workbench.engines.result_limits import titles_and_speed_comparisons
from workbench.model.answer_text import answer_text_rows
from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Conditions,
    EngineDuring,
    GpuDuring,
    PcieDuring,
)
from workbench.model.bench_cli_options import bench_cli_options
from workbench.model.conditions_table import condition_labels_and_texts
from workbench.model.counts import count_of
from workbench.model.distribution import COMPARED_PERCENTILES, PERCENTILES, distribution_part_title
from workbench.model.loopback import is_loopback
from workbench.model.metrics import (
    ENERGY,
    ENGINE_COUNTERS,
    GPU_READINGS,
    LATENCY,
    METRICS,
    PARTS,
    RUN,
    SummaryMetric,
    metric_value,
    metrics_of_group,
    names_of_narrow_table_metrics,
    narrow_table_title,
)
from workbench.model.secrets import SERVER_KEY_VARIABLE
from workbench.model.slo import slo_rows
from workbench.report import plots
from workbench.report.blocks import (
    Alert,
    Block,
    CodeBlock,
    Facts,
    Fold,
    Heading,
    Items,
    KeyMetrics,
    PlotBlock,
    Table,
    TextBlock,
    bulleted_list,
    simulated_alert,
)
from workbench.report.format_values import (
    NA,
    NOT_IN_FILE,
    format_metric_value,
    is_absent_from_imported_file,
    metric_text,
    number_text,
    setting_text,
    utc_time,
)

Row = tuple[str, str]
_NEED_MANY = tuple(each for each in PERCENTILES.values() if each.least_values)
DEFINITIONS = (
    "TTFT: from the socket write to the first chunk with content of any kind (text, reasoning, "
    "tool call); a chunk with"
    " only the role does not count.",
    "ITL: the gap between two chunks with content. TPOT: (last - first chunk) / (tokens - tokens "
    "in the first chunk),"
    " one value per request.",
    "Output (output_tok_s in data): output tokens of all streams per second, in the steady window. "
    "Per stream: 1000 / mean TPOT, the rate of one stream while it decodes, without its TTFT.",
    "Goodput: requests, and their output tokens, per second in the steady window that kept all limits "
    "of the SLO. A failed request keeps no limit.",
    "Tokens are the server's own usage. Percentiles interpolate linearly. "
    + " ".join(f"{each.least_values_sentence}, and is n/a with fewer." for each in _NEED_MANY),
)
_SPEC_FIELDS_NOT_LISTED = {
    "url",
    "model",
    "salt",
    "prompts",
    "trace",
    "texts",
    "command",
    "extra_body",
    "api_key_env",
}


def result_title(result: BenchResult) -> str:
    return f"{result.conditions.model} on {result.conditions.host}"


def result_subtitle(result: BenchResult) -> str:
    """Return one line for the top of a result's report: number, engine, time, and the program that
    measured it."""
    conditions = result.conditions
    engine = " ".join(filter(None, (conditions.engine, conditions.engine_version)))
    source = f"Workbench {conditions.workbench_version}".rstrip()
    if conditions.imported:
        source = f"imported: {conditions.imported}"
    parts = (f"Benchmark #{result.id}", engine, utc_time(result.unix_s), source)
    return " · ".join(filter(None, parts))


def result_blocks(result: BenchResult, samples: Sequence[Mapping[str, Any]] = ()) -> list[Block]:
    """Return the blocks that describe a result, the most important first. `samples` are the records
    of its requests. Secrets must be masked already."""
    summary = result.summary
    throughput = plots.throughput_plot(samples, summary)
    return [
        *alert_boxes(result),
        key_metrics(summary),
        *_mark_invalid_plots(summary, [throughput] if throughput is not None else []),
        *latency_blocks(summary),
        *_mark_invalid_plots(summary, plots.latency_plots(samples)),
        *metric_blocks(summary),
        Heading("Conditions"),
        *condition_blocks(result),
        Heading("Workload"),
        Facts(workload_facts(result)),
        *_note_blocks(result),
        Fold("How these metrics are defined", (Items(DEFINITIONS),)),
    ]


def metric_blocks(summary: BenchSummary) -> list[Block]:
    """Return the blocks of all that was measured besides latencies: the metrics of the run, the
    text of the answers, the energy, the GPUs, and the engine's own counters."""
    return [
        Heading("Metrics"),
        Facts(_run_metric_rows(summary)),
        *slo_blocks(summary),
        *answer_text_fact_blocks(summary),
        *_energy_blocks(summary),
        *_engine_counter_blocks(summary.engine),
    ]


def _mark_invalid_plots(summary: BenchSummary, drawn: Iterable[PlotBlock]) -> list[PlotBlock]:
    """Return the plots of a result. The captions of an invalid result say that it is not valid,
    because a picture is copied without the alert above it."""
    if not summary.refused:
        return list(drawn)
    return [PlotBlock(plot.svg, f"{plot.caption} This result is not valid.") for plot in drawn]


def slo_blocks(summary: BenchSummary) -> list[Block]:
    """Return the blocks on how many requests kept each limit of the SLO; [] without an SLO."""
    return _facts_section("SLO", slo_rows(summary.slo))


def answer_text_fact_blocks(summary: BenchSummary) -> list[Block]:
    """Return the blocks on what the answers said and what is wrong with them; [] if their text was
    not checked."""
    return _facts_section("Text", answer_text_rows(summary.text))


def _facts_section(title: str, rows: Sequence[Row]) -> list[Block]:
    if not rows:
        return []
    return [Heading(title), Facts(tuple(rows))]


def alert_boxes(result: BenchResult) -> list[Block]:
    """Return the boxes at the top of a result: SIMULATED, why it is not valid or less reliable,
    which other program measured it, and which requests failed."""
    summary, conditions = result.summary, result.conditions
    shown = simulated_alert(conditions.simulated)
    if summary.refused:
        shown.append(Alert("rejected", "This result is not valid", summary.refused))
    if summary.marked:
        shown.append(Alert("warning", "This result is less reliable than it looks", summary.marked))
    if conditions.imported:
        title = f"Measured by {conditions.imported}, not by Workbench"
        text = (
            "Its definitions differ as the notes say. Engine, driver and GPUs are known only "
            "as far as shown."
        )
        shown.append(Alert("warning", title, (text,)))
    if summary.requests_failed:
        title = f"{count_of(summary.requests_failed, 'request')} failed"
        kinds = ", ".join(f"{count} × {kind}" for kind, count in summary.errors.items())
        shown.append(Alert("warning", title, (kinds,)))
    return shown


def key_metrics(summary: BenchSummary) -> KeyMetrics:
    """Return the block of a result's most important values: throughput, latencies and energy."""
    items = [_throughput_title_value_window(summary)]
    # At a rate a user's wait begins when the request is due, not when a stream is free for it.
    first = "ttft_ms" if summary.ttft_from_schedule_ms is None else "ttft_from_schedule_ms"
    for name in (first, "itl_ms"):
        median = summary.latency_ms(name, "p50")
        tail = _highest_percentile_text(summary, name)
        if median is not None:
            items.append((f"{METRICS[name].title} p50", number_text(median, "ms"), tail))
    if summary.tok_per_joule is not None:
        efficiency = number_text(summary.tok_per_joule, "tok/J")
        items.append(("efficiency", efficiency, f"{number_text(summary.power_w, 'W')} mean"))
    if summary.slo_pct is not None:
        kept = format_metric_value("slo_pct", summary.slo_pct, "%")
        goodput = f"goodput {number_text(summary.goodput_request_s, 'requests/s')}"
        items.append((METRICS["slo_pct"].title, kept, goodput))
    items.append(("requests", f"{summary.requests_ok:,} ok", _failed_requests_text(summary)))
    return KeyMetrics(tuple(items))


def _throughput_title_value_window(summary: BenchSummary) -> tuple[str, str, str]:
    name = "output_tok_s" if summary.prompt_tok_s is None else "prompt_tok_s"
    value = getattr(summary, name)
    window = summary.window if summary.window == "whole run" else "steady window"
    if value is None:
        window = summary.absent.get(name, "not measured")
    if summary.refused:
        window = f"not valid, {window}"
    return METRICS[name].title, number_text(value, "tok/s"), window


def _highest_percentile_text(summary: BenchSummary, name: str) -> str:
    """Return as text the highest percentile of a latency that comparisons have and that was
    measured, such as "p99 120 ms"; the lowest of them with "n/a" if none was."""
    _, lowest, *higher = COMPARED_PERCENTILES
    for percentile in (*reversed(higher), lowest):
        value = summary.latency_ms(name, percentile.name)
        if value is not None:
            return f"{percentile.title} {number_text(value, 'ms')}"
    return f"{lowest.title} {NA}"


def _failed_requests_text(summary: BenchSummary) -> str:
    if not summary.requests_failed and "requests_failed" in summary.absent:
        return f"failed: {NA}"
    return f"{summary.requests_failed:,} failed"


def latency_blocks(summary: BenchSummary) -> list[Block]:
    """Return the blocks with the table of latencies, and with what a reader must know to understand
    its values."""
    blocks: list[Block] = [Heading("Latency"), _latency_table(summary)]
    names = [metric.name for metric in metrics_of_group(LATENCY)]
    measured = [name for name in names if summary.latency_ms(name, "p50") is not None]
    needs = []
    for percentile in _NEED_MANY:
        if None in [summary.latency_ms(name, percentile.name) for name in measured]:
            needs.append(f"{percentile.least_values_sentence}.")
    if needs:
        blocks.append(TextBlock(" ".join(needs)))
    chunk = summary.tokens_per_chunk
    if chunk is not None and abs(chunk - 1) > 0.005:
        blocks.append(TextBlock(f"{number_text(chunk)} tokens in a chunk: ITL is between chunks."))
    return blocks


def _latency_table(summary: BenchSummary) -> Table:
    rows = []
    for metric in metrics_of_group(LATENCY):
        values = [summary.latency_ms(metric.name, part) for part in PARTS]
        if set(values) != {None}:
            rows.append((metric.title, *map(number_text, values)))
        elif not metric.optional:
            reason = summary.absent.get(metric.name, "not measured")
            rows.append((f"{metric.title}: {NA} ({reason})", *[""] * len(PARTS)))
    head = ("ms", *map(distribution_part_title, PARTS))
    numeric = frozenset(range(1, len(head)))
    importance = tuple(int(name == "min") for name in head)
    return Table(head, tuple(rows), numeric, importance=importance)


def _run_metric_rows(summary: BenchSummary) -> tuple[Row, ...]:
    failed = "".join(f", {count} {kind}" for kind, count in summary.errors.items())
    rows = [
        ("requests", f"{summary.requests_ok:,} ok, {_failed_requests_text(summary)}{failed}"),
        *_metric_rows(summary, RUN),
    ]
    if summary.warmup_requests:
        rows.append(("warm-up, not counted", count_of(summary.warmup_requests, "request")))
    if any(is_absent_from_imported_file(summary, metric.name) for metric in metrics_of_group(RUN)):
        rows.append(("all else", NOT_IN_FILE))
    return tuple(rows)


def _metric_rows(summary: BenchSummary, group: str) -> list[Row]:
    """Return a row of (title, value) for each metric of a group. A metric that was not measured
    shows the reason instead. It gets no row if it is optional or if the imported file lacks it."""
    rows = []
    for metric in metrics_of_group(group):
        is_left_out = metric.optional or is_absent_from_imported_file(summary, metric.name)
        if getattr(summary, metric.name) is not None or not is_left_out:
            rows.append((metric.title, metric_text(summary, metric.name, metric.unit)))
    return rows


def _energy_blocks(summary: BenchSummary) -> list[Block]:
    rows = _metric_rows(summary, ENERGY)
    if is_absent_from_imported_file(summary, "power_w") and not rows:
        return []
    return [Heading("Energy and GPUs"), Facts((*rows, *_gpu_rows(summary.gpu)))]


def _gpu_rows(during: GpuDuring | None) -> list[Row]:
    if during is None:
        return [("GPUs during the run", f"{NA} (this result has no telemetry)")]
    reasons = during.event_reasons.items()
    shares = [f"{name} {100 * share:.0f} % of the time" for name, share in reasons if share]
    rows = _record_rows(during, GPU_READINGS, during.absent, "unknown")
    if len(during.power_w_each) > 1:
        each = zip(during.gpus, during.power_w_each, strict=False)
        texts = (f"GPU{index} {number_text(power_w, 'W')}" for index, power_w in each)
        rows.insert(0, ("power of each GPU, mean", ", ".join(texts)))
    rows.append(("clocks limited by", ", ".join(shares) or "nothing was reported"))
    return [*rows, *_pcie_rows(during)]


def _pcie_rows(during: GpuDuring) -> list[Row]:
    """Return a row about the PCIe traffic of each GPU, or one row with the reason why nothing is
    known. A result of an earlier version has no row."""
    reason = during.absent.get("pcie")
    if reason and not during.pcie:
        return [("PCIe traffic", f"{NA} ({reason})")]
    return [(f"PCIe of GPU{one.gpu}, mean (peak)", _pcie_text(one)) for one in during.pcie]


def _pcie_text(traffic: PcieDuring) -> str:
    received = _mean_and_peak_rate_text(traffic.rx_mb_s, traffic.rx_peak_mb_s)
    sent = _mean_and_peak_rate_text(traffic.tx_mb_s, traffic.tx_peak_mb_s)
    text = f"received {received}, sent {sent} MB/s"
    if traffic.link_mb_s:
        text += f" of {number_text(traffic.link_mb_s, 'MB/s', 0)} each way"
    return text


def _mean_and_peak_rate_text(mean_mb_s: float | None, peak_mb_s: float | None) -> str:
    if mean_mb_s is None:
        return NA
    return f"{number_text(mean_mb_s, decimals=0)} ({number_text(peak_mb_s, decimals=0)})"


def _engine_counter_blocks(engine: EngineDuring | None) -> list[Block]:
    if engine is None:
        return []
    blocks: list[Block] = [Heading("The engine's own counters")]
    blocks.append(Facts(tuple(_record_rows(engine, ENGINE_COUNTERS, engine.absent))))
    if engine.disagreements:
        blocks.append(Alert("warning", "Client and engine disagree", tuple(engine.disagreements)))
    return blocks


def _record_rows(
    record: object,
    metrics: Sequence[SummaryMetric],
    absent: Mapping[str, str],
    default_reason: str = "",
) -> list[Row]:
    """Return a row of (title, value) for each of the `metrics`, which are fields of `record`. A
    field without a value shows its reason from `absent`, or else the text `default_reason`. If both
    are empty, the field gets no row."""
    rows = []
    for metric in metrics:
        value, reason = getattr(record, metric.name), absent.get(metric.name, default_reason)
        if value is not None:
            rows.append((metric.title, number_text(value, metric.unit, metric.decimals)))
        elif reason:
            rows.append((metric.title, f"{NA} ({reason})"))
    return rows


def condition_blocks(result: BenchResult) -> list[Block]:
    """Return the blocks that describe the conditions of a result, including the command that
    started the server."""
    conditions = result.conditions
    rows = condition_labels_and_texts(conditions)
    rows += titles_and_speed_comparisons(result)
    for name, value in conditions.gpu_settings.items():
        text, state = setting_text(value), conditions.in_force.get(name)
        if state:
            text += f" (in force: {state})"
        rows.append((f"GPU setting {name}", text))
    rows += [(f"under load {name}", text) for name, text in conditions.findings.items()]
    blocks: list[Block] = [Facts(tuple(rows))]
    if conditions.argv:
        env = [f"{name}={shlex.quote(str(value))}" for name, value in conditions.env.items()]
        blocks.append(CodeBlock(" ".join((*env, *map(shlex.quote, conditions.argv)))))
    settings = {**conditions.flags, **conditions.env}
    if settings:
        facts = Facts(tuple((name, setting_text(value)) for name, value in settings.items()))
        blocks.append(Fold("Flags and environment, one by one", (facts,)))
    return blocks


def workload_facts(result: BenchResult) -> tuple[Row, ...]:
    """Return the requested workload of a result as rows of name and value. For an imported result,
    only the fields that its file states are included."""
    spec, hidden = result.spec, _SPEC_FIELDS_NOT_LISTED
    if spec.prompts_name or spec.has_conversations or spec.command:
        hidden = {*hidden, "content"}  # of synthetic prompts only
    rows = []
    for name in [field.name for field in fields(BenchSpec) if field.name not in hidden]:
        value = getattr(spec, name)
        is_known = name == "profile" or result.conditions.knows_workload_field(name)
        if is_known and value not in (None, "", ()):
            rows.append((name.replace("_", " "), setting_text(value)))
    if spec.extra_body:
        rows.append(("extra body", setting_text(spec.extra_body)))
    if spec.command:
        rows.append(("command", shlex.join(spec.command)))
    if spec.api_key_env and spec.api_key_env != SERVER_KEY_VARIABLE:
        rows.append(("API key from", spec.api_key_env))
    if result.conditions.known_workload:
        return *rows, ("all else", NOT_IN_FILE)
    return *rows, ("repeat with", command_to_repeat_result(result))


def command_to_repeat_result(result: BenchResult) -> str:
    """Return the `workbench bench` command that repeats this measurement. Parts of the workload for
    which `bench` has no option are left out."""
    spec, conditions = result.spec, result.conditions
    url = conditions.address or spec.url
    server = ["--url", url]
    if conditions.run_id:
        server = [conditions.run_id]
    is_on_host = bool(conditions.run_id) or _is_loopback_url(url)
    words = ["workbench"]
    if is_on_host and conditions.host != "local":
        words += ["--host", conditions.host]
    words += ["bench", *server]
    if not conditions.run_id or spec.model not in _served_model_names(conditions):
        words += ["--model", spec.model]
    words += bench_cli_options(spec, conditions.preset_id)
    if spec.command:
        words += ["--", *spec.command]
    return shlex.join(words)


def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # of an imported result
        return False


def _served_model_names(conditions: Conditions) -> tuple[str, ...]:
    """Return the names under which a run serves its model, the model's own name first."""
    given = conditions.flags.get("served-model-name")
    others = given if isinstance(given, list | tuple) else [given]
    return conditions.model, *map(str, others)


def _note_blocks(result: BenchResult) -> list[Block]:
    blocks: list[Block] = []
    lines = [*filter(None, (result.note,)), *result.summary.notes]
    if lines:
        blocks += [Heading("Notes"), *bulleted_list(lines)]
    if result.tags:
        blocks.append(TextBlock(f"Tags: {', '.join(result.tags)}"))
    return blocks


def results_overview_table(results: Sequence[BenchResult]) -> Table:
    """Return a table with one row for each result."""
    metrics, rows = names_of_narrow_table_metrics(), []
    for result in results:
        summary, imported = result.summary, result.conditions.imported
        number, streams, state = f"#{result.id}", NA, "ok"
        if imported:
            number += f" ({imported})"
        if result.conditions.knows_workload_field("concurrency") and not result.spec.command:
            streams = str(result.spec.concurrency)
        if summary.refused:
            state = "rejected"
        elif summary.requests_failed:
            state = f"{summary.requests_failed} failed"
        values = [format_metric_value(name, metric_value(summary, name)) for name in metrics]
        rows.append((number, result.conditions.model, streams, *values, state))
    head = ("result", "model", "streams", *map(narrow_table_title, metrics), "state")
    return Table(
        head=head,
        rows=tuple(rows),
        numeric=frozenset(range(2, len(head) - 1)),
        importance=(0, 0, 0, *range(len(metrics)), 0),
    )
