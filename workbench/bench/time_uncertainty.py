"""How far the latencies of a run may be wrong, and which of them are withheld for that reason.

The kernel gives all bytes of one read the time of the last of them. If a read was late and returned
several chunks, the earlier chunks have come before that time, but not before the sockets were last
found empty (client.py). So each of these times lies in a known range, and each percentile too: it
is between the percentile of all earliest and that of all latest times. A latency is withheld if
this range is wider than a limit. The load of the client does not matter: late reads that returned
one chunk each are exact, because the kernel's time is.

The limit is the larger of 0.5 ms and 1 % of the latency. A read that is late by a whole turn of the
client is wrong by tens of milliseconds, which either limit catches. A mean of 77 ms that is known
within 0.6 ms answers the questions that a single run can answer: two runs of one configuration
differ by more than 1 %. The uncertainty that remains is stored beside the latency
(`Uncertainty.widest_ms`), and a comparison calls no difference better or worse that it could
explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add, sub

from workbench.bench.records import RequestRecord
from workbench.model.distribution import (
    PERCENTILES,
    Distribution,
    distribution_of,
    distribution_of_counts,
)
from workbench.model.known_values import known_values
from workbench.model.lazy_dataclass import dataclass

MAX_UNCERTAINTY_MS = 0.5
MAX_UNCERTAINTY_SHARE = 0.01  # of the latency, if that is more
_LATENCY_STATISTICS = ("mean", *PERCENTILES)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How far the statistics of a latency may be wrong: at most by `widest_ms`. `too_wide` names
    the first one that is not known within the limit, with its range; None if all of them are."""

    widest_ms: float
    too_wide: str | None

    @property
    def reported_uncertainty_ms(self) -> float:
        """How far statistics that are reported may be wrong; 0 if the latency is withheld."""
        return self.widest_ms if self.too_wide is None else 0.0


EXACT = Uncertainty(0.0, None)


def any_time_is_uncertain(good: Sequence[RequestRecord]) -> bool:
    """Return whether any time of these requests is known only as a range."""
    return any(record.unsure or record.send_us for record in good)


def ttft_uncertainty(good: Sequence[RequestRecord]) -> Uncertainty:
    """Return how far the TTFT may be wrong."""
    timed = [(r, r.ttft_us) for r in good if r.ttft_us is not None]
    low = ((ttft - _max_stamp_delay_us(r, 0) - r.send_us) / 1000 for r, ttft in timed)
    high = distribution_of(ttft / 1000 for _, ttft in timed)
    return _uncertainty_between(_distribution_from_zero(low), high)


def itl_uncertainty(good: Sequence[RequestRecord]) -> Uncertainty:
    """Return how far the gaps between chunks may be wrong. The mean is not looked at, because the
    ranges of successive gaps cancel out in it."""
    low: Counter[float] = Counter()
    high: Counter[float] = Counter()
    for record in good:
        if record.unsure:
            early = _max_stamp_delays_us(record)
            low.update(map(sub, record.gaps_us, early[1:]))
            high.update(map(add, record.gaps_us, early))
        else:
            low.update(record.gaps_us)
            high.update(record.gaps_us)
    for gap in [gap for gap in low if gap < 0]:
        low[0] += low.pop(gap)
    return _uncertainty_between(
        distribution_of_counts(low, 1000),
        distribution_of_counts(high, 1000),
        _LATENCY_STATISTICS[1:],
    )


def _max_stamp_delays_us(record: RequestRecord) -> list[int]:
    """Return the microseconds by which each chunk may have come earlier."""
    early = [0] * record.chunks
    for first, count, by in record.unsure:
        early[first : first + count] = [by] * count
    return early


def tpot_uncertainty(
    good: Sequence[RequestRecord], tpot_ms: Callable[[RequestRecord, int], float | None]
) -> Uncertainty:
    """Return how far the TPOT may be wrong. `tpot_ms(record, more_us)` returns the TPOT of a
    request if `more_us` microseconds more had passed between its first and its last chunk; None if
    it has no TPOT."""
    long = [r for r in good if r.gaps_us]
    low = known_values(tpot_ms(r, -_max_stamp_delay_us(r, len(r.gaps_us))) for r in long)
    high = known_values(tpot_ms(r, _max_stamp_delay_us(r, 0)) for r in long)
    return _uncertainty_between(_distribution_from_zero(low), _distribution_from_zero(high))


def _distribution_from_zero(times_ms: Iterable[float]) -> Distribution | None:
    """Return the distribution of times, of which none can be below 0."""
    return distribution_of(max(0.0, each) for each in times_ms)


def _max_stamp_delay_us(record: RequestRecord, number: int) -> int:
    """Return the microseconds by which chunk `number` may have come earlier."""
    return max_stamp_delay_us_by_chunk(record).get(number, 0)


def max_stamp_delay_us_by_chunk(record: RequestRecord) -> dict[int, int]:
    """Return {number of a chunk: microseconds by which it may have come earlier}."""
    early: dict[int, int] = {}
    for first, count, early_us in record.unsure:
        early |= dict.fromkeys(range(first, first + count), early_us)
    return early


def _uncertainty_between(
    low: Distribution | None,
    high: Distribution | None,
    statistics: Sequence[str] = _LATENCY_STATISTICS,
) -> Uncertainty:
    """Return the uncertainty of a latency whose `statistics` lie between those of `low` and `high`.
    A statistic that one of the two lacks is left out."""
    widest, too_wide = 0.0, None
    for part in statistics:
        least, most = getattr(low, part, None), getattr(high, part, None)
        if least is None or most is None:
            continue
        widest = max(widest, most - least)
        if most - least > max(MAX_UNCERTAINTY_MS, MAX_UNCERTAINTY_SHARE * least):
            too_wide = too_wide or f"{part} is between {least:,.1f} and {most:,.1f} ms"
    return Uncertainty(widest, too_wide)
