"""A client for the probe of a server's text, on the connections of the load client. A request takes
a tenth of the CPU time that it takes with httpx, and the probe may send several hundred."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.bench.connection import (
    Connection,
    Endpoint,
    ReceiveClock,
    describe_connection_failure,
    resolve_endpoint,
)
from workbench.bench.http1 import HttpError, ResponseReader
from workbench.model.errors import WorkbenchError
from workbench.model.untrusted_text import clean_text
from workbench.server.small_requests import CONNECT_TIMEOUT_S, Reply, make_reply, make_timeout_reply

if TYPE_CHECKING:
    from workbench.model.bench import BenchSpec

_MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of one answer
_READ_INTERVAL_S = 0.05  # between two reads of a streamed answer


class AnswerClient:
    """Sends requests to the completions endpoint of the server in `spec`, and keeps connections
    open for later requests. `key` is the API key of the server, None without one."""

    def __init__(self, spec: BenchSpec, key: str | None = None) -> None:
        self._spec, self._key = spec, key
        self._endpoint: Endpoint | None = None
        self._clock = ReceiveClock()
        self._idle: list[Connection] = []

    async def post(self, body: Mapping[str, Any], timeout_s: float) -> Reply:
        """Send `body` as one request, and return the reply. If the request fails or takes longer
        than `timeout_s`, the reply has no status and says why."""
        try:
            async with asyncio.timeout(timeout_s + CONNECT_TIMEOUT_S):
                return await self._post_request(json.dumps(body, ensure_ascii=False).encode())
        except TimeoutError:
            return make_timeout_reply(timeout_s)
        except HttpError as error:
            return Reply(None, problem=clean_text(str(error)))
        except WorkbenchError as error:
            return Reply(None, problem=error.message)

    def close(self) -> None:
        """Close the connections that are kept open."""
        while self._idle:
            self._idle.pop().close()

    async def _post_request(self, body: bytes) -> Reply:
        if self._endpoint is None:
            self._endpoint = await asyncio.to_thread(resolve_endpoint, self._spec)
        request = self._encode_http_request(self._endpoint, body)
        while self._idle:
            exchange = _AnswerExchange(self._idle.pop(), request, is_open=True)
            try:
                return await self._receive_answer(exchange)
            except OSError:
                # The server may close a kept connection at any time. The request is then sent
                # again, unless its answer had begun.
                if exchange.response.received:
                    return Reply(None, problem="the server closed the connection")
        try:
            connection = Connection(self._endpoint, self._clock)
            return await self._receive_answer(_AnswerExchange(connection, request, is_open=False))
        except OSError as error:
            kind, detail = describe_connection_failure(error, connecting=False)
            return Reply(None, problem=clean_text(f"{kind}: {detail}"))

    def _encode_http_request(self, endpoint: Endpoint, body: bytes) -> bytes:
        lines = [
            f"POST {endpoint.path} HTTP/1.1",
            f"Host: {endpoint.host_header}",
            "Content-Type: application/json",
            "Accept-Encoding: identity",
            "User-Agent: workbench-bench",
            *([f"Authorization: Bearer {self._key}"] if self._key else []),
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    async def _receive_answer(self, exchange: _AnswerExchange) -> Reply:
        """Return the answer to one request, and keep its connection if it stays open."""
        kept = False
        try:
            await exchange.send_and_await_answer()
            response = exchange.response
            encoding = response.headers.get("content-encoding", "identity").lower()
            if encoding not in ("", "identity"):
                raise HttpError(
                    "the server's answer is compressed, although Workbench requested it "
                    "uncompressed"
                )
            kept = response.keep_alive and not response.rest
            return make_reply(response.status, bytes(exchange.body))
        finally:
            if kept:
                self._idle.append(exchange.connection)
            else:
                exchange.connection.close()


class _AnswerExchange:
    """One request on a connection, and its answer. `is_open` says whether the connection is open
    already."""

    def __init__(self, connection: Connection, request: bytes, *, is_open: bool) -> None:
        self.connection = connection
        self.response = ResponseReader()
        self.body = bytearray()
        self._request = request
        self._open = is_open
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._writing = False
        self._next_read: asyncio.TimerHandle | None = None  # of a streamed answer

    async def send_and_await_answer(self) -> None:
        """Send the request and wait for the end of the answer. Raises OSError if the connection
        fails, and HttpError for an invalid answer."""
        fd = self.connection.fd
        self._loop.add_reader(fd, self._handle_socket_ready)
        try:
            if self._open:
                self.connection.send(self._request)
            self._update_socket_writer()
            await self._done
        finally:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            if self._next_read is not None:
                self._next_read.cancel()

    def _update_socket_writer(self) -> None:
        wanted = self.connection.wants_write
        if wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self.connection.fd, self._handle_socket_ready)
        else:
            self._loop.remove_writer(self.connection.fd)

    def _handle_socket_ready(self) -> None:
        try:
            self._advance_exchange()
        except (OSError, HttpError) as error:
            if not self._done.done():
                self._done.set_exception(error)

    def _advance_exchange(self) -> None:
        connection = self.connection
        if not self._open:
            self._open = connection.advance_handshake()
            if self._open:
                connection.send(self._request)
            self._update_socket_writer()
            return
        if self._writing:
            connection.flush()
            self._update_socket_writer()
        data, _ = connection.receive_data_and_time_ns()
        if self._done.done():
            return
        if data is None:
            self._loop.add_reader(connection.fd, self._handle_socket_ready)  # it may have rested
            return
        if data:
            self.body += self.response.feed(data)
        else:
            self._end_response_on_close()
        if len(self.body) > _MAX_ANSWER_BYTES:
            raise HttpError(f"the server's answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
        if self.response.complete:
            self._done.set_result(None)
        elif self._is_streamed:
            self._pause_reading()

    @property
    def _is_streamed(self) -> bool:
        kind = self.response.headers.get("content-type", "")
        return bool(self.body) and kind.startswith("text/event-stream")

    def _pause_reading(self) -> None:
        """Stop reading a streamed answer until the next beat, which all streamed answers share. One
        read then takes all pieces of a beat, whose exact times nobody needs."""
        self._loop.remove_reader(self.connection.fd)
        beats = self._loop.time() // _READ_INTERVAL_S + 1
        self._next_read = self._loop.call_at(beats * _READ_INTERVAL_S, self._handle_socket_ready)

    def _end_response_on_close(self) -> None:
        if not self.response.received:
            raise ConnectionResetError("the server closed the connection without an answer")
        self.response.end_at_closed_connection()
