"""Output of commands: split into lines, and limited in size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from workbench.model.untrusted_text import clean_text

LINE_MAX_BYTES = 1 << 20  # a longer line is yielded in pieces of this size
# of one command: a program that prints without end must not fill the memory
OUTPUT_MAX_BYTES = 64 << 20
CHUNK_BYTES = 65536
TAIL_MAX_BYTES = 8192  # of stderr, for the message when a command fails


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of the output without their newlines. Text after the last newline is yielded
    as the last line. A line that grows beyond LINE_MAX_BYTES is yielded in parts."""
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
    """A buffer that keeps the last TAIL_MAX_BYTES of the bytes fed to it."""

    def __init__(self) -> None:
        self._kept = b""

    def append(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-TAIL_MAX_BYTES:]

    def text(self) -> str:
        return clean_text(self._kept, lines=True).strip()


class TooMuch(Exception):
    """Raised for a command that printed more than OUTPUT_MAX_BYTES."""


class Readable(Protocol):
    async def read(self, n: int, /) -> bytes: ...


class CommandOutput:
    """A collector of everything that a command prints on stdout and stderr until its end."""

    def __init__(self) -> None:
        self.out, self.err = bytearray(), bytearray()

    async def read_both_streams(self, stdout: Readable, stderr: Readable) -> None:
        """Read both streams to their end. Raises TooMuch if they exceed OUTPUT_MAX_BYTES
        together."""
        tasks = [
            asyncio.ensure_future(self._read_stream(*pair))
            for pair in ((stdout, self.out), (stderr, self.err))
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _read_stream(self, stream: Readable, into: bytearray) -> None:
        while data := await stream.read(CHUNK_BYTES):
            into += data
            if len(self.out) + len(self.err) > OUTPUT_MAX_BYTES:
                raise TooMuch
