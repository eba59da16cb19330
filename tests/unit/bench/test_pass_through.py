"""The port in front of a server: every byte passes unchanged, whatever it is, and requests are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from workbench.bench.pass_through import Exchange, PassThrough
from workbench.model.errors import InputError

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Answer = Callable[[Reader, Writer], Awaitable[None]]
CHAT = "/v1/chat/completions"
WAIT_S = 20.0
ASK = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%s"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def asked(body: bytes, path: str = CHAT) -> bytes:
    return ASK % (path.encode(), len(body), body)


@asynccontextmanager
async def in_front_of(answer: Answer) -> AsyncIterator[tuple[PassThrough, int, list[Exchange]]]:
    """Open a port in front of a server whose connections `answer` serves."""

    async def serve(reader: Reader, writer: Writer) -> None:
        try:
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    heard: list[Exchange] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = server.sockets[0].getsockname()
    port = PassThrough((place[0], place[1]), {CHAT}, heard.append)
    try:
        yield port, await port.listen(0), heard
    finally:
        await port.close()
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
            await until(lambda: port.passed.in_flight == 1)
            assert not heard
            more.set()
            assert await reader.readexactly(len(STREAM) - 60) == STREAM[60:]
            await until(lambda: port.passed.in_flight == 0)
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
            assert port.passed.in_flight == 0

    run(go())


def test_a_server_that_is_not_there_resets_the_connection() -> None:
    async def go() -> None:
        port = PassThrough(("127.0.0.1", 1), {CHAT}, lambda _: None)
        number = await port.listen(0)
        try:
            with pytest.raises(ConnectionResetError):
                await talk(number, asked(b"{}"))
            assert (port.passed.refused, port.passed.requests) == (1, 0)
        finally:
            await port.close()

    run(go())


def test_the_end_knows_of_a_request_that_was_passed_on_just_before() -> None:
    """The port reads what it passed on a little later."""
    came, more = asyncio.Event(), asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        came.set()
        await more.wait()
        writer.write(PLAIN)
        await reader.read()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, heard):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(asked(b"{}"))
            await came.wait()
            draining = asyncio.ensure_future(port.drain())
            more.set()
            assert await reader.read() == PLAIN
            await draining
            assert [e.whole for e in heard] == [True]
            writer.close()

    run(go())


def test_what_waits_to_be_read_does_not_grow_with_many_connections() -> None:
    """Of 20 parts in each turn of the event loop, 8 were read: the others stayed in memory."""
    heard = 0

    def hear(data: bytes, at_s: float) -> None:
        nonlocal heard
        heard += 1

    async def go() -> None:
        port = PassThrough(("127.0.0.1", 1), {CHAT}, lambda _: None)
        sent = 0
        while heard < 5000 or len(port._unheard) > 400:
            for _ in range(20):
                port.hear_later(hear, b"x")
            sent += 20
            assert sent < 500_000, f"{len(port._unheard):,} parts wait"
            await asyncio.sleep(0)
        await until(lambda: heard == sent)
        await port.close()

    run(go())


def test_a_defect_in_what_reads_one_part_does_not_end_the_reading() -> None:
    heard: list[bytes] = []
    failed: list[object] = []

    def fail(data: bytes, at_s: float) -> None:
        raise ValueError("a defect")

    async def go() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: failed.append(said))
        port = PassThrough(("127.0.0.1", 1), {CHAT}, lambda _: None)
        port.hear_later(fail, b"1")
        await until(lambda: bool(failed))
        port.hear_later(lambda data, _: heard.append(data), b"2")
        await until(lambda: heard == [b"2"])
        await port.close()

    run(go())


def test_a_server_known_by_its_name_is_reached() -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(PLAIN)

    async def go() -> None:
        async with in_front_of(answer) as (port, _, heard):
            named = PassThrough(("localhost", port._server[1]), {CHAT}, heard.append)
            try:
                assert await talk(await named.listen(0), asked(b"{}")) == PLAIN
                assert named.passed.refused == 0
            finally:
                await named.close()

    run(go())


def test_a_server_whose_name_is_not_known_is_named() -> None:
    async def go() -> None:
        with pytest.raises(InputError, match=r"the address of nowhere\.invalid is not known"):
            await PassThrough(("nowhere.invalid", 80), {CHAT}, lambda _: None).listen(0)

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
            await until(lambda: any(len(one.client._waiting) for one in port._joined))
            (joined,) = port._joined
            assert len(joined.client._waiting) < 4 * len(part)
            held_back.set()
            await reader.readuntil(b"\r\n\r\n")
            body = await reader.read()
            assert body == part * parts
            writer.close()

    run(go())


def test_a_port_that_is_closed_while_it_connects_leaves_nothing_open() -> None:
    async def go() -> None:
        # nobody answers there, so the connection stays begun, or there is no way to it
        port = PassThrough(("192.0.2.1", 80), {CHAT}, lambda _: None)
        number = await port.listen(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: bool(port._joined or port.passed.refused))
        await port.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert not port._joined and not port._tasks

    run(go())


def test_the_end_waits_for_answers_and_accepts_no_more() -> None:
    more = asyncio.Event()

    async def answer(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        await more.wait()
        writer.write(PLAIN)
        await reader.read()

    async def go() -> None:
        async with in_front_of(answer) as (port, number, heard):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            idle, idle_writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(asked(b"{}"))
            await until(lambda: port.passed.in_flight == 1)
            draining = asyncio.ensure_future(port.drain())
            assert await idle.read() == b""  # a connection without a request ends at once
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", number)
            assert not draining.done()
            more.set()
            await draining
            assert await reader.read() == PLAIN  # and then the end of the connection
            assert [e.whole for e in heard] == [True]
            writer.close()
            idle_writer.close()

    run(go())


def test_a_taken_port_is_named() -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        raise AssertionError("nothing is sent")

    async def go() -> None:
        async with in_front_of(answer) as (_, number, _heard):
            second = PassThrough(("127.0.0.1", 1), {CHAT}, lambda _: None)
            with pytest.raises(InputError, match=f"port {number} of 127.0.0.1 cannot be opened"):
                await second.listen(number)
            await second.close()

    run(go())
