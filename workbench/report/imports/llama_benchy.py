"""llama-benchy's JSON (0.4): one result per combination of prompt, depth and concurrency.

Read in its results.py: `tg_throughput` is of the decode window only (the time to the first token is left out), so it is
not the throughput that is shown here; `e2e_ttft` runs to the first token, `ttfr` to the first chunk of any kind.
Percentiles are computed here, of the values that the file holds. Failed requests leave no trace in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec, Distribution
from workbench.report.imports.checked_fields import Fields, Imported, Told, conditions, distribution, summary, the_model

TOOL = "llama-benchy"
_ABSENT = {
    "output_tok_s": "llama-benchy gives the decode window's tok/s only, without the time to the first token",
    "itl_ms": "llama-benchy keeps no gaps between chunks",
    "tpot_ms": "llama-benchy gives a rate per request instead (per stream)",
    "requests_failed": "llama-benchy leaves failed requests out of its file",
    "duration_s": "llama-benchy does not give it",
    "per_stream_tok_s": "no decode window could be measured",
    "ttft_ms": "no request had a first token",
}
_RATES = {
    "tg_throughput": "decode window, all streams",
    "peak_throughput": "highest second, all streams",
    "pp_throughput": "prompt processing",
}


def fits(document: Mapping[str, Any]) -> bool:
    return {"benchmarks", "latency_mode"} <= document.keys()


def read(fields: Fields, told: Told) -> list[Imported]:
    version = fields.text("version")
    tool = f"{TOOL} {version}" if version else TOOL
    unix_s, zone = fields.when("timestamp")
    model = the_model(fields, told, fields.text("model"))
    cached = fields.flag("prefix_caching_enabled")
    runs = fields.inners("benchmarks")
    if not runs:
        raise fields.wrong("benchmarks", "at least one benchmark")
    return [_one(run, tool, told, model, unix_s, zone, cached) for run in runs]


def _one(run: Fields, tool: str, told: Told, model: str, unix_s: float, zone: str, cached: bool | None) -> Imported:
    concurrency, depth = run.needed("concurrency"), run.count("context_size") or 0
    workload: dict[str, Any] = {
        "concurrency": concurrency,
        "input_tokens": run.needed("prompt_size") + depth,
        "max_tokens": run.needed("response_size"),
        "endpoint": "chat",
    }
    if cached is not None:
        workload["shared_prefix"] = cached
    ttft, ttfr = _values(run, "e2e_ttft"), _values(run, "ttfr")
    per_stream = _values(run, "tg_req_throughput")
    notes = [zone] if zone else []
    if run.flag("is_context_prefill_phase"):
        notes.append(f"the phase that fills a context of {depth} tokens, not the one that is asked for an answer")
    elif depth:
        notes.append(f"{depth} of the prompt's tokens are context before it")
    for name, title in _RATES.items():
        rate = _values(run, name)
        if rate:
            notes.append(f"{title}: {rate.mean:,.1f} tok/s (mean of {rate.count})")
    if ttfr:
        notes.append(f"first chunk of any kind, role-only ones counted: p50 {ttfr.p50:,.1f} ms")
    figures = summary(
        _ABSENT,
        requests_ok=ttft.count if ttft else 0,
        ttft_ms=ttft,
        per_stream_tok_s=per_stream.mean if per_stream else None,
        notes=tuple(notes),
    )
    spec = BenchSpec(url="", model=model, profile="imported", requests=figures.requests_ok, **workload)
    made = conditions(tool, told, model, [*workload, "requests"])
    return Imported(spec, made, figures, unix_s)


def _values(run: Fields, name: str) -> Distribution | None:
    """Of the raw values of a metric."""
    metric = run.inner(name)
    return distribution(metric.numbers("values") or []) if metric else None
