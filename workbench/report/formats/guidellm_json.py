"""One result in the form of GuideLLM's benchmarks.json (report version 2, guidellm 0.8), as far as
GuideLLM has a name for what Workbench measured.

GuideLLM describes each metric by a distribution over its requests or tokens, so the result needs
its single requests. Where GuideLLM's reader requires a metric that Workbench does not have, the
distribution has the count 0, as GuideLLM itself writes it. A rate has the count 1: Workbench's one
rate over its window. Delays inside GuideLLM's scheduler have no counterpart; `environment` says so,
who wrote the file, and whether its values are simulated.

GuideLLM's reader counts an inter-token latency once for each token after the first, and a time per
output token, which includes the time to the first token, once for each token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pvariance
from typing import Any

from workbench.model.bench import BenchResult, BenchSpec
from workbench.model.declared_options import GUIDELLM
from workbench.model.distribution import quantile
from workbench.model.errors import InputError
from workbench.model.known_values import known_values
from workbench.report.content import Report
from workbench.report.formats.csv_tables import SIMULATED
from workbench.report.formats.json_data import json_text
from workbench.report.formats.stated_load import (
    export_writer_text,
    missing_field_error,
    require_exportable_load,
    slo_limits_ms,
)
from workbench.report.plots import is_measured_success

REPORT_VERSION = 2
_PERCENTILES = {
    "p001": 0.001,
    "p01": 0.01,
    "p05": 0.05,
    "p10": 0.1,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}
_LIMITED = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2el_ms"}
_NOT_MEASURED = (
    *("request_concurrency", "request_streaming_iterations_count"),
    *("time_to_first_output_token_ms", "time_to_last_round_trip_ms", "avg_round_trip_time_ms"),
    *("prompt_tokens_per_second", "tokens_per_second"),
    *("output_tokens_per_iteration", "iter_tokens_per_iteration"),
)
_DELAYS = (
    *("resolve_start_delay_avg", "resolve_targeted_start_delay_avg", "request_start_delay_avg"),
    *("request_targeted_start_delay_avg", "resolve_end_delay_avg", "resolve_time_avg"),
    *("finalized_delay_avg", "processed_delay_avg"),
)
_FROM_REQUESTS = ("ttft_ms", "tpot_ms", "e2e_ms")  # none of a latency that was withheld
_DELAYS_SAID = (
    "delays inside GuideLLM's scheduler are 0, because Workbench has no such steps; its distributions"
    " with the count 0 were not measured, and those of rates have one value, the rate over the window"
)


def render(report: Report) -> str:
    """Return the one result of `report` as GuideLLM's JSON. Raises InputError if the result has no
    single requests, or a load that GuideLLM has no word for."""
    (result,) = report.results
    require_exportable_load(result, GUIDELLM)
    if result.spec.rate is not None and result.spec.burstiness not in (None, 1.0):
        raise missing_field_error(result, GUIDELLM, "it has no arrivals with a burstiness")
    samples = report.samples.get(result.id, ())
    if not samples:
        raise InputError(
            f"result {result.id} has no single requests, which GuideLLM's form needs",
            next_step="export it in another format, such as --format aiperf",
        )
    duration_s = result.summary.duration_s
    if duration_s is None:
        raise missing_field_error(result, GUIDELLM, "it needs the duration, which is not known")
    document = {
        "metadata": {"version": REPORT_VERSION, "guidellm_version": export_writer_text(result)},
        "simulated": result.conditions.simulated,
        "config": {"spec": _scenario_config(result)},
        "benchmarks": [_benchmark_data(result, duration_s, samples)],
    }
    return json_text(document)


def _benchmark_data(
    result: BenchResult, duration_s: float, samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    good = list(filter(is_measured_success, samples))
    ended_s = result.unix_s
    begun_s = ended_s - duration_s
    return {
        "config": _strategy_and_slo(result),
        "scheduler_state": {"start_time": begun_s, "end_time": ended_s},
        "scheduler_metrics": _scheduler_state(result, begun_s, ended_s),
        "metrics": _metrics_data(result, good),
        "requests": {"successful": [], "errored": [], "incomplete": []},
        "start_time": begun_s,
        "end_time": ended_s,
        "duration": duration_s,
        "warmup_duration": 0.0,
        "cooldown_duration": 0.0,
    }


def _metrics_data(
    result: BenchResult, successful_requests: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the metrics as GuideLLM's fields. `successful_requests` are records of requests, as
    bench/records.py writes them."""
    summary = result.summary
    measured = [name for name in _FROM_REQUESTS if getattr(summary, name) is not None]
    prompt = [one.get("prompt_tokens") for one in successful_requests]
    output = [one.get("output_tokens") for one in successful_requests]
    total = []
    for asked, answered in zip(prompt, output, strict=True):
        if asked is not None and answered is not None:
            total.append(asked + answered)
    latencies_s = []
    ttfts_ms = []
    if "e2e_ms" in measured:
        latencies_s = [one["end_us"] / 1e6 for one in successful_requests]
    if "ttft_ms" in measured:
        ttfts_ms = [_milliseconds(one.get("ttft_us")) for one in successful_requests]
    by_token: Counter[float] = Counter()
    after_first: Counter[float] = Counter()
    for one in successful_requests:
        tokens = one.get("output_tokens") or 0
        if tokens and "e2e_ms" in measured:
            by_token[one["end_us"] / 1000 / tokens] += tokens
        gaps_us = one.get("gaps_us") if "tpot_ms" in measured else None
        if gaps_us and tokens > 1:
            after_first[sum(gaps_us) / 1000 / (tokens - 1)] += tokens - 1
    found: dict[str, Any] = {
        "request_totals": _request_totals(result),
        "requests_per_second": _distribution_of_values([summary.request_s]),
        "output_tokens_per_second": _distribution_of_values([summary.output_tok_s]),
        "request_latency": _distribution_of_values(latencies_s),
        "prompt_token_count": _distribution_of_values(prompt),
        "output_token_count": _distribution_of_values(output),
        "total_token_count": _distribution_of_values(total),
        "time_to_first_token_ms": _distribution_of_values(ttfts_ms),
        "time_per_output_token_ms": _distribution_of_counts(by_token),
        "inter_token_latency_ms": _distribution_of_counts(after_first),
        **{name: _distribution_of_values(()) for name in _NOT_MEASURED},
        **_NO_MEDIA,
    }
    if summary.slo_pct is not None:
        found |= {
            "slo_attainment": summary.slo_pct / 100,
            "slo_determined_requests": summary.requests_ok + summary.requests_failed,
            "request_goodput": _distribution_of_values([summary.goodput_request_s]),
        }
    return found


def _milliseconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1000


def _distribution_of_values(values: Iterable[float | None]) -> dict[str, Any]:
    return _distribution_of_counts(Counter(known_values(values)))


def _distribution_of_counts(counts: Counter[float]) -> dict[str, Any]:
    """Return GuideLLM's distribution of values, each of which occurs as often as `counts` says. All
    are of successful requests. Without values, its count and statistics are 0."""
    ordered = sorted(counts.elements())
    found: dict[str, Any] = dict.fromkeys(_STATISTICS, 0.0)
    found |= {"count": len(ordered), "percentiles": dict.fromkeys(_PERCENTILES, 0.0)}
    if ordered:
        variance = pvariance(ordered)
        found |= {
            "mean": fmean(ordered),
            "median": quantile(ordered, 0.5),
            "mode": counts.most_common(1)[0][0],
            "variance": variance,
            "std_dev": variance**0.5,
            "min": ordered[0],
            "max": ordered[-1],
            "total_sum": float(sum(ordered)),
            "percentiles": {name: quantile(ordered, p) for name, p in _PERCENTILES.items()},
        }
    return {"successful": found}


_STATISTICS = ("mean", "median", "mode", "variance", "std_dev", "min", "max", "total_sum")
_NO_MEDIA: dict[str, dict[str, None]] = {
    "text": dict.fromkeys(("tokens", "words", "characters")),
    "image": dict.fromkeys(("tokens", "images", "pixels", "bytes")),
    "video": dict.fromkeys(("tokens", "frames", "seconds", "bytes")),
    "audio": dict.fromkeys(("tokens", "samples", "seconds", "bytes")),
    "tool_call": dict.fromkeys(("tokens", "mixed_tokens", "count")),
}


def _request_totals(result: BenchResult) -> dict[str, int]:
    ok, failed = result.summary.requests_ok, result.summary.requests_failed
    return {"successful": ok, "errored": failed, "incomplete": 0, "total": ok + failed}


def _scheduler_state(result: BenchResult, begun_s: float, ended_s: float) -> dict[str, Any]:
    queue, e2e = result.summary.queue_ms, result.summary.e2e_ms
    starts = ("start_time", "request_start_time", "measure_start_time")
    ends = ("measure_end_time", "request_end_time", "end_time")
    return {
        **dict.fromkeys(starts, begun_s),
        **dict.fromkeys(ends, ended_s),
        "requests_made": _request_totals(result),
        "queued_time_avg": 0.0 if queue is None else queue.mean / 1000,
        "request_time_avg": 0.0 if e2e is None else e2e.mean / 1000,
        **dict.fromkeys(_DELAYS, 0.0),
    }


def _strategy_and_slo(result: BenchResult) -> dict[str, Any]:
    """Return the load as GuideLLM's strategy, and the limits of the SLO without percentages."""
    spec = result.spec
    environment: dict[str, Any] = {
        "written_by": export_writer_text(result),
        "window": result.summary.window,
    }
    if result.conditions.simulated:
        environment["simulation"] = SIMULATED
    return {
        "run_id": f"workbench-{result.id}",
        "run_index": 0,
        "strategy": _strategy_config(spec),
        "constraints": {},
        "slo": slo_limits_ms(spec.slo, _LIMITED) or None,
        "profile": {},
        "requests": {},
        "backend": _backend_config(spec),
        "environment": {
            **environment,
            "absent": _DELAYS_SAID,
            "notes": [*result.summary.notes, *result.summary.marked],
            "not_valid": list(result.summary.refused),
        },
    }


def _scenario_config(result: BenchResult) -> dict[str, Any]:
    """Return the load of a result in the form of GuideLLM's configuration."""
    spec = result.spec
    strategy = _strategy_config(spec)
    profile: dict[str, Any] = {"kind": strategy["type_"]}
    for name in ("streams", "rate"):
        if name in strategy:
            profile[name] = [strategy[name]]
    if strategy["type_"] == _TRACE:
        profile = _REPLAY
    return {"backend": _backend_config(spec), "profile": profile, "data": [_dataset_config(result)]}


def _dataset_config(result: BenchResult) -> dict[str, Any]:
    spec = result.spec
    file = spec.text_source_name
    if file:
        is_csv = file.partition(" (")[0].endswith(".csv")
        return {"kind": "csv_file" if is_csv else "json_file", "path": file}
    lengths = {"prompt_tokens": "input_tokens", "output_tokens": "max_tokens"}
    knows = result.conditions.knows_workload_field
    known = {name: getattr(spec, ours) for name, ours in lengths.items() if knows(ours)}
    return {"kind": "synthetic_text", **known}


def _strategy_config(spec: BenchSpec) -> dict[str, Any]:
    if spec.replays_trace_times:
        return {"type_": _TRACE, "time_scale": 1 / spec.replay_speed, **_AT_ITS_TIME}
    if spec.rate is None:
        return {
            "type_": "concurrent",
            "streams": spec.concurrency,
            "max_concurrency": spec.concurrency,
        }
    return {"type_": spec.arrival, "rate": spec.rate, "max_concurrency": None}


_TRACE = "trace"
_AT_ITS_TIME = {"schedule_turn": "timestamp"}
_REPLAY = {"kind": "replay", **_AT_ITS_TIME}


def _backend_config(spec: BenchSpec) -> dict[str, Any]:
    return {"kind": "openai_http", "target": spec.url, "model": spec.model}
