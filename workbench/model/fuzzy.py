"""Search in lists that the user filters by typing: by words, or fuzzily also by letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from workbench.model.known_values import known_values

T = TypeVar("T")
INITIALS = 500.0  # the score of initials: words have more, scattered letters less


def match_score(query: str, text: str) -> float | None:
    """Return how well `text` matches `query`: a higher number is a better match, and None is no
    match.

    A text matches if it contains every word of the query, or all letters of the query in their
    order. Complete words, initials ("mns" for max-num-seqs), starts of words and short spans score
    higher.
    """
    by_words = word_score(query, text)
    if by_words is not None:
        return by_words
    query, text = query.lower().strip(), text.lower()
    parts = text.replace("-", " ").split()
    letters = query.replace(" ", "")
    if letters == "".join(part[0] for part in parts):
        return INITIALS
    starts = [start for start, letter in enumerate(text) if letter == letters[0]]
    return max(
        known_values(_score_letters_from(letters, text, start) for start in starts), default=None
    )


def word_score(query: str, text: str) -> float | None:
    """Return how well `text` matches `query`: a higher number is a better match, and None is no
    match. A text matches if it contains every word of the query. Starts of words score higher, and
    so does a match near the beginning of the text."""
    words, text = query.lower().split(), text.lower()
    if not words:
        return 0.0
    if not all(word in text for word in words):
        return None
    parts = text.replace("-", " ").split()
    starts = sum(any(part.startswith(word) for part in parts) for word in words)
    return 1000.0 + 50 * starts - text.index(words[0]) - len(text) / 100


def _score_letters_from(letters: str, text: str, start: int) -> float | None:
    """Return the score of `letters` in their order in `text`, with the first letter at `start`;
    None if a letter is missing."""
    position, boundaries = start, int(start == 0 or not text[start - 1].isalnum())
    for letter in letters[1:]:
        position = text.find(letter, position + 1)
        if position < 0:
            return None
        boundaries += not text[position - 1].isalnum()
    return 100.0 - (position - start) + 10 * boundaries


def best_matches(query: str, items: Sequence[T], text_of: Callable[[T], str]) -> list[T]:
    """Return the items whose text, as `text_of` returns it, matches the query; the best match comes
    first. If some contain every word of the query, those that have only its letters are left out.
    An empty query returns all items in their order."""
    kept = _score_items(items, lambda item: match_score(query, text_of(item)))
    has_words = bool(kept) and kept[0][0] > INITIALS
    return [item for score, item in kept if not has_words or score >= INITIALS]


def scored_items_best_first(items: Sequence[T], score: Callable[[T], float | None]) -> list[T]:
    """Return the items that have a score, the highest score first."""
    return [item for _, item in _score_items(items, score)]


def _score_items(items: Sequence[T], score: Callable[[T], float | None]) -> list[tuple[float, T]]:
    """Return (score, item) for each item that `score` does not leave out with None, the highest
    score first."""
    scored = []
    for item in items:
        value = score(item)
        if value is not None:
            scored.append((value, item))
    return sorted(scored, key=lambda pair: -pair[0])
