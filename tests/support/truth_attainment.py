"""The attainment of an SLO from the stamps of the truth server, beside the one that is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.bench.records import BenchOutcome, RequestRecord
from workbench.bench.request_latency import tpot_ms
from workbench.bench.slo_attainment import sure_and_possible_attainment_pct
from workbench.bench.workload import unique_prompt_mark
from workbench.model.slo import Limit

Truth = Mapping[str, Mapping[str, Any]]


def points_off(outcome: BenchOutcome, truth: Truth, limits: Sequence[Limit]) -> float:
    """Return how many points lie between the range of the reported attainment and the true range;
    0 if they overlap."""
    least, most = reported_range(outcome, limits)
    lowest = true_percent(outcome, truth, limits, written=True)
    highest = true_percent(outcome, truth, limits, written=False)
    return max(lowest - most, least - highest, 0.0)


def reported_range(outcome: BenchOutcome, limits: Sequence[Limit]) -> tuple[float, float]:
    """Return the range of the attainment of a run, by the times that its chunks may have. One that
    was withheld, because the client read late, is computed all the same."""
    measured = [record for record in outcome.requests if not record.warmup]
    least, most = sure_and_possible_attainment_pct(measured, limits, None)
    reported = outcome.summary.slo_pct
    assert reported is None or least <= reported <= most
    return least, most


def true_percent(
    outcome: BenchOutcome, truth: Truth, limits: Sequence[Limit], *, written: bool
) -> float:
    """Return the share of requests that kept all limits by the server's stamps, in percent.
    `written` takes the times after the writes, otherwise those before them."""
    measured = [record for record in outcome.requests if not record.warmup]
    kept = [
        all(_true_ms(_of(outcome, truth, r), r, x.latency, written) <= x.most_ms for x in limits)
        for r in measured
    ]
    return 100 * sum(kept) / len(kept)


def latencies_ms(outcome: BenchOutcome, truth: Truth, latency: str) -> list[tuple[float, float]]:
    """Return (reported, true) for each measured request."""
    return [
        (_reported_ms(record, latency), _true_ms(_of(outcome, truth, record), record, latency))
        for record in outcome.requests
        if not record.warmup
    ]


def _of(outcome: BenchOutcome, truth: Truth, record: RequestRecord) -> Mapping[str, Any]:
    return truth[unique_prompt_mark(outcome.spec.salt, f"r/{record.index}")]


def _true_ms(
    true: Mapping[str, Any], record: RequestRecord, latency: str, written: bool = True
) -> float:
    """Return a latency by the server's stamps. The server does not know when a request was due, so
    the wait before it was sent is the client's."""
    stamps = true["done_ns"] if written else true["sent_ns"]
    if latency == "tpot":
        first_ns = true["sent_ns" if written else "done_ns"][0]
        return float((stamps[-1] - first_ns) / 1e6 / (len(stamps) - 1))
    last = stamps[0] if latency == "ttft" else stamps[-1]
    return float((last - true["request_ns"]) / 1e6) + _waited_ms(record)


def _reported_ms(record: RequestRecord, latency: str) -> float:
    if latency == "tpot":
        return tpot_ms(record) or 0.0
    after_us = record.ttft_us if latency == "ttft" else record.end_us
    assert after_us is not None
    return after_us / 1000 + _waited_ms(record)


def _waited_ms(record: RequestRecord) -> float:
    return 0.0 if record.due_s is None else 1000 * (record.start_s - record.due_s)
