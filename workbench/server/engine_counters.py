"""Computes how the engine's own counters changed during one benchmark, from readings before, during
and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import fmean, median

from workbench.model.bench import EngineDuring
from workbench.model.server_run import EngineMetrics

_COUNTER_FIELDS = {  # field of EngineDuring: field of EngineMetrics
    "requests_finished": "requests_finished",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "prefix_hit_tokens": "prefix_hit_tokens",
    "preemptions": "preemptions",
}
_SHARE_COUNTERS = {  # percentage: counters of the part and of the whole
    "prefix_hit_pct": ("prefix_hit_tokens", "prefix_query_tokens"),
    "spec_accepted_pct": ("spec_accepted_tokens", "spec_draft_tokens"),
}
_COUNTER_DECREASED_REASON = (
    "the engine's counter decreased during the run, for example because the engine was restarted"
)
MAX_FOREIGN_SHARE = 0.05  # of the engine's tokens, above which others' requests decide the result
_MIN_SAMPLES = 3  # readings of the number of requests at a time; one may be out of date
_COMPARED_COUNTERS = (  # field of EngineDuring, name in messages
    ("requests_finished", "requests"),
    ("prompt_tokens", "prompt tokens"),
    ("generation_tokens", "output tokens"),
)


def summarize_counters(
    before: EngineMetrics, during: Sequence[EngineMetrics], after: EngineMetrics
) -> EngineDuring:
    """Return what the engine's counters say about one benchmark: the increase of each from `before`
    to `after`, and the mean and the maximum of the running and the waiting requests in the readings
    `during`. Unknown values are None, with the reason in `absent`."""
    absent: dict[str, str] = {}
    values: dict[str, int | float | None] = {}
    for name, counter in _COUNTER_FIELDS.items():
        values[name], why = _counter_increase_or_reason(before, after, counter)
        if why:
            absent[name] = why
    for name, (part, whole) in _SHARE_COUNTERS.items():
        some, why = _counter_increase_or_reason(before, after, part)
        total, why_total = _counter_increase_or_reason(before, after, whole)
        if some is not None and total:
            values[name] = round(100.0 * some / total, 2)
        else:
            values[name] = None
            absent[name] = why or why_total or "the engine counted nothing during the run"
    for name in ("running", "waiting"):
        known = _known_values(during, name)
        values[f"{name}_mean"] = round(fmean(known), 2) if known else None
        values[f"{name}_max"] = max(known, default=None)
        if not known:
            absent[f"{name}_mean"] = absent[f"{name}_max"] = _explain_missing_reading(
                name, during, after
            )
    values["in_flight_median"] = _median_in_flight(during)
    if values["in_flight_median"] is None:
        absent["in_flight_median"] = absent.get("running_mean") or _explain_missing_reading(
            "waiting", during, after
        )
    use = _known_values(during, "kv_use_pct")
    values["kv_use_max_pct"] = round(max(use), 2) if use else None
    if not use:
        absent["kv_use_max_pct"] = _explain_missing_reading("kv_use_pct", during, after)
    return EngineDuring(**values, samples=len(during), absent=absent)  # type: ignore[arg-type]


def _known_values(readings: Iterable[EngineMetrics], name: str) -> list[float]:
    """Return the values of the field `name` in `readings`, without those that are None."""
    values = map(attrgetter(name), readings)
    return [value for value in values if value is not None]


def _median_in_flight(during: Sequence[EngineMetrics]) -> float | None:
    """Return the median number of requests that run or wait. A number of waiting requests that is
    unknown counts as 0; a reading without the running ones is left out. None if none is left."""
    known = [one.running + (one.waiting or 0) for one in during if one.running is not None]
    if not known:
        return None
    return float(median(known))


def counters_without_values(reason: str) -> EngineDuring:
    """Return the result of `summarize_counters` for a benchmark without counters: every value is
    None, and `absent` has `reason` for each."""
    names = (
        *_COUNTER_FIELDS,
        *_SHARE_COUNTERS,
        "running_mean",
        "running_max",
        "waiting_mean",
        "waiting_max",
        "in_flight_median",
        "kv_use_max_pct",
    )
    return EngineDuring(absent=dict.fromkeys(names, reason))


def has_any_value(metrics: EngineMetrics) -> bool:
    """Return whether the reading `metrics` has the value of a counter, or the number of running or
    waiting requests."""
    names = ("running", "waiting", *_COUNTER_FIELDS.values())
    return any(getattr(metrics, name) is not None for name in names)


def describe_count_differences(
    engine: EngineDuring, requests: int, prompt_tokens: int | None, output_tokens: int | None
) -> tuple[str, ...]:
    """Return a sentence for each count that differs between the engine and the benchmark; () if all
    agree. `requests`, `prompt_tokens` and `output_tokens` are the benchmark's own counts, with the
    warm-up. Counts that are None are not compared."""
    return tuple(
        f"{title}: the engine counted {counted:,}, this benchmark {own:,}"
        for title, counted, own in _pair_engine_and_own_counts(
            engine, requests, prompt_tokens, output_tokens
        )
        if counted != own
    )


def _pair_engine_and_own_counts(
    engine: EngineDuring, requests: int, prompt_tokens: int | None, output_tokens: int | None
) -> Iterator[tuple[str, int, int]]:
    """Yield (title, count of the engine, count of the benchmark) where both are known."""
    for (name, title), own in zip(
        _COMPARED_COUNTERS, (requests, prompt_tokens, output_tokens), strict=True
    ):
        counted = getattr(engine, name)
        if counted is not None and own is not None:
            yield title, counted, own


def describe_load_of_other_clients(
    engine: EngineDuring,
    requests: int,
    prompt_tokens: int | None,
    output_tokens: int | None,
    streams: int,
    *,
    uncounted_prompt_and_output_tokens: tuple[int, int] = (0, 0),
) -> str | None:
    """Return why the result is rejected, if more than MAX_FOREIGN_SHARE of the tokens that the
    engine counted, or of the requests that it had at a time, were of other clients; otherwise None.
    `requests`, `prompt_tokens` and `output_tokens` are the benchmark's own counts, and `streams` is
    the number of its streams. `uncounted_prompt_and_output_tokens` are the most tokens that its
    failed requests may have had.

    More tokens alone prove nothing, because an engine may count other tokens than its usage: it
    must also have finished more requests than the benchmark sent, or have had more at a time.
    """
    at_once = engine.in_flight_median or 0.0
    finished_more = (engine.requests_finished or 0) > requests
    ran_more = max(engine.running_max or 0, at_once) > streams
    others = finished_more or ran_more
    counts = (
        (engine.prompt_tokens, prompt_tokens, uncounted_prompt_and_output_tokens[0]),
        (engine.generation_tokens, output_tokens, uncounted_prompt_and_output_tokens[1]),
    )
    shares = [
        (counted - own - spare) / counted
        for counted, own, spare in counts
        if counted and own is not None and counted > own
    ]
    limit = f"more than {100 * MAX_FOREIGN_SHARE:.0f} % are too many"
    if others and max(shares, default=0.0) > MAX_FOREIGN_SHARE:
        return (
            f"somebody else's requests were {100 * max(shares):.0f} % of the tokens that the engine "
            f"counted during this run "
            f"({'; '.join(describe_count_differences(engine, requests, prompt_tokens, output_tokens))}); {limit}"
        )
    if engine.samples < _MIN_SAMPLES or at_once * (1 - MAX_FOREIGN_SHARE) <= streams:
        return None
    return (
        f"somebody else's requests were {100 * (1 - streams / at_once):.0f} % of those that the "
        f"engine had at a time ({at_once:g} in the median of {engine.samples} readings, this "
        f"benchmark {streams}); {limit}"
    )


def has_engine_counted_all(
    engine: EngineDuring, requests: int, prompt_tokens: int | None, output_tokens: int | None
) -> bool:
    """Return whether the engine's counts have reached `requests`, `prompt_tokens` and
    `output_tokens`, the benchmark's own counts: an engine may report them late. A count that is
    None on either side is ignored."""
    counts = _pair_engine_and_own_counts(engine, requests, prompt_tokens, output_tokens)
    return all(counted >= own for _, counted, own in counts)


def _counter_increase_or_reason(
    before: EngineMetrics, after: EngineMetrics, name: str
) -> tuple[int | None, str | None]:
    """Return (increase of the counter `name`, None), or (None, reason) if the increase is unknown.
    A counter that is missing in `before` is counted from 0, because some engines report a counter
    only after its first use."""
    later = getattr(after, name)
    if later is None:
        return None, after.absent.get(name, "the engine's counters could not be read after the run")
    earlier = getattr(before, name)
    if earlier is None:
        if not has_any_value(before):
            return None, before.absent.get(
                name, "the engine's counters could not be read before the run"
            )
        earlier = 0
    if later < earlier:
        return None, _COUNTER_DECREASED_REASON
    return later - earlier, None


def _explain_missing_reading(
    name: str, during: Sequence[EngineMetrics], after: EngineMetrics
) -> str:
    if not during:
        return "the run was shorter than the time between two readings of the engine's counters"
    unread = after.absent.get(name, "the engine's counters could not be read")
    return during[-1].absent.get(name, unread)
