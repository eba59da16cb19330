"""Bytes as they come, split into lines."""

from __future__ import annotations

from collections.abc import AsyncIterator

from workbench.model.foreign_text import clean

LINE_MAX_BYTES = 1 << 20  # a line without an end is given out in pieces of this size
TAIL_MAX_BYTES = 8192  # of stderr, for the message when a command fails


async def split(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines without their newline; a last line without one is given too."""
    rest = b""
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first
        for following in others:
            yield rest
            rest = following
        if len(rest) > LINE_MAX_BYTES:
            yield rest
            rest = b""
    if rest:
        yield rest


class Tail:
    """The last TAIL_MAX_BYTES of what was fed."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-TAIL_MAX_BYTES:]

    def text(self) -> str:
        return clean(self._kept, lines=True).strip()
