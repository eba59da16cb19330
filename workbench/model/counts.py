"""Counts as texts: numbers with their nouns, in the right singular and plural, and lists of GPU
indexes."""

from __future__ import annotations

from collections.abc import Iterable


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 run", "2 runs" or "1,200 runs". `plural` is needed for a
    noun whose plural is not noun + "s"."""
    if number != 1:
        noun = plural or f"{noun}s"
    return f"{number:,} {noun}"


def is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def format_four_digits(value: float) -> str:
    """Return a value rounded to four significant digits, and from 1,000 on to a whole number:
    "0.5", "27.96", "1,808" or "14,468"."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def gpus_text(indexes: Iterable[int]) -> str:
    """Return GPU indexes as "GPU0", "GPU0-3" or "GPU0,2,5"; the index -1 alone as "host"."""
    listed = sorted(indexes)
    if listed == [-1]:
        return "host"
    if len(listed) > 1 and listed == list(range(listed[0], listed[-1] + 1)):
        return f"GPU{listed[0]}-{listed[-1]}"
    return "GPU" + ",".join(map(str, listed))
