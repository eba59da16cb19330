"""A port on loopback in front of a server. It passes on every byte at once and unchanged, and tells
which requests and answers went through it.

Each connection to the port is joined with one to the server. The bytes are never made from what was
understood of them: if they are no HTTP/1.1, or too large, they are passed on without being told of.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from workbench.bench.http1 import HttpError, ResponseReader
from workbench.hosts.base import LOOPBACK
from workbench.hosts.task_cancellation import end_all
from workbench.model.errors import InputError

MOST_KEPT = 64 << 20  # bytes of one request or answer
_MOST_HEAD = 64 * 1024
_MOST_WAITING = 1000  # requests of one connection that were sent before the answer to the first
_CONNECT_S = 10.0
_HEAD_END = b"\r\n\r\n"


class Exchange(NamedTuple):
    """A request and its answer. The times are those of `time.monotonic`: of the first byte of the
    request, and of the last one of the answer. `whole` is False if the connection ended before the
    answer did. `encoding` is the answer's Content-Encoding."""

    begin_s: float
    end_s: float
    path: str
    request: bytes
    status: int
    encoding: str
    answer: bytes
    whole: bool


class Passed:
    """What went through a port so far. `unread` is the number of connections that were passed on
    without being understood, and `refused` that of those that the server did not accept."""

    def __init__(self) -> None:
        self.requests = 0
        self.in_flight = 0
        self.unread = 0
        self.refused = 0


class PassThrough:
    """A port on 127.0.0.1 in front of a server. `hear` is called with each request that a client
    sent to one of `paths`, when its answer has ended."""

    def __init__(
        self, server: tuple[str, int], paths: Collection[str], hear: Callable[[Exchange], None]
    ) -> None:
        self._server, self.paths, self.hear = server, paths, hear
        self._listener: asyncio.Server | None = None
        self._joined: set[_Joined] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self.passed = Passed()
        self.closing = False

    async def listen(self, port: int) -> int:
        """Open the port, 0 for any free one. Return its number. Raises InputError if it is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._make_client_end, LOOPBACK, port)
        except OSError as error:
            raise InputError(
                f"port {port} of {LOOPBACK} cannot be opened: {error.strerror or error}",
                next_step="give another --port, or leave it out",
            ) from None
        return int(self._listener.sockets[0].getsockname()[1])

    def _make_client_end(self) -> asyncio.BaseProtocol:
        joined = _Joined(self)
        self._joined.add(joined)
        return joined.client

    def connect(self, joined: _Joined) -> None:
        """Begin to join a client's connection with one to the server."""
        task = asyncio.create_task(self._connect(joined))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, joined: _Joined) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_connection(lambda: joined.server, *self._server)
        except (OSError, TimeoutError):
            self.passed.refused += 1
            joined.reset_both()

    def forget_connection(self, joined: _Joined) -> None:
        self._joined.discard(joined)

    def note_request_ended(self) -> None:
        """Note that a request is no longer in flight."""
        self.passed.in_flight -= 1
        if self.closing and not self.passed.in_flight:
            self._idle.set()

    async def drain(self) -> None:
        """Accept no more connections, and wait until no request is in flight. A connection ends with
        the answer that it carries."""
        self.closing = True
        if self._listener is not None:
            self._listener.close()
        for joined in tuple(self._joined):
            joined.end_if_idle()
        if self.passed.in_flight:
            await self._idle.wait()

    async def close(self) -> None:
        """Cut all connections, and report the requests that are cut off."""
        self.closing = True
        if self._listener is not None:
            self._listener.close()
        await end_all(self._tasks)
        for joined in tuple(self._joined):
            joined.reset_both()
        await asyncio.sleep(0)  # the transports tell their ends that they are lost


# what was read last, of any connection: asyncio's own buffer is new for each read, which takes longer
# than to read
_READ = memoryview(bytearray(1 << 16))


class _End(asyncio.BufferedProtocol):
    """One end of a joined connection: that of the client or that of the server."""

    def __init__(
        self, connected: Callable[[], None], hear: Callable[[bytes], None], lost: Callable[[], None]
    ) -> None:
        self._connected, self._hear, self._lost = connected, hear, lost
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.read_all = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connected()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ

    def buffer_updated(self, nbytes: int) -> None:
        assert self.other is not None
        data = bytes(_READ[:nbytes])
        far = self.other.transport
        if far is not None and not far.is_closing():
            far.write(data)
        self._hear(data)

    def eof_received(self) -> bool:
        assert self.other is not None
        self.read_all = True
        far = self.other.transport
        if far is not None and not far.is_closing():
            far.write_eof()
        if self.other.read_all:
            self.close()
            self.other.close()
        return True  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.other is not None
        self.transport = None
        if exc is None:
            self.other.close()
        else:
            self.other.reset()
        self._lost()

    def pause_writing(self) -> None:
        assert self.other is not None
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        assert self.other is not None
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Close the connection with a TCP reset. A normal end would look like the end of a complete
        but short answer."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Asked(NamedTuple):
    """A request whose answer has not ended. `body` is None if it is not told of."""

    begin_s: float
    method: str
    path: str
    body: list[bytes] | None


class _Joined:
    """A client's connection and the one to the server, and what is understood of their bytes."""

    def __init__(self, port: PassThrough) -> None:
        self._port = port
        self.client = _End(self._client_connected, self._client_sent, self._end_lost)
        self.server = _End(self._server_connected, self._server_sent, self._end_lost)
        self.client.other, self.server.other = self.server, self.client
        self._read = True
        self._head = b""
        self._head_began_s = 0.0
        self._body: ResponseReader | None = None  # of the request that the client sends
        self._parts: list[bytes] | None = None  # of that body; None if it is not told of
        self._kept = 0
        self._asked: deque[_Asked] = deque()
        self._answer = ResponseReader()
        self._answered: list[bytes] = []
        self._answered_bytes = 0

    # ---- the connections

    def _client_connected(self) -> None:
        # before Python 3.11.4, a transport does not pause while it tells of its connection
        asyncio.get_running_loop().call_soon(self._pause)
        self._port.connect(self)

    def _pause(self) -> None:
        """Read nothing of the client until the server can have it."""
        if self.client.transport is not None:
            self.client.transport.pause_reading()

    def _server_connected(self) -> None:
        if self.client.transport is None:
            self.server.close()
            return
        self.client.transport.resume_reading()

    def _end_lost(self) -> None:
        if self._read and self._asked:
            self._cut_exchanges()
        self._stop_reading(understood=True)
        if self.client.transport is None and self.server.transport is None:
            self._port.forget_connection(self)

    def reset_both(self) -> None:
        self.client.reset()
        self.server.reset()

    def end_if_idle(self) -> None:
        """Close the connection if no request is in flight on it."""
        if not self._asked:
            self.server.close()
            self.client.close()

    # ---- what went through

    def _client_sent(self, data: bytes) -> None:
        if not self._read:
            return
        now_s = time.monotonic()
        try:
            while data:
                data = self._take_request_bytes(data, now_s)
        except HttpError:
            self._stop_reading()

    def _take_request_bytes(self, data: bytes, now_s: float) -> bytes:
        """Take the next bytes of the client. Return those that belong to a later request."""
        if self._body is None:
            if not self._head:
                self._head_began_s = now_s
            self._head += data
            end = self._head.find(_HEAD_END)
            if end < 0:
                if len(self._head) > _MOST_HEAD:
                    raise HttpError("the head is too large")
                return b""
            head, data, self._head = self._head[:end], self._head[end + 4 :], b""
            self._begin_request(head)
        assert self._body is not None
        part = self._body.feed(data)
        if part and self._parts is not None:
            self._kept += len(part)
            if self._kept > MOST_KEPT:
                raise HttpError("the request is too large")
            self._parts.append(part)
        if not self._body.complete:
            return b""
        rest, self._body = self._body.rest, None
        return rest

    def _begin_request(self, head: bytes) -> None:
        """Begin a request. Its body is framed as that of an answer is."""
        line, _, fields = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if (
            len(words) != 3
            or not words[2].startswith("HTTP/1.")
            or len(self._asked) > _MOST_WAITING
        ):
            raise HttpError("the bytes are no request")
        method, target, _ = words
        path = target.partition("?")[0]
        framed = ResponseReader()
        framed.feed(b"HTTP/1.1 200 OK\r\n" + fields + _HEAD_END)
        if framed.until_close:  # without a length: no body
            framed = ResponseReader()
            framed.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        wanted = method == "POST" and path in self._port.paths
        self._kept, self._body, self._parts = 0, framed, [] if wanted else None
        self._asked.append(_Asked(self._head_began_s, method, path, self._parts))
        self._port.passed.requests += 1
        self._port.passed.in_flight += 1

    def _server_sent(self, data: bytes) -> None:
        if not self._read:
            return
        try:
            while data:
                data = self._take_answer_bytes(data)
        except HttpError:
            self._stop_reading()

    def _take_answer_bytes(self, data: bytes) -> bytes:
        """Take the next bytes of the server. Return those that belong to a later answer."""
        if not self._asked:
            raise HttpError("an answer without a request")
        asked, reader = self._asked[0], self._answer
        part = reader.feed(data)
        if asked.method == "HEAD" and reader.status:  # its length is that of no body
            self._end_exchange(whole=True)
            return part + reader.rest
        if part and asked.body is not None:
            self._answered_bytes += len(part)
            if self._answered_bytes > MOST_KEPT:
                raise HttpError("the answer is too large")
            self._answered.append(part)
        if not reader.complete:
            return b""
        rest = reader.rest
        self._end_exchange(whole=True)
        return rest

    def _cut_exchanges(self) -> None:
        """End the answer that is under way, and the requests that have none."""
        whole = False
        with contextlib.suppress(HttpError):
            self._answer.eof()
            whole = True
        self._end_exchange(whole=whole)
        while self._asked:
            self._end_exchange(whole=False)

    def _end_exchange(self, *, whole: bool) -> None:
        asked, reader = self._asked.popleft(), self._answer
        answered, self._answered, self._answered_bytes = self._answered, [], 0
        self._answer = ResponseReader()
        self._port.note_request_ended()
        if asked.body is not None:
            told = Exchange(
                begin_s=asked.begin_s,
                end_s=time.monotonic(),
                path=asked.path,
                request=b"".join(asked.body),
                status=reader.status,
                encoding=reader.headers.get("content-encoding", ""),
                answer=b"".join(answered),
                whole=whole,
            )
            self._port.hear(told)
        if self._port.closing:
            self.end_if_idle()

    def _stop_reading(self, *, understood: bool = False) -> None:
        """Only pass on what comes from now on."""
        if not self._read:
            return
        self._read = False
        self._port.passed.unread += not understood
        while self._asked:
            self._asked.popleft()
            self._port.note_request_ended()
        self._answered = []
