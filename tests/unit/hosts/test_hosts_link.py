"""Tests of the link that is restored and the port that stays, without ssh."""

from __future__ import annotations

import asyncio
import os

import pytest

from workbench.hosts import reconnecting_link as link
from workbench.hosts.base import HostKeyChanged, HostUnreachable
from workbench.hosts.port_relay import Reader, Relay, Writer
from workbench.hosts.reconnecting_link import Link, LinkEvent


class Line:
    """The connections that `dial` returns. It fails once for each entry in `failures`."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.dialled = 0

    async def dial(self) -> int:
        self.dialled += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.dialled


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(link, "LONGEST_RETRY_S", 0.02)


def test_connects_once_on_first_use() -> None:
    async def main() -> None:
        line = Line()
        subject = Link("box", line.dial)
        assert not subject.connected
        assert await asyncio.gather(
            subject.wait_for_connection(), subject.wait_for_connection()
        ) == [1, 1]
        assert subject.connected

    asyncio.run(main())


def test_a_first_failure_is_raised_at_once() -> None:
    async def main() -> None:
        line = Line()
        line.failures = [HostUnreachable("refused")]
        subject = Link("box", line.dial)
        with pytest.raises(HostUnreachable, match="refused"):
            await subject.wait_for_connection()
        assert await subject.wait_for_connection() == 2

    asyncio.run(main())


def test_comes_back_by_itself_and_tells() -> None:
    async def main() -> None:
        line, told = Line(), list[LinkEvent]()
        subject = Link("box", line.dial)
        forget = subject.on_link(told.append)
        first = await subject.wait_for_connection()
        line.failures = [HostUnreachable("still down")] * 3
        subject.report_lost(first, "reset")
        assert not subject.connected
        assert subject.outage_s is not None
        assert await subject.wait_for_connection() == 5
        still = [(False, "still down", n) for n in (1, 2, 3)]
        assert [(e.connected, e.reason, e.retries) for e in told] == [
            (False, "reset", 0),
            *still,
            (True, "", 0),
        ]
        assert told[-1].outage_s > 0
        forget()
        subject.report_lost(5, "reset")
        assert len(told) == 5
        await subject.stop_and_detach_connection()

    asyncio.run(main())


def test_waiting_too_long_raises_with_duration_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PATIENCE_S", 0.1)

    async def main() -> None:
        line = Line()
        subject = Link("box", line.dial)
        first = await subject.wait_for_connection()
        line.failures = [HostUnreachable("no route")] * 1000
        subject.report_lost(first, "reset")
        with pytest.raises(HostUnreachable, match=r"no connection for 0 s \(no route\)") as told:
            await subject.wait_for_connection()
        assert "continue to run" in str(told.value.next_step)
        await subject.stop_and_detach_connection()

    asyncio.run(main())


def test_a_changed_key_ends_the_retries_until_the_user_connects() -> None:
    async def main() -> None:
        line, told = Line(), list[LinkEvent]()
        subject = Link("box", line.dial)
        subject.on_link(told.append)
        first = await subject.wait_for_connection()
        line.failures = [HostKeyChanged("its key differs")]
        subject.report_lost(first, "reset")
        with pytest.raises(HostKeyChanged):
            await subject.wait_for_connection()
        assert line.dialled == 2
        assert isinstance(told[-1].refused, HostKeyChanged)
        assert await subject.connect() == 3

    asyncio.run(main())


def test_news_of_an_old_connection_or_of_a_closed_link_means_nothing() -> None:
    async def main() -> None:
        line, told = Line(), list[LinkEvent]()
        subject = Link("box", line.dial)
        subject.on_link(told.append)
        await subject.wait_for_connection()
        subject.report_lost(99, "old")
        assert subject.connected
        assert await subject.stop_and_detach_connection() == 1
        subject.report_lost(1, "closed")
        assert told == []

    asyncio.run(main())


async def echo_server() -> tuple[asyncio.Server, int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            writer.close()  # also if the test ends first

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def test_relay_carries_both_ways_and_passes_the_end_on() -> None:
    async def main() -> None:
        server, port = await echo_server()

        async def open_remote_connection() -> tuple[Reader, Writer]:
            return await asyncio.open_connection("127.0.0.1", port)

        relay = Relay(open_remote_connection, ())
        await relay.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.local_port)
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert len(await reader.read()) == 300_000
        writer.close()
        await relay.close()
        server.close()

    asyncio.run(main())


def test_relay_resets_without_a_link_and_works_again_with_it() -> None:
    async def main() -> None:
        server, port = await echo_server()
        ways: list[Exception] = [HostUnreachable("lost")]

        async def open_remote_connection() -> tuple[Reader, Writer]:
            if ways:
                raise ways.pop()
            return await asyncio.open_connection("127.0.0.1", port)

        relay = Relay(open_remote_connection, (HostUnreachable,))
        await relay.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.local_port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.local_port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()
        await relay.close()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_relay_that_is_ended_while_it_opens_leaves_no_port(steps: int, how: str) -> None:
    """A command that ended at that moment left the port open, and Python warned about it."""

    async def open_remote_connection() -> tuple[Reader, Writer]:
        raise HostUnreachable("no connection", host="far")

    async def go() -> None:
        relay = Relay(open_remote_connection, (HostUnreachable,))
        before = len(os.listdir("/proc/self/fd"))
        listening = asyncio.create_task(relay.listen())
        for _ in range(steps):
            await asyncio.sleep(0)
        if how == "cancelled" and listening.cancel():
            await asyncio.wait([listening])
        else:
            await relay.close()
            await listening
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(go())


def test_a_relay_that_closes_at_once_closes_the_connection_that_just_came() -> None:
    """A task that was cancelled before its first step left the connection open."""

    async def main() -> None:
        greeted, ended = asyncio.Event(), asyncio.Event()

        async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            greeted.set()
            await reader.read()
            writer.close()
            ended.set()

        async def open_remote_connection() -> tuple[Reader, Writer]:
            raise AssertionError("the connection was closed before")

        server = await asyncio.start_server(wait_for_end, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        relay = Relay(open_remote_connection, ())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await greeted.wait()
        relay._relay_accepted(reader, writer)
        await relay.close()
        assert writer.is_closing()
        await ended.wait()
        server.close()

    asyncio.run(main())
