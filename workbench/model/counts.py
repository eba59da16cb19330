"""Numbers with their nouns, in the right singular and plural."""

from __future__ import annotations


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return "1 run", "2 runs" or "1,200 runs". `plural` is needed for a noun whose plural is not noun + "s"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def four_digits(value: float) -> str:
    """Return a value with at least four significant digits and no exponent: "27.96", "1,808" or "14,468"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
