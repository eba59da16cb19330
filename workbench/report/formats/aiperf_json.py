"""One result in the form of AIPerf's profile_export_aiperf.json (schema 1.4), as far as AIPerf has
a name for what Workbench measured.

`JsonExportData` of aiperf 0.13 allows further fields. `exported_by` says who wrote the file,
`simulated` and `simulation` whether its values are of a model, `window` the part of the run that
the rates are of, and `notes` what a reader should know. AIPerf's limits of an SLO have no
percentage, so only their milliseconds are written. Tokens are the server's usage. AIPerf's output
rate per user is a mean of rates, which Workbench does not compute, so it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Distribution
from workbench.model.declared_options import AIPERF
from workbench.model.distribution import PERCENTILES
from workbench.report.content import Report
from workbench.report.formats.json_data import json_text, simulated_fields
from workbench.report.formats.stated_load import (
    export_writer_text,
    require_exportable_load,
    slo_limits_ms,
)

SCHEMA = "1.4"
# AIPerf has no name for it, because its only rate is that of the whole run.
WHOLE_RUN_RATE = "whole_run_output_token_throughput"
_NO_URL = "http://unknown.invalid"  # of an imported result: AIPerf's reader requires one
_LATENCIES = {
    "time_to_first_token": "ttft_ms",
    "inter_token_latency": "tpot_ms",
    "inter_chunk_latency": "itl_ms",
    "request_latency": "e2e_ms",
}
_LIMITED = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}
_PERCENTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99")  # that AIPerf has
_OWN_PARTS = [part for part in _PERCENTILES if part in PERCENTILES]
_PARTS = {"mean": "avg", **{part: part for part in (*_OWN_PARTS, "min", "max")}}


def render(report: Report) -> str:
    """Return the one result of `report` as AIPerf's JSON. Raises InputError if its load is not
    known."""
    (result,) = report.results
    require_exportable_load(result, AIPERF)
    document = {
        "schema_version": SCHEMA,
        "benchmark_id": f"workbench-{result.id}",
        "exported_by": export_writer_text(result),
        **simulated_fields(result.conditions.simulated),
        **_metrics_by_name(result.summary),
        "window": result.summary.window,
        "input_config": _aiperf_config(result),
        "was_cancelled": False,
        **_completeness_fields(result.summary),
        "error_summary": [
            {"error_details": {"type": kind, "message": kind}, "count": count}
            for kind, count in result.summary.errors.items()
        ],
        **_start_and_end_times(result),
        "notes": [*result.summary.notes, *result.summary.marked],
    }
    return json_text(document)


def _metrics_by_name(summary: BenchSummary) -> dict[str, dict[str, Any]]:
    """Return {AIPerf's name: values} for each metric that was measured."""
    scalars: dict[str, tuple[str, float | None]] = {
        "request_throughput": ("requests/sec", summary.request_s),
        "request_count": ("requests", float(summary.requests_ok)),
        "error_request_count": ("requests", float(summary.requests_failed) or None),
        "output_token_throughput": ("tokens/sec", summary.output_tok_s),
        WHOLE_RUN_RATE: ("tokens/sec", summary.whole_run_tok_s),
        "benchmark_duration": ("sec", summary.duration_s),
        "goodput": ("requests/sec", summary.goodput_request_s),
        "nvidia_total_gpu_power": ("W", summary.power_w),
        "nvidia_total_gpu_energy": ("J", summary.energy_j),
        "nvidia_output_tokens_per_joule": ("tokens/J", summary.tok_per_joule),
        **_unit_and_token_count_by_name(summary),
    }
    if summary.slo_pct is not None:
        every = summary.requests_ok + summary.requests_failed
        good = float(round(every * summary.slo_pct / 100))
        scalars["good_request_count"] = ("requests", good)
        scalars["good_request_fraction"] = ("ratio", summary.slo_pct / 100)
    found: dict[str, dict[str, Any]] = {}
    for name, (unit, value) in scalars.items():
        if value is not None:
            found[name] = {"unit": unit, "avg": value}
    for name, field in _LATENCIES.items():
        values = _latency_fields(getattr(summary, field), summary.partial.get(field, {}))
        if values:
            found[name] = {"unit": "ms", **values}
    return found


def _unit_and_token_count_by_name(summary: BenchSummary) -> dict[str, tuple[str, float | None]]:
    """Return (unit, count) of the tokens by AIPerf's names. The lengths are means over the
    requests. Counts that are not known are left out."""
    found: dict[str, tuple[str, float | None]] = {}
    names = {
        "prompt_tokens": ("total_usage_prompt_tokens", "total_isl", "input_sequence_length"),
        "output_tokens": ("total_usage_completion_tokens", "total_osl", "output_sequence_length"),
    }
    for field, (usage, total, mean) in names.items():
        tokens = getattr(summary, field)
        if tokens is None or not summary.requests_ok:
            continue
        found[usage] = found[total] = ("tokens", float(tokens))
        found[mean] = ("tokens", tokens / summary.requests_ok)
    if summary.cached_tokens is not None:
        found["total_usage_prompt_cache_read_tokens"] = ("tokens", float(summary.cached_tokens))
    return found


def _latency_fields(
    distribution: Distribution | None, partial_statistics: Mapping[str, float]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part, name in _PARTS.items():
        value = (
            partial_statistics.get(part) if distribution is None else getattr(distribution, part)
        )
        if value is not None:
            values[name] = value
    if distribution is not None:
        values["count"] = distribution.count
    return values


def _aiperf_config(result: BenchResult) -> dict[str, Any]:
    """Return the load in the form of AIPerf's configuration."""
    spec = result.spec
    endpoint: dict[str, Any] = {"urls": [spec.url or _NO_URL]}
    if result.conditions.knows_workload_field("endpoint"):
        endpoint["type"] = spec.endpoint
    if result.conditions.knows_workload_field("stream"):
        endpoint["streaming"] = spec.stream
    config: dict[str, Any] = {
        "models": {"items": [{"name": spec.model}]},
        "endpoint": {**endpoint, "use_server_token_count": True},
        "datasets": [_dataset_config(result)],
        "phases": [{"name": "profiling", **_phase_end_condition(spec), **_arrival_config(spec)}],
    }
    if spec.slo:
        config["slos"] = slo_limits_ms(spec.slo, _LIMITED)
    return config


def _dataset_config(result: BenchResult) -> dict[str, Any]:
    file = result.spec.text_source_name
    source = {"type": "file", "path": file} if file else {"type": "synthetic"}
    requests = result.summary.requests_ok + result.summary.requests_failed
    return {"name": "main", "entries": requests, **source}


def _phase_end_condition(spec: BenchSpec) -> dict[str, Any]:
    if spec.seconds is not None:
        return {"duration": spec.seconds}  # as many requests as start in this time
    return {"requests": spec.requests}


def _arrival_config(spec: BenchSpec) -> dict[str, Any]:
    """Return when requests start: AIPerf's type of a phase, with its numbers."""
    if spec.replays_trace_times:
        return {"type": "fixed_schedule"}
    if spec.rate is None:
        return {"type": "concurrency", "concurrency": spec.concurrency}
    if spec.burstiness is not None:
        return {"type": "gamma", "rate": spec.rate, "smoothness": spec.burstiness}
    return {"type": spec.arrival, "rate": spec.rate}


def _completeness_fields(summary: BenchSummary) -> dict[str, Any]:
    """Return the fields that say whether the result is valid, in AIPerf's words: an invalid one is
    not complete, with the reason."""
    if not summary.refused:
        return {"is_complete": True}
    return {"is_complete": False, "incomplete_reason": "; ".join(summary.refused)}


def _start_and_end_times(result: BenchResult) -> dict[str, str]:
    """Return the begin and the end of the run. A stored result has the time of its end; its begin
    is left out if its duration is not known."""
    end = {"end_time": datetime.fromtimestamp(result.unix_s, UTC).isoformat()}
    if result.summary.duration_s is None:
        return end
    begin_s = result.unix_s - result.summary.duration_s
    return {"start_time": datetime.fromtimestamp(begin_s, UTC).isoformat(), **end}
