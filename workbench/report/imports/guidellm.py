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
_PERCENTILES = ("p50", "p90", "p95", "p99")
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
    counts = metrics.object("request_totals")
    ok, failed, cut = (
        (counts.count(name) or 0) if counts is not None else 0
        for name in ("successful", "errored", "incomplete")
    )
    notes = [_TPOT]
    if cut:
        notes.append(f"{cut} requests were incomplete when the run ended, and are not counted")
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
        notes=tuple(notes),
        **{name: _distribution(metrics, *how) for name, how in _LATENCIES.items()},
    )
    config = run.object("config")
    workload = {
        **_streams(config.object("strategy") if config is not None else None),
        **_mean_lengths(metrics, ok),
        "requests": ok + failed + cut,
    }
    model = model_of(fields, options, _model_name(fields, config))
    spec = BenchSpec(url="", model=model, profile="imported", **workload)
    unix_s = run.number("start_time") or fields.file.stat().st_mtime
    return Imported(spec, conditions(tool, options, model, list(workload)), made, unix_s)


def _successful(metrics: Fields, name: str) -> Fields | None:
    """Return the statistics of a metric over the successful requests. None if the metric is absent
    or no request has a value of it, in which case GuideLLM writes zeros."""
    metric = metrics.object(name)
    if metric is None:
        return None
    found = metric.object("successful")
    return found if found is not None and found.number("count") else None


def _mean(metrics: Fields, name: str) -> float | None:
    found = _successful(metrics, name)
    return None if found is None else found.number("mean") or None


def _total(metrics: Fields, name: str) -> int | None:
    found = _successful(metrics, name)
    total = None if found is None else found.number("total_sum")
    return None if total is None else round(total)


def _distribution(metrics: Fields, name: str, unit_ms: float) -> Distribution | None:
    found = _successful(metrics, name)
    if found is None or not found.number("max"):
        return None
    percentiles = found.object("percentiles")
    if percentiles is None:
        return None
    values = {part: percentiles.number(part) for part in _PERCENTILES}
    values |= {part: found.number(part) for part in ("mean", "min", "max")}
    known = {part: value * unit_ms for part, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    return Distribution(**known, count=round(found.number("count") or 0))


def _streams(strategy: Fields | None) -> dict[str, Any]:
    """Return the streams or the rate of a load as fields of BenchSpec."""
    if strategy is None:
        return {}
    found: dict[str, Any] = {}
    kind = strategy.text("type_") or strategy.text("kind") or ""  # "kind" since 0.7
    streams = strategy.count("streams") or strategy.count("max_concurrency")
    if kind == "synchronous":
        streams = 1
    if streams:
        found["concurrency"] = streams
    rate = strategy.number("rate")
    if rate and kind in ("constant", "poisson"):
        found |= {"rate": rate, "arrival": kind}
    return found


def _mean_lengths(metrics: Fields, ok: int) -> dict[str, Any]:
    """Return the mean lengths of the `ok` successful requests as fields of BenchSpec."""
    totals = {
        "input_tokens": _total(metrics, "prompt_token_count"),
        "max_tokens": _total(metrics, "output_token_count"),
    }
    return {name: round(tokens / ok) for name, tokens in totals.items() if tokens and ok}


def _model_name(fields: Fields, config: Fields | None) -> str | None:
    """Return the model's name from the first place that has one; versions of GuideLLM differ."""
    holders = [config]
    arguments = fields.object("args") or fields.object("config")
    if arguments is not None:
        holders += [arguments.object("spec"), arguments]
    for holder in holders:
        backend = holder.data.get("backend") if holder is not None else None
        if isinstance(backend, dict) and isinstance(backend.get("model"), str):
            return str(backend["model"])
    model = arguments.data.get("model") if arguments is not None else None
    return model if isinstance(model, str) else None
