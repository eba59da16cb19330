"""GuideLLM's result file benchmarks.json, with one result for each load that it ran.

The source code of guidellm 0.5 and 0.8 computes `inter_token_latency_ms` for each request as (last -
first token) / (tokens - 1), which Workbench calls TPOT; its percentiles count a request once for
each of its tokens. Its `time_per_output_token_ms` includes the time to the first token, so it is no
metric of Workbench. It keeps no gaps between chunks. Rates cover the time between its warm-up and
its cool-down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec, Distribution
from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    conditions,
    model_of,
    summary,
)

TOOL = "GuideLLM"
_PARTS = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
_LATENCIES = {  # metric of Workbench: metric of GuideLLM, milliseconds in its unit
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2e_ms": ("request_latency", 1000.0),
}
_TPOT = (
    "GuideLLM's inter-token latency is listed as TPOT; its percentiles count a request once for each"
    " of its tokens"
)
_NO_ITL = "GuideLLM keeps no gaps between chunks"


def recognizes(document: Mapping[str, Any]) -> bool:
    metadata, runs = document.get("metadata"), document.get("benchmarks")
    known = isinstance(metadata, dict) and "guidellm_version" in metadata
    return known and isinstance(runs, list)


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    metadata = fields.object("metadata")
    version = metadata.text("guidellm_version") if metadata else None
    tool = f"{TOOL} {version}" if version else TOOL
    return [_result(fields, run, tool, options) for run in fields.objects("benchmarks")]


def _result(fields: Fields, run: Fields, tool: str, options: ImportOptions) -> Imported:
    metrics = run.object("metrics")
    if metrics is None:
        raise run.wrong("metrics", "the field must be an object")
    totals = metrics.object("request_totals")
    ok = (totals and totals.count("successful")) or 0
    failed = (totals and totals.count("errored")) or 0
    cut = (totals and totals.count("incomplete")) or 0
    cut_note = (
        f"{cut} requests were incomplete when the run ended, and are not counted" if cut else ""
    )
    made = summary(
        {"itl_ms": _NO_ITL},
        requests_ok=ok,
        requests_failed=failed,
        errors={"failed": failed} if failed else {},
        duration_s=run.number("duration") or 0.0,
        prompt_tokens=_total(metrics, "prompt_token_count"),
        output_tokens=_total(metrics, "output_token_count"),
        output_tok_s=_mean(metrics, "output_tokens_per_second"),
        request_s=_mean(metrics, "requests_per_second"),
        notes=tuple(filter(None, (_TPOT, cut_note))),
        **{name: _distribution(metrics, *how) for name, how in _LATENCIES.items()},
    )
    config = run.object("config")
    workload = _load(config, metrics, ok) | {"requests": ok + failed + cut}
    model = model_of(fields, options, _model_name(fields, config))
    spec = BenchSpec(url="", model=model, profile="imported", **workload)
    unix_s = run.number("start_time") or fields.file.stat().st_mtime
    return Imported(spec, conditions(tool, options, model, list(workload)), made, unix_s)


def _successful(metrics: Fields, name: str) -> Fields | None:
    """Return the statistics of a metric over the successful requests. None if the metric is absent
    or no request has a value of it, in which case GuideLLM writes zeros."""
    metric = metrics.object(name)
    found = metric.object("successful") if metric else None
    return found if found is not None and found.number("count") else None


def _mean(metrics: Fields, name: str) -> float | None:
    found = _successful(metrics, name)
    return found.number("mean") or None if found else None


def _total(metrics: Fields, name: str) -> int | None:
    found = _successful(metrics, name)
    total = found.number("total_sum") if found else None
    return None if total is None else round(total)


def _distribution(metrics: Fields, name: str, unit_ms: float) -> Distribution | None:
    found = _successful(metrics, name)
    percentiles = found.object("percentiles") if found else None
    if found is None or percentiles is None or not found.number("max"):
        return None
    values = {part: percentiles.number(tag) for part, tag in _PARTS.items()}
    values |= {part: found.number(part) for part in ("mean", "min", "max")}
    if any(value is None for value in values.values()):
        return None
    known = {part: (value or 0.0) * unit_ms for part, value in values.items()}
    return Distribution(**known, count=round(found.number("count") or 0))


def _load(config: Fields | None, metrics: Fields, ok: int) -> dict[str, Any]:
    """Return the streams or the rate, and the mean lengths, as a dict of fields of BenchSpec."""
    found: dict[str, Any] = {}
    strategy = config.object("strategy") if config else None
    if strategy is not None:
        kind = strategy.text("type_") or strategy.text("kind") or ""  # "kind" since 0.7
        streams = strategy.count("streams") or strategy.count("max_concurrency")
        if kind == "synchronous":
            streams = 1
        if streams:
            found["concurrency"] = streams
        rate = strategy.number("rate")
        if rate and kind in ("constant", "poisson"):
            found |= {"rate": rate, "arrival": kind}
    for name, total in (
        ("input_tokens", "prompt_token_count"),
        ("max_tokens", "output_token_count"),
    ):
        tokens = _total(metrics, total)
        if tokens and ok:
            found[name] = round(tokens / ok)
    return found


def _model_name(fields: Fields, config: Fields | None) -> str | None:
    """Return the model's name from the first place that has one; versions of GuideLLM differ."""
    arguments = fields.object("args") or fields.object("config")
    spec = arguments.object("spec") if arguments else None
    for holder in (config, spec, arguments):
        backend = holder.data.get("backend") if holder else None
        if isinstance(backend, dict) and isinstance(backend.get("model"), str):
            return str(backend["model"])
    model = arguments.data.get("model") if arguments else None
    return model if isinstance(model, str) else None
