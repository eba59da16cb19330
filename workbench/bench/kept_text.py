"""The text of one reply as the load client keeps it: its first and its last part, and its length.

The text stays in the form in which it arrives, as a JSON text between its quotes, because decoding
each piece would cost more than receiving it. `TextChunk` and `Reply` append the pieces, and a sweep
of the client calls `drop_middle_of_long_text` ten times a second, so a long reply never needs much
memory.
"""

from __future__ import annotations

import json

FIRST_CHARACTERS, LAST_CHARACTERS = 2048, 512
_TRIM_BYTES = 8192


class ShortenedText:
    """The text of one reply. `raw` has the newest part of the text as JSON, and is always the same
    object, so that the fast path can append to it."""

    __slots__ = ("_characters", "_first", "_last", "raw")

    def __init__(self) -> None:
        self.raw = bytearray()
        self._first = self._last = ""
        self._characters = 0

    def add_text(self, text: str) -> None:
        """Append a piece of text that has been decoded."""
        if '"' in text or "\\" in text:
            self.raw += json.dumps(text)[1:-1].encode()
        else:
            self.raw += text.encode("utf-8", "surrogatepass")

    def drop_middle_of_long_text(self) -> None:
        """Drop the middle of the text if it is long."""
        if len(self.raw) > _TRIM_BYTES:
            self._decode_raw_text()

    def beginning_end_and_length(self) -> tuple[str, str, int]:
        """Return (first part, last part, number of characters) of the text. The last part is "" if
        the first part is the whole text."""
        self._decode_raw_text()
        return self._first, self._last, self._characters

    def _decode_raw_text(self) -> None:
        text: str = json.loads(f'"{self.raw.decode("utf-8", "surrogatepass")}"', strict=False)
        self.raw.clear()
        room = FIRST_CHARACTERS - len(self._first)
        self._first += text[:room]
        self._last = (self._last + text[room:])[-LAST_CHARACTERS:]
        self._characters += len(text)
