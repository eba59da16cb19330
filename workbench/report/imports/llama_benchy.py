"""llama-benchy's JSON result file (version 0.4). It has one result for each combination of prompt,
depth and concurrency.

llama-benchy computes `tg_throughput` over the decode window only, without the time to the first
token, so the value is not Workbench's throughput. `e2e_ttft` ends at the first token, `ttfr` at the
first chunk of any kind. The file has the single values, and percentiles are computed here. The file
does not mention failed requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import Distribution
from workbench.model.distribution import distribution_of
from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    imported_result,
    imported_summary,
    served_model_name,
)

TOOL = "llama-benchy"
_WHY_ABSENT = {
    "output_tok_s": "llama-benchy reports tok/s of the decode window only, without the time to the "
    "first token",
    "itl_ms": "llama-benchy does not record the gaps between chunks",
    "tpot_ms": "llama-benchy reports a rate per request instead (per stream)",
    "requests_failed": "llama-benchy omits failed requests from its file",
    "duration_s": "llama-benchy does not report it",
    "per_stream_tok_s": "no decode window could be measured",
    "ttft_ms": "no request had a first token",
}
_RATES = {
    "tg_throughput": "decode window, all streams",
    "peak_throughput": "highest second, all streams",
    "pp_throughput": "prompt processing",
}


def recognizes(document: Mapping[str, Any]) -> bool:
    return {"benchmarks", "latency_mode"} <= document.keys()


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    tool = f"{TOOL} {fields.text_or('version')}".rstrip()
    unix_s, zone = fields.unix_seconds_and_note("timestamp")
    model = served_model_name(fields, options, fields.text("model"))
    cached = fields.flag("prefix_caching_enabled")
    runs = fields.objects("benchmarks")
    if not runs:
        raise fields.field_error("benchmarks", "the field must contain at least one benchmark")
    return [_imported_run(run, tool, options, model, unix_s, zone, cached) for run in runs]


def _imported_run(
    run: Fields,
    tool: str,
    options: ImportOptions,
    model: str,
    unix_s: float,
    time_zone_note: str,
    prefix_cached: bool | None,
) -> Imported:
    concurrency, depth = run.required_count("concurrency"), run.count_or_0("context_size")
    workload: dict[str, Any] = {
        "concurrency": concurrency,
        "input_tokens": run.required_count("prompt_size") + depth,
        "max_tokens": run.required_count("response_size"),
        "endpoint": "chat",
    }
    if prefix_cached is not None:
        workload["shared_prefix"] = prefix_cached
    ttft, ttfr = _distribution_of_values(run, "e2e_ttft"), _distribution_of_values(run, "ttfr")
    per_stream = _distribution_of_values(run, "tg_req_throughput")
    notes = [time_zone_note] if time_zone_note else []
    if run.flag("is_context_prefill_phase"):
        notes.append(
            f"the phase that fills a context of {depth} tokens, not the phase that "
            "generates the answer"
        )
    elif depth:
        notes.append(f"the prompt includes {depth} tokens of context")
    for name, title in _RATES.items():
        rate = _distribution_of_values(run, name)
        if rate:
            notes.append(f"{title}: {rate.mean:,.1f} tok/s (mean of {rate.count})")
    if ttfr:
        notes.append(f"first chunk of any kind, including role-only chunks: p50 {ttfr.p50:,.1f} ms")
    answered = ttft.count if ttft else 0
    metrics = imported_summary(
        _WHY_ABSENT,
        requests_ok=answered,
        ttft_ms=ttft,
        per_stream_tok_s=per_stream and per_stream.mean,
        notes=tuple(notes),
    )
    workload["requests"] = metrics.requests_ok
    return imported_result(tool, options, model, workload, metrics, unix_s)


def _distribution_of_values(run: Fields, name: str) -> Distribution | None:
    """Return the distribution of the metric `name`, computed from the list of its values in the
    file. None if the file does not have them."""
    return distribution_of(run.object(name).numbers("values"))
