"""Decoder for server-sent events (WHATWG HTML, "Parsing an event stream") whose bytes arrive in
pieces of any size.

It works on bytes, because decoded text could wrongly be split at U+2028, U+2029 or U+0085, which do
not end a line in this format.
"""

from __future__ import annotations

SseEvent = tuple[bytes, bytes]  # the name of the event and its data
_BOM = b"\xef\xbb\xbf"
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseError(Exception):
    """Raised for an event of more than 16 MiB."""


class SseDecoder:
    """Decoder of one event stream. Its methods return (event name, data) pairs; the name is b"" for
    an event without a name.

    The decoder accepts two things that the standard does not. A field named `error` (llama.cpp)
    becomes the event (b"error", value). A last event without its blank line is returned by `close`,
    because some servers omit that line.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that end within the next bytes of the stream. Raises SseError for an
        event of more than 16 MiB."""
        if self._after_cr or b"\r" in data:
            data = self._normalize_line_ends(data)
        if self._tail:
            data = self._tail + data
        if not self._started:
            if _BOM.startswith(data):
                self._tail = data
                return []
            self._started = True
            data = data.removeprefix(_BOM)
        end = data.rfind(b"\n\n")
        if end < 0:
            self._tail = data
            if len(data) > _MAX_EVENT_BYTES:
                raise SseError("the server's answer contains an event of more than 16 MiB")
            return []
        self._tail = data[end + 2 :]
        # fast path for the common case: only events of one data line
        if data.startswith(b"data: "):
            lines = data[6:end].split(b"\n\ndata: ")
            if data.count(b"\n", 0, end) == 2 * len(lines) - 2:
                return [(b"", line) for line in lines]
        blocks = data[:end].split(b"\n\n")
        events: list[SseEvent] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((b"", block[6:]))
            else:
                events += _parse_events_of_block(block)
        return events

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte begins an event."""
        return self._started and not self._tail and not self._after_cr

    def close(self) -> list[SseEvent]:
        """Return the events in the rest of the stream. Call this only after the complete body has
        been fed."""
        tail, self._tail = self._tail, b""
        return _parse_events_of_block(tail)

    def _normalize_line_ends(self, data: bytes) -> bytes:
        """Return `data` with each CR LF and CR replaced by LF. If a CR ends `data` and the next
        piece begins with LF, that LF is dropped."""
        after_cr, self._after_cr = self._after_cr, data.endswith(b"\r") if data else self._after_cr
        if after_cr and data.startswith(b"\n"):
            data = data[1:]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse_events_of_block(block: bytes) -> list[SseEvent]:
    name, data, errors = b"", [], []
    for line in block.split(b"\n"):
        if line.startswith(b":"):
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
        elif key == b"error":
            errors.append((b"error", value))
    return [(name, b"\n".join(data)), *errors] if data else errors
