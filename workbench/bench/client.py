"""The load client: one epoll loop that keeps `BenchSpec.concurrency` requests in flight. Each
stream reuses its connection.

The client uses neither asyncio nor threads, because at 128 streams of 100 tokens/s common event
loops are late by milliseconds to seconds. The kernel supplies the receive times (connection.py), so
the time for parsing does not distort them. Where epoll does not exist (macOS), the client uses
poll(2).
"""

from __future__ import annotations

import json
import time
from bisect import insort
from collections import deque
from collections.abc import Callable

from workbench.bench import records
from workbench.bench.answer_sample import MAX_SAMPLED_ANSWERS, AnswerSample
from workbench.bench.client_cpu import CpuLog
from workbench.bench.client_report import ClientReport
from workbench.bench.connection import (
    LATE_READ_NS,
    Connection,
    Endpoint,
    ReceiveClock,
    describe_connection_failure,
)
from workbench.bench.exchange import Exchange
from workbench.bench.http1 import HttpError
from workbench.bench.load_share import WHOLE_LOAD, Share, WarmupValues
from workbench.bench.poller import (
    HUNG_UP,
    MAX_READY_EVENTS,
    READABLE,
    WRITABLE,
    Poller,
    open_poller,
    poll_for_exact_time,
)
from workbench.bench.read_pause import ReadPause
from workbench.bench.records import RequestFailure, RequestRecord
from workbench.bench.schedule import (
    NEVER_NS,
    LaterTurns,
    RequestPhase,
    Warmup,
    request_due_times_s,
    stagger_duration_s,
)
from workbench.bench.sse import SseError
from workbench.bench.time_limits import ENDLESS_REPLY_CHUNKS, TimeLimits
from workbench.bench.trace_load import trace_load
from workbench.bench.whole_answer import WholeAnswer, WholeAnswers
from workbench.bench.workload import Workload
from workbench.model.bench import BenchProgress, BenchSpec
from workbench.model.known_values import known_values, ratio_or_none
from workbench.model.think_time import parse_think_time

_TIME_LIMIT_CHECK_NS = 100_000_000  # how often time limits are checked
_NS_PER_SECOND = 1_000_000_000
_UNSENT_BY_CHANCE_NS = (
    10_000_000  # a request that was due so shortly before the end may be unsent by chance
)
_GIVE_UP_AFTER_NS = 10 * _NS_PER_SECOND
_NO_SUCCESS_REASON = "stopped early: no request had succeeded"
_SILENT_SERVER_REASON = "stopped early: the server no longer answered"
_SLOW_SEND_NS = 100_000
_MAX_KEPT_END_TIMES = 32
_BLOCKED_POLL_NS = 100_000  # a poll that took longer has waited,
_BLOCKED_POLL_NS_PER_SOCKET = 1_000  # and this much more for each socket that it found
_MAX_POLL_DELAY_NS = 2_000_000  # a poll ends so long after its time limit at most: it counts in ms


class StreamSlot:
    """One stream of the load, which sends one request after the other: its connection to the
    server, and its request in flight. The request is None between two requests."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.exchange: Exchange | None = None
        self.events = 0
        self.open = False  # connected, TLS handshake done
        self.ready_ns = 0  # earliest start of the next request
        # the next request of its conversation, which the user of this stream thinks about
        self.turn: int | None = None


def _ready_time_ns(slot: StreamSlot) -> int:
    return slot.ready_ns


class Client:
    """The load client of one run. It sends the warm-up requests and then the measured requests, and
    passes the record of each finished request to `on_record`.

    `watch` adds a file descriptor to the client's event loop, and `stop` ends the loop. After
    `run`, `warmups` has the records of the warm-up requests and `counted` those of the measured
    requests. `report` returns counters and times of the whole run.

    If several processes share the load, each has a client for its `share` of the streams and
    requests. All clients count time from the same monotonic time `began_ns`. A client calls
    `on_steady` when its own warm-up may end. After its warm-up, it calls `agree` to wait for the
    other processes.
    """

    def __init__(
        self,
        spec: BenchSpec,
        endpoint: Endpoint,
        key: str | None,
        on_record: Callable[[RequestRecord], None],
        *,
        share: Share = WHOLE_LOAD,
        began_ns: int = 0,
    ):
        self.share, self._whole = share, spec
        self.spec = share.spec_of_share(spec)
        self.endpoint = endpoint
        self.workload = Workload(spec)
        self.clock = ReceiveClock()
        self.counted: list[RequestRecord] = []
        self.warmups: list[RequestRecord] = []
        self.answers = AnswerSample(MAX_SAMPLED_ANSWERS // share.of)
        self.phase = "connecting"
        self.stopped: str | None = None
        self.cpu = CpuLog()
        self.began_unix = 0.0  # Unix time of second 0 of the records
        self.ramp_end_s = 0.0  # scheduled start of the last stream, in seconds after the run began
        self.capped = 0  # requests of an open loop that were due while all streams were busy
        self.unsent = 0  # requests of an open loop with a time limit that were due but never sent
        self.tick: Callable[[int], None] = lambda now_ns: None
        self.agree: Callable[[WarmupValues], WarmupValues] = lambda warmed: warmed
        self.on_steady: Callable[[], None] = self.end_warmup
        self.poller: Poller = open_poller()
        self._pause = ReadPause(spec.max_tokens, self.clock)
        self._on_record = on_record
        self._watched: dict[int, Callable[[int], None]] = {}
        self._by_fd: dict[int, StreamSlot] = {}
        self._slots = [StreamSlot() for _ in range(max(1, self.spec.concurrency))]
        self._idle = deque(self._slots)  # sorted by the time at which they may start
        # of conversations: what follows a request that has ended, and what may be sent now
        self._turns = LaterTurns()
        self._thought_about = 0  # the turns of all slots
        self._think = parse_think_time(spec.think_time) if spec.think_time else None
        self._warmup = Warmup(self.spec)
        self._phase = self._create_phase(self._warmup.limit, 0, warmup=True)
        self._start_until_ns = NEVER_NS
        self._ahead = 2 * len(self._slots)
        self._ready: deque[Exchange] = deque()
        self._ended: deque[tuple[Exchange, str | None, str | None]] = deque()
        self._head = self._request_head_without_length(key)
        self._began_ns, self._measured_ns = began_ns, 0
        # When the sockets that the poll before did not return were last known to be empty; whether
        # the newest poll waited for its sockets and ended in time; and how many reads after such a
        # poll returned several chunks.
        self._empty_ns, self._waited, self._joined = 0, False, 0
        self._merged = 0  # reads that returned a chunk whose time is not known
        # the times from the last content of the newest answers to their end, if that came alone
        self._ends_after_ns: deque[int] = deque(maxlen=_MAX_KEPT_END_TIMES)
        # how long after its last content the end of an answer usually comes; 0 for servers that
        # send both together
        self._end_after_ns = 0
        self._whole_answers = WholeAnswers()
        self._returned_ns = 0  # when the newest poll returned
        self._gave_up: str | None = None
        self._not_sent = 0
        self._ok = self._failed = 0
        # of the records of this phase, counted as they come: a run may have a million
        self._phase_ok = self._phase_tokens = 0
        # requests failed since the last byte of any answer; about when it arrived
        self._unheard = self._heard_ns = 0
        self._keeps_connections = True  # False once the server has closed a kept connection
        self._limits = TimeLimits(spec)

    def _request_head_without_length(self, key: str | None) -> bytes:
        lines = [
            f"POST {self.endpoint.path} HTTP/1.1",
            f"Host: {self.endpoint.host_header}",
            "Content-Type: application/json",
            f"Accept: {'text/event-stream' if self.spec.stream else 'application/json'}",
            "Accept-Encoding: identity",
            "User-Agent: workbench-bench",
            *([f"Authorization: Bearer {key}"] if key else []),
            "Content-Length: ",
        ]
        return "\r\n".join(lines).encode("latin-1")

    # -- the loop ----------------------------------------------------------------------------------

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self.poller.register(fd, events)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self.poller.unregister(fd)

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def run(self) -> None:
        self._phase.begin_ns = self._began_ns = self._began_ns or time.monotonic_ns()
        if self._phase.left:
            self.phase = "warming up"
            self._stagger_stream_starts(stagger_duration_s(self._whole, None), self._began_ns)
            if self._warmup.limit_ns:
                self._start_until_ns = self._began_ns + self._warmup.limit_ns
            self._run_event_loop()
        if not self.stopped:
            self._start_measured_phase()
            self._run_event_loop()
            while self._ended:  # stopped: requests that ended before still count
                self._finish_or_prepare_one_request()
            self._end_measured_phase()
        for slot in self._slots:
            self._drop_connection(slot)

    def _run_event_loop(self) -> None:
        swept = read = began = 0
        ready: list[tuple[int, int]] = []
        while not self.stopped:
            now = time.monotonic_ns()
            wake = self._start_due_and_next_due_ns(now)
            if wake is None and not self._count_requests_in_flight():
                while self._ended:
                    self._finish_or_prepare_one_request()
                return
            if now - swept >= _TIME_LIMIT_CHECK_NS:
                swept = now
                self._run_periodic_checks(now)
            chores = bool(self._ended or (self._phase.left and len(self._ready) < self._ahead))
            if (
                len(ready) < MAX_READY_EVENTS
            ):  # the poll before returned all sockets that were not empty
                # Then means: when it began, or when the first bytes ended its waiting. This process
                # may have been kept from running before it returned.
                self._empty_ns = began
                if self._waited and self.clock.first_ns:
                    self._empty_ns = max(began, self.clock.first_ns)
            if chores:
                began, until = now, 0
                ready = self.poller.poll(0)
            else:
                ready, began, until = self._poll_events_begin_and_end_ns(
                    read + self._pause.ns, wake
                )
            self.clock.first_ns = 0
            self._returned_ns = read = time.monotonic_ns()
            blocked_ns = _BLOCKED_POLL_NS + _BLOCKED_POLL_NS_PER_SOCKET * len(ready)
            # A poll that returned long after its end shows that this process was kept from running.
            on_time = read - until <= _MAX_POLL_DELAY_NS
            self._waited = on_time and read - began > blocked_ns
            for fd, events in ready:
                slot = self._by_fd.get(fd)
                if slot is not None:
                    self._handle_socket_event(slot, events)
                elif fd in self._watched:
                    self._watched[fd](events)
            if chores and (not ready or len(self._ended) > self._ahead):
                self._finish_or_prepare_one_request()
            # Sockets that are always ready end many short answers in a turn. They do not wait for
            # the end of the run: a million would fill the memory.
            while len(self._ended) > self._ahead and self._ended[0][0].has_few_chunks:
                self._finish_or_prepare_one_request()

    def _poll_events_begin_and_end_ns(
        self, rest_until_ns: int, wake_ns: int | None
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Wait until a socket is ready, but at least until `rest_until_ns` and at most until
        `wake_ns`, both in monotonic nanoseconds. Return the ready sockets as (file descriptor,
        event mask), and the times at which the poll began and at which it had to end: 0 if it did
        not wait, because sockets were ready."""
        now = time.monotonic_ns()
        until = now + _TIME_LIMIT_CHECK_NS
        if wake_ns is not None:
            until = min(wake_ns, until)
        if min(rest_until_ns, until) > now:
            time.sleep((min(rest_until_ns, until) - now) / _NS_PER_SECOND)
            now = time.monotonic_ns()
        if now - self._returned_ns > LATE_READ_NS:
            # A poll that waits may take long for other reasons, such as a busy core.
            ready = self.poller.poll(0)
            if ready:
                return ready, now, 0
        left_s = max(0, until - now) / _NS_PER_SECOND
        exact = wake_ns is not None and wake_ns <= until
        ready = poll_for_exact_time(self.poller, left_s) if exact else self.poller.poll(left_s)
        return ready, now, max(now, until)

    def _run_periodic_checks(self, now_ns: int) -> None:
        self.clock.update_offset_and_was_set()
        self.cpu.record_reading(now_ns)
        self._enforce_time_limits(now_ns)
        running = [slot.exchange for slot in self._slots if slot.exchange is not None]
        self._pause.adapt_pause_to_gaps(running, self._merged)
        self.clock.rest_ns = self._pause.ns
        for exchange in running:
            exchange.reply.trim_kept_text()
        self._whole_answers.renew_store_allowance()
        self.tick(now_ns)

    def _finish_or_prepare_one_request(self) -> None:
        """Do one piece of work that can wait until no socket is readable: make the record of a
        request that has ended, or the body of a request that has not started.

        If 128 requests ended together and all of this work were done at once, the next first tokens
        would be read 30 ms late.
        """
        if self._ended:
            exchange, error, detail = self._ended.popleft()
            record = exchange.make_record(self._began_ns, error, detail)
            (self.warmups if record.warmup else self.counted).append(record)
            if record.ok:
                self._phase_ok += 1
                self._phase_tokens += record.output_tokens or 0
                if record.output_tokens is None and self.workload.request_usage_from_now_on():
                    self._rebuild_request_bodies()
                if not record.warmup:
                    self._sample_answer(record, exchange)
            self._on_record(record)
            if record.warmup:
                self._record_warmup_request(record)
        elif self._phase.left:
            self._prepare_exchange()

    def _sample_answer(self, record: RequestRecord, exchange: Exchange) -> None:
        if self.answers.is_next_answer_sampled:
            prompt = self.workload.prompt_identity_without_mark(record.index)
            self.answers.add_answer(record, exchange.parsed_reply(), prompt)
        else:
            self.answers.count_unsampled_answer()

    def _prepare_exchange(self) -> Exchange:
        warmup = self._phase.warmup
        index, due_ns = self._phase.start_next_request()
        body = self.workload.request_body(index, warmup=warmup)
        self._ready.append(Exchange(index, warmup, body, due_ns=due_ns, stream=self.spec.stream))
        return self._ready[-1]

    def _prepare_conversation_turn(self, index: int, due_ns: int) -> None:
        """Prepare request `index`, whose request before has ended. It comes first. `due_ns` is 0 if
        it has no pause."""
        body = self.workload.request_body(index, warmup=False)
        turn = Exchange(index, False, body, due_ns=due_ns, stream=self.spec.stream)
        self._ready.appendleft(turn)

    def _record_warmup_request(self, record: RequestRecord) -> None:
        if self._warmup.record_request_and_may_end(record):
            self.on_steady()
        elif (
            self._warmup.until_steady
            and record.ok
            and record.prompt_tokens
            and not self.workload.calibrated
        ):
            # adjusted, so that the next requests have the measured length
            words = self.workload.words
            self.workload.calibrate_words([(record.index, record.prompt_tokens)])
            if self.workload.words != words:
                self._rebuild_request_bodies()
                self._warmup.ignore_requests_before(
                    self._ready[0].index if self._ready else self._phase.next
                )

    def end_warmup(self) -> None:
        """Start no more requests of the warm-up."""
        if self._phase.warmup:
            self._drop_unsent_requests()

    def _drop_unsent_requests(self, due_by_ns: int = 0) -> None:
        """Drop all requests that have not started, so that the current phase (warm-up or measured
        part) starts no more. Add the number of those that were due by `due_by_ns` (monotonic
        nanoseconds) to the counter `unsent`. A turn of a conversation whose user still thinks about
        it is dropped, but not counted."""
        self.unsent += sum(
            0 < one.due_ns <= due_by_ns for one in self._ready
        ) + self._phase.drop_unstarted_requests(due_by_ns)
        self._ready.clear()
        self.unsent += self._turns.drop_queued_turns(due_by_ns)
        for slot in self._slots:
            slot.turn = None
        self._thought_about = 0

    def _start_due_and_next_due_ns(self, now_ns: int) -> int | None:
        """Start the requests that are due at `now_ns` (monotonic nanoseconds). Return the time at
        which the next request is due, or None if no request waits or all streams are busy."""
        for _ in range(len(self._idle)):
            if self._think is not None:
                self._move_finished_streams_last()
            due = self._next_due_ns(now_ns)
            if due is None:
                return None
            due = max(due, self._idle[0].ready_ns)
            if due > now_ns:
                return due
            # a slot that fails at once is idle again, and waits for the next turn
            self._start_request(self._idle.popleft())
        return now_ns if self._idle and self._count_waiting_requests() else None

    def _next_due_ns(self, now_ns: int) -> int | None:
        if now_ns >= self._start_until_ns:
            self._drop_unsent_requests(self._start_until_ns - _UNSENT_BY_CHANCE_NS)
        if not self._count_waiting_requests():
            return None
        turn_ns = 0 if self._idle and self._idle[0].turn is not None else self._turns.due_ns
        if turn_ns <= now_ns or not (self._ready or self._phase.left):
            return turn_ns
        return min(turn_ns, (self._ready[0] if self._ready else self._prepare_exchange()).due_ns)

    def _count_waiting_requests(self) -> int:
        return len(self._ready) + len(self._turns) + self._thought_about + self._phase.left

    def _count_requests_in_flight(self) -> int:
        return len(self._slots) - len(self._idle)

    def _stagger_stream_starts(self, over_s: float, begin_ns: int) -> None:
        """Set the earliest start of each stream's next request, evenly spread over `over_s` seconds
        after `begin_ns` (monotonic nanoseconds). No stream may have a request in flight. The
        streams of several processes start in turn."""
        step_ns = over_s * _NS_PER_SECOND / max(1, self._whole.concurrency)
        self._idle = deque(self._slots)
        for i, slot in enumerate(self._slots):
            slot.ready_ns = begin_ns + int(step_ns * (self.share.first + i * self.share.of))
        self.ramp_end_s = (self._slots[-1].ready_ns - self._began_ns) / 1e9

    def _create_phase(self, requests: int, begin_ns: int, *, warmup: bool) -> RequestPhase:
        times = self.share.due_times_of_share(request_due_times_s(self._whole, warmup=warmup))
        phase = RequestPhase(warmup, requests, times, begin_ns, self.share.first, self.share.of)
        if self._whole.trace and not warmup and (load := trace_load(self._whole.trace)).has_turns:
            self._turns = LaterTurns(load, self.spec.replay_speed)
            phase.order, phase.left = (
                load.first_turns,
                self.share.count_in_share(len(load.first_turns)),
            )
        return phase

    def _start_measured_phase(self) -> None:
        good = [r for r in self.warmups if r.ok and r.index >= self._warmup.first]
        tokens = tuple((r.index, r.prompt_tokens) for r in good if r.prompt_tokens)
        latest = tuple(r.end_us / 1e6 for r in good[-self._warmup.window :])
        warmed = self.agree(WarmupValues(tokens, latest, time.monotonic_ns()))
        if warmed.prompt_tokens:
            self.workload.calibrate_words(warmed.prompt_tokens)
        latest, begin = warmed.durations_s, warmed.begin_ns
        self._stagger_stream_starts(
            stagger_duration_s(self._whole, sum(latest) / len(latest) if latest else None), begin
        )
        seconds = self.spec.seconds
        self._start_until_ns = (
            NEVER_NS if seconds is None else begin + int(seconds * _NS_PER_SECOND)
        )
        self._phase = self._create_phase(self.spec.requests, begin, warmup=False)
        self.phase = "measuring"
        self.clock.reset_read_counters()
        self._joined = self._phase_ok = self._phase_tokens = 0
        self.capped = self.unsent = 0  # forget those of the warm-up
        if self._is_every_request_failing(time.monotonic_ns()):
            self._abort_run(_NO_SUCCESS_REASON)
        self._measured_ns = time.monotonic_ns()
        self.cpu.record_reading(self._measured_ns)

    def _end_measured_phase(self) -> None:
        now = time.monotonic_ns()
        self.cpu.record_reading(now)
        self.phase = "done"
        self.began_unix = time.time() - (now - self._began_ns) / 1e9

    def report(self) -> ClientReport:
        """Return the client's counters, clock readings and warm-up outcome. Call this method after
        `run`."""
        clock = self.clock
        return ClientReport(
            began_ns=self._began_ns,
            began_unix=self.began_unix,
            ramp_end_s=self.ramp_end_s,
            stopped=self.stopped,
            gave_up=self._gave_up,
            not_sent=self._not_sent,
            capped=self.capped,
            unsent=self.unsent,
            calibrated=self.workload.calibrated,
            words=self.workload.words,
            dropped=tuple(self.workload.dropped),
            warmup=self._warmup.outcome(),
            reads=clock.reads,
            unstamped_reads=clock.unstamped,
            late_reads=clock.late,
            latest_read_ns=clock.latest_ns,
            cpu=self.cpu.cpu_readings,
            answers=self.answers.sampled_answers(),
            answers_seen=self.answers.seen,
        )

    # -- one request -------------------------------------------------------------------------------

    def _start_request(self, slot: StreamSlot) -> None:
        if slot.turn is not None:
            self._prepare_conversation_turn(slot.turn, 0)
            slot.turn = None
            self._thought_about -= 1
        elif self._turns and self._turns.due_ns <= time.monotonic_ns():
            self._prepare_conversation_turn(*self._turns.pop_turn())
        elif not self._ready:
            self._prepare_exchange()
        slot.exchange = self._ready.popleft()
        self._connect_or_send(slot)

    def _connect_or_send(self, slot: StreamSlot) -> None:
        """Send the current request of a stream (`slot`) on its open connection. If the stream has
        no connection, open one and send the request as soon as the connection is open."""
        if slot.connection is None:
            assert slot.exchange is not None
            slot.exchange.began_ns = time.monotonic_ns()
            try:
                slot.connection = Connection(self.endpoint, self.clock)
            except OSError as error:
                self._finish_exchange(slot, *describe_connection_failure(error, connecting=True))
                return
            slot.open = False
            self._by_fd[slot.connection.fd] = slot
            slot.events = READABLE | WRITABLE
            self.poller.register(slot.connection.fd, slot.events)
        else:
            self._send_request(slot)

    def _send_request(self, slot: StreamSlot) -> None:
        exchange, connection = slot.exchange, slot.connection
        assert exchange is not None and connection is not None
        data = b"%b%d\r\n\r\n%b" % (self._head, len(exchange.body), exchange.body)
        exchange.began_ns = exchange.last_byte_ns = exchange.sent_ns = time.monotonic_ns()
        try:
            connection.send(data)
        except OSError as error:
            self._handle_lost_connection(slot, error)
            return
        took_ns = time.monotonic_ns() - exchange.sent_ns
        exchange.send_ns = took_ns if took_ns > _SLOW_SEND_NS else 0
        self._set_poll_events(slot)

    def _set_poll_events(self, slot: StreamSlot) -> None:
        connection = slot.connection
        if connection is None:
            return
        events = READABLE | WRITABLE if connection.wants_write else READABLE
        if events != slot.events:
            slot.events = events
            self.poller.modify(connection.fd, events)

    def _handle_socket_event(self, slot: StreamSlot, events: int) -> None:
        connection = slot.connection
        assert connection is not None
        try:
            if not slot.open:
                slot.open = connection.advance_handshake()
                if slot.open and slot.exchange is not None:
                    self._send_request(slot)
                else:
                    self._set_poll_events(slot)
                return
            if events & WRITABLE:
                connection.flush()
                self._set_poll_events(slot)
            if not events & (READABLE | HUNG_UP):
                return
            data, stamp = connection.receive_data_and_time_ns()
            if data is None:
                return
            exchange = slot.exchange
            # nearly always: one more piece of text, with a time of its own
            if (
                exchange is None
                or self.clock.unstamped_read
                or not exchange.try_receive_text_chunk(data, stamp)
            ):
                self._process_received_data(slot, data, stamp)
        except OSError as error:
            self._handle_lost_connection(slot, error)

    def _process_received_data(self, slot: StreamSlot, data: bytes, stamp: int) -> None:
        exchange = slot.exchange
        if exchange is None:  # the peer closed the connection, or sent bytes, between two requests
            self._drop_connection(slot)
            return
        if not data and self._may_reconnect(slot, exchange):
            self._reconnect(slot, exchange)
            return
        self._unheard = 0
        first = not exchange.parsing
        if first and (whole := self._find_equal_earlier_answer(exchange, data)) is not None:
            exchange.accept_answer_like_earlier(whole, data, stamp)
            self._finish_exchange(slot, None, None)
            return
        stamps = exchange.reply.stamps_ns
        had = len(stamps)
        try:
            exchange.receive_bytes(data, stamp)
        except HttpError as error:
            self._finish_exchange(slot, *exchange.describe_invalid_response(error))
            return
        except SseError as error:
            self._finish_exchange(slot, records.MALFORMED, str(error))
            return
        complete = exchange.response.complete
        clock, fresh = self.clock, len(stamps) - had
        own_time = fresh == 1 and exchange.is_newest_event_content and not clock.unstamped_read
        if clock.cut_read or exchange.held_ns or (fresh and not own_time):
            self._record_read_time_uncertainty(exchange, had, stamp)
        elif complete and stamps and not fresh:
            self._record_answer_end_delay(stamp - stamps[-1])
        clock.unstamped_read = clock.cut_read = False
        if not complete:
            return
        refused = exchange.http_error()
        if refused is not None and self.workload.drop_rejected_fields(
            exchange.status, refused.detail, json.loads(exchange.body)
        ):
            self._rebuild_request_bodies()
            self._reuse_or_close_connection(slot, exchange)
            self._resend_request(slot)
        elif refused is not None:
            self._finish_exchange(slot, *refused)
        else:
            exchange.check_reply_and_set_error(
                self.workload.asked_tokens(exchange.index, warmup=exchange.warmup),
                may_be_empty=self.spec.random_weights,
            )
            if first and exchange.reply.error is None and not exchange.unsure:
                self._whole_answers.store_answer(data, exchange)
            self._finish_exchange(slot, exchange.reply.error, exchange.reply.detail)

    def _find_equal_earlier_answer(self, exchange: Exchange, data: bytes) -> WholeAnswer | None:
        """Return the earlier answer that `data`, the first bytes of an answer, differ from only in
        the id and the text. None if there is none, if the answer has not the requested length, or
        if the time of its token must be examined."""
        clock = self.clock
        if clock.unstamped_read or clock.cut_read or self._end_after_ns > _SLOW_SEND_NS:
            return None
        whole = self._whole_answers.find_answer(data)
        if whole is None:
            return None
        asked = self.workload.asked_tokens(exchange.index, warmup=exchange.warmup)
        return whole if asked is None or whole.output_tokens in (None, asked) else None

    def _record_read_time_uncertainty(
        self, exchange: Exchange, earlier_chunks: int, stamp_ns: int
    ) -> None:
        """Record how much earlier the chunks of one read may have come than `stamp_ns`, the time of
        the read's last byte. `earlier_chunks` is the number of chunks before the read.

        The chunks came after the sockets were last found empty, and after the chunk before. If the
        poll waited for them, the first of them has ended its waiting. So the server has sent them
        together if the last of them came at the end of the poll, unless this process was kept from
        running until just then. In that case other reads are late too, and most of them return one
        chunk only; the latest of them shows how long it was kept.

        The last chunk has the time of its own last byte, if nothing comes after it in the read. The
        end of the answer comes after it as in the newest answers whose end was read alone.
        """
        stamps, clock = exchange.reply.stamps_ns, self.clock
        since = max(
            self._empty_ns, stamps[earlier_chunks - 1] if earlier_chunks else exchange.sent_ns
        )
        if clock.cut_read and not exchange.response.complete:
            exchange.record_partial_read(since, time.monotonic_ns())
        fresh = len(stamps) - earlier_chunks
        if exchange.held_ns:
            held_ns = min(exchange.held_ns, stamp_ns - exchange.held_since_ns)
            exchange.unsure += [(earlier_chunks, fresh, held_ns // 1000)] if fresh else []
            self._merged += fresh > 0
            return
        stamped = not clock.unstamped_read
        ended = stamped and exchange.response.complete
        after_ns = stamp_ns - self._returned_ns
        in_time = self._waited and -LATE_READ_NS <= after_ns <= _SLOW_SEND_NS
        if ended and fresh == 1:
            early_ns = min(stamp_ns - since, self._end_after_ns)
            exchange.unsure += (
                [(earlier_chunks, 1, early_ns // 1000)] if early_ns > _SLOW_SEND_NS else []
            )
            return
        if in_time:
            self._joined += 1
            if 2 * clock.late < self._joined:
                return
            since = max(since, stamp_ns - 2 * clock.latest_ns)
        early_ns = last_early_ns = stamp_ns - since
        if ended:
            last_early_ns = min(early_ns, self._end_after_ns)
        elif stamped and exchange.is_newest_event_content:
            last_early_ns = 0  # the time is that of its own last byte
        unsure = (
            (earlier_chunks, fresh - 1, early_ns),
            (earlier_chunks + fresh - 1, 1, last_early_ns),
        )
        noted = [
            (first, many, ns // 1000) for first, many, ns in unsure if many and ns > _SLOW_SEND_NS
        ]
        exchange.unsure += noted
        self._merged += bool(noted)

    def _record_answer_end_delay(self, delay_ns: int) -> None:
        """Record how long after its last content the end of an answer came, in a read of its
        own."""
        self._ends_after_ns.append(delay_ns)
        self._end_after_ns = sorted(self._ends_after_ns)[len(self._ends_after_ns) // 2]

    def _rebuild_request_bodies(self) -> None:
        for waiting in self._ready:
            waiting.body = self.workload.request_body(waiting.index, warmup=waiting.warmup)

    def _resend_request(self, slot: StreamSlot) -> None:
        old = slot.exchange
        assert old is not None
        body = self.workload.request_body(old.index, warmup=old.warmup)
        slot.exchange = Exchange(old.index, old.warmup, body, due_ns=old.due_ns, stream=old.stream)
        self._connect_or_send(slot)

    def _may_reconnect(self, slot: StreamSlot, exchange: Exchange) -> bool:
        """Return whether the request of a stream (`slot`) may be sent again on a new connection.
        `exchange` is this request.

        This is allowed if the server closed a reused connection before any byte of the answer,
        because the connection was idle too long or had served enough requests. Each request may be
        sent again only once.
        """
        connection = slot.connection
        if connection is None:
            return False
        return connection.used > 0 and not exchange.response.received and not exchange.reconnected

    def _reconnect(self, slot: StreamSlot, exchange: Exchange) -> None:
        self._drop_connection(slot)
        self._keeps_connections = False
        exchange.reconnected = True
        self._connect_or_send(slot)

    def _handle_lost_connection(self, slot: StreamSlot, error: OSError) -> None:
        exchange = slot.exchange
        if exchange is None:
            self._drop_connection(slot)
        elif self._may_reconnect(slot, exchange):
            self._reconnect(slot, exchange)
        else:
            self._finish_exchange(
                slot, *describe_connection_failure(error, connecting=not slot.open)
            )

    def _finish_exchange(self, slot: StreamSlot, error: str | None, detail: str | None) -> None:
        exchange, slot.exchange = slot.exchange, None
        assert exchange is not None
        if error is None or exchange.response.complete:
            self._reuse_or_close_connection(slot, exchange)
        else:
            self._drop_connection(slot)
        if error is None:
            self._ok += 1
            self._limits.heard_ns = exchange.last_byte_ns
        else:
            self._failed += 1
            self._unheard += 1
        self._ended.append((exchange, error, detail))
        turn = None if exchange.warmup else self._turns.find_next_turn_index(exchange.index)
        if self._think is not None and not exchange.warmup:
            self._pause_stream(slot, self._think.pause_s(self.spec.seed, exchange.index), turn)
            return
        if turn is not None:
            self._turns.queue_turn(turn, time.monotonic_ns())
        self._start_next_request_if_due(slot)

    def _pause_stream(self, slot: StreamSlot, pause_s: float, turn: int | None) -> None:
        """Make a stream (`slot`) wait for `pause_s` seconds before its next request. `turn` is the
        index of that request if the conversation goes on; None if the stream takes any request."""
        slot.turn = turn
        self._thought_about += turn is not None
        slot.ready_ns = time.monotonic_ns() + int(pause_s * _NS_PER_SECOND)
        insort(self._idle, slot, key=_ready_time_ns)

    def _move_finished_streams_last(self) -> None:
        """If only turns of paused streams are left to send, move the streams without such a turn
        behind the paused ones."""
        while self._idle and self._count_waiting_requests() == self._thought_about:
            first = self._idle[0]
            if first.turn is not None or first.ready_ns == NEVER_NS:
                return
            first.ready_ns = NEVER_NS
            self._idle.rotate(-1)

    def _start_next_request_if_due(self, slot: StreamSlot) -> None:
        """Start the next request of a stream (`slot`) now if it is due and the stream's connection
        is open, without waiting for the next pass of the event loop.

        Without an open connection, leave the start to the event loop: opening a connection could
        fail at once, and the handling of that failure would call this function again.
        """
        now = time.monotonic_ns()
        due = self._next_due_ns(now)
        late = due is not None and due <= now
        if due and late and not self._idle:
            self.capped += 1
        if late and slot.connection is not None:
            self._start_request(slot)
        else:
            self._idle.appendleft(slot)  # before slots that wait for their first start

    def _reuse_or_close_connection(self, slot: StreamSlot, exchange: Exchange) -> None:
        """After a complete answer (`exchange`), keep the connection of a stream (`slot`) open for
        the next request. Close the connection if the client or the server does not allow its reuse,
        or if the server has closed a kept connection before, as llama.cpp does after each answer
        although it announces to keep it.
        """
        connection = slot.connection
        if connection is None:
            return
        connection.used += 1
        is_reusable = (
            self._keeps_connections and exchange.can_reuse_connection and not connection.wants_write
        )
        if not is_reusable:
            self._drop_connection(slot)

    def _drop_connection(self, slot: StreamSlot) -> None:
        connection, slot.connection = slot.connection, None
        slot.open = False
        if connection is not None:
            self._by_fd.pop(connection.fd, None)
            self.poller.unregister(connection.fd)
            connection.close()

    # -- limits ------------------------------------------------------------------------------------

    def _enforce_time_limits(self, now_ns: int) -> None:
        if not self._unheard:
            self._heard_ns = now_ns
        if self._is_every_request_failing(now_ns):
            self._abort_run(_NO_SUCCESS_REASON)
        elif self._unheard >= 2 * len(self._slots) and now_ns - self._heard_ns > _GIVE_UP_AFTER_NS:
            # the host may be unreachable; each attempt could take seconds
            self._abort_run(_SILENT_SERVER_REASON)
        limits = self._limits
        busy = [(slot, slot.exchange) for slot in self._slots if slot.exchange is not None]
        running = [exchange for _, exchange in busy]
        limits.update_newest_content_time(running)
        over = limits.is_run_over(
            (now_ns - self._began_ns) / _NS_PER_SECOND, lambda: self._fraction_of_load_done(running)
        )
        if over:
            self._abort_run(f"stopped at the run's deadline of {limits.deadline_s:g} s")
        for slot, exchange in busy:
            failure = self._exceeded_limit_failure(exchange, now_ns, is_run_over=over)
            if failure is not None:
                exchange.record_end_by_time_limit(now_ns)
                self._finish_exchange(slot, *failure)

    def _exceeded_limit_failure(
        self, exchange: Exchange, now_ns: int, *, is_run_over: bool
    ) -> RequestFailure | None:
        """Return the failure of a request in flight that has exceeded a limit of its time or
        length, or that is cut because the run is over. None if the request may continue."""
        failure = self._limits.exceeded_limit_failure(exchange, now_ns)
        if failure is not None:
            return failure
        chunks = len(exchange.reply.stamps_ns)
        if chunks > ENDLESS_REPLY_CHUNKS:
            asked = self.workload.max_tokens(exchange.index, warmup=exchange.warmup)
            failure = self._limits.endless_reply_failure(chunks, asked)
            if failure is not None:
                return failure
        if is_run_over:
            return RequestFailure(
                records.DEADLINE, "the request was in flight at the run's deadline"
            )
        return None

    def _fraction_of_load_done(self, running: list[Exchange]) -> float:
        """Return the share (0 to 1) of the run's requests, including the warm-up, that is done. The
        requests in flight (`running`) count in proportion to their received chunks, each taken as
        one token."""
        done: float = self._ok + self._failed
        for one in running:
            asked = self.workload.max_tokens(one.index, warmup=one.warmup)
            done += min(1.0, len(one.reply.stamps_ns) / asked)
        return done / (self._warmup.limit + self.spec.requests)

    def _is_every_request_failing(self, now_ns: int) -> bool:
        return (
            not self._ok
            and self._failed >= 2 * len(self._slots)
            and now_ns - self._began_ns > _GIVE_UP_AFTER_NS
        )

    def _abort_run(self, why: str) -> None:
        left = self._count_waiting_requests()
        if self._turns.has_turns:
            left = self._count_unstarted_requests()
        self._drop_unsent_requests(time.monotonic_ns())
        if left and self.phase == "measuring":
            self._gave_up = self._gave_up or why
            self._not_sent += left

    def _count_unstarted_requests(self) -> int:
        """Return how many requests of conversations have not started."""
        ended = len(self.counted) + sum(not one.warmup for one, _, _ in self._ended)
        return self.spec.requests - ended - self._count_requests_in_flight()

    def progress(self) -> BenchProgress:
        """Return how far the current phase of the run is."""
        warming = self.phase == "warming up"
        seen, since = self.counted, self._measured_ns
        if warming:
            seen, since = self.warmups, self._began_ns
        in_flight = self._count_requests_in_flight()
        started = len(seen) + len(self._ended) + in_flight
        elapsed_s = (time.monotonic_ns() - since) / 1e9 if since else 0.0
        running = known_values(slot.exchange for slot in self._slots)
        return BenchProgress(
            done=self._phase_ok,
            failed=len(seen) - self._phase_ok,
            total=self._expected_requests_of_phase(warming, started, elapsed_s),
            in_flight=in_flight,
            output_tokens=self._phase_tokens,
            output_tok_s=ratio_or_none(self._phase_tokens, elapsed_s, 2) or 0.0,
            elapsed_s=round(elapsed_s, 3),
            phase=self.phase,
            silent_s=round(self._seconds_since_last_byte(running), 1),
            streaming=sum(bool(exchange.reply.stamps_ns) for exchange in running),
        )

    def _expected_requests_of_phase(self, warming: bool, started: int, elapsed_s: float) -> int:
        """Return how many requests the current phase will have. `warming` says that it is the
        warm-up, `started` how many have started. A phase that is limited by time has as many as fit
        at the pace of the first `elapsed_s` seconds."""
        if warming:
            return max(self.spec.warmup, started)
        if self.spec.seconds is None:
            return self.spec.requests
        if not self._count_waiting_requests():
            return min(self.spec.requests, started)
        left = max(1.0, self.spec.seconds / max(elapsed_s, 0.1))
        return min(self.spec.requests, round(started * left))

    def _seconds_since_last_byte(self, running: list[Exchange]) -> float:
        """Return the seconds since the last byte on any stream, or since the last request started
        if no byte has arrived. Return 0.0 if no request is in flight."""
        if not running:
            return 0.0
        last_ns = max(max(exchange.last_byte_ns, exchange.began_ns) for exchange in running)
        return (time.monotonic_ns() - last_ns) / 1e9
