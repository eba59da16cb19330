"""AIPerf's result file profile_export_aiperf.json (schemas 1.0 to 1.4), and the result file of its
predecessor GenAI-Perf. GenAI-Perf's file has the same metrics and a flat configuration, in which
"endpoint" is a path and "model" a list.

The source code of aiperf 0.13 computes inter-token latency for each request as (latency - TTFT) /
(tokens - tokens of the first chunk), which Workbench calls TPOT. AIPerf's inter-chunk latency is
Workbench's ITL. The client's tokenizer counts the tokens, unless AIPerf was set to use the server's
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import Distribution
from workbench.model.distribution import PERCENTILES, REQUIRED_PARTS
from workbench.model.errors import InputError
from workbench.model.untrusted_text import as_list, as_table, clean_text
from workbench.report.formats.aiperf_json import WHOLE_RUN_RATE
from workbench.report.imports.checked_fields import (
    WINDOWS,
    Fields,
    Imported,
    ImportOptions,
    first_field,
    imported_result,
    imported_summary,
    mean_tokens_of_requests,
    served_model_name,
)

TOOL = "AIPerf"
_MS = {
    "ms": 1.0,
    "milliseconds": 1.0,
    "sec": 1000.0,
    "s": 1000.0,
    "seconds": 1000.0,
    "us": 1e-3,
    "ns": 1e-6,
}
_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "itl_ms": "inter_chunk_latency",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}
_DISTRIBUTION = {"mean": "avg", **{part: part for part in (*PERCENTILES, "min", "max")}}
_OF_ALL_RUNS = ("request_count", "error_request_count", "good_request_count", "benchmark_duration")
_MOST_RUNS = 1000  # of one summary
_TOTAL = "total_"  # begins the name of a sum over the requests of a run
_ITL = (
    "AIPerf's inter-token latency (one value per request) is listed as TPOT, its inter-chunk "
    "latency as ITL"
)
_OF_TOKENS = ("tpot_ms", "per_stream_tok_s")
_APART = 0.01  # share by which counts of the client's tokenizer may differ from the server's usage
_COUNTED_HERE = (
    "the client's tokenizer counted the tokens: such counts, and the rates based on them, were 9 "
    "to 12 % above the"
    " server's usage, and far more with unusual text"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    if "aiperf_version" in document:
        return True
    metric = first_field(document.get, "request_throughput", "request_latency")
    return "unit" in as_table(metric)


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    fields, of_runs = _fields_of_one_run_and_note(fields)
    version = fields.text("aiperf_version")
    unix_s, zone_note = fields.unix_seconds_and_note("start_time")
    whole, partial = _distributions_and_partial_statistics(fields)
    config = fields.object("input_config")
    by_server = _are_tokens_counted_by_server(config)
    usage = _metric_total(fields, "total_usage_completion_tokens")
    tokens = {
        "prompt_tokens": _metric_total(fields, "total_usage_prompt_tokens"),
        "output_tokens": usage,
        "cached_tokens": _metric_total(fields, "total_usage_prompt_cache_read_tokens"),
    }
    if by_server:
        for name, total in (("prompt_tokens", "total_isl"), ("output_tokens", "total_osl")):
            if tokens[name] is None:
                tokens[name] = _metric_total(fields, total)
    ok = _metric_total_or_0(fields, "request_count")
    failed = _metric_total_or_0(fields, "error_request_count")
    attained, limits = _attainment_fields_and_note(fields, config, ok + failed)
    rate = _scalar_metric(fields, "output_token_throughput", "tokens/sec")
    by_tokenizer = _why_per_token_time_is_absent(fields, usage)
    own = _tokens_by_own_tokenizer(fields)
    if usage and own and rate:
        rate *= usage / own
    counts = _token_counts_note(fields, usage, by_server)
    reasons = dict.fromkeys(tokens, "the file has no token counts of the server")
    if by_tokenizer:
        whole.pop("tpot_ms", None)
        partial.pop("tpot_ms", None)
        reasons |= dict.fromkeys(_OF_TOKENS, by_tokenizer)
    reasons |= dict.fromkeys(partial, "the file has only some of its percentiles")
    notes = (_ITL, of_runs, limits, counts, zone_note, _client_command(fields))
    metrics = imported_summary(
        reasons,
        requests_ok=ok,
        requests_failed=failed,
        errors=_error_counts(fields),
        duration_s=_run_duration_s(fields),
        output_tok_s=rate,
        **_rate_window_fields(fields, rate),
        request_s=_scalar_metric(fields, "request_throughput", "requests/sec"),
        power_w=_scalar_metric(fields, "nvidia_total_gpu_power", "W"),
        energy_j=_scalar_metric(fields, "nvidia_total_gpu_energy", "J"),
        tok_per_joule=_scalar_metric(fields, "nvidia_output_tokens_per_joule", "tokens/J"),
        energy_per_request_j=_scalar_metric(fields, "nvidia_energy_per_request", "joules/request"),
        partial=partial,
        notes=tuple(filter(None, notes)),
        refused=_reasons_for_invalid_result(fields),
        **tokens,
        **whole,
        **attained,
    )
    model = served_model_name(fields, options, _model_name(config))
    workload = {**_token_length_fields(fields), **_load_fields(config), "requests": ok}
    workload |= mean_tokens_of_requests(None, usage, ok)
    name = "GenAI-Perf" if _is_genai_perf(config) else TOOL
    tool = f"{name} {version}" if version else fields.text_or("exported_by", name)
    gpus = _gpu_facts(fields)
    return [imported_result(tool, options, model, workload, metrics, unix_s, gpus)]


def _fields_of_one_run_and_note(fields: Fields) -> tuple[Fields, str]:
    """Return (fields of one run, note). The summary of several runs, in which each statistic has a
    mean over the runs, becomes a run with these means and with the requests of all runs."""
    metadata = fields.object("metadata")
    kind = metadata.text("aggregation_type")
    if kind is None:
        return fields, ""
    metrics = fields.object("metrics")
    if kind != "confidence" or not metrics:
        raise InputError(
            f"{fields.file} is AIPerf's summary of a {kind}, without the values of each run",
            next_step="import the profile_export_aiperf.json of each run",
        )
    runs = metadata.required_count("num_successful_runs")
    if runs > _MOST_RUNS:
        problem = f"the field must be at most {_MOST_RUNS:,}"
        raise metadata.field_error("num_successful_runs", problem)
    joined: dict[str, dict[str, Any]] = {}
    for tag in metrics.data:
        name, _, statistic = tag.rpartition("_")
        mean = metrics.object(tag)
        if not mean or statistic not in _DISTRIBUTION.values():
            continue
        value = mean.number("mean")
        is_sum = name in _OF_ALL_RUNS or name.startswith(_TOTAL)
        if value is not None and is_sum:
            value *= runs
        joined.setdefault(name, {"unit": mean.text("unit")})[statistic] = value
    requests = joined.get("request_count", {}).get("avg")
    for name in _LATENCIES.values():
        if name in joined:
            joined[name]["count"] = requests
    note = (
        f"a summary of {runs} runs: rates and latencies are means over the runs, also the"
        " percentiles; to compare groups of runs, import the file of each run"
    )
    whole = {**fields.data, **joined, "metadata": None}
    return Fields(fields.file, whole, fields.at, fields.line), note


def _attainment_fields_and_note(
    fields: Fields, config: Fields, requests: int
) -> tuple[dict[str, Any], str]:
    """Return (share of requests that kept the SLO and goodput, as fields of BenchSummary; note on
    the limits). ({}, "") if the file does not count such requests. AIPerf's limits have no
    percentage: a request must keep all of them, and one that failed keeps none."""
    good = _metric_total(fields, "good_request_count")
    limits = as_table(config.data.get("slos"))
    if good is None or not requests:
        return {}, ""
    if good > requests:
        raise fields.field_error("good_request_count", f"the file has only {requests:,} requests")
    found = {
        "slo_pct": 100 * good / requests,
        "goodput_request_s": _scalar_metric(fields, "goodput", "requests/sec"),
    }
    if not limits:
        return found, "the file has requests that kept an SLO, but not its limits"
    said = clean_text(" and ".join(f"{name} <= {limit}" for name, limit in limits.items()), 300)
    return found, f"requests that kept the SLO are those with {said} (AIPerf's names, in its units)"


def _why_per_token_time_is_absent(fields: Fields, usage: int | None) -> str:
    """Return why the time per token is absent, if AIPerf divided by token counts of its own
    tokenizer that differ from the server's usage. Otherwise return ""."""
    own = _tokens_by_own_tokenizer(fields)
    if not usage or not own:
        return ""
    if abs(own / usage - 1) <= _APART:
        return ""
    return (
        f"AIPerf divided by {own:,} tokens of its own tokenizer; the server's usage has {usage:,}"
    )


def _tokens_by_own_tokenizer(fields: Fields) -> int | None:
    """Return how many output tokens AIPerf's own tokenizer counted. AIPerf divides by them in all
    its rates and times per token."""
    return _metric_total(fields, "total_output_tokens") or _metric_total(fields, "total_osl")


def _token_counts_note(fields: Fields, usage_tokens: int | None, counted_by_server: bool) -> str:
    """Return the note that says whose token counts the result has; "" if AIPerf was set to use the
    server's. `usage_tokens` are the output tokens of the server's usage."""
    if counted_by_server:
        return ""
    if not usage_tokens:
        return _COUNTED_HERE
    odd = _metric_total(fields, "usage_discrepancy_count")
    said = "tokens and the output rate are the server's usage, not the counts of AIPerf's tokenizer"
    if not odd:
        return said
    return f"{said}; AIPerf reports that the two differ by over 10 % in {odd} requests"


def _distributions_and_partial_statistics(
    fields: Fields,
) -> tuple[dict[str, Distribution | None], dict[str, dict[str, float]]]:
    whole: dict[str, Distribution | None] = {}
    partial: dict[str, dict[str, float]] = {}
    for name, aiperf_name in _LATENCIES.items():
        metric = fields.object(aiperf_name)
        if not metric:
            continue
        factor = _MS.get(metric.text_or("unit"))
        if factor is None:
            raise metric.field_error("unit", "the field must be a unit of time")
        values = {part: metric.number(tag) for part, tag in _DISTRIBUTION.items()}
        parts = {part: value * factor for part, value in values.items() if value is not None}
        if parts.keys() >= REQUIRED_PARTS:
            whole[name] = Distribution(**parts, count=metric.count_or_0("count"))
        elif parts:
            partial[name] = parts
    return whole, partial


def _scalar_metric(fields: Fields, name: str, unit: str) -> float | None:
    """Return the value of a metric that has only one value; None if the file does not have the
    metric. Raises InputError if its unit is not `unit`."""
    metric = fields.object(name)
    if metric.text("unit") not in (unit, None):
        raise metric.field_error("unit", f"the field must be {unit!r}")
    return metric.number("avg")


def _metric_total(fields: Fields, name: str) -> int | None:
    """Return the total of a metric, or None if the file does not have the metric."""
    if not fields.object(name):
        return None
    return _metric_total_or_0(fields, name)


def _metric_total_or_0(fields: Fields, name: str) -> int:
    return round(fields.object(name).number_or_0("avg"))


def _run_duration_s(fields: Fields) -> float | None:
    metric = fields.object("benchmark_duration")
    factor = _MS.get(metric.text_or("unit", "sec"))
    if factor is None:
        raise metric.field_error("unit", "the field must be a unit of time")
    found = metric.number("avg")
    if not found:
        return None
    return found * factor / 1000


def _error_counts(fields: Fields) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in fields.objects("error_summary"):
        details = one.object("error_details")
        code, name = details.count("code"), details.text_or("type", "failed")
        if code:
            name = f"http {code}"
        found[name] = found.get(name, 0) + one.required_count("count")
    return found


def _reasons_for_invalid_result(fields: Fields) -> tuple[str, ...]:
    if fields.flag("was_cancelled"):
        return ("AIPerf was cancelled before its end",)
    if fields.flag("is_complete") is False:
        why = fields.text_or("incomplete_reason", "no reason given")
        if not _was_written_by_workbench(fields):
            why = f"AIPerf reports an incomplete run: {why}"
        return (why,)
    return ()


def _was_written_by_workbench(fields: Fields) -> bool:
    return fields.text_or("exported_by").startswith("Workbench")


def _rate_window_fields(fields: Fields, output_tok_s: float | None) -> dict[str, Any]:
    """Return `whole_run_tok_s`, and `window` if the file has it, as fields of BenchSummary.
    AIPerf's only output rate is that of the whole run; an export of Workbench has another field for
    it."""
    if not _was_written_by_workbench(fields):
        return {"whole_run_tok_s": output_tok_s}
    found: dict[str, Any] = {
        "whole_run_tok_s": _scalar_metric(fields, WHOLE_RUN_RATE, "tokens/sec")
    }
    if fields.text("window") in WINDOWS:
        found["window"] = fields.text("window")
    return found


def _client_command(fields: Fields) -> str:
    command = fields.object("run_info").text("cli_command")
    if not command:
        return ""
    return f"its command: {command}"


def _are_tokens_counted_by_server(config: Fields) -> bool:
    if _is_genai_perf(config):
        return False
    return bool(_endpoint_config(config).flag("use_server_token_count"))


def _is_genai_perf(config: Fields) -> bool:
    return isinstance(config.data.get("endpoint"), str) or "endpoint_type" in config.data


def _endpoint_config(config: Fields) -> Fields:
    if _is_genai_perf(config):
        return config
    return config.object("endpoint")


def _model_name(config: Fields) -> str | None:
    """Return the name of the first model in `models.items`, or in older schemas in
    `endpoint.model_names`; None if there is none."""
    for item in config.object("models").objects("items"):
        return item.text("name")
    names = _endpoint_config(config).data.get("model_names")
    if _is_genai_perf(config):
        names = config.data.get("model")
        if isinstance(names, str):
            return names
    return next(map(str, as_list(names)), None)


def _load_fields(config: Fields) -> dict[str, Any]:
    """Return the concurrency, rate, endpoint and streaming of the measured phase, as a dict of
    fields of BenchSpec."""
    found: dict[str, Any] = {}
    load = _load_of_measured_phase(config)
    if load.count("concurrency"):
        found["concurrency"] = load.count("concurrency")
    if rate := first_field(load.number, "rate", "request_rate"):
        found["rate"] = rate
        arrival = load.text("type")
        if arrival in ("poisson", "constant"):
            found["arrival"] = arrival
        elif arrival == "gamma":
            found |= {"arrival": "poisson", "burstiness": load.number("smoothness")}
    endpoint = _endpoint_config(config)
    kind = endpoint.data.get("endpoint_type" if _is_genai_perf(config) else "type")
    if kind in ("chat", "completions"):
        found["endpoint"] = kind
    if endpoint.flag("streaming") is not None:
        found["stream"] = endpoint.flag("streaming")
    return found


def _load_of_measured_phase(config: Fields) -> Fields:
    if isinstance(config.data.get("phases"), list):
        for phase in reversed(config.objects("phases")):
            if not phase.data.get("exclude_from_results") and phase.data.get("name") != "warmup":
                return phase
    if _is_genai_perf(config):
        return config
    return config.object("loadgen")


def _token_length_fields(fields: Fields) -> dict[str, int]:
    found = {}
    for name, aiperf_name in (
        ("input_tokens", "input_sequence_length"),
        ("max_tokens", "output_sequence_length"),
    ):
        if tokens := fields.object(aiperf_name).number("avg"):
            found[name] = round(tokens)
    return found


def _gpu_facts(fields: Fields) -> tuple[dict[str, Any], ...]:
    endpoints = fields.object("telemetry_data").object("endpoints")
    found: dict[str, dict[str, Any]] = {}
    for name in endpoints.data:
        gpus = endpoints.object(name).object("gpus")
        for key in gpus.data:
            if gpu := gpus.object(key):
                uuid = gpu.text_or("gpu_uuid", key)
                found[uuid] = {
                    "index": gpu.count("gpu_index"),
                    "name": gpu.text("gpu_name"),
                    "uuid": uuid,
                }
    return tuple(found.values())
