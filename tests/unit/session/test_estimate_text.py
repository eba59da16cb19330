"""Tests of the text for the change of a memory estimate."""

from __future__ import annotations

from workbench.engines import MemoryFit
from workbench.session.plans.estimate_text import memory_estimate_change_text


def fit(used: float, tokens: int | None, fits: bool = True) -> MemoryFit:
    return MemoryFit(used, 40.0, 2.0, tokens, None, fits, "", "")


def test_both_values_before_and_after() -> None:
    said = memory_estimate_change_text(fit(36.0, 1_000_000), fit(20.0, 500_000))
    assert said == (
        "est. memory per GPU 36.0 > 20.0 of 40.0 GiB, KV cache 1,000,000 > 500,000 tokens"
    )


def test_an_equal_value_is_named_once() -> None:
    assert memory_estimate_change_text(fit(36.0, 10), fit(36.0, 10)) == (
        "est. memory per GPU 36.0 of 40.0 GiB, KV cache 10 tokens"
    )


def test_a_plan_that_does_not_fit_says_so() -> None:
    assert memory_estimate_change_text(fit(36.0, 10), fit(48.5, None, fits=False)).endswith(
        "36.0 > 48.5 of 40.0 GiB, does not fit"
    )


def test_without_an_estimate_the_reason() -> None:
    assert memory_estimate_change_text(
        fit(36.0, 10), "the size of the weights is unknown"
    ).startswith("no estimate: the size of")
    assert (
        memory_estimate_change_text("unknown", fit(36.0, None))
        == "est. memory per GPU 36.0 of 40.0 GiB"
    )
