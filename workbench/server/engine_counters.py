"""What an engine did around one benchmark, from readings of its own counters."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from workbench.model.bench import EngineDuring
from workbench.model.server_run import EngineMetrics

_COUNTERS = {  # of EngineDuring: of EngineMetrics
    "requests_finished": "requests_finished",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prefix_hit_tokens": "prefix_hit_tokens",
    "preemptions": "preemptions",
}
_SHARES = {  # part, whole
    "prefix_hit_pct": ("prefix_hit_tokens", "prefix_query_tokens"),
    "spec_accepted_pct": ("spec_accepted_tokens", "spec_draft_tokens"),
}
_BACKWARDS = "the counter went back: the engine started anew, or counts something else"
_COMPARED = (  # of EngineDuring, what it is called
    ("requests_finished", "requests"),
    ("prompt_tokens", "prompt tokens"),
    ("generation_tokens", "output tokens"),
)


def summarize(before: EngineMetrics, during: Sequence[EngineMetrics], after: EngineMetrics) -> EngineDuring:
    """Differences of the counters from `before` to `after`, means and maxima of the gauges in `during`."""
    absent: dict[str, str] = {}
    values: dict[str, int | float | None] = {}
    for name, counter in _COUNTERS.items():
        values[name], why = _difference(before, after, counter)
        if why:
            absent[name] = why
    for name, (part, whole) in _SHARES.items():
        (some, why), (total, why_total) = _difference(before, after, part), _difference(before, after, whole)
        values[name] = round(100.0 * some / total, 2) if some is not None and total else None
        if values[name] is None:
            absent[name] = why or why_total or "nothing was counted in that time"
    for name in ("running", "waiting"):
        seen = [v for one in during if (v := getattr(one, name)) is not None]
        values[f"{name}_mean"] = round(fmean(seen), 2) if seen else None
        values[f"{name}_max"] = max(seen, default=None)
        if not seen:
            absent[f"{name}_mean"] = absent[f"{name}_max"] = _unread(name, during, after)
    use = [one.kv_use_pct for one in during if one.kv_use_pct is not None]
    values["kv_use_max_pct"] = round(max(use), 2) if use else None
    if not use:
        absent["kv_use_max_pct"] = _unread("kv_use_pct", during, after)
    return EngineDuring(**values, samples=len(during), absent=absent)  # type: ignore[arg-type]


def nothing(reason: str) -> EngineDuring:
    """No view of the engine, and why."""
    names = (*_COUNTERS, *_SHARES, "running_mean", "running_max", "waiting_mean", "waiting_max", "kv_use_max_pct")
    return EngineDuring(absent=dict.fromkeys(names, reason))


def readable(metrics: EngineMetrics) -> bool:
    """Whether anything could be read at all."""
    return any(getattr(metrics, n) is not None for n in ("running", "waiting", *_COUNTERS.values()))


def disagreements(engine: EngineDuring, requests: int, prompt: int | None, output: int | None) -> tuple[str, ...]:
    """Where the engine's counts are not those of the benchmark (all that it sent, warm-up included)."""
    found = []
    for (name, title), ours in zip(_COMPARED, (requests, prompt, output), strict=True):
        theirs = getattr(engine, name)
        if theirs is not None and ours is not None and theirs != ours:
            found.append(f"{title}: the engine counted {theirs:,}, this benchmark {ours:,}")
    return tuple(found)


def _difference(before: EngineMetrics, after: EngineMetrics, name: str) -> tuple[int | None, str | None]:
    """How far a counter went. One that the engine shows from its first use on began at 0."""
    later = getattr(after, name)
    if later is None:
        return None, after.absent.get(name, "not read after the run")
    earlier = getattr(before, name)
    if earlier is None:
        if not readable(before):
            return None, before.absent.get(name, "not read before the run")
        earlier = 0
    return (later - earlier, None) if later >= earlier else (None, _BACKWARDS)


def _unread(name: str, during: Sequence[EngineMetrics], after: EngineMetrics) -> str:
    if not during:
        return "the run was shorter than the time between two readings"
    return during[-1].absent.get(name) or after.absent.get(name) or "not read"
