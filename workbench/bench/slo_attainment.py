"""How many requests of a run kept the limits of its SLO, and the goodput: the rate of those that
kept all of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from workbench.bench.independent_requests import equivalent_independent_requests
from workbench.bench.records import RequestRecord
from workbench.bench.request_latency import tpot_ms
from workbench.bench.steady_window import Window, count_requests_in, count_tokens_in
from workbench.bench.time_uncertainty import max_stamp_delay_us_by_chunk
from workbench.model.slo import LATENCIES, OF_AN_SLO, Limit, LimitAttained, parse_slo

_ROUNDING_ERROR = 1e-9  # 95 % of 100 requests are 95 requests, not 96
_NOTED_DOUBT_POINTS = 0.1  # points by which the attainment may be wrong without a note
_MAX_OPEN_POINTS = 0.5  # of which late reads may leave open whether a limit was kept


def slo_metric_values(
    slo: str,
    counted: Sequence[RequestRecord],
    window: Window,
    first_tokens: float | None,
    withheld: Collection[str],
) -> dict[str, object]:
    """Return {field of BenchSummary: value} for the SLO of a run; {} without an SLO.

    `counted` are the records of all measured requests: one that failed keeps no limit. TTFT and
    end-to-end time begin when a request was due if the run had a schedule, and else when it was
    sent. A request without a second token keeps every limit of TPOT. `withheld` are latencies that
    were not timed well enough. A limit on one of them is judged only if nearly all requests kept or
    broke it for sure; otherwise there is neither attainment nor goodput. Goodput counts in the
    steady `window`, as throughput does.
    """
    if not slo:
        return {}
    limits = parse_slo(slo)
    unsure = [limit for limit in limits if LATENCIES[limit.latency] in withheld]
    unknown = {limit for limit in unsure if not _is_limit_decided(limit, counted, first_tokens)}
    attained = tuple(
        _attainment_of_limit(limit, () if limit in unknown else counted, first_tokens)
        for limit in limits
    )
    if unknown or not counted:
        return {"slo": attained}
    good = _select_requests_within_limits(counted, limits, first_tokens)
    tokens = count_tokens_in(window, good)
    rates: dict[str, object] = {"slo_pct": _percent_of_requests(good, counted)}
    if window.seconds > 0:
        rates["goodput_request_s"] = round(count_requests_in(window, good) / window.seconds, 4)
        if tokens is not None:
            rates["goodput_tok_s"] = round(tokens / window.seconds, 4)
    return {"slo": attained, **rates}


def _is_limit_decided(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> bool:
    """Return whether late reads leave open for only a few requests whether they kept a limit."""
    least_pct, most_pct = sure_and_possible_attainment_pct(counted, [limit], first_tokens)
    return most_pct - least_pct <= _MAX_OPEN_POINTS


def uncertain_attainment_notes(
    slo: str,
    metrics: Mapping[str, object],
    counted: Sequence[RequestRecord],
    first_tokens: float | None,
) -> tuple[str, ...]:
    """Return a note with the range of the attainment in `metrics`, or () if it is narrow.

    Late reads (time_uncertainty.py) make TTFT and end-to-end time longer, and TPOT longer or
    shorter, so more or fewer requests may have kept the SLO than those whose recorded times did.
    """
    if not isinstance(metrics.get("slo_pct"), float):
        return ()
    least_pct, most_pct = sure_and_possible_attainment_pct(counted, parse_slo(slo), first_tokens)
    if most_pct - least_pct <= _NOTED_DOUBT_POINTS:
        return ()
    return (
        f"between {least_pct:.1f} and {most_pct:.1f} % of the requests kept the SLO: the load client"
        " got several chunks with one time",
    )


def sure_and_possible_attainment_pct(
    counted: Sequence[RequestRecord], limits: Sequence[Limit], first_tokens: float | None
) -> tuple[float, float]:
    """Return the percentages of the requests that kept all of `limits` for sure, and that may have
    kept them."""
    sure = may = 0
    for record in counted:
        if not record.ok:
            continue
        ranges = [(_latency_range_ms(record, x.latency, first_tokens), x.most_ms) for x in limits]
        sure += all(longest <= most_ms for (_, longest), most_ms in ranges)
        may += all(shortest <= most_ms for (shortest, _), most_ms in ranges)
    many = max(1, len(counted))
    return round(100 * sure / many, 4), round(100 * may / many, 4)


def reason_by_absent_slo_metric(slo: str, metrics: Mapping[str, object]) -> dict[str, str]:
    """Return {field of BenchSummary: reason} for what `slo_metric_values` could not compute."""
    if not slo:
        return {}
    missing = [name for name in OF_AN_SLO if name not in metrics]
    return dict.fromkeys(missing, _why_slo_metrics_absent(metrics))


def _why_slo_metrics_absent(metrics: Mapping[str, object]) -> str:
    if "slo_pct" not in metrics:
        return "no request was measured, or a latency that the SLO limits could not be timed"
    if "goodput_request_s" not in metrics:
        return "the run took no time that can be measured"
    return "the server did not report the tokens of every request"


def _attainment_of_limit(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> LimitAttained:
    keeping = _select_requests_within_limits(counted, [limit], first_tokens)
    return LimitAttained(
        str(limit),
        limit.percent,
        _percent_of_requests(keeping, counted),
        _latency_kept_by_wanted_percent(limit, counted, first_tokens),
        limit.most_ms,
        _count_independent_requests(limit, counted, first_tokens),
    )


def _count_independent_requests(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> float | None:
    """Return how many independent requests those with a due time are worth. None if none has
    one."""
    due = sorted((r for r in counted if r.due_s is not None), key=attrgetter("due_s"))
    if not due:
        return None
    latencies_ms = _limited_latencies_ms(limit, due, first_tokens)
    return round(equivalent_independent_requests(latencies_ms, limit.most_ms, limit.percent), 1)


def _limited_latencies_ms(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> list[float]:
    """Return the latency of each request that `limit` limits, in ms; infinite if the request
    failed. `first_tokens` is how many tokens the first chunk of an answer has on average."""
    return [_latency_ms(record, limit.latency, first_tokens) for record in counted]


def _latency_kept_by_wanted_percent(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> float | None:
    """Return the latency that exactly `limit.percent` of the requests kept. None if fewer than that
    succeeded."""
    latencies = sorted(_limited_latencies_ms(limit, counted, first_tokens))
    needed = math.ceil(len(latencies) * limit.percent / 100 - _ROUNDING_ERROR)
    reached_ms = latencies[max(needed, 1) - 1] if latencies else math.inf
    return round(reached_ms, 4) if math.isfinite(reached_ms) else None


def _percent_of_requests(
    keeping: Sequence[RequestRecord], counted: Sequence[RequestRecord]
) -> float | None:
    if not counted:
        return None
    return round(100 * len(keeping) / len(counted), 4)


def _select_requests_within_limits(
    counted: Sequence[RequestRecord], limits: Sequence[Limit], first_tokens: float | None
) -> list[RequestRecord]:
    """Return the requests that kept all of `limits`. A request that failed keeps none."""
    keeping = list(counted)
    for limit in limits:
        keeping = [one for one in keeping if _is_within_limit(one, limit, first_tokens)]
    return keeping


def _is_within_limit(record: RequestRecord, limit: Limit, first_tokens: float | None) -> bool:
    return _latency_ms(record, limit.latency, first_tokens) <= limit.most_ms


def _latency_range_ms(
    record: RequestRecord, latency: str, first_tokens: float | None
) -> tuple[float, float]:
    """Return the shortest and the longest latency that a successful request may have had."""
    said_ms = _latency_ms(record, latency, first_tokens)
    if not record.unsure and not record.send_us:
        return said_ms, said_ms
    early = max_stamp_delay_us_by_chunk(record)
    first_us, last_us = early.get(0, 0), early.get(len(record.gaps_us), 0)
    if latency == "tpot":
        shortest_ms = _tpot_ms_or_zero(record, first_tokens, -last_us)
        return shortest_ms, _tpot_ms_or_zero(record, first_tokens, first_us)
    of_chunk_us = first_us if latency == "ttft" else last_us
    return said_ms - (of_chunk_us + record.send_us) / 1000, said_ms


def _tpot_ms_or_zero(record: RequestRecord, first_tokens: float | None, extra_us: int = 0) -> float:
    """Return the TPOT of a request, as `tpot_ms` does; 0 if it has no second token to be late."""
    return tpot_ms(record, first_tokens, extra_us) or 0.0


def _latency_ms(record: RequestRecord, latency: str, first_tokens: float | None) -> float:
    """Return a latency of a request: 0 if it has no second token to be late, and infinity if it
    was not measured or the request failed."""
    if not record.ok:
        return math.inf
    if latency == "tpot":
        return _tpot_ms_or_zero(record, first_tokens)
    after_us = record.ttft_us if latency == "ttft" else record.end_us
    if after_us is None:
        return math.inf
    waited_s = 0.0 if record.due_s is None else record.start_s - record.due_s
    return 1000 * waited_s + after_us / 1000
