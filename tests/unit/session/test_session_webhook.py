"""Alerts that are sent to an address on the web, by a real server that misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from workbench.session.alerts import webhook
from workbench.session.alerts.webhook import Webhook

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FAULT = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
HANG, CLOSE = b"hang", b""


class Receiver:
    """A server on loopback that gives one answer after the other, and keeps the requests."""

    def __init__(self, answers: list[bytes]) -> None:
        self.answers, self.requests = answers, list[bytes]()
        self.url = ""
        self.ended = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
            answer = self.answers.pop(0)
            if answer == HANG:
                await self.ended.wait()
            else:
                writer.write(answer)
                await writer.drain()
                if answer == ENDLESS:
                    await self.ended.wait()
        finally:
            writer.close()

    def body(self, number: int) -> Any:
        return json.loads(self.requests[number].partition(b"\r\n\r\n")[2])


@asynccontextmanager
async def receiving(*answers: bytes) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers))
    server = await asyncio.start_server(receiver.take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}/hook/s3cr3t"
    try:
        yield receiver
    finally:
        receiver.ended.set()
        server.close()
        await server.wait_closed()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(webhook, "RETRY_S", 0.01)


async def sent(receiver: Receiver, *documents: dict[str, Any]) -> Webhook:
    """Send the documents, and wait until none is left."""
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.get_running_loop().create_task(work))
        return tasks[-1]

    hook = Webhook(receiver.url, "t0ken-of-mine", spawn)
    for document in documents:
        hook.send(document)
    await asyncio.gather(*tasks)
    return hook


@pytest.mark.parametrize(
    ("answers", "requests", "problem"),
    [
        ([OK], 1, ""),
        ([FAULT, OK], 2, ""),
        ([HANG, OK], 2, ""),
        ([CLOSE, CLOSE], 2, "disconnected"),
        ([HANG, HANG], 2, "no answer within 0.3 s"),
        ([FAULT, FAULT], 2, "the answer has the status 500"),
        ([b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"], 1, "the answer has the status 404"),
        ([ENDLESS], 1, ""),  # the text of an answer is not read
        ([b"\x00\x1b]0;title\x07\r\n\r\n"] * 2, 2, "illegal"),
    ],
)
def test_an_alert_is_sent_with_one_retry(answers: list[bytes], requests: int, problem: str) -> None:
    async def scenario() -> None:
        async with receiving(*answers) as receiver:
            hook = await sent(receiver, {"text": "hot"})
            assert len(receiver.requests) == requests
            assert receiver.body(0) == {"text": "hot"}
            assert b"Authorization: Bearer t0ken-of-mine\r\n" in receiver.requests[0]
            assert problem in hook.problem if problem else not hook.problem
            assert "\x1b" not in hook.problem and "s3cr3t" not in hook.problem

    asyncio.run(scenario())


def test_a_redirect_is_not_followed_and_the_token_goes_nowhere_else() -> None:
    async def scenario() -> None:
        async with receiving(OK) as elsewhere:
            to = f"HTTP/1.1 307 Go\r\nLocation: {elsewhere.url}\r\nContent-Length: 0\r\n\r\n"
            async with receiving(to.encode()) as receiver:
                hook = await sent(receiver, {"text": "hot"})
                assert hook.problem == "the answer is a redirect (307), which is not followed"
                assert len(receiver.requests) == 1 and not elsewhere.requests

    asyncio.run(scenario())


def test_alerts_wait_in_order_and_too_many_are_dropped_and_counted() -> None:
    async def scenario() -> None:
        async with receiving(*[OK] * 30) as receiver:
            most = webhook.MAX_WAITING_ALERTS
            hook = await sent(receiver, *({"n": n} for n in range(most + 5)))
            numbers = [receiver.body(i)["n"] for i in range(len(receiver.requests))]
            assert numbers == [0, *range(6, most + 5)]
            assert hook.dropped == 5 and hook.sent == most and not hook.unsent_count

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTP_PROXY", "ftp://proxy"), ("HTTP_PROXY", "http://h:port"), ("SSL_CERT_FILE", "/none")],
)
def test_a_client_that_cannot_be_made_is_a_problem_and_no_crash(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with receiving() as receiver:
            hook = await sent(receiver, {"text": "hot"}, {"text": "hotter"})
            assert "cannot be made: " in hook.problem and not hook.unsent_count and not hook.sent

    monkeypatch.setenv(name, value)
    asyncio.run(scenario())


def test_the_token_is_sent_although_the_address_has_a_password() -> None:
    async def scenario() -> None:
        async with receiving(OK) as receiver:
            receiver.url = receiver.url.replace("//", "//me:secret@")
            await sent(receiver, {"text": "hot"})
            assert b"Authorization: Bearer t0ken-of-mine\r\n" in receiver.requests[0]

    asyncio.run(scenario())


def test_nobody_listens() -> None:
    async def scenario() -> None:
        async with receiving() as receiver:
            pass
        hook = await sent(receiver, {"text": "hot"})
        assert "connect" in hook.problem.lower()

    asyncio.run(scenario())
