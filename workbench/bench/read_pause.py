"""The pause of the load client between two rounds of reads, which saves CPU time.

A wake-up costs more CPU time than the read of a chunk. The kernel records the receive time of each
read, so the client can wait and then read the sockets of many streams in one round without a loss
of accuracy. The pause must be shorter than the time between two chunks of one stream, because two
chunks in one socket would get one receive time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import chain

from workbench.bench.connection import ReceiveClock
from workbench.bench.exchange import Exchange

_MAX_PAUSE_NS = 2_500_000
_MIN_PAUSE_NS = 50_000  # a shorter rest saves nothing
_MIN_CHUNKS_PER_PAUSE = 2  # chunks that arrive in a rest: fewer are not worth its wake-up
_MAX_SHARE_OF_GAP = 1 / 4
_MAX_SHARE_OF_REQUEST = 1 / 500
_KEPT_MERGE_COUNTS = 10  # one second
_MIN_GAPS = 16
_SHORTER_GAPS_SHARE = 0.01  # the share of gaps that may be shorter than the gap that counts
_MERGED_SHARE = 0.002  # of reads: a percentile that is reported changes by less than its limit
_PAUSE_GROWTH_NS = 25_000  # a sweep by which the longest rest grows again


class ReadPause:
    """The pause between two rounds of reads: `ns` nanoseconds, 0 for none.

    The pause depends on the gaps between the chunks of a stream. It is a quarter of a short gap
    (the first percentile of the last second's gaps), but at most 2.5 ms and at most 1/500 of a
    request's duration. The second limit exists because after its last chunk a stream is idle for
    half a pause on average. If more than 0.2 % of the reads still return several chunks with one
    time, because the server is late and then catches up, the longest pause is halved each tenth of
    a second, and then grows again by 1 % of 2.5 ms.

    There is no pause if more than 1 % of the gaps are 0, because then the server already sends
    several chunks together. There is none either if fewer than two chunks would arrive in it, or
    without the kernel's receive times.
    """

    def __init__(self, tokens_per_request: int, clock: ReceiveClock) -> None:
        self.ns = 0
        self._share = min(_MAX_SHARE_OF_GAP, _MAX_SHARE_OF_REQUEST * tokens_per_request)
        self._clock, self._unstamped = clock, 0
        self._most_ns, self._reads, self._merged = _MAX_PAUSE_NS, 0, 0
        self._sweeps: deque[list[int]] = deque(maxlen=_KEPT_MERGE_COUNTS)

    def adapt_pause_to_gaps(self, running: Collection[Exchange], merged_reads: int = 0) -> None:
        """Compute the pause again from the newest times between two chunks of the requests in
        flight. `merged_reads` is how many reads of the run returned chunks whose times are not
        known. Call this ten times a second."""
        self._adapt_longest_pause(merged_reads)
        self._sweeps.append([gap for one in running for gap in _newest_chunk_gaps_ns(one)])
        unstamped, self._unstamped = self._clock.unstamped - self._unstamped, self._clock.unstamped
        gaps = sorted(chain.from_iterable(self._sweeps))
        if unstamped or len(gaps) < _MIN_GAPS:
            self.ns = 0
            return
        rest = min(self._most_ns, int(gaps[int(_SHORTER_GAPS_SHARE * len(gaps))] * self._share))
        gathered = len(running) * rest / max(1, gaps[len(gaps) // 2])
        self.ns = 0 if rest < _MIN_PAUSE_NS or gathered < _MIN_CHUNKS_PER_PAUSE else rest

    def _adapt_longest_pause(self, merged_reads: int) -> None:
        """Halve the longest pause if too many reads since the last call returned several chunks
        with one time, and let it grow otherwise."""
        reads, self._reads = max(0, self._clock.reads - self._reads), self._clock.reads
        fresh, self._merged = merged_reads - self._merged, merged_reads
        if fresh > _MERGED_SHARE * reads:
            self._most_ns //= 2
        else:
            self._most_ns = min(_MAX_PAUSE_NS, self._most_ns + _PAUSE_GROWTH_NS)


def _newest_chunk_gaps_ns(exchange: Exchange) -> list[int]:
    stamps = exchange.reply.stamps_ns
    return [stamps[i] - stamps[i - 1] for i in range(-1, -min(len(stamps), 3), -1)]
