"""Conversion of numbers, changes, times and settings to text for reports."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workbench.model.bench import BenchSummary, format_half_width
from workbench.model.metrics import decimals_of_metric
from workbench.model.untrusted_text import clean_text

NA = "n/a"
_LEAST_OF_DIGITS = ((1, 10.0), (2, 1.0), (3, 0.1))  # decimals, and from which size on
MINUS = "−"
# the reason for a missing value; stored in the summaries of imported results
NOT_IN_FILE = "not in the imported file"


def escape_markup(text: str) -> str:
    """Return `text` for use in HTML and SVG: without control characters, and with the characters of
    markup escaped."""
    return html.escape(clean_text(text, len(text), lines=True))


def number_text(value: float | None, unit: str = "", decimals: int | None = None) -> str:
    """Return a number as text with commas between thousands: "5,291 tok/s", "46.3", "0.0412"; "n/a"
    for None. From 100 on it has no decimals. A smaller one has `decimals`, or by default at least
    three significant digits."""
    if value is None:
        return NA
    digits = _digits_of_number(value, decimals)
    text = f"{value:,.{digits}f}".replace("-", MINUS)
    if unit:
        text += f" {unit}"
    return text


def _digits_of_number(value: float, decimals: int | None) -> int:
    size = abs(value)
    if isinstance(value, int) or size == 0:
        return 0
    if size >= 100:
        return 0
    if decimals is not None:
        return decimals
    return next((digits for digits, least in _LEAST_OF_DIGITS if size >= least), 4)


def format_metric_value(name: str, value: float | None, unit: str = "") -> str:
    """Return a value of a metric, such as "ttft_ms.p50", with the metric's decimals; "n/a" for
    None."""
    return number_text(value, unit, decimals_of_metric(name))


def metric_text(summary: BenchSummary, name: str, unit: str = "") -> str:
    """Return the value of a metric as text. If the summary has no value of the metric, return "n/a"
    and the reason."""
    value = getattr(summary, name)
    reason = summary.absent.get(name)
    if reason and not value:
        return f"{NA} ({reason})"
    return format_metric_value(name, value, unit)


def is_absent_from_imported_file(summary: BenchSummary, name: str) -> bool:
    """Return whether a metric has no value because the imported result file does not contain it.
    Reports list all such metrics in one line."""
    return summary.absent.get(name) == NOT_IN_FILE


def percent_change(a: float | None, b: float | None) -> float | None:
    """Return the change from `a` to `b` in percent; None if one is unknown, or `a` is 0."""
    if not a or b is None:
        return None
    return 100 * (b / a - 1)


def change_text(percent: float | None, half_width_pct: float | None = None) -> str:
    """Return a change in percent as text, such as "+3.1 %", or "−0.4 % ± 0.9" with the half width
    of its interval. "n/a" for an unknown change (None)."""
    if percent is None:
        return NA
    largest = max(abs(percent), half_width_pct or 0.0)
    is_too_small_for_one_digit = percent != 0 and largest < 0.095
    digits = 2 if is_too_small_for_one_digit else 1
    text = f"{percent:+.{digits}f} %".replace("-", MINUS)
    if half_width_pct is not None:
        text += f" ± {format_half_width(half_width_pct, digits)}"
    return text


def utc_time(unix_s: float) -> str:
    """Return a time in Unix seconds as text, such as "2026-09-21 14:13:20 UTC"; "n/a" if the time
    is outside the calendar."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OSError, OverflowError):
        return NA


def setting_text(value: Any) -> str:
    """Return the value of a flag or setting in the form in which users type it, such as "on", "0.9"
    or a JSON list."""
    if value is None:
        return NA
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
