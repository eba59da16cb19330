"""How many independent requests the requests of a run are worth.

Requests that come at a rate share one queue: if one waits long, so do the next ones. Over such a
run a percentage is known no better than from a smaller number of independent requests: the number
of requests divided by their correlation time, in requests. That is the variance of the means of
blocks of requests, times the length of a block, over the variance of one request. It is estimated
from blocks of rising lengths, and the longest time counts, so that a slow queue is not missed.

What is correlated is whether the requests keep the limit. A run in which all of them do shows
nothing about that, so the correlation time of the latencies counts as well, unless they are far
from the limit: by _FAR_FROM_LIMIT_DEVIATIONS times as much as they differ between the tenths of the
run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.bench.steadiness import fmean, sum_of_squared_deviations, variance

_MIN_BLOCKS = 10  # least number of blocks from which a variance is estimated
_FAR_FROM_LIMIT_DEVIATIONS = 2.5  # standard deviations of a block
_MIN_LATENCY_MS = 1e-3
_LATENCY_OF_FAILED_MS = 1e9  # stands for the latency of a request that failed


def equivalent_independent_requests(
    latencies_ms: Sequence[float], limit_ms: float, wanted_percent: float
) -> float:
    """Return how many independent requests the requests of a run are worth: at least 1 and at most
    their number, 0.0 without requests. `latencies_ms` are in the order in which the requests were
    due, infinite for one that failed. `wanted_percent` of the requests should take at most
    `limit_ms`."""
    if not latencies_ms:
        return 0.0
    logs = [
        math.log(min(max(each, _MIN_LATENCY_MS), _LATENCY_OF_FAILED_MS) / limit_ms)
        for each in latencies_ms
    ]
    slower = _correlation_time_in_requests([float(each <= 0) for each in logs])
    if not _is_percentile_far_from_limit(logs, wanted_percent):
        slower = max(slower, _correlation_time_in_requests(logs))
    return max(1.0, len(logs) / slower)


def _is_percentile_far_from_limit(log_ratios: Sequence[float], wanted_percent: float) -> bool:
    """Return whether the latency at the wanted percentage is far from the limit. `log_ratios` are
    the logarithms of latency / limit."""
    size = len(log_ratios) // _MIN_BLOCKS
    if not size:
        return False
    place = max(1, math.ceil(size * wanted_percent / 100 - 1e-9)) - 1
    reached = [sorted(log_ratios[n * size : (n + 1) * size])[place] for n in range(_MIN_BLOCKS)]
    return abs(fmean(reached)) >= _FAR_FROM_LIMIT_DEVIATIONS * math.sqrt(variance(reached))


def _correlation_time_in_requests(values: Sequence[float]) -> float:
    """Return the correlation time of the values, in requests; 1 if they are independent."""
    of_one = sum_of_squared_deviations(values) / len(values)
    longest = 1.0
    size, means = 1, list(values)
    while of_one > 0 and len(means) >= _MIN_BLOCKS:
        longest = max(longest, size * variance(means) / of_one)
        means = [(a + b) / 2 for a, b in zip(means[::2], means[1::2], strict=False)]
        size *= 2
    return longest
