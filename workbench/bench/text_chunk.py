"""The fast path of the load client: recognizes HTTP chunks that contain nothing but one more piece of text each.

Most reads of a stream return one such chunk, and reads from a fast server return several. A chunk differs from the
previous one only in its size and its text. Comparing bytes takes a third of the time of the three parsers (http1.py,
sse.py, reply.py), which parse all other chunks.
"""

from __future__ import annotations

from workbench.bench.http1 import chunk_size
from workbench.bench.reply import is_json_text


class TextChunk:
    """Recognizes the chunks of one reply in which only the text may differ. `prefix` and `suffix` are the bytes of the
    event's data before and after the text."""

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self._lead = b"\r\ndata: " + prefix
        self._trail = suffix + b"\n\n\r\n"
        self._heads: dict[int, bytes] = {}  # what stands before the text of a chunk, by the length of the chunk

    def count(self, data: bytes) -> int:
        """Return the number of chunks with this prefix and suffix in `data`; 0 if `data` contains anything else."""
        if self._is_one(data):
            return 1
        trail = self._trail
        chunks = data.split(trail)
        if chunks.pop() or not all(self._is_one(chunk + trail) or self._learn(chunk + trail) for chunk in chunks):
            return 0
        return len(chunks)

    def _is_one(self, data: bytes) -> bool:
        """Return whether `data` is one chunk with the same bytes around its text as an earlier chunk of this length."""
        head, trail = self._heads.get(len(data)), self._trail
        return (
            head is not None
            and data.startswith(head)
            and data.endswith(trail)
            and is_json_text(data[len(head) : len(data) - len(trail)])
        )

    def _learn(self, data: bytes) -> bool:
        """Return whether `data` is one chunk, given that it ends with the suffix. If so, store the bytes before its
        text, so that later chunks of this length are recognized."""
        line_end = data.find(b"\r\n", 0, 9)
        head = data[: line_end + len(self._lead)]
        if not head.endswith(self._lead) or chunk_size(data[:line_end]) != len(data) - line_end - 4:
            return False
        self._heads[len(data)] = head
        return is_json_text(data[len(head) : len(data) - len(self._trail)])
