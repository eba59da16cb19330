"""A TCP relay on loopback, in a thread with an event loop of its own, for tests that disturb a
connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

DEADLINE_S = 10.0

Pump = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bool], Awaitable[None]]


class Relay:
    """Accepts connections on `port` and passes their data to and from `target_port` with
    `pump(reader, writer, up)`, where `up` is True towards the target. A pump that returns ends its
    connection. The relay connects to the target `connect_s` after it accepted a connection."""

    def __init__(self, target_port: int, pump: Pump, connect_s: float = 0.0) -> None:
        self._target_port, self._pump, self._connect_s = target_port, pump, connect_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.port = 0
        self.listen()

    def listen(self) -> None:
        """Accept connections on `port` again, if the relay does not do so already."""
        self.call(self._listen())

    def cut(self) -> None:
        """Reset every connection and refuse new ones, until `listen`."""
        self.call(self._cut())

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the relay's event loop, and wait for its end."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.sleep(self._connect_s)
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target_port)
            await _first_end(self._pump(reader, far, True), self._pump(far_reader, writer, False))
        for end in (writer, far):
            if end is not None:
                end.transport.abort()


async def _first_end(*pumps: Awaitable[None]) -> None:
    """Run the pumps until one of them returns. Cancel the others."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
