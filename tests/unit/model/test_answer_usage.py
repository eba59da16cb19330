"""From which answers a factor between usage and the tokens of the text is taken."""

from __future__ import annotations

import pytest

from workbench.model.answer_usage import TokenCounts, reported_tokens_per_real_token


def test_usage_that_counts_double_is_found_if_the_lengths_of_answers_are_far_enough_apart() -> None:
    def found(short: int, long: int) -> float | None:
        return reported_tokens_per_real_token(
            [TokenCounts(2 * n, n) for n in (short, short, long, long)]
        )

    assert found(10, 34) == pytest.approx(2.0)
    assert found(10, 33) is None, "answers of nearly one length give no slope"
