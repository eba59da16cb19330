"""The fast path of the load client: recognizes an HTTP chunk that contains nothing but one more piece of text.

In most reads of a paced stream, one such chunk arrives. It differs from the chunk before only in its size and its text.
Comparing bytes takes half of the time of the three parsers (http1.py, sse.py, reply.py), to which everything else is
left.
"""

from __future__ import annotations

from workbench.bench.http1 import chunk_size
from workbench.bench.reply import is_json_text


class TextChunk:
    """A chunk of one reply in which only the text may differ. `prefix` and `suffix` are the bytes of the event's data
    before and after the text."""

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self._lead = b"\r\ndata: " + prefix
        self._trail = suffix + b"\n\n\r\n"

    def matches(self, data: bytes) -> bool:
        """Return whether `data` is exactly one such chunk."""
        lead, trail = self._lead, self._trail
        line_end = data.find(b"\r\n", 0, 9)
        return (
            data.startswith(lead, line_end)
            and data.endswith(trail)
            and chunk_size(data[:line_end]) == len(data) - line_end - 4
            and is_json_text(data[line_end + len(lead) : len(data) - len(trail)])
        )
