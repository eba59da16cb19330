"""A port on loopback in front of a server. It passes on every byte at once and unchanged, and tells
which requests and answers went through it.

Each connection to the port is joined with one to the server. The bytes are never made from what was
understood of them: if they are no HTTP/1.1, or too large, they are passed on without being told of.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from workbench.bench.http1 import HttpError, ResponseReader
from workbench.hosts.base import LOOPBACK
from workbench.hosts.task_cancellation import end_all
from workbench.model.errors import InputError

MOST_KEPT = 64 << 20  # bytes of one request or answer
_MOST_HEAD = 64 * 1024
_MOST_WAITING = 1000  # requests of one connection that were sent before the answer to the first
_CONNECT_S = 10.0
_ACCEPT_AGAIN_S = 1.0
_HEAR_AFTER_S = 0.001
_HEARD_AT_ONCE = 2
_HEARD_SHARE = 8
_MOST_UNSENT, _FEW_UNSENT = 64 << 10, 16 << 10  # bytes that wait for one end
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


Hear = Callable[[bytes, float], None]  # (bytes, when they came)


class PassThrough:
    """A port on 127.0.0.1 in front of a server. `hear` is called with each request that a client
    sent to one of `paths`, when its answer has ended."""

    def __init__(
        self, server: tuple[str, int], paths: Collection[str], hear: Callable[[Exchange], None]
    ) -> None:
        self._server, self.paths, self.hear = server, paths, hear
        self._places: list[tuple[socket.AddressFamily, Any]] = []  # of the server, by its name
        self._listener: socket.socket | None = None
        self._joined: set[_Joined] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._unheard: deque[tuple[Hear, bytes, float]] = deque()
        self._hearing: asyncio.Handle | None = None
        self.passed = Passed()
        self.closing = False

    async def listen(self, port: int) -> int:
        """Open the port, 0 for any free one. Return its number. Raises InputError if it is taken, or
        if the server's name is not known."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(*self._server, type=socket.SOCK_STREAM)
        except OSError as error:
            raise InputError(
                f"the address of {self._server[0]} is not known: {error.strerror or error}",
                next_step="check the name of the server",
            ) from None
        self._places = [(family, place) for family, _, _, _, place in found]
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except OSError as error:
            raise InputError(
                f"port {port} of {LOOPBACK} cannot be opened: {error.strerror or error}",
                next_step="give another --port, or leave it out",
            ) from None
        self._listener.setblocking(False)
        self._accept_more()
        return int(self._listener.getsockname()[1])

    def _accept_more(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept the connections that wait."""
        while self._listener is not None:
            try:
                client, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no more files: those that wait are accepted later
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(_ACCEPT_AGAIN_S, self._accept_more)
                return
            joined = _Joined(self, _ready_socket(client))
            self._joined.add(joined)
            self._connect(joined)

    def _connect(self, joined: _Joined) -> None:
        """Join a client's connection with one to the server. On loopback the kernel opens it at once,
        so the request is passed on without another turn of the event loop."""
        family, place = self._places[0]
        server = _new_socket(family)
        if server is not None and _is_open(server, place):
            joined.begin(server)
            return
        task = asyncio.create_task(self._connect_in_time(joined, server))
        self._tasks.add(task)
        task.add_done_callback(partial(self._forget_task, server))

    async def _connect_in_time(self, joined: _Joined, begun: socket.socket | None) -> None:
        """Join a client's connection with the first address of the server that accepts one. The
        connection to the first address has `begun`; None if it could not."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                for number, (family, place) in enumerate(self._places):
                    server = _new_socket(family) if number else begun
                    if server is not None and await _opens(server, place):
                        joined.begin(server)
                        return
        except TimeoutError:
            pass
        self.passed.refused += 1
        joined.reset_both()

    def _forget_task(self, begun: socket.socket | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() and begun is not None:  # perhaps before its first step
            begun.close()

    def hear_later(self, hear: Hear, data: bytes) -> None:
        """Let `hear` have bytes that were passed on just now. It reads them when their receiver had
        time to begin: on a core that both share, it would wait for that."""
        self._unheard.append((hear, data, time.monotonic()))
        if self._hearing is None:
            loop = asyncio.get_running_loop()
            self._hearing = loop.call_later(_HEAR_AFTER_S, self._hear_some)

    def _hear_some(self) -> None:
        """Read a few of the bytes that were passed on, so that bytes that come now do not wait for
        long; of many, a share that keeps up with any number of connections."""
        few = max(_HEARD_AT_ONCE, len(self._unheard) // _HEARD_SHARE)
        try:
            for _ in range(min(len(self._unheard), few)):
                hear, data, at_s = self._unheard.popleft()
                hear(data, at_s)
        finally:  # also after a defect, or nothing would be read any more
            more = bool(self._unheard)
            self._hearing = asyncio.get_running_loop().call_soon(self._hear_some) if more else None

    def _hear_all(self) -> None:
        while self._unheard:
            hear, data, at_s = self._unheard.popleft()
            hear(data, at_s)

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
        self._stop_listening()
        self._hear_all()
        for joined in tuple(self._joined):
            joined.end_if_idle()
        if self.passed.in_flight:
            await self._idle.wait()

    async def close(self) -> None:
        """Cut all connections, and tell of the requests that are cut by it."""
        self.closing = True
        self._stop_listening()
        await end_all(self._tasks)
        for joined in tuple(self._joined):
            joined.reset_both()
        self._hear_all()
        if self._hearing is not None:
            self._hearing.cancel()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()


def _ready_socket(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _new_socket(family: socket.AddressFamily) -> socket.socket | None:
    """Return a socket to the server, None if there are no more files."""
    try:
        return _ready_socket(socket.socket(family, socket.SOCK_STREAM))
    except OSError:
        return None


def _is_open(sock: socket.socket, place: Any) -> bool:
    """Begin to connect a socket. Return whether the connection is open already."""
    code = sock.connect_ex(place)
    if code == errno.EINPROGRESS:
        code = sock.connect_ex(place)  # the kernel may have done it meanwhile
    return code in (0, errno.EISCONN)


async def _opens(sock: socket.socket, place: Any) -> bool:
    """Return whether a connection opens. Otherwise its socket is closed."""
    opened = False
    try:
        await asyncio.get_running_loop().sock_connect(sock, place)
        opened = True
    except OSError:
        pass
    finally:
        if not opened:
            sock.close()
    return opened


# what was read last, of any connection: asyncio's own buffer is new for each read, which takes longer
# than to read
_READ = memoryview(bytearray(1 << 16))


class _End:
    """One end of a joined connection: that of the client or that of the server. It reads and writes
    its socket itself: a transport of asyncio does the same in more steps, which are in the time of
    every first token."""

    def __init__(self, port: PassThrough, hear: Hear, lost: Hear) -> None:
        self._port, self._hear, self._lost = port, hear, lost
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._waiting = bytearray()  # what the socket did not take yet
        self._ends = self._closes = False  # after what waits
        self.other: _End | None = None
        self.read_all = False

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, sock: socket.socket) -> None:
        """Take a connected socket, of which nothing is read yet."""
        self._socket = sock

    def begin_reading(self) -> None:
        """Read what comes, from what has come already on."""
        if self._socket is not None and not (self.read_all or self._closes):
            self._loop.add_reader(self._socket, self._receive)

    def _stop_reading(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)

    def _receive(self) -> None:
        assert self._socket is not None and self.other is not None
        try:
            size = self._socket.recv_into(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.reset()
            return
        if not size:
            self._receive_end()
            return
        data = bytes(_READ[:size])
        self.other.send(data)
        self._port.hear_later(self._hear, data)

    def _receive_end(self) -> None:
        assert self.other is not None
        self.read_all = True
        self._stop_reading()  # the other direction stays open
        self.other.send_end()
        if self.other.read_all:
            self.close()
            self.other.close()

    def send(self, data: bytes) -> None:
        """Send bytes to this end: at once, or when its socket takes more."""
        if self._socket is None or self._closes:
            return
        if not self._waiting:
            try:
                size = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                size = 0
            except OSError:
                self._loop.call_soon(self.reset)  # first these bytes are noted
                return
            if size == len(data):
                return
            data = data[size:]
            self._loop.add_writer(self._socket, self._send_waiting)
        self._waiting += data
        if len(self._waiting) > _MOST_UNSENT and self.other is not None:
            self.other._stop_reading()

    def _send_waiting(self) -> None:
        assert self._socket is not None and self.other is not None
        try:
            size = self._socket.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.reset()
            return
        del self._waiting[:size]
        if len(self._waiting) <= _FEW_UNSENT:
            self.other.begin_reading()
        if self._waiting:
            return
        self._loop.remove_writer(self._socket)
        if self._closes:
            self._lose()
        elif self._ends:
            self._shut_down()

    def send_end(self) -> None:
        """Tell this end that no more bytes come, after those that wait."""
        self._ends = True
        if self._socket is not None and not self._waiting and not self._closes:
            self._shut_down()

    def _shut_down(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # it has gone meanwhile, which the next read tells
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection after the bytes that wait, and then the other end too."""
        if self._socket is None or self._closes:
            return
        self._closes = True
        self._stop_reading()
        if not self._waiting:
            self._lose()

    def reset(self) -> None:
        """Close the connection and the other end with a TCP reset. A normal end would look like the
        end of a complete but short answer."""
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._lose(failed=True)

    def _lose(self, *, failed: bool = False) -> None:
        assert self._socket is not None and self.other is not None
        sock, self._socket = self._socket, None
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        sock.close()
        self._waiting.clear()
        if failed:
            self.other.reset()
        else:
            self.other.close()
        self._port.hear_later(self._lost, b"")  # after the bytes that came before


class _Asked(NamedTuple):
    """A request whose answer has not ended. `body` is None if it is not told of."""

    begin_s: float
    method: str
    path: str
    body: list[bytes] | None


class _Joined:
    """A client's connection and the one to the server, and what is understood of their bytes."""

    def __init__(self, port: PassThrough, client: socket.socket) -> None:
        self._port = port
        self.client = _End(port, self._client_sent, self._end_lost)
        self.server = _End(port, self._server_sent, self._end_lost)
        self.client.other, self.server.other = self.server, self.client
        self.client.open(client)
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

    def begin(self, server: socket.socket) -> None:
        """Pass on what comes, now that there is a connection to the server."""
        self.server.open(server)
        if not self.client.is_open:
            self.server.close()
            return
        self.server.begin_reading()
        self.client.begin_reading()

    def _end_lost(self, _: bytes, at_s: float) -> None:
        if self._read and self._asked:
            self._cut_exchanges(at_s)
        self._stop_reading(understood=True)
        if not self.client.is_open and not self.server.is_open:
            self._port.forget_connection(self)

    def reset_both(self) -> None:
        """Cut both connections."""
        self.client.reset()
        self.server.reset()

    def end_if_idle(self) -> None:
        """Close the connection if no request is in flight on it."""
        if not self._asked:
            self.server.close()
            self.client.close()

    # ---- what went through

    def _client_sent(self, data: bytes, at_s: float) -> None:
        if not self._read:
            return
        try:
            while data:
                data = self._take_request_bytes(data, at_s)
        except HttpError:
            self._stop_reading()

    def _take_request_bytes(self, data: bytes, at_s: float) -> bytes:
        """Take the next bytes of the client. Return those that belong to a later request."""
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

    def _server_sent(self, data: bytes, at_s: float) -> None:
        if not self._read:
            return
        try:
            while data:
                data = self._take_answer_bytes(data, at_s)
        except HttpError:
            self._stop_reading()

    def _take_answer_bytes(self, data: bytes, at_s: float) -> bytes:
        """Take the next bytes of the server. Return those that belong to a later answer."""
        if not self._asked:
            raise HttpError("an answer without a request")
        asked, reader = self._asked[0], self._answer
        part = reader.feed(data)
        if asked.method == "HEAD" and reader.status:  # its length is that of no body
            self._end_exchange(at_s, whole=True)
            return part + reader.rest
        if part and asked.body is not None:
            self._answered_bytes += len(part)
            if self._answered_bytes > MOST_KEPT:
                raise HttpError("the answer is too large")
            self._answered.append(part)
        if not reader.complete:
            return b""
        rest = reader.rest
        self._end_exchange(at_s, whole=True)
        return rest

    def _cut_exchanges(self, at_s: float) -> None:
        """End the answer that is under way, and the requests that have none."""
        whole = False
        with contextlib.suppress(HttpError):
            self._answer.eof()
            whole = True
        self._end_exchange(at_s, whole=whole)
        while self._asked:
            self._end_exchange(at_s, whole=False)

    def _end_exchange(self, at_s: float, *, whole: bool) -> None:
        asked, reader = self._asked.popleft(), self._answer
        answered, self._answered, self._answered_bytes = self._answered, [], 0
        self._answer = ResponseReader()
        self._port.note_request_ended()
        if asked.body is not None:
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
