"""The fast path of the load client: recognizes HTTP chunks that contain nothing but one more piece
of text each.

Most reads of a stream return one such chunk, and reads from a fast server return several. A chunk
differs from the previous one only in its size and its text. Comparing bytes takes a third of the
time of the three parsers (http1.py, sse.py, reply.py), which parse all other chunks.
"""

from __future__ import annotations

from workbench.bench.http1 import parse_chunk_size
from workbench.bench.reply import PLAIN_TEXT_BYTES, is_json_text


class TextChunk:
    """Recognizes the chunks of one reply in which only the text may differ. `prefix` and `suffix`
    are the bytes of the event's data before and after the text. The text is appended to `kept`, as
    a JSON text without quotes."""

    def __init__(self, prefix: bytes, suffix: bytes, kept: bytearray) -> None:
        self._lead = b"\r\ndata: " + prefix
        self._trail = suffix + b"\n\n\r\n"
        # what stands before the text of a chunk, by the length of the chunk
        self._heads: dict[int, bytes] = {}
        self._kept = kept

    def is_text_chunk(self, data: bytes) -> bool:
        """Return whether `data` is one chunk of a length that was seen before, with nothing but one
        more piece of plain text, and keep this piece. Nearly all reads of a paced stream are."""
        head, trail = self._heads.get(len(data)), self._trail
        # the head has the size of the chunk, so the size is right
        if head is not None and data.startswith(head) and data.endswith(trail):
            text = data[len(head) : len(data) - len(trail)]
            if text and not text.translate(None, PLAIN_TEXT_BYTES):
                kept = self._kept
                kept += text
                return True
        return False

    def count_text_chunks(self, data: bytes) -> int:
        """Return the number of chunks in `data` if each contains nothing but one more piece of
        text, and keep these pieces. Return 0 if `data` contains anything else."""
        if self.is_text_chunk(data):
            return 1
        trail = self._trail
        chunks = data.split(trail)
        if chunks.pop():
            return 0
        texts = [self._text_of_single_chunk(chunk + trail) for chunk in chunks]
        if not all(texts):
            return 0
        self._kept += b"".join(texts)
        return len(texts)

    def _text_of_single_chunk(self, data: bytes) -> bytes:
        """Return the text in `data` if `data` is one chunk with this prefix and suffix. b"" if it
        is not, or if its text is not valid in JSON. The caller has checked the end of `data`. What
        stands before the text is stored for later chunks of this length."""
        head = self._heads.get(len(data))
        if head is None or not data.startswith(head):
            line_end = data.find(b"\r\n", 0, 9)
            head = data[: line_end + len(self._lead)]
            if (
                not head.endswith(self._lead)
                or parse_chunk_size(data[:line_end]) != len(data) - line_end - 4
            ):
                return b""
            self._heads[len(data)] = head
        text = data[len(head) : len(data) - len(self._trail)]
        return text if is_json_text(text) else b""
