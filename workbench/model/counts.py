"""Numbers with their nouns, in the right singular and plural."""

from __future__ import annotations


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return "1 run", "2 runs" or "1,200 runs". `plural` is needed for a noun whose plural is not noun + "s"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
