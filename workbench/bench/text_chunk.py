"""The fast path of the load client: recognizes HTTP chunks that contain nothing but one more piece
of text each.

Most reads of a stream return one such chunk, and reads from a fast server return several. A chunk
differs from the previous one only in its size and its text. Comparing bytes takes a third of the
time of the three parsers (http1.py, sse.py, reply.py), which parse all other chunks.

Reads that look like one such chunk are only collected at first (`TextReads`), and compared together
a few times a second, which costs less for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.bench.http1 import chunk_size
from workbench.bench.reply import PLAIN, is_json_text


class TextChunk:
    """Recognizes the chunks of one reply in which only the text may differ. `prefix` and `suffix`
    are the bytes of the event's data before and after the text. The text is appended to `kept`, as
    a JSON text without quotes."""

    def __init__(self, prefix: bytes, suffix: bytes, kept: bytearray) -> None:
        self._lead = b"\r\ndata: " + prefix
        self._trail = suffix + b"\n\n\r\n"
        # what stands before the text of a chunk, by the length of the chunk
        self._heads: dict[int, bytes] = {}
        # the length of a chunk, by what stands before its text, which includes its size
        self._lengths: dict[bytes, int] = {}
        self._kept = kept
        # a byte less than two chunks of one character each, with sizes of one digit
        self.longest = 2 * (len(self._lead) + len(self._trail) + 2) - 1

    @property
    def trail(self) -> bytes:
        """The bytes that each chunk ends with."""
        return self._trail

    def one_each(self, reads: Sequence[bytes]) -> bool:
        """Return whether each read is exactly one chunk with nothing but one more piece of text,
        and keep these pieces if so. Each read must end with `trail`."""
        size = len(self._heads.get(len(reads[0]), b""))
        lengths = list(map(self._lengths.get, [read[:size] for read in reads]))
        if lengths == list(map(len, reads)):
            end = -len(self._trail)
            texts = [read[size:end] for read in reads]
        else:
            texts = list(map(self._text, reads))
        text = b"".join(texts)
        if not all(texts) or (text.translate(None, PLAIN) and not all(map(is_json_text, texts))):
            return False
        self._kept += text
        return True

    def count(self, data: bytes) -> int:
        """Return the number of chunks in `data` if each contains nothing but one more piece of
        text, and keep these pieces. Return 0 if `data` contains anything else."""
        head, trail = self._heads.get(len(data)), self._trail
        # Nearly always: one chunk of a length that was seen before, so its size is right.
        # `_is_chunk` is slower.
        if head is not None and data.startswith(head) and data.endswith(trail):
            text = data[len(head) : len(data) - len(trail)]
            if text and not text.translate(None, PLAIN):
                kept = self._kept
                kept += text
                return 1
        chunks = data.split(trail)
        if chunks.pop():
            return 0
        texts = [self._text(chunk + trail) for chunk in chunks]
        if not all(texts):
            return 0
        self._kept += b"".join(texts)
        return len(texts)

    def _text(self, data: bytes) -> bytes:
        """Return the text in `data`, which ends as a chunk does, if it is one chunk with this
        prefix and suffix; b"" if it is not. If it is, remember what stands before its text."""
        head = self._heads.get(len(data))
        if head is None or not data.startswith(head):
            line_end = data.find(b"\r\n", 0, 9)
            head = data[: line_end + len(self._lead)]
            if (
                not head.endswith(self._lead)
                or chunk_size(data[:line_end]) != len(data) - line_end - 4
            ):
                return b""
            self._heads[len(data)], self._lengths[head] = head, len(data)
        text = data[len(head) : len(data) - len(self._trail)]
        return text if is_json_text(text) else b""


class TextReads:
    """The newest reads of one reply, if each of them is probably one `chunk` with nothing but one
    more piece of text. `read` is `socket.recvmsg`. `kept` has of each read its bytes, the kernel's
    time for them, and when they were read (`time.monotonic_ns`)."""

    __slots__ = ("chunk", "kept", "longest", "read", "trail")

    def __init__(self, chunk: TextChunk, read: Callable[..., Any]) -> None:
        self.chunk, self.trail, self.longest = chunk, chunk.trail, chunk.longest
        self.read = read
        self.kept: list[tuple[bytes, bytes, int]] = []

    @property
    def newest_ns(self) -> int:
        """When the newest of the reads was made; 0 if there is none."""
        return self.kept[-1][2] if self.kept else 0
