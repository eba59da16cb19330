"""How many requests of a run kept the limits of its SLO, and the goodput: the rate of those that
kept all of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from workbench.bench.independent_requests import independent_requests
from workbench.bench.records import RequestRecord
from workbench.bench.request_latency import tpot_ms
from workbench.bench.steady_window import Window, requests_in, tokens_in
from workbench.model.slo import LATENCIES, OF_AN_SLO, Limit, LimitAttained, parse_slo

_ROUNDING = 1e-9  # 95 % of 100 requests are 95 requests, not 96


def slo_metrics(
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
    were not timed well enough: without one that is limited there is neither attainment nor goodput.
    Goodput counts in the steady `window`, as throughput does.
    """
    if not slo:
        return {}
    limits = parse_slo(slo)
    unknown = {limit for limit in limits if LATENCIES[limit.latency] in withheld}
    attained = tuple(
        _attained(limit, () if limit in unknown else counted, first_tokens) for limit in limits
    )
    if unknown or not counted:
        return {"slo": attained}
    good = _keeping(counted, limits, first_tokens)
    tokens = tokens_in(window, good)
    rates: dict[str, object] = {"slo_pct": _percent(good, counted)}
    if window.seconds > 0:
        rates["goodput_request_s"] = round(requests_in(window, good) / window.seconds, 4)
        if tokens is not None:
            rates["goodput_tok_s"] = round(tokens / window.seconds, 4)
    return {"slo": attained, **rates}


def absent_slo(slo: str, metrics: Mapping[str, object]) -> dict[str, str]:
    """Return {field of BenchSummary: reason} for what `slo_metrics` could not compute."""
    if not slo:
        return {}
    missing = [name for name in OF_AN_SLO if name not in metrics]
    return dict.fromkeys(missing, _why_absent(metrics))


def _why_absent(metrics: Mapping[str, object]) -> str:
    if "slo_pct" not in metrics:
        return "no request was measured, or a latency that the SLO limits could not be timed"
    if "goodput_request_s" not in metrics:
        return "the run took no time that can be measured"
    return "the server did not report the tokens of every request"


def _attained(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> LimitAttained:
    keeping = _keeping(counted, [limit], first_tokens)
    return LimitAttained(
        str(limit),
        limit.percent,
        _percent(keeping, counted),
        _reached_ms(limit, counted, first_tokens),
        limit.most_ms,
        _independent(limit, counted, first_tokens),
    )


def _independent(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> float | None:
    """Return how many independent requests those with due times are worth; None without any."""
    due = sorted((r for r in counted if r.due_s is not None), key=lambda r: r.due_s or 0.0)
    latencies_ms = _latencies_ms(limit, due, first_tokens)
    return (
        round(independent_requests(latencies_ms, limit.most_ms, limit.percent), 1) if due else None
    )


def _latencies_ms(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> list[float]:
    """Return the limited latency of each request, infinite if it failed."""
    return [
        _latency_ms(record, limit.latency, first_tokens) if record.ok else math.inf
        for record in counted
    ]


def _reached_ms(
    limit: Limit, counted: Sequence[RequestRecord], first_tokens: float | None
) -> float | None:
    """Return the latency that exactly `limit.percent` of the requests kept, or None if more than
    the others failed."""
    latencies = sorted(_latencies_ms(limit, counted, first_tokens))
    if not latencies:
        return None
    needed = math.ceil(len(latencies) * limit.percent / 100 - _ROUNDING)
    reached_ms = latencies[max(needed, 1) - 1]
    return round(reached_ms, 4) if math.isfinite(reached_ms) else None


def _percent(keeping: Sequence[RequestRecord], counted: Sequence[RequestRecord]) -> float | None:
    return round(100 * len(keeping) / len(counted), 4) if counted else None


def _keeping(
    counted: Sequence[RequestRecord], limits: Sequence[Limit], first_tokens: float | None
) -> list[RequestRecord]:
    """Return the successful requests that kept all of `limits`."""
    return [
        record
        for record in counted
        if record.ok and all(_keeps(record, limit, first_tokens) for limit in limits)
    ]


def _keeps(record: RequestRecord, limit: Limit, first_tokens: float | None) -> bool:
    return _latency_ms(record, limit.latency, first_tokens) <= limit.most_ms


def _latency_ms(record: RequestRecord, latency: str, first_tokens: float | None) -> float:
    """Return a latency of a successful request: 0 if it has no second token to be late, and
    infinity if it was not measured."""
    if latency == "tpot":
        return tpot_ms(record, first_tokens) or 0.0
    waited_ms = 0.0 if record.due_s is None else 1000 * (record.start_s - record.due_s)
    after_us = record.ttft_us if latency == "ttft" else record.end_us
    return math.inf if after_us is None else waited_ms + after_us / 1000
