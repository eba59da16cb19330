"""AIPerf's profile_export_aiperf.json (schemas 1.0 to 1.4), and GenAI-Perf's, which has the same metrics and a flat
configuration: "endpoint" is a path there, "model" a list.

Read in aiperf 0.13: what it calls inter-token latency is (latency - TTFT) / (tokens - those of the first chunk), one
value per request, which is TPOT here; its inter-chunk latency is what is called ITL here. Tokens are counted by the
client's tokenizer unless it was told to use the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec, Distribution
from workbench.report.imports.checked_fields import Fields, Imported, Told, conditions, summary, the_model

TOOL = "AIPerf"
_MS = {"ms": 1.0, "milliseconds": 1.0, "sec": 1000.0, "s": 1000.0, "seconds": 1000.0, "us": 1e-3, "ns": 1e-6}
_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "itl_ms": "inter_chunk_latency",
    "tpot_ms": "inter_token_latency",
    "e2e_ms": "request_latency",
}
_DISTRIBUTION = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}
_ITL = "its inter-token latency stands under TPOT (one value per request), its inter-chunk latency under ITL"
_COUNTED_HERE = (
    "tokens, and the rates made of them, are counted by the client's tokenizer: 9 to 12 % more than the server's usage"
    " was seen, and far more with odd text"
)


def fits(document: Mapping[str, Any]) -> bool:
    metric = document.get("request_throughput") or document.get("request_latency")
    return "aiperf_version" in document or (isinstance(metric, dict) and "unit" in metric)


def read(fields: Fields, told: Told) -> list[Imported]:
    version = fields.text("aiperf_version")
    unix_s, zone = fields.when("start_time")
    whole, partial = _distributions(fields)
    config = fields.inner("input_config")
    by_server = _by_server(config)
    tokens = {
        "prompt_tokens": _total(fields, "total_usage_prompt_tokens", "total_isl" if by_server else None),
        "output_tokens": _total(fields, "total_usage_completion_tokens", "total_osl" if by_server else None),
        "cached_tokens": _total(fields, "total_usage_prompt_cache_read_tokens"),
    }
    ok = _total(fields, "request_count") or 0
    rate = _scalar(fields, "output_token_throughput", "tokens/sec")
    reasons = dict.fromkeys(partial, "the file holds only some of its percentiles")
    figures = summary(
        {**reasons, **dict.fromkeys(tokens, "the file has no counts by the server's usage")},
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
        notes=tuple(filter(None, (_ITL, "" if by_server else _COUNTED_HERE, zone, _client_command(fields)))),
        refused=_refused(fields),
        **tokens,
        **whole,
    )
    model = the_model(fields, told, _model_name(config))
    workload = {**_lengths(fields), **_load(config), "requests": ok}
    spec = BenchSpec(url="", model=model, profile="imported", **workload)
    name = "GenAI-Perf" if config is not None and _flat(config) else TOOL
    tool = f"{name} {version}" if version else name
    return [Imported(spec, conditions(tool, told, model, list(workload), gpus=_gpus(fields)), figures, unix_s)]


def _distributions(fields: Fields) -> tuple[dict[str, Distribution | None], dict[str, dict[str, float]]]:
    whole: dict[str, Distribution | None] = {}
    partial: dict[str, dict[str, float]] = {}
    for name, theirs in _LATENCIES.items():
        metric = fields.inner(theirs)
        if metric is None:
            continue
        factor = _MS.get(metric.text("unit") or "")
        if factor is None:
            raise metric.wrong("unit", "a unit of time")
        parts = {ours: v * factor for ours, tag in _DISTRIBUTION.items() if (v := metric.number(tag)) is not None}
        if len(parts) == len(_DISTRIBUTION):
            whole[name] = Distribution(**parts, count=metric.count("count") or 0)
        elif parts:
            partial[name] = parts
    return whole, partial


def _scalar(fields: Fields, name: str, unit: str) -> float | None:
    """The one value of a metric, which must be in `unit`."""
    metric = fields.inner(name)
    if metric is None:
        return None
    if metric.text("unit") not in (unit, None):
        raise metric.wrong("unit", repr(unit))
    return metric.number("avg")


def _total(fields: Fields, *names: str | None) -> int | None:
    """The first of these metrics that is there."""
    for name in names:
        metric = fields.inner(name) if name else None
        if metric is not None:
            return round(metric.number("avg") or 0)
    return None


def _duration_s(fields: Fields) -> float:
    metric = fields.inner("benchmark_duration")
    if metric is None:
        return 0.0
    return (metric.number("avg") or 0.0) * _MS.get(metric.text("unit") or "sec", 1000.0) / 1000


def _errors(fields: Fields) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in fields.inners("error_summary"):
        details = one.inner("error_details")
        code, kind = (details.count("code"), details.text("type")) if details else (None, None)
        name = f"http {code}" if code else kind or "failed"
        found[name] = found.get(name, 0) + one.needed("count")
    return found


def _refused(fields: Fields) -> tuple[str, ...]:
    if fields.flag("was_cancelled"):
        return ("AIPerf was cancelled before the end",)
    if fields.flag("is_complete") is False:
        return (f"AIPerf says that the run is not complete: {fields.text('incomplete_reason') or 'no reason given'}",)
    return ()


def _client_command(fields: Fields) -> str:
    run = fields.inner("run_info")
    command = run.text("cli_command") if run else None
    return f"its command: {command}" if command else ""


def _by_server(config: Fields | None) -> bool:
    endpoint = _endpoint(config)
    return bool(endpoint and endpoint.flag("use_server_token_count"))


def _flat(config: Fields) -> bool:
    return isinstance(config.data.get("endpoint"), str) or "endpoint_type" in config.data


def _endpoint(config: Fields | None) -> Fields | None:
    return None if config is None or _flat(config) else config.inner("endpoint")


def _model_name(config: Fields | None) -> str | None:
    """From `models.items`; `endpoint.model_names` in older schemas."""
    models = config.inner("models") if config else None
    for item in models.inners("items") if models else ():
        return item.text("name")
    endpoint = _endpoint(config)
    names = endpoint.data.get("model_names") if endpoint else None
    if config is not None and _flat(config):
        names = config.data.get("model")
        names = [names] if isinstance(names, str) else names
    return str(names[0]) if isinstance(names, list) and names else None


def _load(config: Fields | None) -> dict[str, Any]:
    """Concurrency and rate of the phase that was measured."""
    if config is None:
        return {}
    found: dict[str, Any] = {}
    phases = config.inners("phases") if isinstance(config.data.get("phases"), list) else []
    measured = [p for p in phases if not p.data.get("exclude_from_results") and p.data.get("name") != "warmup"]
    load = measured[-1] if measured else config if _flat(config) else config.inner("loadgen")
    if load is not None:
        if load.count("concurrency"):
            found["concurrency"] = load.count("concurrency")
        rate = load.number("rate") or load.number("request_rate")
        if rate:
            found["rate"] = rate
    endpoint = config if _flat(config) else config.inner("endpoint")
    if endpoint is not None:
        kind = endpoint.data.get("endpoint_type" if _flat(config) else "type")
        if kind in ("chat", "completions"):
            found["endpoint"] = kind
        if endpoint.flag("streaming") is not None:
            found["stream"] = endpoint.flag("streaming")
    return found


def _lengths(fields: Fields) -> dict[str, int]:
    found = {}
    for name, theirs in (("input_tokens", "input_sequence_length"), ("max_tokens", "output_sequence_length")):
        metric = fields.inner(theirs)
        if metric is not None and metric.number("avg"):
            found[name] = round(metric.number("avg") or 0)
    return found


def _gpus(fields: Fields) -> tuple[dict[str, Any], ...]:
    telemetry = fields.inner("telemetry_data")
    endpoints = telemetry.inner("endpoints") if telemetry else None
    found: dict[str, dict[str, Any]] = {}
    for name in endpoints.data if endpoints else ():
        endpoint = endpoints.inner(name) if endpoints else None
        gpus = endpoint.inner("gpus") if endpoint else None
        for key in gpus.data if gpus else ():
            gpu = gpus.inner(key) if gpus else None
            if gpu is not None:
                uuid = gpu.text("gpu_uuid") or key
                found[uuid] = {"index": gpu.count("gpu_index"), "name": gpu.text("gpu_name"), "uuid": uuid}
    return tuple(found.values())
