"""A TCP relay that delays, limits and loses, as a long link does, and counts what passes.

    with SlowLink(sshd_port, round_trip_s=0.15) as link: …connect to link.port…; link.turns,
    link.up_bytes

Loss is seen as a reader of TCP sees it: a lost segment and all that follows arrive one
retransmission later.
"""

from __future__ import annotations

import asyncio
import random
import time
from types import TracebackType

from support.relay import Relay

SEGMENT_BYTES = 1448
RETRANSMIT_S = 0.2  # the least that Linux waits, beside the round trip


class SlowLink:
    def __init__(
        self,
        target_port: int,
        round_trip_s: float,
        bytes_per_s: float | None = None,
        loss: float = 0.0,
    ) -> None:
        self._half_s = round_trip_s / 2
        self._per_byte_s = 1 / bytes_per_s if bytes_per_s else 0.0
        self._loss = loss
        self._random = random.Random(1)
        self.reset()
        self._relay = Relay(target_port, self._pump, connect_s=round_trip_s)  # SYN and its answer
        self.port = self._relay.port

    def reset(self) -> None:
        """Count from now on."""
        self.up_bytes = self.down_bytes = 0
        self.turns = 0  # how often data went up after data had come down
        self._last_up: bool | None = None

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._relay.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due_s, data = await queue.get()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        delivery = asyncio.create_task(deliver())
        free_s = 0.0  # when the wire has sent all before
        try:
            while data := await reader.read(65536):
                self._count(len(data), up)
                for begin in range(0, len(data), SEGMENT_BYTES):
                    segment = data[begin : begin + SEGMENT_BYTES]
                    free_s = max(free_s, time.monotonic()) + len(segment) * self._per_byte_s
                    if self._random.random() < self._loss:
                        free_s += RETRANSMIT_S + 2 * self._half_s
                    queue.put_nowait((free_s + self._half_s, segment))
            queue.put_nowait((free_s + self._half_s, b""))
            await delivery
        finally:
            delivery.cancel()

    def _count(self, size: int, up: bool) -> None:
        if up:
            self.up_bytes += size
            self.turns += not self._last_up
        else:
            self.down_bytes += size
        self._last_up = up
