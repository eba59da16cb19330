"""The port in front of a server: every byte passes unchanged, whatever it is, and requests are told."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
from support.procs import eventually

from workbench.bench import proxy_process
from workbench.bench.proxied_traffic import Exchange, PassedTraffic, read_frames
from workbench.bench.proxy_process import ConnectionRelay

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Answer = Callable[[Reader, Writer], Awaitable[None]]
CHAT = "/v1/chat/completions"
WAIT_S = 60.0
ASK = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def asked(body: bytes, path: str = CHAT) -> bytes:
    return ASK % (path.encode(), len(body), body)


class Port:
    """A port in a thread, and another thread that reads what it tells."""

    def __init__(self, places: list[proxy_process.FamilyAndAddress], reads: bool = True) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.number = listener.getsockname()[1]
        self.frames, told = os.pipe()
        ordered, self.orders = os.pipe()
        self.heard: list[Exchange] = []
        self.traffic = PassedTraffic({CHAT}, self.heard.append)
        self.passing = ConnectionRelay(listener, places, told, ordered)
        self._told, self._ordered = told, ordered
        self._pass = threading.Thread(target=self.passing.run_until_connections_end, daemon=True)
        self._read = threading.Thread(target=self._read_frames, daemon=True)
        self._pass.start()
        if reads:
            self._read.start()

    def _read_frames(self) -> None:
        for kind, number, at_s, data in read_frames(self.frames):
            if number:  # 0: of no connection
                self.traffic.process_frame(kind, number, at_s, data)

    def close(self) -> None:
        """Cut what is left, as the end of the command does."""
        os.close(self.orders)
        self._pass.join(WAIT_S)
        assert not self._pass.is_alive()
        os.close(self._told)
        if self._read.ident is not None:
            self._read.join(WAIT_S)
            assert not self._read.is_alive()
        os.close(self._ordered)
        if self.frames >= 0:
            os.close(self.frames)


@contextmanager
def opened(*places: tuple[str, int], reads: bool = True) -> Iterator[Port]:
    port = Port([(socket.AF_INET, place) for place in places], reads)
    try:
        yield port
    finally:
        port.close()


@asynccontextmanager
async def in_front_of(
    answer: Answer, reads: bool = True
) -> AsyncIterator[tuple[Port, int, list[Exchange]]]:
    """Open a port in front of a server whose connections `answer` serves."""

    async def serve(reader: Reader, writer: Writer) -> None:
        try:
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        with opened(server.sockets[0].getsockname()[:2], reads=reads) as port:
            yield port, port.number, port.heard
    finally:
        server.close()
        await server.wait_closed()


def run(scenario: Awaitable[None]) -> None:
    async def go() -> None:
        await asyncio.wait_for(scenario, WAIT_S)

    asyncio.run(go())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.005)


async def talk(port: int, sent: bytes) -> bytes:
    """Send bytes and the end of them. Return everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        with suppress(OSError):  # a connection that is reset already: the read tells it
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"6\r\ndata: \r\n4;x=y\r\nab\n\n\r\n0\r\ntrailer: t\r\n\r\n"
)
CHUNKED = b"POST %s HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"
PASSED = {
    "plain": (asked(b"{}"), PLAIN, [(b"{}", b"ok", True)]),
    "stream": (asked(b"{}"), STREAM, [(b"{}", b"data: ab\n\n", True)]),
    "chunked request": (CHUNKED % CHAT.encode(), PLAIN, [(b"{}\n", b"ok", True)]),
    "two at once": (
        asked(b"1") + asked(b"2"),
        PLAIN + PLAIN,
        [(b"1", b"ok", True), (b"2", b"ok", True)],
    ),
    "an error": (
        asked(b"{}"),
        b"HTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\nbad",
        [(b"{}", b"bad", True)],
    ),
    "until the end": (
        asked(b"{}"),
        b"HTTP/1.0 200 OK\r\n\r\nall of it",
        [(b"{}", b"all of it", True)],
    ),
    "cut": (asked(b"{}"), PLAIN[:-1], [(b"{}", b"o", False)]),
    "no answer": (asked(b"{}"), b"", [(b"{}", b"", False)]),
    "another path": (asked(b"{}", "/v1/embeddings"), PLAIN, []),
    "without a body": (b"GET /metrics HTTP/1.1\r\n\r\n", PLAIN, []),
    "only a head": (
        b"HEAD /health HTTP/1.1\r\n\r\n" + asked(b"{}"),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n" + PLAIN,
        [(b"{}", b"ok", True)],
    ),
    "an answer in advance": (
        asked(b"{}"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
        [(b"{}", b"ok", True)],
    ),
    "other bytes": (b"\x16\x03\x01\0\xff hello \r\n\r\n", b"\0\x01\x02", []),
    "a wrong length": (
        b"POST %s HTTP/1.1\r\ncontent-length: two\r\n\r\n{}" % CHAT.encode(),
        PLAIN,
        [],
    ),
    "a wrong chunk": (asked(b"{}"), STREAM.replace(b"6\r\n", b"z\r\n"), []),
    "an answer to nothing": (b"", PLAIN, []),
}


@pytest.mark.parametrize("name", PASSED)
@pytest.mark.parametrize("split", [False, True])
def test_bytes_pass_unchanged_and_requests_are_told(name: str, split: bool) -> None:
    sent, answered, expected = PASSED[name]
    came = bytearray()

    async def answer(reader: Reader, writer: Writer) -> None:
        came.extend(await reader.read())  # all of it: nothing is held back until an answer
        for part in [answered[n : n + 1] for n in range(len(answered))] if split else [answered]:
            writer.write(part)
            await writer.drain()

    async def go() -> None:
        async with in_front_of(answer) as (_, port, heard):
            assert await talk(port, sent) == answered
            assert bytes(came) == sent
            await until(lambda: len(heard) == len(expected))
            assert [(e.request, e.answer, e.whole) for e in heard] == expected
            assert all(e.path == CHAT and 0 < e.begin_s <= e.end_s for e in heard)

    run(go())


def test_a_stream_is_passed_on_while_it_lasts() -> None:
    more = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(STREAM[:60])
        await more.wait()
        writer.write(STREAM[60:])

    async def go() -> None:
        async with in_front_of(answer) as (port, number, heard):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(asked(b"{}"))
            assert await reader.readexactly(60) == STREAM[:60]  # the rest does not exist yet
            await until(lambda: port.traffic.in_flight == 1)
            assert not heard
            more.set()
            assert await reader.readexactly(len(STREAM) - 60) == STREAM[60:]
            await until(lambda: port.traffic.in_flight == 0)
            writer.close()

    run(go())


def test_large_bodies_pass_at_the_speed_of_their_reader() -> None:
    body = bytes(range(256)) * 8192
    size = len(body)

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(size) == body
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + body)
        await writer.drain()

    async def go() -> None:
        async with in_front_of(answer) as (_, number, heard):
            assert (await talk(number, asked(body))).endswith(body)
            await until(lambda: len(heard) == 1)
            assert heard[0].request == heard[0].answer == body

    run(go())


def test_the_server_hears_that_a_client_has_gone() -> None:
    gone = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(STREAM[:58])
        assert await reader.read() == b""
        gone.set()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, heard):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(asked(b"{}"))
            await reader.readexactly(58)
            writer.close()
            await gone.wait()
            await until(lambda: bool(heard))
            assert not heard[0].whole and heard[0].answer == b"data: "
            assert port.traffic.in_flight == 0

    run(go())


def test_a_server_that_is_not_there_resets_the_connection() -> None:
    async def go() -> None:
        with opened(("127.0.0.1", 1)) as port:
            with pytest.raises(ConnectionResetError):
                await talk(port.number, asked(b"{}"))
            await until(lambda: port.traffic.refused == 1)
            assert port.traffic.requests == 0
            await until(lambda: not port.traffic.open_connection_numbers())

    run(go())


def test_the_next_address_of_a_server_is_tried() -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(PLAIN)

    async def go() -> None:
        async with in_front_of(answer) as (first, _, _heard):
            with opened(("127.0.0.1", 1), ("127.0.0.1", first.number)) as port:
                assert await talk(port.number, asked(b"{}")) == PLAIN
                await until(lambda: len(port.heard) == 1)
                assert port.traffic.refused == 0

    run(go())


def test_the_order_to_drain_ends_what_is_idle_and_no_more() -> None:
    """A connection on which a request came after it was idle goes on to its answer."""
    more = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        await more.wait()
        writer.write(PLAIN)
        await reader.read()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, _heard):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(asked(b"{}"))
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", number)
            await until(lambda: len(port.passing._joined) == 2 and port.traffic.in_flight == 1)
            os.write(port.orders, b"dra")  # an order may come in pieces
            os.write(port.orders, b"in\n")
            assert await idle.read() == b""  # nothing was ever sent on it
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", number)
            (carries,) = port.traffic.open_connection_numbers()
            assert port.traffic.frame_count_if_idle(carries) is None
            os.write(port.orders, b"end %d 0\n" % carries)  # as it was before the request
            more.set()
            assert await reader.readexactly(len(PLAIN)) == PLAIN
            await until(lambda: port.traffic.frame_count_if_idle(carries) is not None)
            os.write(
                port.orders, b"end %d %d\n" % (carries, port.traffic.frame_count_if_idle(carries))
            )
            assert await reader.read() == b""
            writer.close()
            idle_writer.close()

    run(go())


def test_bytes_that_nobody_reads_do_not_hold_back_the_traffic() -> None:
    """More waits for the reader than the pipe takes."""
    body = bytes(range(256)) * 8192

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(PLAIN)

    async def go() -> None:
        async with in_front_of(answer, reads=False) as (port, number, heard):
            assert await talk(number, asked(body)) == PLAIN
            assert len(port.passing._unsent) > len(body) // 4
            port._read.start()
            await until(lambda: len(heard) == 1)
            assert heard[0].request == body and not port.passing._unsent

    run(go())


def test_what_is_beyond_the_limit_is_passed_on_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "_MAX_UNREAD_BYTES", 1 << 20)
    body = bytes(1 << 22)

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(PLAIN)

    async def go() -> None:
        async with in_front_of(answer, reads=False) as (port, number, heard):
            assert await talk(number, asked(body)) == PLAIN
            assert len(port.passing._unsent) < 2 << 20
            port._read.start()
            await until(
                lambda: port.traffic.unread == 1 and not port.traffic.open_connection_numbers()
            )
            assert not heard and port.traffic.in_flight == 0

    run(go())


def test_the_end_of_the_reader_does_not_end_the_traffic() -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(PLAIN)

    async def go() -> None:
        async with in_front_of(answer, reads=False) as (port, number, _heard):
            os.close(port.frames)
            port.frames = -1
            for _ in range(3):
                assert await talk(number, asked(b"{}")) == PLAIN

    run(go())


def test_clients_wait_while_there_are_no_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_process, "_ACCEPT_RETRY_S", 0.01)

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(PLAIN)

    class FullListener(socket.socket):
        full = True

        def accept(self) -> tuple[socket.socket, object]:
            if self.full:
                self.full = False
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, _heard):
            listener = port.passing._listener
            assert listener is not None
            port.passing._listener = FullListener(fileno=listener.detach())
            assert await talk(number, asked(b"{}")) == PLAIN

    run(go())


def test_a_slow_reader_holds_back_the_server_and_loses_nothing() -> None:
    """The port keeps only a little of what one end does not take."""
    part = bytes(range(256)) * 256
    parts = 0
    held_back = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        nonlocal parts
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
        while not held_back.is_set():  # as much as the kernel's buffers take
            parts += 1
            writer.write(part)
            await writer.drain()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", number, limit=len(part))
            writer.write(asked(b"{}"))
            await until(lambda: any(one.client.waiting for one in port.passing._joined.values()))
            (joined,) = port.passing._joined.values()
            assert len(joined.client.waiting) <= len(part)
            held_back.set()
            await reader.readuntil(b"\r\n\r\n")
            body = await reader.read()
            assert body == part * parts
            writer.close()

    run(go())


def test_a_port_that_is_closed_while_it_connects_leaves_nothing_open() -> None:
    client = socket.socket()
    client.settimeout(WAIT_S)
    with client, pytest.raises(ConnectionResetError):
        # nobody answers there, so the connection stays begun, or there is no way to it
        with opened(("192.0.2.1", 80)) as port:
            client.connect(("127.0.0.1", port.number))
            eventually(lambda: port.passing._joined or port.traffic.refused, "the connection")
        assert not port.passing._joined
        client.recv(1)
