"""A local port whose connections are passed on to another place, such as a port of a host behind
ssh. The local port stays open while the connection to the host is lost and restored.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Protocol

from workbench.hosts.base import LOOPBACK
from workbench.hosts.line_splitter import CHUNK_BYTES
from workbench.hosts.task_cancellation import cancel_all


class Reader(Protocol):
    async def read(self, n: int, /) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...
    def write_eof(self) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


Open = Callable[[], Awaitable[tuple[Reader, Writer]]]


class Relay:
    """A port on 127.0.0.1. Each connection to it is joined with a second connection, which
    `open_remote_connection` opens.

    If the second connection cannot be opened or is lost, the first one is reset, so that its client
    sees an error instead of an empty answer.
    """

    def __init__(self, open_remote_connection: Open, errors: tuple[type[Exception], ...]) -> None:
        self._open_remote_connection = open_remote_connection
        self._errors = (*errors, OSError, EOFError)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.local_port, self.url = 0, ""

    async def listen(self) -> None:
        """Open the local port, and set `local_port` and `url`. If the calling task is cancelled, or
        `close` is called meanwhile, the port is closed again."""
        self._server = await asyncio.start_server(
            self._relay_accepted, LOOPBACK, 0, limit=CHUNK_BYTES, start_serving=False
        )
        self.local_port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://{LOOPBACK}:{self.local_port}"
        try:
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            raise
        if self._closed:
            self._server.close()

    def _relay_accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # a task that is cancelled before its first step closes nothing
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _relay_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far: Writer | None = None
        try:
            far_reader, far = await self._open_remote_connection()
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy_bytes(reader, far))
                both.create_task(_copy_bytes(far_reader, writer))
            writer.close()
        except BaseException as error:
            _reset_connection(writer)
            if not self._is_connection_error(error):
                raise
        finally:
            if far is not None:
                far.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _is_connection_error(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(self._is_connection_error(e) for e in error.exceptions)
        return isinstance(error, self._errors)

    async def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        await cancel_all(self._tasks)


def _reset_connection(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a TCP reset. `abort` alone would send a normal end, which a client
    takes for a complete but short answer."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _copy_bytes(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
