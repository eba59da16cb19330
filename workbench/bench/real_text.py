"""Excerpts of real text, as the content of synthetic prompts: prose, code, JSON, mathematics and
conversations, in several languages."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

# A piece is at least one token in nearly all vocabularies: a word with the space before it, up to
# three digits, two characters of a script without spaces, a run of spaces, or a mark.
_PIECE_PATTERN = re.compile(
    r" ?[A-Za-z\u00c0-\u024f\u0370-\u052f]+"
    r"| ?[\u0590-\u06ff]{1,4}"
    r"|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,2}"
    r"|\d{1,3}"
    r"|\s+"
    r"|[^\w\s]{1,2}"
    r"|."
)
_PASSAGE_SEPARATOR = "\n\n"
_SENTENCE_BEGIN = re.compile(r"\n+\s*|(?<=[.!?]) +(?=[A-Z])|(?<=[\u3002\uff01\uff1f])")
_MIN_PASSAGE_PIECES, _MAX_PASSAGE_PIECES = 32, 64  # of a passage
_GOLDEN_RATIO = 0.6180339887498949  # successive multiples of it cover a range evenly


class RealText:
    """A ring of texts, one after the other, from which excerpts are cut. An excerpt begins with a
    line or a sentence, and goes on from the last text to the first."""

    def __init__(self, texts: Sequence[str]) -> None:
        whole = "".join(text.strip() + _PASSAGE_SEPARATOR for text in texts)
        self._whole = whole
        self._ends = [piece.end() for piece in _PIECE_PATTERN.finditer(whole)]
        begins = [0, *self._ends[:-1]]
        after = sorted({0, *(found.end() for found in _SENTENCE_BEGIN.finditer(whole))})
        places = (bisect_left(begins, place) for place in after)
        self._starts = sorted({place for place in places if place < len(begins)})
        self._begins = begins

    def passage_starts_and_piece_counts(self) -> list[tuple[int, int]]:
        """Return (number of the first piece, number of pieces) of the passages that the texts
        consist of, in their order. A passage begins where an excerpt may begin, or is the rest of a
        passage that was too long."""
        borders = [self._starts[0]]
        for start in (*self._starts[1:], len(self._ends)):
            while start - borders[-1] > _MAX_PASSAGE_PIECES:
                borders.append(borders[-1] + _MIN_PASSAGE_PIECES)
            if start - borders[-1] >= _MIN_PASSAGE_PIECES or start == len(self._ends):
                borders.append(start)
        return [(begin, end - begin) for begin, end in pairwise(borders)]

    @property
    def characters_per_piece(self) -> float:
        return len(self._whole) / len(self._ends)

    def find_first_piece_of_excerpt(self, offset_fraction: float, excerpt_index: int) -> int:
        """Return the number of the first piece of excerpt `excerpt_index`. The excerpts of any
        successive indices are spread evenly over all texts. `offset_fraction`, from 0 to 1, shifts
        all of them."""
        share = (offset_fraction + _GOLDEN_RATIO * excerpt_index) % 1.0
        return self._starts[bisect_right(self._starts, int(share * len(self._ends))) - 1]

    def excerpt(self, start: int, pieces: int) -> str:
        """Return `pieces` pieces of text from piece number `start` on."""
        rounds, last = divmod(start + pieces, len(self._ends))
        begin = self._begins[start]
        if not rounds:
            return self._whole[begin : self._begins[last]]
        return self._whole[begin:] + (rounds - 1) * self._whole + self._whole[: self._begins[last]]
