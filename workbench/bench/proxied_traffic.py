"""The requests and answers in the bytes that a port has passed on.

The bytes of each connection are read as HTTP/1.1. What they are not, or what is too large, is only
counted: it was passed on all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from workbench.bench.http1 import HttpError, ResponseReader
from workbench.bench.proxy_process import (
    ANY_NUMBER,
    CLIENT_SENT,
    ENDED,
    FRAME,
    REFUSED,
    SERVER_SENT,
    UNTOLD,
)

MOST_KEPT = 64 << 20  # bytes of one request or answer
_MOST_HEAD = 64 * 1024
_MOST_WAITING = 1000  # requests of one connection that were sent before the answer to the first
_PAUSE_S = 0.02  # between reads: a frame that comes meanwhile wakes nobody
_HEAD_END = b"\r\n\r\n"


class Frame(NamedTuple):
    """What happened on a connection: the kind of event, the number of the connection, the time, and
    the bytes that were passed on."""

    kind: int
    connection: int
    at_s: float
    data: bytes


def read_frames(source_fd: int) -> Iterator[Frame]:
    """Yield each frame that `proxy_process` has written to a pipe. One that was cut at the end is
    left out."""
    room = fcntl.fcntl(source_fd, fcntl.F_GETPIPE_SZ)
    held = bytearray()
    while data := os.read(source_fd, room):
        held += data
        at = 0
        while len(held) >= at + FRAME.size:
            at_s, number, size, kind = FRAME.unpack_from(held, at)
            begin = at + FRAME.size
            if len(held) < begin + size:
                break
            at = begin + size
            yield Frame(kind, number, at_s, bytes(held[begin:at]))
        del held[:at]
        if len(data) < room // 2:
            time.sleep(_PAUSE_S)


class Exchange(NamedTuple):
    """A request and its answer. `begin_s` is when the first byte of the request came, and `end_s`
    when the last one of the answer came, on the clock of `time.monotonic`. `whole` is False if the
    connection ended before the answer did. `encoding` is the answer's Content-Encoding."""

    begin_s: float
    end_s: float
    path: str
    request: bytes
    status: int
    encoding: str
    answer: bytes
    whole: bool


class PassedTraffic:
    """What went through a port. `on_exchange` is called with each request that a client sent to one
    of `paths`, when its answer has ended. `unread` is the number of connections that were passed on
    without being understood, and `refused` that of those that the server did not accept."""

    def __init__(self, paths: Collection[str], on_exchange: Callable[[Exchange], None]) -> None:
        self.paths, self.on_exchange = paths, on_exchange
        self._connections: dict[int, _Connection] = {}
        self.requests = 0
        self.in_flight = 0
        self.unread = 0
        self.refused = 0

    def process_frame(self, kind: int, number: int, at_s: float, data: bytes) -> None:
        """Process a frame of `proxy_process` about a connection."""
        if kind == REFUSED:
            self.refused += 1
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = _Connection(self)
        connection.frame_count += 1
        if kind == CLIENT_SENT:
            connection.process_client_bytes(data, at_s)
        elif kind == SERVER_SENT:
            connection.process_server_bytes(data, at_s)
        elif kind == UNTOLD:
            connection.ignore_further_bytes()
        elif kind == ENDED:
            connection.end_exchanges(at_s)
            del self._connections[number]

    def frame_count_if_idle(self, number: int) -> int | None:
        """Return the number of frames of a connection that carries no request now; ANY_NUMBER if
        its bytes were not understood. None if a request is in flight on it, or if it has ended."""
        connection = self._connections.get(number)
        if connection is None or connection.asked:
            return None
        return connection.frame_count if connection.reads else ANY_NUMBER

    def open_connection_numbers(self) -> list[int]:
        """Return the numbers of the connections that have not ended."""
        return list(self._connections)

    def end_all_exchanges(self, at_s: float) -> None:
        """End all exchanges that are in flight, because no more frames come. Only an answer without
        a length, which ends with its connection, counts as whole."""
        for connection in self._connections.values():
            connection.end_exchanges(at_s)


class _PendingRequest(NamedTuple):
    """A request whose answer has not ended. `body` is None if nobody wants to hear of this
    request."""

    begin_s: float
    method: str
    path: str
    body: list[bytes] | None


class _Connection:
    """What is understood of the bytes of a client and of the server."""

    def __init__(self, traffic: PassedTraffic) -> None:
        self._traffic = traffic
        self.frame_count = 0
        self.reads = True
        self.asked: deque[_PendingRequest] = deque()
        self._head = b""
        self._head_began_s = 0.0
        self._body: ResponseReader | None = None  # of the request that the client sends
        self._parts: list[bytes] | None = None  # of that body; None if it is not told of
        self._kept = 0
        self._answer = ResponseReader()
        self._answered: list[bytes] = []
        self._answered_bytes = 0

    def process_client_bytes(self, data: bytes, at_s: float) -> None:
        if not self.reads:
            return
        try:
            while data:
                data = self._parse_request_bytes(data, at_s)
        except HttpError:
            self.ignore_further_bytes()

    def _parse_request_bytes(self, data: bytes, at_s: float) -> bytes:
        """Parse the next bytes of the client. Return those that belong to a later request, b"" if
        there are none. Raises HttpError for bytes that are no request."""
        if self._body is None:
            if not self._head:
                self._head_began_s = at_s
            self._head += data
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > _MOST_HEAD:
                    raise HttpError("the head is too large")
                return b""
            head, data, self._head = self._head[:end], self._head[end + 4 :], b""
            self._start_request(head)
        assert self._body is not None
        part = self._body.feed(data)
        if self._parts is not None:
            self._kept += len(part)
            if self._kept > MOST_KEPT:
                raise HttpError("the request is too large")
            self._parts.append(part)
        if not self._body.complete:
            return b""
        rest, self._body = self._body.rest, None
        return rest

    def _start_request(self, head: bytes) -> None:
        """Begin a request. Its body is framed as that of an answer is."""
        line, _, fields = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or len(self.asked) > _MOST_WAITING:
            raise HttpError("the bytes are no request")
        method, target, _ = words
        path = target.partition("?")[0]
        framed = ResponseReader()
        framed.feed(b"HTTP/1.1 200 OK\r\n" + fields + _HEAD_END)
        if framed.ends_at_close:  # without a length: no body
            framed = ResponseReader()
            framed.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        wanted = method == "POST" and path in self._traffic.paths
        self._kept, self._body, self._parts = 0, framed, [] if wanted else None
        self.asked.append(_PendingRequest(self._head_began_s, method, path, self._parts))
        self._traffic.requests += 1
        self._traffic.in_flight += 1

    def process_server_bytes(self, data: bytes, at_s: float) -> None:
        if not self.reads:
            return
        try:
            while data:
                data = self._parse_answer_bytes(data, at_s)
        except HttpError:
            self.ignore_further_bytes()

    def _parse_answer_bytes(self, data: bytes, at_s: float) -> bytes:
        """Parse the next bytes of the server. Return those that belong to a later answer, b"" if
        there are none. Raises HttpError for bytes that are no answer to a request."""
        if not self.asked:
            raise HttpError("an answer without a request")
        asked, reader = self.asked[0], self._answer
        part = reader.feed(data)
        if asked.method == "HEAD" and reader.status:  # its length is that of no body
            self._end_oldest_exchange(at_s, whole=True)
            return part + reader.rest
        if asked.body is not None:
            self._answered_bytes += len(part)
            if self._answered_bytes > MOST_KEPT:
                raise HttpError("the answer is too large")
            self._answered.append(part)
        if not reader.complete:
            return b""
        rest = reader.rest
        self._end_oldest_exchange(at_s, whole=True)
        return rest

    def end_exchanges(self, at_s: float) -> None:
        """End the answer that is under way, and the requests that have none."""
        if self.asked:
            whole = False
            with contextlib.suppress(HttpError):
                self._answer.end_at_closed_connection()
                whole = True
            self._end_oldest_exchange(at_s, whole=whole)
        while self.asked:
            self._end_oldest_exchange(at_s, whole=False)

    def _end_oldest_exchange(self, at_s: float, *, whole: bool) -> None:
        asked, reader = self.asked.popleft(), self._answer
        answered, self._answered, self._answered_bytes = self._answered, [], 0
        self._answer = ResponseReader()
        self._traffic.in_flight -= 1
        if asked.body is None:
            return
        told = Exchange(
            begin_s=asked.begin_s,
            end_s=at_s,
            path=asked.path,
            request=b"".join(asked.body),
            status=reader.status,
            encoding=reader.headers.get("content-encoding", ""),
            answer=b"".join(answered),
            whole=whole,
        )
        self._traffic.on_exchange(told)

    def ignore_further_bytes(self) -> None:
        """Stop parsing this connection, whose further bytes are not known or not understood. Its
        requests in flight are discarded, and it is counted once as unread."""
        if not self.reads:
            return
        self.reads = False
        self._traffic.unread += 1
        self._traffic.in_flight -= len(self.asked)
        self.asked.clear()
        self._answered = []
