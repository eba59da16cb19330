"""How figures are called and written in a report."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workbench.model.bench import BenchSummary, half_width
from workbench.model.untrusted_text import clean

NA = "n/a"
MINUS = "−"
NOT_IN_FILE = "not in the imported file"  # as store.imports says it
PARTS = ("mean", "p50", "p90", "p99", "min", "max")
LATENCIES = {
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "tpot_ms": "TPOT",
    "e2e_ms": "end to end",
    "queue_ms": "wait for a place",
    "ttft_from_schedule_ms": "TTFT from the schedule",
    "e2e_from_schedule_ms": "end to end from the schedule",
}
FIGURES = {
    "output_tok_s": ("output", "tok/s"),
    "whole_run_tok_s": ("output, whole run", "tok/s"),
    "request_s": ("request rate", "1/s"),
    "per_stream_tok_s": ("per stream", "tok/s"),
    "tokens_per_chunk": ("tokens per chunk", ""),
    "output_tokens": ("output tokens", ""),
    "prompt_tokens": ("prompt tokens", ""),
    "cached_tokens": ("of these from the prefix cache", ""),
    "duration_s": ("duration", "s"),
    "window_s": ("steady window", "s"),
    "in_flight_mean": ("streams in flight, mean", ""),
    "in_flight_nominal": ("streams in flight, asked for", ""),
    "client_cpu_pct": ("client's own load", "% of a core"),
    "command_exit": ("exit code of the command", ""),
}
ENERGY = {
    "power_w": ("mean power, all GPUs of the server", "W"),
    "idle_power_w": ("idle power", "W"),
    "energy_j": ("energy", "J"),
    "tok_per_joule": ("output tokens per joule", "tok/J"),
    "net_tok_per_joule": ("the same, idle power taken off", "tok/J"),
    "energy_per_request_j": ("energy per request", "J"),
}
METRICS = {
    **{name: title for name, (title, _) in FIGURES.items()},
    "output_tok_s": "throughput",
    "tok_per_joule": "tokens per joule",
    "net_tok_per_joule": "tokens per joule, net",
    "power_w": "power",
    "energy_per_request_j": "energy per request",
}
DEFINITIONS = (
    "TTFT: from the socket write to the first chunk with content of any kind (text, reasoning, tool call); a chunk with"
    " only the role does not count.",
    "ITL: the gap between two chunks with content. TPOT: (last - first chunk) / (tokens - tokens in the first chunk),"
    " one value per request.",
    "Tokens are the server's own usage. Percentiles interpolate linearly.",
)


def escape(text: str) -> str:
    """Return `text` for HTML and SVG: markup shown literally, nothing that a browser or terminal would obey."""
    return html.escape(clean(text, len(text), lines=True))


def figure(value: float | None, unit: str = "") -> str:
    """Three digits or more that matter, thousands separated: "5,291 tok/s", "46.3", "0.0412"."""
    if value is None:
        return NA
    size = abs(value)
    if isinstance(value, int) or size >= 100 or not size:
        text = f"{value:,.0f}"
    else:
        digits = 1 if size >= 10 else 2 if size >= 1 else 3 if size >= 0.1 else 4
        text = f"{value:,.{digits}f}"
    text = text.replace("-", MINUS)
    return f"{text} {unit}".rstrip() if not unit.startswith("%") else f"{text} {unit}"


def told(summary: BenchSummary, name: str, unit: str = "") -> str:
    """The figure, or n/a with the reason."""
    value = getattr(summary, name)
    reason = summary.absent.get(name)
    if value is None or (reason is not None and not value):
        return f"{NA} ({reason})" if reason else NA
    return figure(value, unit)


def is_untold(summary: BenchSummary, name: str) -> bool:
    """Whether an imported file says nothing of it: one line then stands for all of these."""
    return summary.absent.get(name) == NOT_IN_FILE


def percent(value: float | None, half: float | None = None) -> str:
    """ "+3.1 %", "−0.4 % ± 0.9"."""
    if value is None:
        return NA
    digits = 1 if max(abs(value), half or 0.0) >= 0.095 or not value else 2
    text = f"{value:+.{digits}f} %".replace("-", MINUS)
    return text if half is None else f"{text} ± {half_width(half, digits)}"


def metric_title(name: str) -> str:
    """ "ttft_ms.p50" -> "TTFT p50"."""
    base, _, part = name.partition(".")
    title = LATENCIES.get(base) or METRICS.get(base) or base.replace("_", " ")
    return f"{title} {part}".rstrip()


def when(unix_s: float) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OSError, OverflowError):
        return NA


def value_text(value: Any) -> str:
    """A setting's value as it would be typed."""
    if value is None:
        return NA
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (Mapping, list, tuple)) else str(value)
