"""Fuzzy search in lists that the user filters by typing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
INITIALS = 500.0  # the score of initials: words have more, scattered letters less


def score(query: str, text: str) -> float | None:
    """Return how well `text` matches `query`: a higher number is a better match, and None is no
    match.

    A text matches if it contains every word of the query, or all letters of the query in their
    order. Complete words, initials ("mns" for max-num-seqs), starts of words and short spans score
    higher.
    """
    query, text = query.lower().strip(), text.lower()
    if not query:
        return 0.0
    words, parts = query.split(), text.replace("-", " ").split()
    if all(word in text for word in words):
        starts = sum(any(part.startswith(word) for part in parts) for word in words)
        return 1000.0 + 50 * starts - text.index(words[0]) - len(text) / 100
    letters = query.replace(" ", "")
    if letters == "".join(part[0] for part in parts):
        return INITIALS
    spans = [_span(letters, text, start) for start in range(len(text)) if text[start] == letters[0]]
    return max((value for value in spans if value is not None), default=None)


def _span(letters: str, text: str, start: int) -> float | None:
    """Return the score of `letters` in their order in `text`, with the first letter at `start`;
    None if a letter is missing."""
    position, boundaries = start, int(start == 0 or not text[start - 1].isalnum())
    for letter in letters[1:]:
        position = text.find(letter, position + 1)
        if position < 0:
            return None
        boundaries += not text[position - 1].isalnum()
    return 100.0 - (position - start) + 10 * boundaries


def best(query: str, items: Sequence[T], text_of: Callable[[T], str]) -> list[T]:
    """Return the items whose text, as `text_of` returns it, matches the query; the best match comes
    first. If some contain every word of the query, those that have only its letters are left out.
    An empty query returns all items in their order."""
    scored = [(score(query, text_of(item)), item) for item in items]
    kept = [(value, item) for value, item in scored if value is not None]
    if any(value > INITIALS for value, _ in kept):
        kept = [(value, item) for value, item in kept if value >= INITIALS]
    return [item for _, item in sorted(kept, key=lambda pair: -pair[0])]
