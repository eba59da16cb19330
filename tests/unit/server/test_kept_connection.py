"""Small requests over a connection that stays open, to servers that may misbehave."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterable
from contextlib import closing

import pytest
from support.scripted_server import FIN, RST, Request, ScriptedServer, Step

from workbench.server import kept_connection
from workbench.server.kept_connection import KeepAliveConnection, open_keep_alive_connection
from workbench.server.small_requests import Reply

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_requests_go_below_the_path_of_the_base_url() -> None:
    async def go(url: str) -> None:
        with closing(KeepAliveConnection(url)) as kept:
            await kept.get("/metrics?asked_by=workbench", 5.0)
            await kept.ask("/tokenize", {}, 5.0)

    with ScriptedServer(lambda request, n: [PLAIN]) as server:
        asyncio.run(go(f"{server.url}/my models/é/"))
        lines = [request.line for request in server.requests]
    assert lines == [
        "GET /my%20models/%C3%A9/metrics?asked_by=workbench HTTP/1.1",
        "POST /my%20models/%C3%A9/tokenize HTTP/1.1",
    ]


def first_byte_sent_to(scheme: str) -> bytes:
    """Return the first byte that a request with an API key sends to a server at `scheme`."""
    found: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(await reader.read(1))
        writer.transport.abort()

    async def go() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = "{}://{}:{}".format(scheme, *server.sockets[0].getsockname())
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            async with open_keep_alive_connection(url, "key-1", lambda: tls) as ask:
                reply = await ask("/metrics", None, 30.0)
            assert reply.status is None

    asyncio.run(go())
    return found[0]


def test_a_key_goes_out_encrypted_whatever_the_case_of_the_scheme() -> None:
    """`HTTPS://host` was taken for plain HTTP, and the API key went out unencrypted."""
    assert first_byte_sent_to("HTTPS") == b"\x16"  # of a TLS handshake
    assert first_byte_sent_to("HTTP") == b"G"  # of a GET


def test_a_plain_connection_refuses_another_scheme() -> None:
    for url in ("https://box", "HTTPS://box", "box:8000", ""):
        with pytest.raises(ValueError, match="not a URL of plain HTTP"):
            KeepAliveConnection(url, api_key="key-1")


def replies(url: str, count: int, api_key: str | None = None) -> list[Reply]:
    async def go() -> list[Reply]:
        with closing(KeepAliveConnection(url, "asked_by=workbench", api_key)) as kept:
            return [await kept.get("/metrics", 5.0) for _ in range(count)]

    return asyncio.run(go())


def test_requests_use_one_connection() -> None:
    with ScriptedServer(lambda request, n: [PLAIN]) as server:
        found = replies(server.url, 5, api_key="key-1")
        assert [(reply.status, reply.text) for reply in found] == [(200, "ok")] * 5
        assert server.connections == 1
        assert {request.line for request in server.requests} == {
            "GET /metrics?asked_by=workbench HTTP/1.1"
        }
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer key-1"}


def test_two_tasks_that_ask_at_the_same_time_use_one_connection() -> None:
    async def go(url: str) -> list[Reply]:
        with closing(KeepAliveConnection(url)) as kept:
            await kept.get("/metrics", 5.0)
            return await asyncio.gather(kept.get("/metrics", 5.0), kept.get("/health", 5.0))

    with ScriptedServer(lambda request, n: [PLAIN]) as server:
        assert [reply.status for reply in asyncio.run(go(server.url))] == [200, 200]
        assert server.connections == 1


def test_a_request_in_flight_at_the_close_leaves_no_connection_open() -> None:
    async def go(url: str, answer: threading.Event) -> Reply:
        kept = KeepAliveConnection(url)
        asked = asyncio.create_task(kept.get("/metrics", 5.0))
        while not server.requests:
            await asyncio.sleep(0.01)
        kept.close()
        answer.set()
        return await asked  # a connection that is left open here fails the test at its end

    def after_the_close(request: Request, n: int) -> Iterable[Step]:
        closed.wait(5.0)
        return [PLAIN]

    closed = threading.Event()
    with ScriptedServer(after_the_close) as server:
        assert asyncio.run(go(server.url, closed)).text == "ok"


@pytest.mark.parametrize(
    "last",
    [
        [PLAIN, FIN],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", FIN],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", FIN],
        [b"HTTP/1.1 200 OK\r\n\r\nok", FIN],
    ],
)
def test_a_connection_that_the_server_closes_is_opened_again(last: list[Step]) -> None:
    with ScriptedServer(lambda request, n: last) as server:
        found = replies(server.url, 3)
        assert [(reply.status, reply.text) for reply in found] == [(200, "ok")] * 3
        assert server.connections == 3


def test_a_connection_that_is_reset_between_two_requests_is_opened_again() -> None:
    def answer(request: Request, n: int) -> Iterable[Step]:
        return [PLAIN] if request.connection or n == 0 else [RST]

    with ScriptedServer(answer) as server:
        found = replies(server.url, 3)
        assert [(reply.status, reply.text) for reply in found] == [(200, "ok")] * 3
        assert server.connections == 2


def test_requests_at_the_same_time_do_not_mix() -> None:
    def answer(request: Request, n: int) -> Iterable[Step]:
        name = request.line.split()[1].partition("?")[0].encode()
        return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name)]

    async def go(url: str) -> list[Reply]:
        with closing(KeepAliveConnection(url)) as kept:
            return await asyncio.gather(*(kept.get(f"/{n}", 5.0) for n in range(20)))

    with ScriptedServer(answer) as server:
        assert [reply.text for reply in asyncio.run(go(server.url))] == [f"/{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([CHUNKED, b"2\r\nok\r\n0\r\n\r\n"], "ok"),
        ([CHUNKED, b"1;x=y\r\n", b"o\r\n1", b"\r\nk\r\n0\r\nTrailer: 1\r\n\r\n"], "ok"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", PLAIN], "ok"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], ""),
    ],
)
def test_the_end_of_an_answer_is_found(steps: list[Step], text: str) -> None:
    with ScriptedServer(lambda request, n: steps) as server:
        found = replies(server.url, 2)
        assert [reply.text for reply in found] == [text, text]
        assert server.connections == 1


BAD = [
    ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], "did not answer with HTTP/1.x"),
    ([b"HTTP/1.1 2000 OK\r\n\r\n"], "did not answer with HTTP/1.x"),
    ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000], "line is too long"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"], "invalid Content-Length"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"], "larger than 16 MiB"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", FIN], "before the end of its answer"),
    ([b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"], "is compressed"),
    ([CHUNKED, b"zz\r\n"], "invalid size of a chunk"),
    ([CHUNKED, b"ffffffff\r\n"], "larger than 16 MiB"),
    ([CHUNKED, b"1\r\nokok\r\n"], "longer than its size"),
    ([CHUNKED, b"0\r\n" + b"X: y\r\n" * 20_000], "too many lines"),
    ([CHUNKED, b"2;" + b"x" * 5000 + b"\r\n"], "too long between its chunks"),
    ([FIN], "without an answer"),
    ([b"HTTP/1.1 200", FIN], "before the end of its answer"),
]


@pytest.mark.parametrize(("steps", "problem"), BAD)
def test_an_answer_that_is_none_gives_the_reason(steps: list[Step], problem: str) -> None:
    with ScriptedServer(lambda request, n: steps) as server:
        (reply,) = replies(server.url, 1)
        assert reply.status is None and problem in reply.problem, reply


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connection, "MAX_ANSWER_BYTES", 100_000)
    endless = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 50_000] * 10]
    with ScriptedServer(lambda request, n: endless) as server:
        (reply,) = replies(server.url, 1)
        assert reply.status is None and "larger than" in reply.problem


def test_a_server_that_is_not_there_gives_the_reason() -> None:
    with ScriptedServer(lambda request, n: [PLAIN]) as server:
        url = server.url
    (reply,) = replies(url, 1)
    assert (reply.status, reply.problem) == (None, "the server refuses connections")


def test_a_body_is_sent_once_over_a_connection_of_its_own() -> None:
    def answer(request: Request, n: int) -> Iterable[Step]:
        return [PLAIN] if request.line.startswith("GET") or n == 1 else [FIN]

    async def go(url: str) -> list[Reply]:
        with closing(KeepAliveConnection(url, "asked_by=workbench", "key-1")) as kept:
            await kept.get("/health", 5.0)
            return [await kept.ask("/v1/completions", {"prompt": "é"}, 5.0) for _ in range(2)]

    with ScriptedServer(answer) as server:
        good, lost = asyncio.run(go(server.url))
        posts = server.requests[1:]
        assert (good.status, good.text) == (200, "ok")
        assert (lost.status, "without an answer" in lost.problem) == (None, True)
        assert [post.line for post in posts] == [
            "POST /v1/completions?asked_by=workbench HTTP/1.1"
        ] * 2
        assert [post.body for post in posts] == [{"prompt": "é"}] * 2
        assert {post.headers["authorization"] for post in posts} == {"Bearer key-1"}
        assert [request.connection for request in server.requests] == [0, 1, 2]


def test_a_server_that_accepts_no_connection_does_not_take_the_time_of_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_connection, "CONNECT_TIMEOUT_S", 0.1)

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    reply = asyncio.run(KeepAliveConnection("http://127.0.0.1:1").ask("/v1/completions", {}, 300.0))
    assert (reply.status, reply.problem) == (
        None,
        "the server accepted no connection within 0.1 s",
    )


def test_a_line_break_in_a_key_begins_no_header() -> None:
    with ScriptedServer(lambda request, n: [PLAIN]) as server:
        (reply,) = replies(server.url, 1, api_key="key\r\nX-Other: 1")
        assert reply.status == 200
        assert "x-other" not in server.requests[0].headers
