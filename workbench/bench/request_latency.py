"""Latencies of one request, computed from its record."""

from __future__ import annotations

from workbench.bench.records import RequestRecord


def tpot_ms(
    record: RequestRecord, first_tokens: float | None = None, extra_us: int = 0
) -> float | None:
    """Return the time per output token after the first chunk, in ms: (last chunk - first chunk) /
    (tokens - tokens in the first chunk).

    If this reply does not say how many tokens its first chunk has, `first_tokens` (measured in the
    warm-up) is used, and 1 if that is None. `extra_us` microseconds are added to the time between
    the chunks. Return None without token usage, or if nothing follows the first chunk.
    """
    tokens = record.output_tokens
    if tokens is None or not record.gaps_us:
        return None
    usual = 1 if first_tokens is None or record.chunks >= tokens else first_tokens
    after_first = tokens - (record.first_tokens or usual)
    if after_first <= 0:
        return None
    return (sum(record.gaps_us) + extra_us) / 1000 / after_first
