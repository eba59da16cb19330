"""GuideLLM's result file benchmarks.json, with one result for each load that it ran. The files of
versions before 0.4 have no metadata, and the load and the model elsewhere.

The source code of guidellm 0.5 and 0.8 computes `inter_token_latency_ms` for each request as (last
- first token) / (tokens - 1), which Workbench calls TPOT; its percentiles count a request once for
each of its tokens. Its `time_per_output_token_ms` includes the time to the first token, so it is no
metric of Workbench. It keeps no gaps between chunks. Rates cover the time between its warm-up and
its cool-down. Its `slo_attainment` is a share of the successful and failed requests whose limited
latencies were measured, and its goodput the rate of those that kept all limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import Distribution
from workbench.model.distribution import PERCENTILES, REQUIRED_PARTS
from workbench.model.untrusted_text import as_table
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

TOOL = "GuideLLM"
_LATENCIES = {  # metric of Workbench: metric of GuideLLM, milliseconds in its unit
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2e_ms": ("request_latency", 1000.0),
}
_TPOT = (
    "GuideLLM's inter-token latency is listed as TPOT; its percentiles count a request once for each"
    " of its tokens"
)
_OLDER_TYPE = "generative_benchmark"  # of a load in a file without metadata
_LIMITS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "end to end"}
_NO_ITL = "GuideLLM keeps no gaps between chunks"


def recognizes(document: Mapping[str, Any]) -> bool:
    runs = document.get("benchmarks")
    if not isinstance(runs, list):
        return False
    if "guidellm_version" in as_table(document.get("metadata")):
        return True
    first = as_table(next(iter(runs), None))
    return bool(first.get("type_") == _OLDER_TYPE)


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    version = fields.object("metadata").text_or("guidellm_version")
    tool = f"{TOOL} {version}".rstrip()
    if version.startswith("Workbench"):  # an export in GuideLLM's form
        tool = version
    return [_imported_run(fields, run, tool, options) for run in fields.objects("benchmarks")]


def _imported_run(fields: Fields, run: Fields, tool: str, options: ImportOptions) -> Imported:
    metrics = run.object("metrics")
    if not metrics:
        raise run.field_error("metrics", "the field must be an object")
    counts = metrics.object("request_totals") or run.object("request_totals")
    names = ("successful", "errored", "incomplete")
    ok, failed, cut = map(counts.count_or_0, names)
    notes = [_TPOT]
    if cut:
        notes.append(f"{cut} requests were incomplete when the run ended, and are not counted")
    config = first_field(run.object, "config", "args")
    prompt_tokens = _total_of_successful_requests(metrics, "prompt_token_count")
    output_tokens = _total_of_successful_requests(metrics, "output_token_count")
    attained = _attainment_fields(metrics, config, notes)
    made = imported_summary(
        {"itl_ms": _NO_ITL},
        requests_ok=ok,
        requests_failed=failed,
        duration_s=run.run_duration_s("duration", ok),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tok_s=_mean_of_successful_requests(metrics, "output_tokens_per_second"),
        request_s=_mean_of_successful_requests(metrics, "requests_per_second"),
        notes=tuple(notes),
        **_fields_only_workbench_writes(config),
        **attained,
        **{name: _latency_distribution(metrics, *how) for name, how in _LATENCIES.items()},
    )
    workload = {
        **_load_fields(config.object("strategy")),
        **mean_tokens_of_requests(prompt_tokens, output_tokens, ok),
        "requests": ok + failed + cut,
    }
    model = served_model_name(fields, options, _model_name(fields, run))
    unix_s = run.unix_seconds_or_file_time("start_time")
    return imported_result(tool, options, model, workload, made, unix_s)


def _statistics_of_successful_requests(metrics: Fields, name: str) -> Fields:
    """Return the statistics of a metric over the successful requests. They are absent if no request
    has a value of the metric, in which case GuideLLM writes zeros."""
    found = metrics.object(name).object("successful")
    if not found.number("count"):
        return Fields(found.file, None)
    return found


def _mean_of_successful_requests(metrics: Fields, name: str) -> float | None:
    return _statistics_of_successful_requests(metrics, name).positive_number("mean")


def _total_of_successful_requests(metrics: Fields, name: str) -> int | None:
    total = _statistics_of_successful_requests(metrics, name).number("total_sum")
    if total is None:
        return None
    return round(total)


def _latency_distribution(metrics: Fields, name: str, unit_ms: float) -> Distribution | None:
    found = _statistics_of_successful_requests(metrics, name)
    percentiles = found.object("percentiles")
    if not found.number("max") or not percentiles:
        return None
    values = {part: percentiles.number(part) for part in PERCENTILES}
    values |= {part: found.number(part) for part in ("mean", "min", "max")}
    known = {part: value * unit_ms for part, value in values.items() if value is not None}
    if not known.keys() >= REQUIRED_PARTS:
        return None
    return Distribution(**known, count=round(found.number_or_0("count")))


def _load_fields(strategy: Fields) -> dict[str, Any]:
    """Return the streams or the rate of a load as fields of BenchSpec."""
    found: dict[str, Any] = {}
    kind = first_field(strategy.text, "type_", "kind")  # "kind" since 0.7
    streams = first_field(strategy.count, "streams", "max_concurrency")
    if kind == "synchronous":
        streams = 1
    if streams:
        found["concurrency"] = streams
    rate = strategy.number("rate")
    if rate and kind in ("constant", "poisson"):
        found |= {"rate": rate, "arrival": kind}
    return found


def _attainment_fields(metrics: Fields, config: Fields, notes: list[str]) -> dict[str, Any]:
    """Return the share of requests that kept the SLO and the goodput as fields of BenchSummary; {}
    if the run had no limits. A note with the limits is added to `notes`, because GuideLLM's limits
    have no percentage of their own."""
    share = metrics.number("slo_attainment")
    slo = config.object("slo")
    if share is None or not slo:
        return {}
    if share > 1:
        raise metrics.field_error("slo_attainment", "the field must be a share from 0 to 1")
    limits = []
    for name, title in _LIMITS.items():
        if most_ms := slo.number(name):
            limits.append(f"{title} <= {most_ms:g} ms")
    notes.append(f"requests that kept the SLO are those with {' and '.join(limits)}")
    goodput = _mean_of_successful_requests(metrics, "request_goodput") if share else 0.0
    return {"slo_pct": round(100 * share, 4), "goodput_request_s": goodput}


def _fields_only_workbench_writes(config: Fields) -> dict[str, Any]:
    """Return what only Workbench writes in GuideLLM's form: why the result is not valid, and the
    part of the run that the rates are of."""
    environment = as_table(config.data.get("environment"))
    reasons, window = environment.get("not_valid"), environment.get("window")
    found: dict[str, Any] = {}
    if window in WINDOWS:
        found["window"] = window
    if isinstance(reasons, list):
        found["refused"] = tuple(map(str, reasons))
    return found


def _model_name(fields: Fields, run: Fields) -> str | None:
    """Return the name of the model from the first place that has one, because versions of GuideLLM
    differ; None if none has."""
    arguments = first_field(fields.object, "args", "config")
    for holder in (run.object("config"), arguments.object("spec"), arguments):
        model = as_table(holder.data.get("backend")).get("model")
        if isinstance(model, str):
            return model
    worker = run.object("worker")
    if worker:
        return worker.text("backend_model")
    model = arguments.data.get("model")
    return model if isinstance(model, str) else None
