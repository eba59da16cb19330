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

from workbench.model.bench import BenchSpec, Distribution
from workbench.model.errors import InputError
from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    conditions,
    model_of,
    summary,
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
_DISTRIBUTION = {
    "mean": "avg",
    "p50": "p50",
    "p90": "p90",
    "p99": "p99",
    "min": "min",
    "max": "max",
}
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
    metric = document.get("request_throughput") or document.get("request_latency")
    return "aiperf_version" in document or (isinstance(metric, dict) and "unit" in metric)


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    metadata = fields.object("metadata")
    if metadata is not None and "aggregation_type" in metadata.data:
        raise InputError(
            f"{fields.file} is AIPerf's summary of several runs, without the values of each run",
            next_step="import the profile_export_aiperf.json of each run, and compare the groups: "
            "Workbench computes the interval from the single runs",
        )
    version = fields.text("aiperf_version")
    unix_s, zone_note = fields.unix_time("start_time")
    whole, partial = _distributions(fields)
    config = fields.object("input_config")
    by_server = _by_server(config)
    tokens = {
        "prompt_tokens": _total(
            fields, "total_usage_prompt_tokens", "total_isl" if by_server else None
        ),
        "output_tokens": _total(
            fields, "total_usage_completion_tokens", "total_osl" if by_server else None
        ),
        "cached_tokens": _total(fields, "total_usage_prompt_cache_read_tokens"),
    }
    ok = _total(fields, "request_count") or 0
    rate = _scalar(fields, "output_token_throughput", "tokens/sec")
    usage = _total(fields, "total_usage_completion_tokens")
    by_tokenizer = _by_tokenizer(fields, usage)
    own = _own_tokens(fields)
    if usage and own and rate:
        rate *= usage / own
    if by_tokenizer:
        whole.pop("tpot_ms", None)
        partial.pop("tpot_ms", None)
    counts = _counts_note(fields, usage, by_server)
    reasons = dict.fromkeys(partial, "the file has only some of its percentiles")
    metrics = summary(
        {
            **reasons,
            **(dict.fromkeys(_OF_TOKENS, by_tokenizer) if by_tokenizer else {}),
            **dict.fromkeys(tokens, "the file has no token counts of the server"),
        },
        requests_ok=ok,
        requests_failed=_total(fields, "error_request_count") or 0,
        errors=_errors(fields),
        duration_s=_duration_s(fields),
        output_tok_s=rate,
        whole_run_tok_s=rate,
        request_s=_scalar(fields, "request_throughput", "requests/sec"),
        power_w=_scalar(fields, "nvidia_total_gpu_power", "W"),
        energy_j=_scalar(fields, "nvidia_total_gpu_energy", "J"),
        tok_per_joule=_scalar(fields, "nvidia_output_tokens_per_joule", "tokens/J"),
        energy_per_request_j=_scalar(fields, "nvidia_energy_per_request", "joules/request"),
        partial=partial,
        notes=tuple(filter(None, (_ITL, counts, zone_note, _client_command(fields)))),
        refused=_refused(fields),
        **tokens,
        **whole,
    )
    model = model_of(fields, options, _model_name(config))
    workload = {**_lengths(fields), **_load(config), "requests": ok}
    if usage and ok:
        workload["max_tokens"] = round(usage / ok)
    spec = BenchSpec(url="", model=model, profile="imported", **workload)
    name = "GenAI-Perf" if config is not None and _is_genai_perf(config) else TOOL
    tool = f"{name} {version}" if version else name
    return [
        Imported(
            spec,
            conditions(tool, options, model, list(workload), gpus=_gpus(fields)),
            metrics,
            unix_s,
        )
    ]


def _by_tokenizer(fields: Fields, usage: int | None) -> str:
    """Return why the time per token is absent, if AIPerf divided by token counts of its own
    tokenizer that differ from the server's usage. Otherwise return ""."""
    own = _own_tokens(fields)
    if not usage or not own or abs(own / usage - 1) <= _APART:
        return ""
    return (
        f"AIPerf divided by {own:,} tokens of its own tokenizer; the server's usage has {usage:,}"
    )


def _own_tokens(fields: Fields) -> int | None:
    """Return how many output tokens AIPerf's own tokenizer counted. AIPerf divides by them in all
    its rates and times per token."""
    return _total(fields, "total_output_tokens") or _total(fields, "total_osl")


def _counts_note(fields: Fields, usage: int | None, by_server: bool) -> str:
    if by_server:
        return ""
    if not usage:
        return _COUNTED_HERE
    odd = _total(fields, "usage_discrepancy_count")
    said = "tokens and the output rate are the server's usage, not the counts of AIPerf's tokenizer"
    return (
        f"{said}; AIPerf reports that the two differ by over 10 % in {odd} requests"
        if odd
        else said
    )


def _distributions(
    fields: Fields,
) -> tuple[dict[str, Distribution | None], dict[str, dict[str, float]]]:
    whole: dict[str, Distribution | None] = {}
    partial: dict[str, dict[str, float]] = {}
    for name, aiperf_name in _LATENCIES.items():
        metric = fields.object(aiperf_name)
        if metric is None:
            continue
        factor = _MS.get(metric.text("unit") or "")
        if factor is None:
            raise metric.wrong("unit", "the field must be a unit of time")
        values = {part: metric.number(tag) for part, tag in _DISTRIBUTION.items()}
        parts = {part: value * factor for part, value in values.items() if value is not None}
        if len(parts) == len(_DISTRIBUTION):
            whole[name] = Distribution(**parts, count=metric.count("count") or 0)
        elif parts:
            partial[name] = parts
    return whole, partial


def _scalar(fields: Fields, name: str, unit: str) -> float | None:
    """Return the value of a metric that has only one value, or None if the file does not have the
    metric. Raises InputError if its unit is not `unit`.
    """
    metric = fields.object(name)
    if metric is None:
        return None
    if metric.text("unit") not in (unit, None):
        raise metric.wrong("unit", f"the field must be {unit!r}")
    return metric.number("avg")


def _total(fields: Fields, *names: str | None) -> int | None:
    """Return the total of the first metric in `names` that the file has, or None if the file has
    none of these metrics."""
    for name in names:
        metric = fields.object(name) if name else None
        if metric is not None:
            return round(metric.number("avg") or 0)
    return None


def _duration_s(fields: Fields) -> float:
    metric = fields.object("benchmark_duration")
    if metric is None:
        return 0.0
    return (metric.number("avg") or 0.0) * _MS.get(metric.text("unit") or "sec", 1000.0) / 1000


def _errors(fields: Fields) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in fields.objects("error_summary"):
        details = one.object("error_details")
        code, kind = (details.count("code"), details.text("type")) if details else (None, None)
        name = f"http {code}" if code else kind or "failed"
        found[name] = found.get(name, 0) + one.required_count("count")
    return found


def _refused(fields: Fields) -> tuple[str, ...]:
    if fields.flag("was_cancelled"):
        return ("AIPerf was cancelled before its end",)
    if fields.flag("is_complete") is False:
        return (
            "AIPerf reports an incomplete run: "
            f"{fields.text('incomplete_reason') or 'no reason given'}",
        )
    return ()


def _client_command(fields: Fields) -> str:
    run = fields.object("run_info")
    command = run.text("cli_command") if run else None
    return f"its command: {command}" if command else ""


def _by_server(config: Fields | None) -> bool:
    endpoint = _endpoint(config)
    return bool(endpoint and endpoint.flag("use_server_token_count"))


def _is_genai_perf(config: Fields) -> bool:
    return isinstance(config.data.get("endpoint"), str) or "endpoint_type" in config.data


def _endpoint(config: Fields | None) -> Fields | None:
    return None if config is None or _is_genai_perf(config) else config.object("endpoint")


def _model_name(config: Fields | None) -> str | None:
    """Return the name of the first model in `models.items`, or in older schemas in
    `endpoint.model_names`. None if there is none.
    """
    models = config.object("models") if config else None
    for item in models.objects("items") if models else ():
        return item.text("name")
    endpoint = _endpoint(config)
    names = endpoint.data.get("model_names") if endpoint else None
    if config is not None and _is_genai_perf(config):
        names = config.data.get("model")
        names = [names] if isinstance(names, str) else names
    return str(names[0]) if isinstance(names, list) and names else None


def _load(config: Fields | None) -> dict[str, Any]:
    """Return the concurrency, rate, endpoint and streaming of the measured phase, as a dict of
    fields of BenchSpec."""
    if config is None:
        return {}
    found: dict[str, Any] = {}
    phases = config.objects("phases") if isinstance(config.data.get("phases"), list) else []
    measured = [
        p
        for p in phases
        if not p.data.get("exclude_from_results") and p.data.get("name") != "warmup"
    ]
    load: Fields | None
    if measured:
        load = measured[-1]
    elif _is_genai_perf(config):
        load = config
    else:
        load = config.object("loadgen")
    if load is not None:
        if load.count("concurrency"):
            found["concurrency"] = load.count("concurrency")
        rate = load.number("rate") or load.number("request_rate")
        if rate:
            found["rate"] = rate
    endpoint = config if _is_genai_perf(config) else config.object("endpoint")
    if endpoint is not None:
        kind = endpoint.data.get("endpoint_type" if _is_genai_perf(config) else "type")
        if kind in ("chat", "completions"):
            found["endpoint"] = kind
        if endpoint.flag("streaming") is not None:
            found["stream"] = endpoint.flag("streaming")
    return found


def _lengths(fields: Fields) -> dict[str, int]:
    found = {}
    for name, aiperf_name in (
        ("input_tokens", "input_sequence_length"),
        ("max_tokens", "output_sequence_length"),
    ):
        metric = fields.object(aiperf_name)
        if metric is not None and metric.number("avg"):
            found[name] = round(metric.number("avg") or 0)
    return found


def _gpus(fields: Fields) -> tuple[dict[str, Any], ...]:
    telemetry = fields.object("telemetry_data")
    endpoints = telemetry.object("endpoints") if telemetry else None
    found: dict[str, dict[str, Any]] = {}
    for name in endpoints.data if endpoints else ():
        endpoint = endpoints.object(name) if endpoints else None
        gpus = endpoint.object("gpus") if endpoint else None
        for key in gpus.data if gpus else ():
            gpu = gpus.object(key) if gpus else None
            if gpu is not None:
                uuid = gpu.text("gpu_uuid") or key
                found[uuid] = {
                    "index": gpu.count("gpu_index"),
                    "name": gpu.text("gpu_name"),
                    "uuid": uuid,
                }
    return tuple(found.values())
