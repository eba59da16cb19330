"""The rest of the load client between two rounds of reads: as long as it changes no time, and no
longer."""

from __future__ import annotations

import pytest

from workbench.bench.connection import ReceiveClock
from workbench.bench.exchange import Exchange
from workbench.bench.read_pause import ReadPause

MS = 1_000_000


def running(gaps_ns: list[int], streams: int = 128) -> list[Exchange]:
    """Return requests in flight whose newest chunks came at these gaps."""
    exchanges = []
    for _ in range(streams):
        exchange, at = Exchange(0, False, b""), 1
        for gap in (0, *gaps_ns):
            at += gap
            exchange.reply.stamps_ns.append(at)
        exchanges.append(exchange)
    return exchanges


def pause_after(
    *sweeps: list[Exchange], tokens: int = 128, clock: ReceiveClock | None = None
) -> int:
    pause = ReadPause(tokens, clock or ReceiveClock())
    for sweep in sweeps:
        pause.adapt_pause_to_gaps(sweep)
    return pause.ns


@pytest.mark.parametrize(
    ("gap_ns", "tokens", "expected_ns"),
    [
        (4 * MS, 128, MS),  # a quarter of the gap
        (50 * MS, 128, 5 * MS // 2),  # at most 2.5 ms
        (2 * MS, 16, 64_000),  # requests of 16 tokens: 1/500 of a request
        (MS // 8, 128, 0),  # so short a rest saves nothing
    ],
)
def test_the_rest_follows_the_gaps_of_the_streams(
    gap_ns: int, tokens: int, expected_ns: int
) -> None:
    assert pause_after(running([gap_ns, gap_ns]), tokens=tokens) == expected_ns


def test_streams_whose_chunks_arrive_together_allow_no_rest() -> None:
    assert pause_after(running([10 * MS] * 2, streams=98) + running([10 * MS, 0], streams=4)) == 0


def test_a_second_without_chunks_that_arrive_together_allows_a_rest_again() -> None:
    steady = running([10 * MS] * 2)
    assert pause_after(running([0, 0]), *[steady] * 9) == 0
    assert pause_after(running([0, 0]), *[steady] * 10) == 5 * MS // 2


def test_a_short_gap_of_one_stream_shortens_the_rest_of_all() -> None:
    assert (
        pause_after(running([10 * MS] * 2, streams=200) + running([MS] * 2, streams=20)) == MS // 4
    )


def test_few_streams_are_read_at_once() -> None:
    """At 100 tokens/s, 6 streams bring less than two chunks in a rest, which costs a wake-up
    itself."""
    assert pause_after(running([10 * MS] * 2, streams=6)) == 0
    assert pause_after(running([10 * MS] * 2, streams=8)) == 5 * MS // 2


def test_reads_that_return_several_chunks_shorten_the_rest_until_they_end() -> None:
    """Few gaps are that short where a server is late, and then catches up."""
    steady, clock = running([10 * MS] * 2), ReceiveClock()
    pause = ReadPause(128, clock)
    pause.adapt_pause_to_gaps(steady, merged_reads=0)
    assert pause.ns == 5 * MS // 2
    for merged, most_ns in ((3, 5 * MS // 4), (6, 5 * MS // 8), (7, 5 * MS // 8 + 25_000)):
        clock.reads += 1000
        pause.adapt_pause_to_gaps(steady, merged)
        assert pause.ns == most_ns, "3 of 1,000 reads are too many, and one is not"
    for _ in range(100):
        clock.reads += 1000
        pause.adapt_pause_to_gaps(steady, merged)
    assert pause.ns == 5 * MS // 2


def test_before_the_gaps_are_known_there_is_no_rest() -> None:
    assert pause_after(running([], streams=64)) == 0
    assert pause_after(running([10 * MS], streams=2)) == 0


def test_without_the_kernels_times_there_is_no_rest() -> None:
    clock = ReceiveClock()
    clock.unstamped = 1
    assert pause_after(running([10 * MS] * 2), clock=clock) == 0
