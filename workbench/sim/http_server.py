"""A small HTTP/1.1 server on asyncio.Protocol. Requests need a Content-Length; replies are complete
or streamed in chunks.

It is fast for many small streamed writes, because each event is one transport.write without a
buffer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

LIMIT_BYTES = 64 << 20
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    503: "Service Unavailable",
}


class Request:
    """One HTTP request: `method`, `path_with_query` as it was sent, `path`, `headers` (lower-case
    names), `body`, and the client's address (`peer`)."""

    def __init__(
        self,
        method: str,
        path_with_query: str,
        headers: dict[str, str],
        body: bytes,
        connection: ClientConnection,
    ) -> None:
        self.method = method
        self.path_with_query = path_with_query
        self.path = path_with_query.partition("?")[0]
        self.headers = headers
        self.body = body
        self.connection = connection
        # called if the client disconnects before the end of the reply
        self.on_gone: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        """The address and port of the client, "127.0.0.1:40000"."""
        return self.connection.peer

    def reply(self, status: int, body: Any = b"", content_type: str = "application/json") -> None:
        """Send the complete reply. A body other than bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        self.connection.send(
            b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n%s"
            % (
                status,
                REASONS[status].encode(),
                content_type.encode(),
                len(data),
                self._connection_header(),
                data,
            )
        )
        self.connection.finish_reply()

    def start_stream(self) -> None:
        self.connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; "
            b"charset=utf-8\r\ntransfer-encoding: chunked\r\n%s\r\n" % self._connection_header()
        )

    def send_event(self, data: bytes) -> None:
        """Send one chunk of complete server-sent events."""
        self.connection.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self, data: bytes = b"") -> None:
        last = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
        self.connection.send(last + b"0\r\n\r\n")
        self.connection.finish_reply()

    def _connection_header(self) -> bytes:
        return b"connection: close\r\n" if self.connection.last else b""


class ClientConnection(asyncio.Protocol):
    """A connection of one client. Its requests are answered one after the other."""

    def __init__(
        self, handle: Callable[[Request], None], max_requests: int | None, idle_s: float | None
    ) -> None:
        self.handle = handle
        self.left = max_requests
        self.idle_s = idle_s
        self.transport: asyncio.Transport | None = None
        self.buffer = b""
        self.current: Request | None = None
        self.last = False
        self.peer = ""
        self.idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.idle:
            self.idle.cancel()
            self.idle = None
        self._handle_next_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.current and self.current.on_gone:
            self.current.on_gone()

    def send(self, data: bytes) -> None:
        if self.transport:
            self.transport.write(data)

    def finish_reply(self) -> None:
        """Mark the reply to the current request as complete, and handle the connection's next
        request."""
        self.current = None
        if not self.transport:
            return
        if self.last:
            self.transport.close()
        elif self.buffer:
            self._handle_next_request()
        elif self.idle_s:
            self.idle = asyncio.get_running_loop().call_later(self.idle_s, self.transport.close)

    def _handle_next_request(self) -> None:
        if self.current or not self.transport:
            return
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self.buffer) > 1 << 16:
                self.transport.close()
            return
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if len(words) != 3:
            self.transport.close()
            return
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            length = -1
        if length < 0 or length > LIMIT_BYTES or "transfer-encoding" in headers:
            self.last, self.buffer = True, b""
            self.current = Request(words[0], words[1], headers, b"", self)
            self.current.reply(413 if length > LIMIT_BYTES else 411)
            return
        if len(rest) < length:
            if headers.get("expect", "").lower() == "100-continue" and not rest:
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.buffer = self.buffer.replace(b"100-continue", b"seen", 1)
            return
        self.buffer = rest[length:]
        if self.left is not None:
            self.left -= 1
        self.last = headers.get("connection", "").lower() == "close" or self.left == 0
        self.current = Request(words[0], words[1], headers, rest[:length], self)
        self.handle(self.current)
