"""Whether the usage of a server counts the tokens that it sends, by answers whose tokens were
counted a second time.

The text of an answer lacks some of its tokens: the end mark, the marks of a chat template and of
reasoning. They are about as many in a short answer as in a long one. So the answers of two lengths
give the tokens that usage counts for each token of the text, whatever these marks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from workbench.model.lazy_dataclass import dataclass

# Hidden marks and tags of chat templates cost a few tokens each.
_FACTOR, _SLACK = 1.35, 12
_LEAST_POINTS = 4
_LEAST_SPAN = 24  # tokens between a short answer and a long one
# A tokenizer that merges what a model wrote in two tokens, or hidden marks of long answers only.
_TOLERANCE, _STANDARD_ERRORS = 0.07, 3.0
_LEAST_RESIDUAL = 0.5  # tokens: the counts are whole numbers


@dataclass(frozen=True, slots=True)
class Counted:
    """The tokens of one answer by usage, and those of its text."""

    said: int
    real: int


def is_reported_usage_plausible(reported_tokens: int, recounted_tokens: int) -> bool:
    """Return whether the usage of an answer can be true if its text has `recounted_tokens` tokens.
    The text lacks the end mark and the marks of reasoning, and a text may be split into tokens in
    several ways."""
    return (
        (recounted_tokens - _SLACK) / _FACTOR
        <= reported_tokens
        <= recounted_tokens * _FACTOR + _SLACK
    )


def reported_tokens_per_real_token(counted: Sequence[Counted]) -> float | None:
    """Return how many tokens usage counts for each token of the text, if that is certainly more
    than one; otherwise None. It is the slope of a line through answers of two lengths. None too if
    the answers do not lie on a line, as with reasoning that an engine hides."""
    real = [one.real for one in counted]
    if len(counted) < _LEAST_POINTS or max(real) - min(real) < _LEAST_SPAN:
        return None
    middle, middle_said = fmean(real), fmean(one.said for one in counted)
    square = sum((x - middle) ** 2 for x in real)
    slope = sum((one.real - middle) * (one.said - middle_said) for one in counted) / square
    residuals = [one.said - middle_said - slope * (one.real - middle) for one in counted]
    scatter = sqrt(sum(x * x for x in residuals) / (len(counted) - 2))
    error = max(scatter, _LEAST_RESIDUAL) / sqrt(square)
    if slope - _STANDARD_ERRORS * error <= 1 + _TOLERANCE:
        return None
    return slope
