"""The text of a trace's prompts: passages of real text whose tokens are known.

A prompt is a sequence of blocks, and a block is a mark and then passages. All passages but the last
one of a block are whole, so only the cut of the last one makes a prompt longer or shorter than it
should be, by a few tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.bench.real_text import RealText
from workbench.model.lazy_dataclass import dataclass

PASSAGE_SEPARATOR = "\n\n"  # of passages and of blocks
_GOLDEN_RATIO = 0.6180339887498949  # successive multiples of it cover a range evenly
_BYTES_PER_PIECE = 3.5  # a piece of more bytes is likely to have more tokens
_PASSAGE_BEGIN_TOKENS, _BLOCK_TOKENS = 24.0, 9.0  # of the digits and a chat template, about


@dataclass(frozen=True, slots=True)
class PassageTokens:
    """The tokens of the parts of a prompt. `begin` are those of the chat template and the first
    mark, `between` those of what joins two passages, `block` those of the mark of each further
    block, and `passages` those of each passage."""

    begin: float
    between: float
    block: float
    passages: tuple[float, ...]

    @property
    def as_spec_numbers(self) -> tuple[float, ...]:
        """The value of `BenchSpec.passage_tokens`."""
        return self.begin, self.between, self.block, *self.passages


class TraceText:
    """Generates prompt blocks of a given number of tokens from real text. `known` is
    `BenchSpec.passage_tokens`; without it, the tokens are estimated from pieces and bytes, also
    after `fit_to_counted_lengths`."""

    def __init__(self, real: RealText, known: Sequence[float] = ()) -> None:
        self._real = real
        self._passages = real.passage_starts_and_piece_counts()
        self._estimated = len(known) != 3 + len(self._passages)
        self.tokens = self._scale_passage_tokens(_PASSAGE_BEGIN_TOKENS, 1.0)
        if not self._estimated:
            begin, between, block, *passages = known
            self.tokens = PassageTokens(begin, between, block, tuple(passages))

    @property
    def passage_count(self) -> int:
        """The number of passages."""
        return len(self._passages)

    @property
    def pieces_per_token(self) -> float:
        """The mean number of pieces of text that make one token."""
        pieces = sum(count for _, count in self._passages)
        return pieces / max(1.0, sum(self.tokens.passages))

    def passage_text(self, passage: int) -> str:
        """Return the text of a whole passage."""
        return self._real.excerpt(*self._passages[passage]).strip()

    def block_text(self, mark: str, offset: float, tokens: int, *, begins: bool) -> str:
        """Return a block of `tokens` tokens. `begins` says whether it begins a prompt. Of two
        blocks with equal `mark` and `offset`, the shorter is the beginning of the longer. `offset`,
        from 0 to 1, chooses the passages."""
        known = self.tokens
        left = tokens - (known.begin if begins else known.block)
        whole: list[str] = []
        while True:
            passage = int((offset + _GOLDEN_RATIO * len(whole)) % 1.0 * len(self._passages))
            left -= known.between if whole else 0.0
            if left < known.passages[passage]:
                break
            left -= known.passages[passage]
            whole.append(self.passage_text(passage))
        return join_block_text(mark, [*whole, *self._first_tokens_of_passage(passage, left)])

    def _first_tokens_of_passage(self, passage: int, tokens: float) -> Sequence[str]:
        """Return the first `tokens` tokens of a passage; nothing if they are less than half a
        piece."""
        start, pieces = self._passages[passage]
        many = round(pieces * tokens / self.tokens.passages[passage])
        return [self._real.excerpt(start, many).strip()] if many > 0 else []

    def fit_to_counted_lengths(self, requested_and_counted: Sequence[tuple[int, int]]) -> None:
        """Fit estimated lengths to (requested, counted) tokens of prompts of one block. Prompts of
        two lengths tell the tokens of the chat template from those of the text. Known lengths
        stay."""
        if not self._estimated or not requested_and_counted:
            return
        wanted = [tokens - _PASSAGE_BEGIN_TOKENS for tokens, _ in requested_and_counted]
        if max(wanted) < _PASSAGE_BEGIN_TOKENS:
            return  # too short to tell
        counted = [float(tokens) for _, tokens in requested_and_counted]
        begin, factor = _fit_offset_and_slope(wanted, counted)
        self.tokens = self._scale_passage_tokens(begin, factor)

    def _scale_passage_tokens(self, begin_tokens: float, factor: float) -> PassageTokens:
        passages = tuple(
            factor * (pieces + len(self.passage_text(number).encode()) / _BYTES_PER_PIECE) / 2
            for number, (_, pieces) in enumerate(self._passages)
        )
        return PassageTokens(begin_tokens, 0.0, _BLOCK_TOKENS * factor, passages)


def join_block_text(mark: str, passages: Sequence[str]) -> str:
    """Return a block as text: its mark, then its passages."""
    return f"[{mark}] {PASSAGE_SEPARATOR.join(passages)}"


def _fit_offset_and_slope(wanted: Sequence[float], counted: Sequence[float]) -> tuple[float, float]:
    """Return (tokens of an empty text, counted tokens for a wanted one). If the wanted lengths are
    nearly equal, or no plausible line fits, the first is the usual number."""
    mean_wanted, mean_counted = sum(wanted) / len(wanted), sum(counted) / len(counted)
    only = max(0.05, (mean_counted - _PASSAGE_BEGIN_TOKENS) / max(1.0, mean_wanted))
    if max(wanted) < 2 * max(1.0, min(wanted)):
        return _PASSAGE_BEGIN_TOKENS, only
    spread = sum((one - mean_wanted) ** 2 for one in wanted)
    both = zip(wanted, counted, strict=True)
    slope = sum((x - mean_wanted) * (y - mean_counted) for x, y in both) / spread
    begin = mean_counted - slope * mean_wanted
    return (begin, slope) if slope > 0.05 and begin >= 0 else (_PASSAGE_BEGIN_TOKENS, only)
