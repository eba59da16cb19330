"""Whether the engine's prefix cache supplied as many prompt tokens as a replayed trace says."""

from __future__ import annotations

from workbench.model.bench import BenchSpec, BenchSummary, EngineDuring
from workbench.model.lazy_dataclass import dataclass

_MAX_DIFFERENCE_PCT = 2.0  # of the prompt tokens
_MAX_CONVERSATION_DIFFERENCE_PCT = (
    5.0  # of conversations, whose tokens are estimated from their characters
)
_TEMPLATE_TOKENS = 64  # of an unknown chat template, which may come from the cache in every request


@dataclass(frozen=True, slots=True)
class ReuseFindings:
    """What a result says about the reuse of prompt tokens."""

    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


def compare_prefix_reuse_with_trace(
    spec: BenchSpec, summary: BenchSummary, during: EngineDuring, *, is_partial: bool
) -> ReuseFindings:
    """Return notes and marks on how many prompt tokens the engine reused, compared with the trace.
    The result is marked if the engine's share differs by more than 2 percentage points; 5 for
    conversations. Empty for a load that is no trace, and for a result with failures or that is
    partial."""
    if spec.trace_reuse is None or is_partial or summary.requests_failed or not summary.requests_ok:
        return ReuseFindings()
    expected_pct = 100 * spec.trace_reuse
    said = f"a prefix cache without limit would reuse {expected_pct:.1f} % of the trace's prompt tokens"
    apart_pct = _MAX_CONVERSATION_DIFFERENCE_PCT if spec.has_conversations else _MAX_DIFFERENCE_PCT
    counted = _reused_and_all_prompt_tokens(summary, during)
    if counted is None:
        return ReuseFindings(notes=(f"{said}; the engine does not count reused tokens",))
    hits, prompt_tokens = counted
    measured_pct = 100 * hits / prompt_tokens
    template = _TEMPLATE_TOKENS * summary.requests_ok if spec.endpoint == "chat" else 0
    most_pct = expected_pct + apart_pct + 100 * template / prompt_tokens
    both = f"{said}, and the engine reused {measured_pct:.1f} %"
    if measured_pct > most_pct:
        why = "the server has answered such prompts before, or others sent some"
        return ReuseFindings(marks=(f"{both}: {why}",))
    if measured_pct < expected_pct - apart_pct:
        why = (
            "its cache is off or too small, or requests began before those that they share a "
            "prefix with had computed it"
        )
        return ReuseFindings(marks=(f"{both}: {why}",))
    return ReuseFindings(notes=(both,))


def _reused_and_all_prompt_tokens(
    summary: BenchSummary, during: EngineDuring
) -> tuple[int, int] | None:
    """Return (reused prompt tokens, all prompt tokens) of the measured requests, by the engine's
    counters or by the answers. None if neither counted them. The prompts of the warm-up share
    nothing with others."""
    if during.prefix_hit_tokens is not None and during.prompt_tokens:
        measured = during.prompt_tokens - (summary.warmup_prompt_tokens or 0)
        return (during.prefix_hit_tokens, measured) if measured > 0 else None
    if summary.cached_tokens is not None and summary.prompt_tokens:
        return summary.cached_tokens, summary.prompt_tokens
    return None
