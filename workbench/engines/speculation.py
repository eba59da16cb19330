"""Speculative decoding: how many tokens a step drafts, and how many it yields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Flags that name the drafted tokens of a step: SGLang, llama.cpp. vLLM has a key of its JSON flag.
_DRAFTED = ("speculative-num-steps", "draft-max", "spec-draft-n-max", "num-speculative-tokens")


def drafted_tokens(flags: Mapping[str, Any]) -> int:
    """Return the number of draft tokens per step and stream; 0 without speculative decoding."""
    config = flags.get("speculative-config")
    values = [config.get("num_speculative_tokens") if isinstance(config, Mapping) else None]
    values += [flags.get(name) for name in _DRAFTED]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)


def tokens_per_step(flags: Mapping[str, Any], accepted_pct: float | None) -> float:
    """Return the tokens that a step produces per stream: the accepted draft tokens, and one token
    of the model itself.

    `accepted_pct` is the measured percentage of accepted draft tokens. If it is None, all draft
    tokens count as accepted, because the result serves as an upper limit.
    """
    share = 1.0 if accepted_pct is None else accepted_pct / 100
    return 1 + drafted_tokens(flags) * share
