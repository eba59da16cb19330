"""Parser for one HTTP/1.1 response (RFC 9112) whose bytes arrive in pieces, limited to what a load
client needs.

A body may have a Content-Length, be chunked, or end when the server closes the connection. The
parser does no I/O: its caller passes bytes to `feed`, which returns the bytes of the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_MAX_HEAD_BYTES = 64 * 1024
_DIGITS = re.compile("[0-9]+")
_STATUS_LINE = re.compile(r"HTTP/1\.[^ ]* ([0-9]{3})(?: |\Z)")
_STATUSES_WITHOUT_BODY = (204, 304)
_ZLIB_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_HEX_DIGITS = b"0123456789abcdefABCDEF"
# of chunks below 4 KiB, by their digits: a lookup takes a third of the time
_KNOWN_CHUNK_SIZES: dict[bytes, int] = {}
_LAST_CHUNK = b"0\r\n\r\n"  # without a trailer


class BodyFraming(NamedTuple):
    """What the head of a response says: whether the connection may be kept, whether the body is
    chunked, and its length, None if the body ends with the connection."""

    keep_alive: bool
    chunked: bool
    length: int | None


# the newest head of a response, with its status, its headers, which nobody changes, and its framing
_NEWEST_HEADS: dict[bytes, tuple[int, dict[str, str], BodyFraming]] = {}


class HttpError(Exception):
    """Raised when the bytes are not a valid HTTP/1.1 response. `truncated` is True if the bytes so
    far are valid, but the connection ended before the end of the response."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


def parse_chunk_size(digits: bytes) -> int:
    """Return the size of a chunk from the hexadecimal `digits` in its first line. Return -1 if
    `digits` is not valid."""
    size = _KNOWN_CHUNK_SIZES.get(digits)
    if size is None:
        if not digits or digits.strip(_HEX_DIGITS) or len(digits) > 15:
            return -1
        size = int(digits, 16)
        if len(digits) < 4:
            _KNOWN_CHUNK_SIZES[digits] = size
    return size


# (bytes of the body, whether they are the last) -> decoded bytes
DecodeBody = Callable[[bytes, bool], bytes]


def make_body_decoder(encoding: str) -> DecodeBody | None:
    """Return a function that decodes a body with this Content-Encoding, or None if the body needs
    no decoding.

    Some servers compress although the client requests plain bodies. Raises HttpError for an
    encoding other than gzip and deflate.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in _ZLIB_WINDOWS:
        raise HttpError(
            f"the server sent Content-Encoding {name[:40]!r}, which Workbench cannot decode"
        )
    import zlib

    inflate = zlib.decompressobj(_ZLIB_WINDOWS[name])

    def decode(data: bytes, last: bool) -> bytes:
        try:
            plain = inflate.decompress(data)
        except zlib.error as error:
            raise HttpError(f"the body of the answer is not valid {name} data: {error}") from None
        if last and not inflate.eof:
            raise HttpError(f"the answer, compressed with {name}, ended early", truncated=True)
        return plain

    return decode


class ResponseReader:
    """Parser of one HTTP response. `complete` becomes true when the body has ended. `rest` contains
    any bytes that follow the end of the response, although a correct server sends none."""

    def __init__(self) -> None:
        self.status = 0  # 0 until the head is in
        self.headers: dict[str, str] = {}  # lower-case names; a repeated one keeps the last value
        self.complete = False
        self.keep_alive = False
        self.received = False  # any byte
        self.rest = b""
        self._head = b""
        self._chunked = False
        # body bytes still to come, of the whole body or of this chunk; None: until close
        self._left: int | None = None
        self._framing = b""  # chunk-size line, chunk end or trailer that is not complete yet
        self._in_chunk_end = False
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Parse the next bytes of the response. Return the bytes of the body among them, b"" if
        there are none. Bytes after the end of the body go to `rest`. Raises HttpError for an
        invalid response."""
        self.received = True
        if not self.status:
            self._head += data
            data = self._parse_head_and_return_rest()
            if not self.status:
                return b""
        if self.complete:
            self.rest += data
            return b""
        if self._chunked:
            return self._decode_chunks(data)
        if self._left is None:
            return data
        body, self.rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.complete = self._left == 0
        return body

    def end_at_closed_connection(self) -> None:
        """End the response, because the server closed the connection. Raises HttpError, with
        `truncated` set, if the response had a later end."""
        self.keep_alive = False
        if self.complete:
            return
        if not self.status:
            what = (
                "the server closed the connection in the middle of the response head"
                if self.received
                else "the server closed the connection without a response"
            )
            raise HttpError(what, truncated=True)
        if self._chunked or self._left is not None:
            raise HttpError(
                "the server closed the connection before the end of the answer", truncated=True
            )
        self.complete = True

    @property
    def ends_at_close(self) -> bool:
        """Whether the body ends when the server closes the connection. Such a body looks complete
        even if it was cut off."""
        return self._left is None

    @property
    def is_between_chunks(self) -> bool:
        """Whether the next byte begins a chunk, or the end of the body."""
        return (
            self._chunked
            and not self.complete
            and not self._left
            and not self._in_chunk_end
            and not self._in_trailer
            and not self._framing
        )

    def _parse_head_and_return_rest(self) -> bytes:
        while True:
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > _MAX_HEAD_BYTES:
                    raise HttpError("the response head is larger than 64 KiB")
                if not b"HTTP/1.".startswith(self._head[:7]):
                    raise HttpError(f"the server did not answer with HTTP/1.x: {self._head[:40]!r}")
                return b""
            head, rest = self._head[:end], self._head[end + 4 :]
            known = _NEWEST_HEADS.get(
                head
            )  # as of the answer before, if it came in the same second
            if known is None:
                status = self._read_status_and_set_headers(head)
                if status < 200:  # 100 Continue and other interim responses
                    self._head = rest
                    continue
                known = status, self.headers, self._parse_framing(status, head)
                _NEWEST_HEADS.clear()
                _NEWEST_HEADS[head] = known
            self._head = b""
            self.status, self.headers, (self.keep_alive, self._chunked, self._left) = known
            self.complete = self._left == 0 and not self._chunked
            return rest

    def _read_status_and_set_headers(self, head: bytes) -> int:
        lines = head.decode("latin-1").split("\r\n")
        status_line = _STATUS_LINE.match(lines[0])
        if status_line is None:
            raise HttpError(f"invalid HTTP/1.x status line: {lines[0][:60]!r}")
        self.headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise HttpError(f"invalid HTTP header line: {line[:60]!r}")
            self.headers[name.lower()] = value.strip()
        return int(status_line[1])

    def _parse_framing(self, status: int, head: bytes) -> BodyFraming:
        connection = self.headers.get("connection", "").lower()
        kept = (
            "close" not in connection
            if head.startswith(b"HTTP/1.1")
            else "keep-alive" in connection
        )
        length = self.headers.get("content-length")
        if status in _STATUSES_WITHOUT_BODY:
            return BodyFraming(kept, False, 0)
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return BodyFraming(kept, True, 0)
        if length is None:
            return BodyFraming(False, False, None)
        if not _DIGITS.fullmatch(length):
            raise HttpError(f"invalid Content-Length in the response: {length[:40]!r}")
        return BodyFraming(kept, False, int(length))

    def _decode_chunks(self, data: bytes) -> bytes:
        """Return the content of the chunks in `data`. An unfinished line with a chunk's size is
        kept for the next call."""
        if self._framing:
            data, self._framing = self._framing + data, b""
        out: list[bytes] = []
        size = len(data)
        left = self._left or 0
        at = 0
        if not (left or self._in_chunk_end or self._in_trailer):
            at = self._append_whole_chunks_and_find_end(data, out)
            if data[at:] == _LAST_CHUNK:
                self.complete, at = True, size
        while at < size:
            if left:
                piece = data[at : at + left]
                out.append(piece)
                at += len(piece)
                left -= len(piece)
                if not left:
                    self._in_chunk_end = True
                continue
            end = self._find_framing_line_end(data, at)
            if end < 0:
                self._framing = data[at:]
                break
            line, at = data[at:end], end + 2
            left = self._next_chunk_size_from_line(line)
            if self.complete:
                self.rest = data[at:]
                break
        self._left = left
        return out[0] if len(out) == 1 else b"".join(out)

    @staticmethod
    def _append_whole_chunks_and_find_end(data: bytes, out: list[bytes]) -> int:
        """Append the content of all complete chunks at the start of `data` to `out`, and return the
        position after them.

        This is the fast path. It stops before the first chunk that is incomplete, last, invalid or
        has an extension.
        """
        at = 0
        while (line_end := data.find(b"\r\n", at)) > at:
            size = _KNOWN_CHUNK_SIZES.get(digits := data[at:line_end]) or parse_chunk_size(digits)
            start = line_end + 2
            end = start + size
            if size <= 0 or data[end : end + 2] != b"\r\n":
                break
            out.append(data[start:end])
            at = end + 2
        return at

    @staticmethod
    def _find_framing_line_end(data: bytes, start: int) -> int:
        end = data.find(b"\r\n", start)
        if end < 0 and len(data) - start > _MAX_HEAD_BYTES:
            raise HttpError("a chunk-size line of the response is larger than 64 KiB")
        return end

    def _next_chunk_size_from_line(self, line: bytes) -> int:
        """Process one line between the contents of chunks: a chunk's size, the end of a chunk, or a
        trailer. Return the size of the next chunk, or 0 if the line is not a chunk's size. Raises
        HttpError for an invalid line."""
        if self._in_trailer:
            self.complete = not line
            return 0
        if self._in_chunk_end:
            if line:
                raise HttpError(
                    "a chunk of the response is longer than its chunk-size line says: "
                    f"{line[:40]!r}"
                )
            self._in_chunk_end = False
            return 0
        length = parse_chunk_size(line.partition(b";")[0].strip())
        if length < 0:
            raise HttpError(f"invalid chunk size in the response: {line[:40]!r}")
        self._in_trailer = length == 0
        return length
