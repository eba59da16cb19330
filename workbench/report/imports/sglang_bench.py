"""The result file of `python -m sglang.bench_serving --output-file`, one JSON object per line.

sglang/benchmark/serving.py of 0.5.23 computes throughput over the whole run, TPOT as (E2E - TTFT) /
(tokens - 1), and ITL as the gap between chunks of all requests. Output tokens are the counts that
the server reports, or else the requested lengths; `total_output_tokens_retokenized` are counts of
the client's own tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.report.imports.checked_fields import (
    Fields,
    Imported,
    ImportOptions,
    imported_result,
    imported_summary,
    mean_tokens_of_requests,
    served_model_name,
)

TOOL = "sglang.bench_serving"
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2e_latency": "e2e_ms"}
_SOME = "the file has only some of its percentiles"
_TPOT = (
    "its TPOT is (end to end - TTFT) / (tokens - 1): equal to Workbench's only if the first chunk has "
    "one token"
)
_APART = 0.01  # share by which the two counts of output tokens may differ


def recognizes(document: Mapping[str, Any]) -> bool:
    return {"completed", "duration", "output_throughput", "total_output_tokens_retokenized"} <= (
        document.keys()
    )


def read(fields: Fields, options: ImportOptions) -> list[Imported]:
    completed = fields.required_count("completed")
    output = fields.count("total_output_tokens")
    latencies = {name: fields.latency_statistics_ms(tag) for tag, name in _LATENCIES.items()}
    known = {name: parts for name, parts in latencies.items() if parts and completed}
    output_tok_s = fields.positive_number("output_throughput")
    made = imported_summary(
        dict.fromkeys(known, _SOME),
        requests_ok=completed,
        duration_s=fields.run_duration_s("duration", completed),
        prompt_tokens=fields.count("total_input_tokens"),
        output_tokens=output,
        output_tok_s=output_tok_s,
        whole_run_tok_s=output_tok_s,
        request_s=fields.positive_number("request_throughput"),
        partial=known,
        notes=tuple(filter(None, (_TPOT, _retokenized_note(fields, output)))),
    )
    workload = _workload_fields(fields, completed, output)
    model = served_model_name(fields, options, fields.object("server_info").text("model_path"))
    note = fields.text_or("tag")
    unix_s = fields.file.stat().st_mtime
    return [imported_result(TOOL, options, model, workload, made, unix_s, note=note)]


def _retokenized_note(fields: Fields, output: int | None) -> str:
    again = fields.count("total_output_tokens_retokenized")
    if not output or again is None:
        return ""
    if abs(again / output - 1) <= _APART:
        return ""
    return (
        f"the client's tokenizer counts {again:,} output tokens in the texts, the rates count"
        f" {output:,}"
    )


def _workload_fields(fields: Fields, completed: int, output_tokens: int | None) -> dict[str, Any]:
    backend = fields.text_or("backend")
    found: dict[str, Any] = {
        "requests": completed,
        "endpoint": "chat" if "chat" in backend else "completions",
    }
    streams = fields.count("max_concurrency")
    if streams:
        found["concurrency"] = streams
    stated = fields.data.get("request_rate")
    is_paced = not isinstance(stated, str) and stated != math.inf  # else "trace", or all at once
    if is_paced and (rate := fields.number("request_rate")):
        found |= {"rate": rate, "arrival": "poisson"}
    input_tokens = fields.count("total_input_tokens")
    return {**found, **mean_tokens_of_requests(input_tokens, output_tokens, completed)}
