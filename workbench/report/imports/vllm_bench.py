"""The result file of `vllm bench serve --save-result`, with or without --save-detailed.

vllm/benchmarks/serve.py of 0.32 computes throughput over the whole run, TPOT as (E2E - TTFT) /
(tokens - 1), and ITL as the gap between chunks of all requests. On the chat endpoint, it counts the
chunk that contains only the role as the first token, which adds a gap of about 0. Token counts are
the server's usage, or else those of the client's own tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import Distribution, EngineDuring
from workbench.model.distribution import distribution_of
from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    imported_result,
    imported_summary,
    served_model_name,
)

TOOL = "vllm bench serve"
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}
_ROLE = (
    "vllm bench counts the chunk that has only the role as the first token: its TTFT may be "
    "shorter, and its ITL has a"
    " gap of about 0 for each request"
)
_TPOT = (
    "its TPOT is (end to end - TTFT) / (tokens - 1): equal to Workbench's only if the first "
    "chunk has one token"
)
_TOKENS = (
    "tokens are the server's usage or counts of the client's tokenizer: the file does not say which"
)


def recognizes(document: Mapping[str, Any]) -> bool:
    return {
        "completed",
        "duration",
        "output_throughput",
        "request_throughput",
    } <= document.keys() and ("total_output_tokens_retokenized" not in document)


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    completed, prompts = fields.required_count("completed"), fields.count("num_prompts")
    failed = fields.count("failed")
    if prompts is not None and completed > prompts:
        raise fields.field_error("completed", f"the field must be at most num_prompts, {prompts:,}")
    if failed is None:
        failed = (prompts or completed) - completed
    chat = "chat" in (fields.text("endpoint_type") or fields.text("backend") or "")
    unix_s, zone_note = fields.unix_time("date", "%Y%m%d-%H%M%S")
    samples = _request_samples(fields)
    whole, partial = _latency_distributions(fields, samples, completed)
    workload = _workload_fields(fields, completed, prompts or completed + failed, chat)
    why = "the file has only some of its percentiles"
    if not completed:
        why = "no request was answered"
    metrics = imported_summary(
        {name: why for name in _LATENCIES.values() if not completed or name in partial},
        requests_ok=completed,
        requests_failed=failed,
        duration_s=fields.run_duration_s("duration", completed),
        prompt_tokens=fields.count("total_input_tokens"),
        output_tokens=fields.count("total_output_tokens"),
        output_tok_s=fields.number("output_throughput") or None,
        whole_run_tok_s=fields.number("output_throughput") or None,
        request_s=fields.number("request_throughput") or None,
        partial=partial,
        notes=tuple(filter(None, (*((_ROLE,) if chat else ()), _TPOT, _TOKENS, zone_note))),
        engine=_engine_counters(fields),
        **whole,
    )
    model = served_model_name(fields, options, fields.text("model_id"))
    note = fields.text("label") or ""
    return [
        imported_result(TOOL, options, model, workload, metrics, unix_s, samples=samples, note=note)
    ]


def _workload_fields(fields: Fields, completed: int, prompts: int, chat: bool) -> dict[str, Any]:
    """Return the workload as fields of BenchSpec, as far as the file describes it. `prompts`
    requests were sent and `completed` of them succeeded, and `chat` says whether they went to the
    chat endpoint. The token counts are means over the completed requests."""
    workload: dict[str, Any] = {"requests": prompts, "endpoint": "chat" if chat else "completions"}
    cap = fields.count("max_concurrency")
    rate = None if fields.data.get("request_rate") == "inf" else fields.number("request_rate")
    if cap:
        workload["concurrency"] = cap
    elif rate is None:
        workload["concurrency"] = prompts  # all of them at once
    if rate:
        burstiness = fields.number("burstiness")
        workload["rate"] = rate
        workload["arrival"] = "poisson"
        if burstiness not in (None, 1.0):
            workload["burstiness"] = burstiness
    for name, total in (
        ("input_tokens", "total_input_tokens"),
        ("max_tokens", "total_output_tokens"),
    ):
        tokens = fields.count(total)
        if tokens and completed:
            workload[name] = round(tokens / completed)
    return workload


def _request_samples(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    ttfts, itls = fields.numbers("ttfts", "s"), fields.data.get("itls")
    if ttfts is None or itls is None:
        return ()
    if not isinstance(itls, list) or len(itls) != len(ttfts):
        raise fields.field_error(
            "itls", f"the field must be a list of {len(ttfts)} lists of numbers"
        )
    if not all(isinstance(own, list) for own in itls):
        raise fields.field_error("itls", "the field must be a list of lists of numbers")
    gaps = [
        Fields(fields.file, {"itls": own}, fields.at, fields.line).numbers("itls", "s") or []
        for own in itls
    ]
    columns = {
        name: _column_of_length(fields, name, len(ttfts))
        for name in ("input_lens", "output_lens", "start_times", "latencies")
    }
    errors = fields.data.get("errors")
    if not isinstance(errors, list) or len(errors) != len(ttfts):
        errors = [""] * len(ttfts)
    first = min(columns["start_times"] or [0.0])
    found = []
    for i, (ttft, own) in enumerate(zip(ttfts, gaps, strict=True)):
        end_s = columns["latencies"][i] if columns["latencies"] else ttft + sum(own)
        sample: dict[str, Any] = {"index": i, "warmup": False, "end_us": _microseconds(end_s)}
        if columns["start_times"]:
            sample["start_s"] = columns["start_times"][i] - first
        if errors[i]:
            found.append({**sample, "error": "failed", "detail": str(errors[i])[:500]})
            continue
        sample |= {
            "ttft_us": _microseconds(ttft),
            "gaps_us": [_microseconds(g) for g in own],
            "chunks": len(own) + 1,
        }
        for name, column in (("prompt_tokens", "input_lens"), ("output_tokens", "output_lens")):
            if columns[column]:
                sample[name] = int(columns[column][i])
        found.append(sample)
    return tuple(found)


def _column_of_length(fields: Fields, name: str, length: int) -> list[float]:
    values = fields.numbers(name) or []
    if values and len(values) != length:
        raise fields.field_error(name, f"the field must be a list of {length} numbers")
    return values


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _latency_distributions(
    fields: Fields, samples: tuple[Mapping[str, Any], ...], completed: int
) -> tuple[dict[str, Distribution | None], dict[str, dict[str, float]]]:
    """Return (distributions by metric, percentiles by metric). A metric has a distribution if the
    file has its values for every request, otherwise only the percentiles that the file states.
    """
    whole: dict[str, Distribution | None] = {}
    partial: dict[str, dict[str, float]] = {}
    if not completed:
        return whole, partial
    good = [s for s in samples if "error" not in s]
    if good:
        whole = {
            "ttft_ms": distribution_of(s["ttft_us"] / 1000 for s in good),
            "itl_ms": distribution_of(g / 1000 for s in good for g in s["gaps_us"]),
            "e2e_ms": distribution_of(s["end_us"] / 1000 for s in good),
            "tpot_ms": distribution_of(
                (s["end_us"] - s["ttft_us"]) / 1000 / (s["output_tokens"] - 1)
                for s in good
                if s.get("output_tokens", 0) > 1
            ),
        }
    for short, name in _LATENCIES.items():
        parts = fields.latency_parts(short)
        if parts and whole.get(name) is None:
            partial[name] = parts
    return whole, partial


def _engine_counters(fields: Fields) -> EngineDuring | None:
    accepted = fields.number("spec_decode_acceptance_rate", "pct")
    return None if accepted is None else EngineDuring(spec_accepted_pct=accepted)
