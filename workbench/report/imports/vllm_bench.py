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
from workbench.model.untrusted_text import as_list
from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    first_field,
    imported_result,
    imported_summary,
    mean_tokens_of_requests,
    served_model_name,
)

TOOL = "vllm bench serve"
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}
_REQUIRED = {"completed", "duration", "output_throughput", "request_throughput"}
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
    if "total_output_tokens_retokenized" in document:  # SGLang's
        return False
    return document.keys() >= _REQUIRED


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    completed, prompts = fields.required_count("completed"), fields.count("num_prompts")
    failed, sent = fields.count("failed"), prompts
    if prompts is not None and completed > prompts:
        raise fields.field_error("completed", f"the field must be at most num_prompts, {prompts:,}")
    if not sent:
        sent = completed + fields.count_or_0("failed")
    if failed is None:
        failed = sent - completed
    # the backend is not read, and need not be a text, if the file has the type of the endpoint
    chat = "chat" in first_field(fields.text_or, "endpoint_type", "backend")
    unix_s, zone_note = fields.unix_seconds_and_note("date", "%Y%m%d-%H%M%S")
    samples = _request_samples(fields)
    whole, partial = _distributions_and_partial_statistics(fields, samples, completed)
    workload = _workload_fields(fields, completed, sent, chat)
    reasons = dict.fromkeys(partial, "the file has only some of its percentiles")
    if not completed:
        reasons = dict.fromkeys(_LATENCIES.values(), "no request was answered")
    notes = (_ROLE if chat else "", _TPOT, _TOKENS, zone_note)
    output_tok_s = fields.positive_number("output_throughput")
    metrics = imported_summary(
        reasons,
        requests_ok=completed,
        requests_failed=failed,
        duration_s=fields.run_duration_s("duration", completed),
        prompt_tokens=fields.count("total_input_tokens"),
        output_tokens=fields.count("total_output_tokens"),
        output_tok_s=output_tok_s,
        whole_run_tok_s=output_tok_s,
        request_s=fields.positive_number("request_throughput"),
        partial=partial,
        notes=tuple(filter(None, notes)),
        engine=_engine_counters(fields),
        **whole,
    )
    model = served_model_name(fields, options, fields.text("model_id"))
    note = fields.text_or("label")
    return [
        imported_result(TOOL, options, model, workload, metrics, unix_s, samples=samples, note=note)
    ]


def _workload_fields(fields: Fields, completed: int, prompts: int, chat: bool) -> dict[str, Any]:
    """Return the workload as fields of BenchSpec, as far as the file describes it. `prompts`
    requests were sent and `completed` of them succeeded, and `chat` says whether they went to the
    chat endpoint. The token counts are means over the completed requests."""
    workload: dict[str, Any] = {"requests": prompts, "endpoint": "chat" if chat else "completions"}
    cap = fields.count("max_concurrency")
    rate = None
    if fields.data.get("request_rate") != "inf":
        rate = fields.number("request_rate")
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
    totals = (fields.count("total_input_tokens"), fields.count("total_output_tokens"))
    return {**workload, **mean_tokens_of_requests(*totals, completed)}


def _request_samples(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    ttfts, itls = fields.numbers("ttfts", "s"), fields.data.get("itls")
    if fields.data.get("ttfts") is None or itls is None:
        return ()
    gaps, count = _inter_chunk_gaps_s(fields, itls, len(ttfts)), len(ttfts)
    prompts = _column_of_length(fields, "input_lens", count)
    answers = _column_of_length(fields, "output_lens", count)
    starts = _column_of_length(fields, "start_times", count)
    ends = _column_of_length(fields, "latencies", count)
    errors = as_list(fields.data.get("errors"))
    if len(errors) != count:
        errors = [""] * count
    first = min(starts, default=0.0)
    found = []
    for i, (ttft, own) in enumerate(zip(ttfts, gaps, strict=True)):
        end_s = ends[i] if ends else ttft + sum(own)
        sample: dict[str, Any] = {"index": i, "warmup": False, "end_us": _microseconds(end_s)}
        if starts:
            sample["start_s"] = starts[i] - first
        if errors[i]:
            found.append({**sample, "error": "failed", "detail": str(errors[i])[:500]})
            continue
        sample["ttft_us"] = _microseconds(ttft)
        sample["gaps_us"] = list(map(_microseconds, own))
        sample["chunks"] = len(own) + 1
        if prompts:
            sample["prompt_tokens"] = int(prompts[i])
        if answers:
            sample["output_tokens"] = int(answers[i])
        found.append(sample)
    return tuple(found)


def _inter_chunk_gaps_s(fields: Fields, itls: Any, count: int) -> list[list[float]]:
    """Return the gaps between the chunks of each request, in seconds, from the field "itls"."""
    if not isinstance(itls, list) or len(itls) != count:
        raise fields.field_error("itls", f"the field must be a list of {count} lists of numbers")
    gaps = []
    for own in itls:
        if not isinstance(own, list):
            raise fields.field_error("itls", "the field must be a list of lists of numbers")
        one = Fields(fields.file, {"itls": own}, fields.at, fields.line)
        gaps.append(one.numbers("itls", "s"))
    return gaps


def _column_of_length(fields: Fields, name: str, length: int) -> list[float]:
    values = fields.numbers(name)
    if values and len(values) != length:
        raise fields.field_error(name, f"the field must be a list of {length} numbers")
    return values


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _distributions_and_partial_statistics(
    fields: Fields, samples: tuple[Mapping[str, Any], ...], completed: int
) -> tuple[dict[str, Distribution | None], dict[str, dict[str, float]]]:
    """Return (distributions by metric, percentiles by metric). A metric has a distribution if the
    file has its values for every request, otherwise only the percentiles that the file states."""
    whole: dict[str, Distribution | None] = {}
    partial: dict[str, dict[str, float]] = {}
    if not completed:
        return whole, partial
    values: dict[str, list[float]] = {name: [] for name in _LATENCIES.values()}
    for sample in samples:
        if "error" in sample:
            continue
        ttft_us, end_us, tokens = (
            sample["ttft_us"],
            sample["end_us"],
            sample.get("output_tokens", 0),
        )
        values["ttft_ms"].append(ttft_us / 1000)
        values["itl_ms"] += [gap_us / 1000 for gap_us in sample["gaps_us"]]
        values["e2e_ms"].append(end_us / 1000)
        if tokens > 1:
            values["tpot_ms"].append((end_us - ttft_us) / 1000 / (tokens - 1))
    if values["ttft_ms"]:
        whole = {name: distribution_of(found) for name, found in values.items()}
    for short, name in _LATENCIES.items():
        parts = fields.latency_statistics_ms(short)
        if parts and whole.get(name) is None:
            partial[name] = parts
    return whole, partial


def _engine_counters(fields: Fields) -> EngineDuring | None:
    accepted = fields.number("spec_decode_acceptance_rate", "pct")
    if accepted is None:
        return None
    return EngineDuring(spec_accepted_pct=accepted)
