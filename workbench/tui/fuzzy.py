"""Fuzzy match for pickers: every typed letter in order, or every word somewhere; best first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def score(query: str, text: str) -> float | None:
    """None: no match. Higher is better: exact parts, starts of words and short spans win."""
    query, text = query.lower().strip(), text.lower()
    if not query:
        return 0.0
    words = query.split()
    if all(word in text for word in words):
        starts = sum(any(part.startswith(word) for part in text.replace("-", " ").split()) for word in words)
        return 1000.0 + 50 * starts - text.index(words[0]) - len(text) / 100
    letters = query.replace(" ", "")
    best: float | None = None
    for start in (i for i, c in enumerate(text) if c == letters[0]):
        position, boundary = start, 0
        for letter in letters[1:]:
            position = text.find(letter, position + 1)
            if position < 0:
                break
            boundary += not text[position - 1].isalnum()
        if position < 0:
            break
        value = 100.0 - (position - start) + 10 * boundary + 10 * (start == 0 or not text[start - 1].isalnum())
        best = value if best is None else max(best, value)
    return best


def best(query: str, items: Sequence[T], text_of: Callable[[T], str]) -> list[T]:
    """The items that match, best first; all of them in their order for an empty query."""
    scored = [(score(query, text_of(item)), index, item) for index, item in enumerate(items)]
    kept = [(value, index, item) for value, index, item in scored if value is not None]
    return [item for _, _, item in sorted(kept, key=lambda k: (-k[0], k[1]))]
