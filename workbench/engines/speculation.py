"""Speculative decoding: how many tokens a step drafts, and how many it yields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.untrusted_text import as_table

# Flags that name the drafted tokens of a step: SGLang, llama.cpp. vLLM has a key of its JSON flag.
_DRAFTED = ("speculative-num-steps", "draft-max", "spec-draft-n-max", "num-speculative-tokens")


def drafted_tokens_per_step(flags: Mapping[str, Any]) -> int:
    """Return the number of draft tokens per step and stream; 0 without speculative decoding."""
    config = as_table(flags.get("speculative-config"))
    given = [config.get("num_speculative_tokens"), *map(flags.get, _DRAFTED)]
    return next((number for number in given if type(number) is int and number > 0), 0)


def tokens_per_step(flags: Mapping[str, Any], accepted_pct: float | None) -> float:
    """Return the tokens that a step produces per stream: the accepted draft tokens, and one token
    of the model itself.

    `accepted_pct` is the measured percentage of accepted draft tokens. If it is None, all draft
    tokens count as accepted, because the result serves as an upper limit.
    """
    if accepted_pct is None:
        accepted_pct = 100.0
    return 1 + drafted_tokens_per_step(flags) * accepted_pct / 100
