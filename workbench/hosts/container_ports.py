"""Local ports that lead to the ports of a container.

A container that shares the network of its host has the ports of the host. Otherwise, a program in
the container opens the connections, and so also reaches a server on the container's own 127.0.0.1.
Without python3 in the container, connections go to the container's address, and the server must
listen on that address.

The program and this side exchange frames: number of the connection (4 bytes), kind (1 byte), length
(4 bytes), data. The program sends OPEN for connection 0 once it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.hosts import shell_scripts
from workbench.hosts.base import LOOPBACK, CommandNotFound, Forward, Host, Stream
from workbench.hosts.port_relay import Reader, Relay, Writer
from workbench.hosts.task_cancellation import cancel_all
from workbench.model.errors import HostError

if TYPE_CHECKING:
    from workbench.hosts.container import ContainerHost

HEADER = struct.Struct(">IBI")
# kinds of frames; OPEN is answered by OPEN, or by CLOSE with the reason
OPEN, DATA, END, CLOSE = range(4)
CONNECT_S = 10.0
START_S = 20.0  # for python3 to start
# per connection: more is not read from the container until the client has read
BUFFERED_BYTES = 4 << 20
_LOCAL_ADDRESS = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n[^\n]*/32 host LOCAL")

# Runs in the container, with Python 3.8 or later. It ends with its stdin.
PROGRAM = """
import asyncio, struct, sys
HEADER = struct.Struct(">IBI")
OPEN, DATA, END, CLOSE = range(4)
async def main():
    loop = asyncio.get_running_loop()
    inp = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(inp), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    out = asyncio.StreamWriter(transport, protocol, None, loop)
    writers = {}
    turn = asyncio.Lock()
    async def say(number, kind, data=b""):
        async with turn:
            out.write(HEADER.pack(number, kind, len(data)) + data)
            await out.drain()
    async def carry(number, address, port):
        try:
            reader, writer = await asyncio.open_connection(address, port)
        except OSError as error:
            await say(number, CLOSE, str(error.strerror or error).encode())
            return
        writers[number] = writer
        await say(number, OPEN)
        try:
            while True:
                data = await reader.read(65536)
                if not data:
                    break
                await say(number, DATA, data)
            await say(number, END)
        except OSError as error:
            await say(number, CLOSE, str(error.strerror or error).encode())
    tasks = set()
    await say(0, OPEN)
    while True:
        try:
            number, kind, length = HEADER.unpack(await inp.readexactly(HEADER.size))
            data = await inp.readexactly(length)
        except asyncio.IncompleteReadError:
            return
        if kind == OPEN:
            address, _, port = data.decode().rpartition(" ")
            task = asyncio.ensure_future(carry(number, address, int(port)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            continue
        writer = writers.get(number)
        if writer is None:
            continue
        try:
            if kind == DATA:
                writer.write(data)
                await writer.drain()
            elif kind == END:
                writer.write_eof()
            else:
                writers.pop(number).close()
        except (OSError, RuntimeError):
            pass
asyncio.run(main())
"""


class _Connection:
    """One connection that the program in the container has opened, with the methods of an asyncio
    reader and writer."""

    def __init__(self, inside: _PortProgram, number: int) -> None:
        self._inside = inside
        self.number = number
        self.reader = asyncio.StreamReader(limit=BUFFERED_BYTES)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsent = bytearray()
        self.reader.set_transport(_BackpressureTransport(inside, number))

    def write(self, data: bytes, /) -> None:
        self._unsent += data

    async def drain(self) -> None:
        data, self._unsent = bytes(self._unsent), bytearray()
        if data:
            await self._inside.send_frame(self.number, DATA, data)

    def write_eof(self) -> None:
        self._inside.send_frame_soon(self.number, END)

    def close(self) -> None:
        self._inside.close_connection(self)

    async def read(self, n: int, /) -> bytes:
        return await self.reader.read(n)

    def end_with_error(self, reason: str) -> None:
        error = ConnectionResetError(reason)
        if not self.opened.done():
            self.opened.set_exception(error)
        self.reader.set_exception(error)


class _BackpressureTransport(asyncio.Transport):
    """The transport of a connection's StreamReader. When the reader's buffer is full, the transport
    stops the reading from the container. When there is room again, it resumes the reading."""

    def __init__(self, inside: _PortProgram, number: int) -> None:
        super().__init__()
        self._inside, self._number = inside, number

    def pause_reading(self) -> None:
        self._inside.pause_reading_for(self._number)

    def resume_reading(self) -> None:
        self._inside.resume_reading_for(self._number)


class _PortProgram:
    """The program that runs in the container and opens connections there, and the frames exchanged
    with it. While the buffer of one connection is full, no frame is read, so all other connections
    wait."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._connections: dict[int, _Connection] = {}
        self._last = 0
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = False
        self.runs = asyncio.Event()  # or has ended
        self.problem: HostError | None = None  # why it ended
        self._full: set[int] = set()  # connections whose clients read too slowly
        self._flows = asyncio.Event()
        self._flows.set()
        self._reading = asyncio.create_task(self._read_frames())

    async def open_connection(self, address: str, port: int) -> _Connection:
        """Open a connection to `address`:`port` as the container reaches it. Raises OSError with
        the reason if it is refused, TimeoutError after CONNECT_S, and HostError if the program
        cannot be reached."""
        self._last += 1
        connection = _Connection(self, self._last)
        self._connections[connection.number] = connection
        try:
            await self.send_frame(connection.number, OPEN, f"{address} {port}".encode())
            async with asyncio.timeout(CONNECT_S):
                await connection.opened
        except BaseException:
            self.close_connection(connection)
            raise
        return connection

    async def send_frame(self, number: int, kind: int, data: bytes = b"") -> None:
        async with self._turn:
            await self._stream.write(HEADER.pack(number, kind, len(data)) + data)

    def send_frame_soon(self, number: int, kind: int) -> None:
        task = asyncio.create_task(self.send_frame(number, kind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close_connection(self, connection: _Connection) -> None:
        self.resume_reading_for(connection.number)
        if self._connections.pop(connection.number, None) is not None and not self.ended:
            self.send_frame_soon(connection.number, CLOSE)

    def pause_reading_for(self, number: int) -> None:
        self._full.add(number)
        self._flows.clear()

    def resume_reading_for(self, number: int) -> None:
        self._full.discard(number)
        if not self._full:
            self._flows.set()

    async def _read_frames(self) -> None:
        try:
            pending = b""
            async for chunk in self._stream.chunks():
                pending += chunk
                while len(pending) >= HEADER.size:
                    number, kind, length = HEADER.unpack_from(pending)
                    if len(pending) < HEADER.size + length:
                        break
                    self._handle_frame(number, kind, pending[HEADER.size : HEADER.size + length])
                    pending = pending[HEADER.size + length :]
                await self._flows.wait()
        except HostError as error:
            self.problem = error
        finally:
            self.ended = True
            self.runs.set()
            for connection in self._connections.values():
                connection.end_with_error(
                    self.problem.message if self.problem else "the program in the container ended"
                )

    def _handle_frame(self, number: int, kind: int, data: bytes) -> None:
        self.runs.set()
        connection = self._connections.get(number)
        if connection is None:
            return
        if kind == OPEN:
            if not connection.opened.done():
                connection.opened.set_result(None)
        elif kind == DATA:
            connection.reader.feed_data(data)
        elif kind == END:
            connection.reader.feed_eof()
        else:
            connection.end_with_error(data.decode("utf-8", "replace"))

    async def close(self) -> None:
        await self._stream.close()
        await cancel_all([self._reading, *self._tasks])


class ContainerPorts:
    """Opens local ports that lead to the ports of one container."""

    def __init__(self, host: ContainerHost, inner: Host) -> None:
        self._host = host
        self._inner = inner
        self._inside: _PortProgram | None = None
        self._running: object = None
        self._network: tuple[str, tuple[str, ...]] = ("", ())
        self._around = ""
        self._opening = asyncio.Lock()
        self._relays: list[Relay] = []

    async def forward(self, running_container: object, port: int, address: str) -> Forward:
        """Open a local port that leads to `address`:`port` as the container reaches it.
        `running_container` is any object; the container's network is examined again if it is
        another one than at the call before. Raises HostError if the container has neither python3
        nor an address."""
        if running_container is not self._running:
            self._network = _parse_namespace_and_addresses(
                (await self._host.run(shell_scripts.shell_argv(shell_scripts.NETWORK))).out
            )
            self._around, _ = _parse_namespace_and_addresses(
                (await self._inner.run(["readlink", "/proc/self/ns/net"])).out
            )
            self._running = running_container
        network, addresses = self._network
        if network == self._around and not self._host.container_kind.elsewhere:
            return await self._inner.forward(port, address)
        if await self._get_or_start_program() is None:
            return await self._forward_without_program(port, address, addresses)

        async def open_container_connection() -> tuple[Reader, Writer]:
            inside = await self._get_or_start_program()
            if inside is None:
                raise HostError(
                    "ports of the container cannot be opened: its python3 cannot be started any "
                    "more",
                    host=self._host.name,
                    next_step="install python3 in the container again",
                )
            connection = await inside.open_connection(address.strip("[]"), port)
            return connection, connection

        relay = Relay(open_container_connection, (HostError, TimeoutError))
        self._relays.append(relay)
        await relay.listen()
        return relay

    async def _forward_without_program(
        self, port: int, address: str, addresses: tuple[str, ...]
    ) -> Forward:
        if address != LOOPBACK:
            return await self._inner.forward(port, address)
        if not addresses:
            raise HostError(
                "ports of the container cannot be opened: its own network has no address, and it "
                "has no python3",
                host=self._host.name,
                next_step="install python3 in the container, or let the container share the "
                "network of its host",
            )
        return await self._inner.forward(port, addresses[0])

    async def _get_or_start_program(self) -> _PortProgram | None:
        """Return the running program in the container, after starting it if necessary. None if the
        container has no python3 that can run it."""
        async with self._opening:
            if self._inside is not None and not self._inside.ended:
                return self._inside
            try:
                inside = _PortProgram(
                    await self._host.stream(["python3", "-I", "-S", "-c", PROGRAM])
                )
            except CommandNotFound:
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(inside.runs.wait(), START_S)
            if inside.ended or not inside.runs.is_set():  # a python3 that is too old, or hangs
                await inside.close()
                if inside.problem is not None:
                    raise inside.problem
                return None
            self._inside = inside
            return inside

    async def close(self) -> None:
        for relay in self._relays:
            await relay.close()
        if self._inside is not None:
            with contextlib.suppress(HostError):
                await self._inside.close()


def _parse_namespace_and_addresses(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse the output of the script NETWORK. Return (network namespace, addresses of the container
    except loopback)."""
    name, _, table = text.partition("\n")
    return name.strip(), tuple(_parse_local_addresses(table))


def _parse_local_addresses(table: str) -> Iterator[str]:
    found = dict.fromkeys(_LOCAL_ADDRESS.findall(table))
    return (address for address in found if not address.startswith("127."))
