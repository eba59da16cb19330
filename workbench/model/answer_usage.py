"""Whether the usage of a server counts the tokens that it sends, by answers whose tokens were
counted a second time.

The text of an answer lacks some of its tokens: the one that ends it, and those of the chat template
around the answer and its reasoning. They are about as many in a short answer as in a long one. So
the answers of two lengths give the tokens that usage counts for each token of the text, however
many tokens are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import linear_regression, pstdev

from workbench.model.lazy_dataclass import dataclass

# Hidden marks and tags of chat templates cost a few tokens each.
_FACTOR, _SLACK = 1.35, 12
_LEAST_POINTS = 4
_LEAST_SPAN = 24  # tokens between a short answer and a long one
# A tokenizer that merges what a model wrote in two tokens, or hidden marks of long answers only.
_TOLERANCE, _STANDARD_ERRORS = 0.07, 3.0
_LEAST_RESIDUAL = 0.5  # tokens: the counts are whole numbers


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The number of tokens of one answer: `reported` by the server's usage, and `recounted` in its
    text."""

    reported: int
    recounted: int


def is_reported_usage_plausible(reported_tokens: int, recounted_tokens: int) -> bool:
    """Return whether the usage of an answer can be true if its text has `recounted_tokens` tokens.
    The two may differ a little: some tokens are hidden, and a text may be split into tokens in
    several ways."""
    return (
        (recounted_tokens - _SLACK) / _FACTOR
        <= reported_tokens
        <= recounted_tokens * _FACTOR + _SLACK
    )


def reported_tokens_per_real_token(counted: Sequence[TokenCounts]) -> float | None:
    """Return how many tokens usage counts for each token of the text, if that is certainly more
    than one; otherwise None. It is the slope of a line through answers of two lengths. None too if
    there are too few answers or lengths, and if the answers do not lie on a line, as with reasoning
    that an engine hides."""
    recounted = [one.recounted for one in counted]
    if len(counted) < _LEAST_POINTS or max(recounted) - min(recounted) < _LEAST_SPAN:
        return None
    reported = [one.reported for one in counted]
    slope, intercept = linear_regression(recounted, reported)
    squares = 0.0
    for x, y in zip(recounted, reported, strict=True):
        squares += (y - intercept - slope * x) ** 2
    scatter = sqrt(squares / (len(counted) - 2))
    error = max(scatter, _LEAST_RESIDUAL) / (pstdev(recounted) * sqrt(len(counted)))
    if slope - _STANDARD_ERRORS * error <= 1 + _TOLERANCE:
        return None
    return slope
