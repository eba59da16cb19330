"""One result as JSON, CSV or Markdown: figures with their full conditions, SIMULATED marked, secrets masked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from workbench.model.bench import BenchResult, Distribution
from workbench.model.bench_json import to_json
from workbench.model.errors import InputError
from workbench.store.masking import masked

FORMATS = ("json", "csv", "md")
SIMULATED = "SIMULATED: figures of a model, not of hardware"
_PARTS = ("mean", "p50", "p90", "p99", "min", "max")
_LATENCIES = {"ttft_ms": "TTFT", "itl_ms": "ITL (gap between chunks)", "tpot_ms": "TPOT", "e2e_ms": "end to end"}
_FIGURES = {
    "output_tok_s": ("output", "tok/s"),
    "request_s": ("requests", "1/s"),
    "per_stream_tok_s": ("per stream", "tok/s"),
    "tok_per_joule": ("energy efficiency", "tok/J"),
    "power_w": ("mean power", "W"),
    "energy_j": ("energy", "J"),
    "output_tokens": ("output tokens", ""),
    "prompt_tokens": ("prompt tokens", ""),
    "cached_tokens": ("of these from the prefix cache", ""),
    "tokens_per_chunk": ("tokens per chunk", ""),
    "duration_s": ("duration", "s"),
    "client_cpu_pct": ("client's own load", "% of a core"),
}


def export(result: BenchResult, form: str, samples: Sequence[Mapping[str, Any]] = ()) -> str:
    """The text of an export. `form` is one of FORMATS; `samples` (raw requests) go into JSON only.
    Raises InputError."""
    data = masked(to_json(result))
    if form == "json":
        head = {"simulated": result.conditions.simulated, **({"samples": list(samples)} if samples else {})}
        return json.dumps({**data, **head}, indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(data)
    if form == "md":
        return _markdown(data)
    raise InputError(f"unknown export format {form!r}", next_step=f"use one of {', '.join(FORMATS)}")


def _rows(data: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Nested mappings flattened to dotted names; lists stay one JSON value."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _rows(value, f"{name}.")
        elif isinstance(value, (Mapping, list, tuple)):
            yield name, json.dumps(value, ensure_ascii=False)
        else:
            yield name, value


def _csv(data: Mapping[str, Any]) -> str:
    """Two columns, name and value: one line per figure and condition; an absent value is empty, its reason stands
    under summary.absent."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("name", "value"))
    writer.writerow(("simulated", SIMULATED if data["conditions"]["simulated"] else "no"))
    for name, value in _rows(data):
        writer.writerow((name, "" if value is None else _inert(value)))
    return out.getvalue()


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _markdown(data: Mapping[str, Any]) -> str:
    summary, conditions = data["summary"], data["conditions"]
    when = datetime.fromtimestamp(data["unix_s"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [f"# Benchmark {data['id']}: {_cell(conditions['model'])} on {_cell(conditions['host'])}", ""]
    if conditions["simulated"]:
        lines += [f"**{SIMULATED}**", ""]
    lines += [when, "", "| figure | value |", "|---|---|"]
    failed = summary["requests_failed"]
    kinds = "".join(f", {n} {kind}" for kind, n in summary["errors"].items())
    lines.append(f"| requests | {summary['requests_ok']} ok, {failed} failed{_cell(kinds)} |")
    lines += [f"| {title} | {_figure(summary, key, unit)} |" for key, (title, unit) in _FIGURES.items()]
    lines += ["", "| ms | " + " | ".join(_PARTS) + " |", "|---" * (len(_PARTS) + 1) + "|"]
    lines += [_latency(summary, key, title) for key, title in _LATENCIES.items()]
    for title, part in (
        ("Workload", data["spec"]),
        ("Conditions", conditions),
        ("GPUs during the run", summary["gpu"]),
    ):
        lines += ["", f"## {title}", "", *_table(part)]
    notes = [*summary["notes"], *([data["note"]] if data["note"] else []), *(f"tag: {t}" for t in data["tags"])]
    lines += ["", "## Notes", "", *(f"- {_cell(n)}" for n in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _figure(summary: Mapping[str, Any], key: str, unit: str) -> str:
    value = summary[key]
    if value is None:
        return f"n/a ({_cell(summary['absent'].get(key, 'not measured'))})"
    return (
        f"{value:,.4f}".rstrip("0").rstrip(".") + f" {unit}"
        if isinstance(value, float)
        else f"{value:,} {unit}".strip()
    )


def _latency(summary: Mapping[str, Any], key: str, title: str) -> str:
    values: Distribution | Mapping[str, float] | None = summary[key]
    if not isinstance(values, Mapping):
        return f"| {title} | n/a ({_cell(summary['absent'].get(key, 'not measured'))})" + " |" * len(_PARTS)
    return f"| {title} | " + " | ".join(f"{values[p]:.3f}" for p in _PARTS) + " |"


def _table(part: Mapping[str, Any] | None) -> list[str]:
    if not part:
        return ["No telemetry was merged into this result."]
    rows = ((n, "n/a" if v is None else v) for n, v in _rows(part))
    return ["| name | value |", "|---|---|", *(f"| {_cell(n)} | {_cell(v)} |" for n, v in rows)]


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("\\", "\\\\").replace("|", "\\|").split())
