"""The load client: one loop on epoll, as many streams as the concurrency says, each a kept connection.

No asyncio, no threads: at 128 streams of 100 tokens/s the event loops in use are late by milliseconds to seconds.
Stamps come from the kernel (connection.py), so that parsing bends no time either. Linux; poll(2) elsewhere.
"""

from __future__ import annotations

import json
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from workbench.bench import records
from workbench.bench.connection import Connection, Endpoint, ReceiveClock
from workbench.bench.exchange import Exchange
from workbench.bench.http1 import HttpError
from workbench.bench.records import RequestRecord
from workbench.bench.sse import SseError
from workbench.bench.workload import Workload
from workbench.model.bench import BenchProgress, BenchSpec

IN, OUT, GONE = select.POLLIN, select.POLLOUT, select.POLLERR | select.POLLHUP
_SWEEP_NS = 100_000_000  # how often time limits are looked at
_SECOND_NS = 1_000_000_000
_HOPELESS_AFTER_NS = 10 * _SECOND_NS
_NO_SUCCESS = "stopped early: not one request had succeeded"
_NOT_HEARD = "stopped early: the server was no longer heard"
_RAMP_SHARE = 0.02  # of the expected run: what staggered starts may cost the whole-run rate


class Poller(Protocol):
    def register(self, fd: int, events: int, /) -> None: ...
    def modify(self, fd: int, events: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]: ...


class PollPoller:
    """poll(2) in epoll's clothes, where there is no epoll (macOS)."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        return self._poll.poll(timeout_s * 1000)


class Slot:
    """One of the concurrent streams: its connection, and the exchange on it."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.exchange: Exchange | None = None
        self.events = 0
        self.open = False  # connected, handshake done
        self.ready_ns = 0  # not to start before


class Client:
    """Runs warm-up and counted requests; each finished one goes to `on_record`.

    `watch` adds other file descriptors to the loop; `stop` ends it. After `run`: `counted` and `warmups` hold the
    records, `notes` what a person must know to read the figures.
    """

    def __init__(
        self, spec: BenchSpec, endpoint: Endpoint, key: str | None, on_record: Callable[[RequestRecord], None]
    ):
        self.spec = spec
        self.endpoint = endpoint
        self.workload = Workload(spec)
        self.clock = ReceiveClock()
        self.counted: list[RequestRecord] = []
        self.warmups: list[RequestRecord] = []
        self.notes: list[str] = []
        self.phase = "connecting"
        self.stopped: str | None = None
        self.cpu_pct: float | None = None
        self.t0_unix = self.t1_unix = 0.0
        self.tick: Callable[[int], None] = lambda now_ns: None
        self.poller: Poller = select.epoll() if hasattr(select, "epoll") else PollPoller()
        self._on_record = on_record
        self._watched: dict[int, Callable[[int], None]] = {}
        self._by_fd: dict[int, Slot] = {}
        self._slots = [Slot() for _ in range(max(1, spec.concurrency))]
        self._pending: deque[tuple[int, bool]] = deque((i, True) for i in range(spec.warmup))
        self._ahead = 2 * len(self._slots)
        self._ready: deque[Exchange] = deque()
        self._ended: deque[tuple[Exchange, str | None, str | None]] = deque()
        self._head = self._request_head(key)
        self._began_ns = self._measured_ns = self._cpu_ns = 0
        self._ok = self._failed = 0
        self._unheard = self._heard_ns = 0  # requests failed since the last byte of any answer, and about when it came

    def _request_head(self, key: str | None) -> bytes:
        lines = [
            f"POST {self.endpoint.path} HTTP/1.1",
            f"Host: {self.endpoint.host_header}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "User-Agent: workbench-bench",
            *([f"Authorization: Bearer {key}"] if key else []),
            "Content-Length: ",
        ]
        return "\r\n".join(lines).encode("latin-1")

    # -- the loop ------------------------------------------------------------------------------------------------

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self.poller.register(fd, events)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self.poller.unregister(fd)

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def run(self) -> None:
        self._began_ns = time.monotonic_ns()
        if self._pending:
            self.phase = "warming up"
            self._stagger(0.001 * self.spec.concurrency)
            self._turn_until_done()
        if not self.stopped:
            self._begin_measuring()
            self._turn_until_done()
            self._end_measuring()
        for slot in self._slots:
            self._drop_connection(slot)

    def _turn_until_done(self) -> None:
        swept = 0
        while not self.stopped:
            now = time.monotonic_ns()
            wake = self._start_due(now)
            if wake is None and not self._in_flight():
                while self._ended:
                    self._do_a_chore()
                return
            if now - swept >= _SWEEP_NS:
                swept = now
                self.clock.refresh()
                self._enforce_limits(now)
                self.tick(now)
            chores = bool(self._ended or (self._pending and len(self._ready) < self._ahead))
            timeout = _SWEEP_NS if wake is None else min(_SWEEP_NS, max(0, wake - now))
            ready = self.poller.poll(0 if chores else timeout / _SECOND_NS)
            for fd, events in ready:
                slot = self._by_fd.get(fd)
                if slot is not None:
                    self._on_event(slot, events)
                elif fd in self._watched:
                    self._watched[fd](events)
            if chores and (not ready or len(self._ended) > self._ahead):
                self._do_a_chore()

    def _do_a_chore(self) -> None:
        """What can wait until no socket is readable, in small pieces: records of ended requests, bodies of coming
        ones. Done at once for 128 requests that end together, it would make their next first tokens 30 ms late."""
        if self._ended:
            exchange, error, detail = self._ended.popleft()
            record = exchange.record(self._began_ns, error, detail)
            (self.warmups if record.warmup else self.counted).append(record)
            self._on_record(record)
        elif self._pending:
            self._ready.append(self._next_exchange())

    def _next_exchange(self) -> Exchange:
        index, warmup = self._pending.popleft()
        return Exchange(index, warmup, self.workload.body(index, warmup=warmup))

    def _start_due(self, now: int) -> int | None:
        """Start what is due; when the next start is due after that, None when there is none to wait for."""
        wake: int | None = None
        for slot in self._slots:
            if not self._waiting():
                return None
            if slot.exchange is not None:
                continue
            if slot.ready_ns <= now:
                self._start(slot)
                if slot.exchange is None:
                    wake = now  # it failed at once: the next one is due now
            elif wake is None or slot.ready_ns < wake:
                wake = slot.ready_ns
        return wake if self._waiting() else None

    def _waiting(self) -> int:
        return len(self._ready) + len(self._pending)

    def _in_flight(self) -> int:
        return sum(slot.exchange is not None for slot in self._slots)

    def _stagger(self, over_s: float) -> None:
        now = time.monotonic_ns()
        for i, slot in enumerate(self._slots):
            slot.ready_ns = now + int(over_s * _SECOND_NS * i / len(self._slots))

    def _begin_measuring(self) -> None:
        good = [r for r in self.warmups if r.ok]
        tokens = [r.prompt_tokens for r in good if r.prompt_tokens]
        if tokens:
            self.workload.calibrate(round(sum(tokens) / len(tokens)))
        duration_s = sum(r.end_us for r in good) / len(good) / 1e6 if good else 0.001 * self.spec.concurrency
        rounds = self.spec.requests / self.spec.concurrency
        self._stagger(duration_s * min(1.0, _RAMP_SHARE * rounds) if good else duration_s)
        self._pending.extend((i, False) for i in range(self.spec.requests))
        self.phase = "measuring"
        if self._hopeless(time.monotonic_ns()):
            self._give_up(_NO_SUCCESS)
        self.clock.reset()
        self._cpu_ns = time.process_time_ns()
        self._measured_ns = time.monotonic_ns()

    def _end_measuring(self) -> None:
        wall = time.monotonic_ns() - self._measured_ns
        self.cpu_pct = round(100 * (time.process_time_ns() - self._cpu_ns) / wall, 2) if wall > 0 else None
        self.phase = "done"
        if self.counted:
            start_s = min(r.start_s for r in self.counted)
            end_s = max(r.start_s + r.end_us / 1e6 for r in self.counted)
            unix = time.time() - (time.monotonic_ns() - self._began_ns) / 1e9
            self.t0_unix, self.t1_unix = unix + start_s, unix + end_s

    # -- one request ---------------------------------------------------------------------------------------------

    def _start(self, slot: Slot) -> None:
        slot.exchange = self._ready.popleft() if self._ready else self._next_exchange()
        self._go(slot)

    def _go(self, slot: Slot) -> None:
        """Send the slot's exchange on its connection, or on a new one as soon as that is open."""
        if slot.connection is None:
            assert slot.exchange is not None
            slot.exchange.began_ns = time.monotonic_ns()
            try:
                slot.connection = Connection(self.endpoint, self.clock)
            except OSError as error:
                self._finish(slot, *_socket_kind(error, connecting=True))
                return
            slot.open = False
            self._by_fd[slot.connection.fd] = slot
            slot.events = IN | OUT
            self.poller.register(slot.connection.fd, slot.events)
        else:
            self._send(slot)

    def _send(self, slot: Slot) -> None:
        exchange, connection = slot.exchange, slot.connection
        assert exchange is not None and connection is not None
        data = b"%b%d\r\n\r\n%b" % (self._head, len(exchange.body), exchange.body)
        exchange.began_ns = exchange.last_byte_ns = exchange.sent_ns = time.monotonic_ns()
        try:
            connection.send(data)
        except OSError as error:
            self._lost(slot, error)
            return
        self._set_interest(slot)

    def _set_interest(self, slot: Slot) -> None:
        connection = slot.connection
        if connection is None:
            return
        events = IN | OUT if connection.wants_write else IN
        if events != slot.events:
            slot.events = events
            self.poller.modify(connection.fd, events)

    def _on_event(self, slot: Slot, events: int) -> None:
        connection = slot.connection
        assert connection is not None
        try:
            if not slot.open:
                slot.open = connection.advance()
                if slot.open and slot.exchange is not None:
                    self._send(slot)
                else:
                    self._set_interest(slot)
                return
            if events & OUT:
                connection.flush()
                self._set_interest(slot)
            if events & (IN | GONE):
                data, stamp = connection.receive()
                if data is not None:
                    self._on_data(slot, data, stamp)
        except OSError as error:
            self._lost(slot, error)

    def _on_data(self, slot: Slot, data: bytes, stamp: int) -> None:
        exchange = slot.exchange
        if exchange is None:  # closed, or unasked bytes, between two requests
            self._drop_connection(slot)
            return
        if not data and self._may_reconnect(slot):
            self._reconnect(slot)
            return
        self._unheard = 0
        try:
            complete = exchange.receive(data, stamp)
        except HttpError as error:
            self._finish(slot, *exchange.broken(error))
            return
        except SseError as error:
            self._finish(slot, records.MALFORMED, str(error))
            return
        if not complete:
            return
        refused = exchange.http_error()
        if refused is not None and self.workload.drop_refused(exchange.status, refused[1], json.loads(exchange.body)):
            for waiting in self._ready:
                waiting.body = self.workload.body(waiting.index, warmup=waiting.warmup)
            self._release(slot)
            self._resend(slot)
        elif refused is not None:
            self._finish(slot, *refused)
        else:
            exchange.reply.verdict(self.workload.asked_tokens(exchange.index, warmup=exchange.warmup))
            self._finish(slot, exchange.reply.error, exchange.reply.detail)

    def _resend(self, slot: Slot) -> None:
        old = slot.exchange
        assert old is not None
        slot.exchange = Exchange(old.index, old.warmup, self.workload.body(old.index, warmup=old.warmup))
        self._go(slot)

    def _may_reconnect(self, slot: Slot) -> bool:
        """The peer closed a kept connection before a byte of the answer: it was idle too long, or had its share of
        requests. Once only, and never where the server may have begun to answer."""
        exchange, connection = slot.exchange, slot.connection
        if exchange is None or connection is None:
            return False
        return connection.used > 0 and not exchange.response.received and not exchange.reconnected

    def _reconnect(self, slot: Slot) -> None:
        exchange = slot.exchange
        assert exchange is not None
        self._drop_connection(slot)
        exchange.reconnected = True
        self._go(slot)

    def _lost(self, slot: Slot, error: OSError) -> None:
        if slot.exchange is None:
            self._drop_connection(slot)
        elif self._may_reconnect(slot):
            self._reconnect(slot)
        else:
            self._finish(slot, *_socket_kind(error, connecting=not slot.open))

    def _finish(self, slot: Slot, error: str | None, detail: str | None) -> None:
        exchange, slot.exchange = slot.exchange, None
        assert exchange is not None
        if error is None or exchange.response.complete:
            self._release(slot, exchange)
        else:
            self._drop_connection(slot)
        self._ok += error is None
        self._failed += error is not None
        self._unheard += error is not None
        self._ended.append((exchange, error, detail))
        self._start_next(slot)

    def _start_next(self, slot: Slot) -> None:
        """At once, not at the loop's next turn, unless starts fail at once too (that would be recursion)."""
        if self._waiting() and slot.connection is not None and slot.ready_ns <= time.monotonic_ns():
            self._start(slot)

    def _release(self, slot: Slot, exchange: Exchange | None = None) -> None:
        """The answer is in: keep the connection where both sides may."""
        exchange = exchange or slot.exchange
        connection = slot.connection
        if connection is None or exchange is None:
            return
        connection.used += 1
        if not exchange.response.keep_alive or exchange.response.rest or connection.wants_write:
            self._drop_connection(slot)

    def _drop_connection(self, slot: Slot) -> None:
        connection, slot.connection = slot.connection, None
        slot.open = False
        if connection is not None:
            self._by_fd.pop(connection.fd, None)
            self.poller.unregister(connection.fd)
            connection.close()

    # -- limits --------------------------------------------------------------------------------------------------

    def _enforce_limits(self, now: int) -> None:
        if not self._unheard:
            self._heard_ns = now
        if self._hopeless(now):
            self._give_up(_NO_SUCCESS)
        elif self._unheard >= 2 * len(self._slots) and now - self._heard_ns > _HOPELESS_AFTER_NS:
            self._give_up(_NOT_HEARD)  # its host may be cut off; each attempt could take seconds
        over = now - self._began_ns > self.spec.deadline_s * _SECOND_NS
        if over:
            self._give_up(f"stopped at the run's deadline of {self.spec.deadline_s:g} s")
        for slot in self._slots:
            exchange = slot.exchange
            if exchange is None:
                continue
            limit = exchange.over_limit(now, self.spec.timeout_s, self.spec.stall_s)
            if limit is None and over:
                limit = (records.DEADLINE, "in flight at the run's deadline")
            if limit is not None:
                exchange.last_byte_ns = now
                self._finish(slot, *limit)

    def _hopeless(self, now: int) -> bool:
        return not self._ok and self._failed >= 2 * len(self._slots) and now - self._began_ns > _HOPELESS_AFTER_NS

    def _give_up(self, why: str) -> None:
        left = self._waiting()
        self._pending.clear()
        self._ready.clear()
        if left and self.phase == "measuring":
            self.notes.append(f"{why}; {left} of {self.spec.requests} requests were not sent")

    def progress(self) -> BenchProgress:
        seen = self.warmups if self.phase == "warming up" else self.counted
        tokens = sum(r.output_tokens or 0 for r in seen if r.ok)
        since = self._began_ns if self.phase == "warming up" else self._measured_ns
        elapsed_s = (time.monotonic_ns() - since) / 1e9 if since else 0.0
        return BenchProgress(
            done=sum(r.ok for r in seen),
            failed=sum(not r.ok for r in seen),
            total=self.spec.warmup if self.phase == "warming up" else self.spec.requests,
            in_flight=self._in_flight(),
            output_tokens=tokens,
            output_tok_s=round(tokens / elapsed_s, 2) if elapsed_s > 0 else 0.0,
            elapsed_s=round(elapsed_s, 3),
            phase=self.phase,
        )


def _socket_kind(error: OSError, *, connecting: bool) -> tuple[str, str]:
    said = error.strerror or str(error)
    if isinstance(error, ConnectionRefusedError):
        return records.REFUSED, said
    if connecting:
        return records.CONNECT, said
    if isinstance(error, ConnectionError):
        return records.RESET, said
    return records.RESET, f"{type(error).__name__}: {said}"
