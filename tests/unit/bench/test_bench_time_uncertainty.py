"""Latencies that the client could not time are withheld, and those that it reports are right."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import HEAD, Request, ScriptedServer, chat_events, chunk
from truth_server import TruthProcess

from workbench.bench import client, runner, time_uncertainty
from workbench.bench.client import Client
from workbench.bench.connection import Endpoint, resolve_endpoint
from workbench.bench.exchange import Exchange
from workbench.bench.poller import READABLE, WRITABLE
from workbench.bench.records import RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.summary import summarize
from workbench.bench.workers import LocalWorker
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import BenchSpec
from workbench.model.distribution import distribution_of

SPEC = BenchSpec("http://127.0.0.1:1", "m", concurrency=4, requests=16, max_tokens=24, warmup=0)
READS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40_000)), min_size=2, max_size=20)
GAPS = st.lists(st.integers(0, 30_000), min_size=80, max_size=80)


def record_of(reads: list[tuple[int, int]], gaps: list[int]) -> tuple[RequestRecord, list[int]]:
    """Return the record of a reply whose chunks came after these gaps and were read in groups, and
    the true times of its chunks. Each read has (number of chunks, how long before its first chunk
    the sockets were last found empty)."""
    count = sum(size for size, _ in reads)
    came = list(accumulate(gaps[:count]))
    seen: list[int] = []
    unsure = []
    for size, before in reads:
        had = len(seen)
        last = came[had + size - 1]
        empty = max(came[had] - before, seen[-1] if seen else 0)
        if size > 1:
            unsure.append((had, size - 1, last - empty))
        seen += [last] * size
    record = RequestRecord(
        index=0,
        warmup=False,
        start_s=0.0,
        end_us=seen[-1],
        ttft_us=seen[0],
        gaps_us=tuple(b - a for a, b in pairwise(seen)),
        chunks=count,
        prompt_tokens=10,
        output_tokens=count,
        finish_reason="length",
        unsure=tuple(unsure),
    )
    return record, came


@given(replies=st.lists(st.tuples(READS, GAPS), min_size=1, max_size=12))
def test_a_reported_latency_is_within_the_limit_of_the_truth(
    replies: list[tuple[list[tuple[int, int]], list[int]]],
) -> None:
    both = [record_of(*reply) for reply in replies]
    records = [replace(record, index=n) for n, (record, _) in enumerate(both)]
    summary = summarize(SPEC, records, (), ClientFacts())
    truth = {
        "ttft_ms": distribution_of((came[0] for _, came in both), 1000),
        "itl_ms": distribution_of((b - a for _, came in both for a, b in pairwise(came)), 1000),
    }
    for name, true in truth.items():
        seen = getattr(summary, name)
        if seen is None:
            assert summary.absent[name].startswith("withheld, because its ")
            continue
        assert true is not None
        for part in ("p50", "p90", "p95", "p99"):
            value, reported = getattr(true, part), getattr(seen, part)
            if reported is None:  # too few samples for this percentile
                continue
            limit = max(
                time_uncertainty.MAX_UNCERTAINTY_MS,
                time_uncertainty.MAX_UNCERTAINTY_SHARE * reported,
            )
            assert abs(reported - value) <= limit + 1e-3
            assert abs(reported - value) <= summary.unsure_ms.get(name, 0.0) + 2e-3
    assert summary.output_tokens == sum(r.output_tokens or 0 for r in records)


def of_ttft(true_us: int, late_us: int) -> RequestRecord:
    """Return the record of a reply whose first two chunks were read together, `late_us` after the
    sockets were last found empty."""
    record, _ = record_of([(2, late_us), (1, 0)], [true_us, 0, 5_000])
    return record


def test_a_ttft_that_is_known_within_one_percent_is_reported_with_its_doubt() -> None:
    records = [replace(of_ttft(77_000, 600), index=n) for n in range(16)]
    summary = summarize(SPEC, records, (), ClientFacts())
    assert summary.ttft_ms is not None and summary.ttft_ms.p50 == pytest.approx(77.0)
    assert summary.unsure_ms["ttft_ms"] == pytest.approx(0.6)
    assert any(note.startswith("the TTFT is known within 0.6 ms") for note in summary.notes)


@pytest.mark.parametrize(("true_us", "late_us"), [(77_000, 900), (77_000, 26_000), (20_000, 600)])
def test_a_ttft_that_may_be_more_than_one_percent_wrong_is_withheld(
    true_us: int, late_us: int
) -> None:
    records = [replace(of_ttft(true_us, late_us), index=n) for n in range(16)]
    summary = summarize(SPEC, records, (), ClientFacts())
    assert summary.ttft_ms is None and "ttft_ms" not in summary.unsure_ms
    assert summary.absent["ttft_ms"].startswith("withheld, because its mean is between ")


@pytest.mark.parametrize(("most_ms", "kept_pct"), [(200, 100.0), (10, 0.0), (60, None)])
def test_a_limit_far_from_a_withheld_ttft_is_judged(most_ms: int, kept_pct: float | None) -> None:
    """The TTFT lies between 51 and 77 ms."""
    records = [replace(of_ttft(77_000, 26_000), index=n) for n in range(16)]
    spec = replace(SPEC, slo=f"ttft<={most_ms}@p95")
    summary = summarize(spec, records, (), ClientFacts())
    assert summary.ttft_ms is None
    assert (summary.slo[0].kept_pct, summary.slo_pct) == (kept_pct, kept_pct)


def test_records_without_late_reads_are_not_looked_at() -> None:
    record, _ = record_of([(1, 0)] * 20, [10_000] * 80)
    summary = summarize(SPEC, [record], (), ClientFacts(reads=20, late_reads=20))
    assert summary.ttft_ms and summary.itl_ms and summary.tpot_ms, "late, but each had its own time"


def test_a_slow_send_makes_the_ttft_unsure() -> None:
    record, _ = record_of([(1, 0)] * 4, [10_000] * 80)
    summary = summarize(SPEC, [replace(record, send_us=3_000)], (), ClientFacts())
    assert summary.ttft_ms is None and summary.itl_ms is not None
    assert "mean is between 7.0 and 10.0 ms" in summary.absent["ttft_ms"]


class Stopper:
    """Stops each worker process that starts, again and again, as other load on its core would."""

    def __init__(self, stopped_s: float, running_s: float) -> None:
        self._times = stopped_s, running_s
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def of(self, pid: int) -> None:
        self._threads.append(threading.Thread(target=self._disturb, args=(pid,)))
        self._threads[-1].start()

    def _disturb(self, pid: int) -> None:
        stopped_s, running_s = self._times
        try:
            while not self._ended.wait(running_s):
                os.kill(pid, signal.SIGSTOP)
                self._ended.wait(stopped_s)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_a_client_that_is_kept_from_its_core_reports_no_wrong_latency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopper, start = Stopper(0.035, 0.06), LocalWorker.start

    async def disturbed(keep: Path | None = None) -> LocalWorker:
        worker = await start(keep)
        stopper.of(worker.process.pid)
        return worker

    monkeypatch.setattr(LocalWorker, "start", disturbed)
    with TruthProcess("--ttft-ms", "30", "--itl-ms", "5") as server:
        spec = replace(SPEC, url=server.url, requests=48, max_tokens=40)
        try:
            outcome = asyncio.run(runner.run_load(spec))
        finally:
            stopper.end()
        truth = server.stop()
    true_ms = []
    for record in outcome.requests:
        done = truth[unique_prompt_mark(outcome.spec.salt, f"r/{record.index}")]["done_ns"]
        true_ms += [(b - a) / 1e6 for a, b in pairwise(done)]
    seen_ms = [gap / 1000 for record in outcome.requests for gap in record.gaps_us]
    true, seen = distribution_of(true_ms), distribution_of(seen_ms)
    assert true is not None and seen is not None and abs(seen.p95 - true.p95) > 5  # type: ignore[operator]
    assert outcome.summary.itl_ms is None
    assert "the load client read late" in outcome.summary.absent["itl_ms"]
    assert outcome.summary.output_tok_s is not None


@pytest.mark.parametrize(
    ("last_byte_after_poll_ms", "late_ms", "doubted_us"),
    [
        (-0.02, 0.1, None),  # at the end of the poll: the server sent them together
        (-9.0, 9.1, 11_000),  # long before: the process was kept from running
        (4.0, 0.1, 11_000),  # while the sockets before it were read
    ],
)
def test_a_server_that_sends_chunks_in_twos_does_not_excuse_a_late_read(
    last_byte_after_poll_ms: float, late_ms: float, doubted_us: int | None
) -> None:
    """Reads of two chunks were taken for the server's own, if few reads of the run were late."""
    address = ("127.0.0.1", 1)
    endpoint = Endpoint("127.0.0.1", 1, "/v1/completions", None, socket.AF_INET, address)
    client = Client(SPEC, endpoint, None, lambda record: None)
    exchange = Exchange(0, False, b"")
    stamp = 1_000_000_000
    exchange.reply.stamps_ns.extend([stamp - 11_000_000, stamp, stamp, stamp, stamp])
    exchange.reply.after_content = True
    client._waited, client._joined, client.clock.late = True, 1000, 20
    client._returned_ns = stamp - round(1e6 * last_byte_after_poll_ms)
    client.clock.latest_ns = round(1e6 * late_ms)
    client._empty_ns = stamp - 30_000_000
    client._record_read_time_uncertainty(exchange, 1, stamp)
    assert exchange.unsure == ([] if doubted_us is None else [(1, 3, doubted_us)])


def test_one_late_end_does_not_make_other_answers_unsure() -> None:
    address = ("127.0.0.1", 1)
    endpoint = Endpoint("127.0.0.1", 1, "/v1/completions", None, socket.AF_INET, address)
    load = Client(SPEC, endpoint, None, lambda record: None)
    for after_ns in (20_000, 9_000_000, 30_000):
        load._record_answer_end_delay(after_ns)
    exchange = Exchange(0, False, b"")
    exchange.response.complete = True
    exchange.reply.stamps_ns.extend([1_000_000, 31_000_000])
    load._record_read_time_uncertainty(exchange, 1, 31_000_000)
    assert not exchange.unsure
    for _ in range(3):
        load._record_answer_end_delay(9_000_000)
    load._record_read_time_uncertainty(exchange, 1, 31_000_000)
    assert exchange.unsure == [(1, 1, 9_000)]


def frames_in_twos(tokens: int) -> list[bytes]:
    """Return the writes of a server that sends two chunks together, as one that speculates does."""
    frames = [b"%x\r\n%b\r\n" % (len(e), e) for e in chat_events(tokens)]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frames[0]
    pairs = [b"".join(frames[first : first + 2]) for first in range(1, tokens, 2)]
    return [head, *pairs, b"".join(frames[tokens + 1 :]) + b"0\r\n\r\n"]


class Recording:
    """Times of an undisturbed run, in place of the client's clock, poller and connection. Each of
    the server's writes arrives 10 ms after the one before. The poll that waits for it returns 20 us
    later, and each look at the clock takes 1 us. The read comes `late_ns` after that poll if the
    process was kept from running."""

    fd, used, wants_write = 1000, 0, False

    def __init__(self, writes: list[bytes], late_ns: int) -> None:
        self.now_ns = 1_000_000_000
        self._writes, self._late_ns = writes, late_ns
        self._left: list[tuple[int, bytes]] = []
        self._opening = True

    # the clock
    def monotonic_ns(self) -> int:
        self.now_ns += 1_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(1e9 * seconds)

    def time(self) -> float:
        return self.now_ns / 1e9

    # the poller
    def register(self, fd: int, events: int, /) -> None:
        pass

    modify = register

    def unregister(self, fd: int, /) -> None:
        pass

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        until_ns = self.now_ns + round(1e9 * timeout_s)
        if self._opening:
            return [(self.fd, WRITABLE)]
        if not self._left or self._left[0][0] > until_ns:
            self.now_ns = until_ns
            return []
        came_ns = self._left[0][0]
        self.now_ns = max(self.now_ns, came_ns + 20_000 + self._late_ns)
        return [(self.fd, READABLE)]

    # the connection
    def advance_handshake(self) -> bool:
        self._opening = False
        return True

    def send(self, data: bytes) -> None:
        for turn, write in enumerate(self._writes, start=1):
            self._left.append((self.now_ns + 10_000_000 * turn, write))

    def receive_data_and_time_ns(self) -> tuple[bytes, int]:
        came_ns, data = self._left.pop(0)
        return data, came_ns

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("late_ns", "believed"), [(0, True), (8_000_000, False)])
def test_chunks_that_the_server_sends_together_are_no_late_reads(
    monkeypatch: pytest.MonkeyPatch, late_ns: int, believed: bool
) -> None:
    recording = Recording(frames_in_twos(24), late_ns)
    monkeypatch.setattr(client, "time", recording)
    monkeypatch.setattr(client, "open_poller", lambda: recording)
    monkeypatch.setattr(client, "Connection", lambda endpoint, clock: recording)
    address = ("127.0.0.1", 1)
    endpoint = Endpoint("127.0.0.1", 1, "/v1/chat/completions", None, socket.AF_INET, address)
    spec = replace(SPEC, concurrency=1, requests=6)
    load = Client(spec, endpoint, None, lambda record: None)
    load.run()
    summary = summarize(spec, load.counted, (), ClientFacts())
    assert summary.requests_ok == 6 and not load.clock.late
    if believed:
        assert summary.itl_ms is not None
        assert (summary.itl_ms.p50, summary.itl_ms.p90) == (0.0, 10.0)
    else:
        assert summary.itl_ms is None and "the load client read late" in summary.absent["itl_ms"]


# -- a slow reader ---------------------------------------------------------------------------------

STEP_S = 0.004
TOKENS = 80
END = b"0\r\n\r\n"


def frame_of(delta: dict[str, str], finish: str | None = None) -> bytes:
    event = b"data: %b\n\n" % json.dumps(chunk(delta, finish)).encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


class Writes:
    """Answers of a server that writes a chunk each 4 ms, and when it wrote each piece of text: just
    before and just after, in monotonic nanoseconds, by the number of the request."""

    def __init__(self, text: str, *, empty_after: bool, end_after_s: float) -> None:
        self._text, self._empty_after, self._end_after_s = text, empty_after, end_after_s
        self.times: dict[int, list[tuple[int, int]]] = {}

    def answer(self, request: Request, number: int) -> Iterator[bytes]:
        times = self.times.setdefault(number, [])
        yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frame_of({"role": "assistant"})
        for _ in range(TOKENS):
            time.sleep(STEP_S / 2)
            if self._empty_after and times:
                yield frame_of({"content": ""})
            time.sleep(STEP_S / 2)
            before_ns = time.monotonic_ns()
            yield frame_of({"content": self._text})
            times.append((before_ns, time.monotonic_ns()))
        time.sleep(self._end_after_s)
        yield frame_of({}, "length") + END


@pytest.mark.slow
@pytest.mark.parametrize(
    "writes",
    [
        Writes("a", empty_after=False, end_after_s=0.0),
        # a read fills the client's buffer and leaves bytes in the socket
        Writes("a" * 8000, empty_after=False, end_after_s=0.0),
        # the last byte of a read is not that of the content
        Writes("a", empty_after=True, end_after_s=0.0),
        Writes("a", empty_after=False, end_after_s=0.03),
    ],
    ids=["merged", "cut", "empty", "end"],
)
def test_each_recorded_time_of_a_slow_reader_contains_the_truth(writes: Writes) -> None:
    check_times(writes, lambda load: None, streams=1)


class FewAtOnce:
    """An epoll of which a poll returns two sockets at most, as `select.epoll` does with 1,023."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register, self.modify = self._epoll.register, self._epoll.modify
        self.unregister = self._epoll.unregister

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout_s, 2)


class Kept(FewAtOnce):
    """An epoll whose process is kept from running when the content of an answer has come, until the
    server has sent the next bytes. The poll then ends long after its time limit."""

    def __init__(self) -> None:
        super().__init__()
        self.content, self.returns, self.sent, self.read = (threading.Event() for _ in range(4))

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        self.read.set()
        ready = self._epoll.poll(timeout_s)
        if not (ready and self.content.is_set()):
            return ready
        self.content.clear()
        time.sleep(max(0.0, timeout_s) + 0.05)
        self.returns.set()
        assert self.sent.wait(10)
        self.sent.clear()
        return self._epoll.poll(0)

    def answer(self, request: Request, number: int) -> Iterator[bytes]:
        yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frame_of({"role": "assistant"})
        for _ in range(4):
            self.content.set()
            yield frame_of({"content": "a"})
            assert self.returns.wait(10)
            self.returns.clear()
            yield frame_of({"content": ""})
            self.read.clear()
            self.sent.set()
            assert self.read.wait(10)
        yield frame_of({}, "length") + END


def test_a_process_that_was_kept_from_running_does_not_know_when_the_chunks_came() -> None:
    kept = Kept()
    with ScriptedServer(kept.answer) as server:
        spec = replace(
            SPEC, url=server.url, concurrency=1, requests=1, max_tokens=4, ignore_eos=False
        )
        load = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        load.poller = kept
        load.run()
    (record,) = load.counted
    assert record.error is None and record.chunks == 4
    # the last content may have been read alone, with its end
    assert all(early_us >= 50_000 for early_us in time_uncertainty._max_stamp_delays_us(record)[:3])


@pytest.mark.slow
def test_sockets_that_a_poll_had_no_room_for_were_not_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MAX_READY_EVENTS", 2)

    def with_few(load: Client) -> None:
        load.poller = FewAtOnce()

    check_times(Writes("a", empty_after=False, end_after_s=0.0), with_few, streams=6)


def check_times(writes: Writes, change: Callable[[Client], None], streams: int) -> None:
    """Compare the times of a client that does not read for 0.17 s again and again with those of the
    server. At most 5 % of them may be wrong: a busy machine can wake the client some milliseconds
    later than its own clock shows."""
    with ScriptedServer(writes.answer) as server:
        spec = replace(SPEC, url=server.url, concurrency=streams, requests=5, ignore_eos=False)
        load = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        change(load)
        sweeps = itertools.count()

        def keep_from_reading(now_ns: int) -> None:
            # the first answer of a lone stream shows how the server writes
            if next(sweeps) % 3 == 2 and (load.counted or streams > 1):
                time.sleep(0.17)

        load.tick = keep_from_reading
        load.run()
    assert [record.error for record in load.counted] == [None] * 5
    doubted, wrong = 0, []
    numbers = {
        request.body["messages"][0]["content"]: n for n, request in enumerate(server.requests)
    }
    for record in load.counted:
        number = numbers[load.workload.synthetic_prompt(record.index, warmup=False)]
        early = time_uncertainty._max_stamp_delays_us(record)
        sent_us = load._began_ns // 1000 + round(1e6 * record.start_s)
        assert record.ttft_us is not None
        seen = accumulate((sent_us + record.ttft_us, *record.gaps_us))
        # how long after its content an end comes is known from other answers; a busy server varies
        over_us = [1_000] * (TOKENS - 1) + [15_000]
        for at_us, by_us, (before_ns, after_ns), more_us in zip(
            seen, early, writes.times[number], over_us, strict=True
        ):
            early_us, late_us = before_ns / 1000 - at_us, at_us - by_us - after_ns / 1000
            if early_us > 1_000 or late_us > more_us:
                wrong.append((record.index, early_us, late_us))
        doubted += sum(by_us > 0 for by_us in early)
    assert doubted > 20
    assert len(wrong) <= 0.05 * 5 * TOKENS, wrong
