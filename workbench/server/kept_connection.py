"""Small requests to one HTTP server, GET over a connection that stays open between them.

The screen reads the counters of a server each second. A request through httpx, with a connection of
its own, takes ten times the CPU of one here, and httpx takes 5 MiB and 0.1 s to load. The server is
not trusted: an answer must be complete within a time limit, must not be too large, and must not be
compressed. `open_keep_alive_connection` requests pages over TLS, too, for which it loads httpx.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_text
from workbench.server.small_requests import (
    CONNECT_TIMEOUT_S,
    AskPath,
    Reply,
    make_asker,
    make_reply,
)

if TYPE_CHECKING:
    import ssl

MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of one answer; a metrics page of vLLM has 100 KB
_MOST_HEAD_BYTES = 64 * 1024
_MOST_LINE_BYTES = 1024  # of the size of a chunk, and of a line after the last chunk
_STATUS_LINE = re.compile(r"(?P<version>HTTP/1\.[^ ]*) (?P<status>[0-9]{3})(?: |\Z)")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_STATUSES_WITHOUT_BODY = (204, 304)
_NEXT_ADDRESS_DELAY_S = 0.25  # a name may have an IPv6 address at which nothing answers
_TURN_TIMEOUT_S = 0.25  # for the answer to another request
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"  # what a path may contain besides letters and digits


class _BadAnswerError(Exception):
    """Raised if the answer is no valid HTTP/1.x, too large or compressed."""


class _NotConnectedError(Exception):
    """Raised if the server accepts no connection in time."""


class _ClosedEarlyError(Exception):
    """Raised if the server closes the connection before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed_before: int  # how often the KeepAliveConnection was closed before this one was opened

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()


class KeepAliveConnection:
    """Requests pages of the server at `base_url`, which is plain HTTP and may have a path. Each
    request has the query `query`, and the API key, if there is one. Raises ValueError for a URL of
    another scheme: the key would go out unencrypted."""

    def __init__(self, base_url: str, query: str = "", api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http":
            raise ValueError(f"{base_url!r} is not a URL of plain HTTP")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._base_path = quote(parts.path.rstrip("/"), safe=_PATH_CHARACTERS)
        self._query = f"?{query}" if query else ""
        lines = [f"Host: {parts.netloc}", "Accept: */*", "Accept-Encoding: identity"]
        if api_key:
            # a line break in a key would begin another header
            lines.append(f"Authorization: Bearer {' '.join(api_key.split())}")
        self._headers = "\r\n".join(lines)
        self._idle: _Connection | None = None
        self._in_use = 0
        self._given_back = asyncio.Event()
        self._closed = 0  # how often

    async def get(self, path: str, timeout_s: float) -> Reply:
        """Request `path`, and return the reply; its `problem` says why there is no answer. Never
        raises for what the server does."""
        return await self.ask(path, None, timeout_s)

    async def ask(self, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Reply:
        """Send `body` as JSON to `path`, or request `path` if it is None. Return the reply; its
        `problem` says why there is no answer. A body is sent once, over a new connection: a server
        that closes one may have read it."""
        try:
            async with asyncio.timeout(timeout_s):
                if body is None:
                    return await self._get_with_one_retry(path)
                return await self._send_request(await self._open_connection(), path, body)
        except _NotConnectedError:
            return Reply(
                None, problem=f"the server accepted no connection within {CONNECT_TIMEOUT_S:g} s"
            )
        except TimeoutError:
            return Reply(None, problem=f"the server gave no complete answer within {timeout_s:g} s")
        except _ClosedEarlyError:
            return Reply(None, problem="the server closed the connection without an answer")
        except asyncio.IncompleteReadError:
            return Reply(
                None, problem="the server closed the connection before the end of its answer"
            )
        except asyncio.LimitOverrunError:
            return Reply(
                None, problem="the server's answer is no valid HTTP/1.x: a line is too long"
            )
        except _BadAnswerError as error:
            return Reply(None, problem=str(error))
        except OSError as error:
            return Reply(None, problem=_describe_error(error))

    async def _get_with_one_retry(self, path: str) -> Reply:
        kept = await self._claim_idle_connection()
        if kept is not None and kept.is_open:
            # a server may close an idle connection at any time, so the request is repeated once
            with contextlib.suppress(_ClosedEarlyError, ConnectionError):
                return await self._send_request(kept, path)
        elif kept is not None:
            kept.writer.close()
        return await self._send_request(await self._open_connection(), path)

    async def _claim_idle_connection(self) -> _Connection | None:
        """Return the idle connection, and take it out; None if there is none. If a request uses it,
        wait up to _TURN_TIMEOUT_S for its answer: two tasks that ask at the same time need no
        second connection."""
        if self._idle is None and self._in_use:
            self._given_back.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN_TIMEOUT_S):
                    await self._given_back.wait()
        kept, self._idle = self._idle, None
        return kept

    @property
    def _is_ip_address(self) -> bool:
        return ":" in self._host or not self._host.strip("0123456789.")

    async def _open_connection(self) -> _Connection:
        closed_before = self._closed
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                opened = await asyncio.open_connection(
                    self._host,
                    self._port,
                    limit=_MOST_HEAD_BYTES,
                    happy_eyeballs_delay=None if self._is_ip_address else _NEXT_ADDRESS_DELAY_S,
                )
        except TimeoutError:
            raise _NotConnectedError from None
        return _Connection(*opened, closed_before)

    async def _send_request(
        self, connection: _Connection, path: str, body: Mapping[str, Any] | None = None
    ) -> Reply:
        reader, keep = connection.reader, False
        self._in_use += 1
        try:
            connection.writer.write(self._format_request(path, body))
            status, headers, stays_open = await _read_status_headers_keepalive(reader)
            if headers.get("content-encoding", "identity").lower() != "identity":
                raise _BadAnswerError(
                    "the server's answer is compressed, although Workbench requested it "
                    "uncompressed"
                )
            content = await _read_body(reader, status, headers)
            keep = stays_open and _has_known_body_end(status, headers)
        finally:
            is_newest = connection.closed_before == self._closed
            if keep and is_newest and self._idle is None:
                self._idle = connection
            else:
                connection.writer.transport.abort()
            self._in_use -= 1
            self._given_back.set()
        return make_reply(status, content)

    def _format_request(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        method, headers, data = "GET", self._headers, b""
        if body is not None:
            method, data = "POST", json.dumps(body, ensure_ascii=False).encode()
            headers += f"\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        head = f"{method} {self._base_path}{path}{self._query} HTTP/1.1\r\n{headers}\r\n\r\n"
        return head.encode() + data

    def close(self) -> None:
        """Close the idle connection; one in use closes after its answer. The next request opens
        another one."""
        self._closed += 1
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.writer.close()


@contextlib.asynccontextmanager
async def open_keep_alive_connection(
    base_url: str, api_key: str | None, tls: Callable[[], ssl.SSLContext]
) -> AsyncIterator[AskPath]:
    """Yield a function that makes small requests to the server at `base_url`, with `api_key` if it
    is not None. `tls` returns the TLS context for https. Raises ValueError for any other scheme
    than http and https."""
    if urlsplit(base_url).scheme != "https":
        with contextlib.closing(KeepAliveConnection(base_url, api_key=api_key)) as kept:
            yield kept.ask
        return
    # takes 0.1 s, in which the screen would hang
    await asyncio.to_thread(importlib.import_module, "httpx")
    from workbench.server.bounded_http import BoundedClient

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with BoundedClient(base_url=base_url, headers=headers, verify=tls()) as http:
        yield make_asker(http)


def _describe_error(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the server refuses connections"
    return clean_text(error.strerror or str(error)) or type(error).__name__


async def _read_status_headers_keepalive(
    reader: asyncio.StreamReader,
) -> tuple[int, dict[str, str], bool]:
    """Read the head of an answer. Return (status, headers with lower-case names, whether the
    connection stays open after the answer). Raises _BadAnswerError for any other text, and
    _ClosedEarlyError if there is none."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise _ClosedEarlyError from None
            raise
        lines = head.decode("latin-1").split("\r\n")
        found = _STATUS_LINE.match(lines[0])
        if found is None:
            raise _BadAnswerError(
                f"the server did not answer with HTTP/1.x: {clean_text(lines[0][:60])!r}"
            )
        if int(found["status"]) >= 200:
            break  # before it, interim answers such as 100 Continue
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    wanted = headers.get("connection", "").lower()
    is_new = found["version"] == "HTTP/1.1"
    keep = "close" not in wanted if is_new else "keep-alive" in wanted
    return int(found["status"]), headers, keep


def _has_known_body_end(status: int, headers: dict[str, str]) -> bool:
    if status in _STATUSES_WITHOUT_BODY:
        return True
    return _is_chunked(headers) or "content-length" in headers


def _is_chunked(headers: dict[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


async def _read_body(reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> bytes:
    if status in _STATUSES_WITHOUT_BODY:
        return b""
    if _is_chunked(headers):
        return await _read_chunks(reader)
    length = headers.get("content-length")
    if length is None:
        return await _read_to_end(reader)
    if not (length.isascii() and length.isdecimal()):
        raise _BadAnswerError(
            f"the server sent an invalid Content-Length: {clean_text(length[:40])!r}"
        )
    _check_answer_size(int(length[:20]))
    return await reader.readexactly(int(length))


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while data := await reader.read(65536):
        body += data
        _check_answer_size(len(body))
    return bytes(body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := _parse_chunk_size(await _read_line(reader)):
        _check_answer_size(len(body) + size)
        body += await reader.readexactly(size)
        if await _read_line(reader):
            raise _BadAnswerError("the server sent a chunk that is longer than its size")
    trailer = 0
    while line := await _read_line(reader):
        trailer += len(line)
        if trailer > _MOST_HEAD_BYTES:
            raise _BadAnswerError("the server's answer has too many lines after its last chunk")
    return bytes(body)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    if len(line) > _MOST_LINE_BYTES:
        raise _BadAnswerError("the server's answer has a line that is too long between its chunks")
    return line


def _parse_chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not _CHUNK_SIZE.fullmatch(digits):
        raise _BadAnswerError(f"the server sent an invalid size of a chunk: {line[:40]!r}")
    return int(digits, 16)


def _check_answer_size(size: int) -> None:
    if size > MAX_ANSWER_BYTES:
        raise _BadAnswerError(f"the server's answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
