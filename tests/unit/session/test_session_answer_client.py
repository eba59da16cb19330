"""The client of the text probe: kept connections, answers that are no answer, and TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.certificates import certificate
from support.scripted_server import (
    FIN,
    RST,
    SILENCE,
    Request,
    ScriptedServer,
    Step,
    chat_events,
    chunked,
    plain,
    until_close,
)

from workbench.bench.connection import Connection
from workbench.model.bench import BenchSpec
from workbench.server.small_requests import Reply
from workbench.session.bench import answer_client
from workbench.session.bench.answer_client import AnswerClient

OK = plain("200 OK", {"said": "yes"})
Answer = Callable[[Request, int], Iterable[Step]]


def asked(
    answer: Answer, times: int = 1, *, at_once: bool = False, limit_s: float = 10.0, **made: Any
) -> tuple[list[Reply], ScriptedServer]:
    """Return the replies to some requests, one after the other or all at once, and the server."""
    key, tls, fields = made.pop("key", None), made.pop("tls", None), made

    async def ask(url: str) -> list[Reply]:
        with closing(AnswerClient(BenchSpec(url, "m", **fields), key)) as client:
            waiting = [client.post({"n": n, "text": "ä"}, limit_s) for n in range(times)]
            if at_once:
                return list(await asyncio.gather(*waiting))
            return [await one for one in waiting]

    with ScriptedServer(answer, tls) as server:
        return asyncio.run(ask(server.url)), server


def test_a_connection_is_kept_for_the_next_request() -> None:
    replies, server = asked(lambda request, n: [OK[:30], OK[30:]], 5, key="secret")
    assert [(r.status, r.body) for r in replies] == [(200, {"said": "yes"})] * 5
    assert server.connections == 1
    assert [r.body["n"] for r in server.requests] == [0, 1, 2, 3, 4]
    assert server.requests[0].line == "POST /v1/chat/completions HTTP/1.1"
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].body["text"] == "ä"


def test_requests_at_once_are_in_flight_together() -> None:
    all_arrived = threading.Barrier(130)

    def answer(request: Request, n: int) -> list[Step]:
        all_arrived.wait(60.0)
        return [OK]

    replies, server = asked(answer, 130, at_once=True, limit_s=60.0)
    assert [r.status for r in replies] == [200] * 130
    assert server.connections == 130


def test_a_request_on_a_kept_connection_that_has_ended_is_sent_again() -> None:
    def answer(request: Request, n: int) -> list[Step]:
        return [RST] if n == 1 else [OK]

    replies, server = asked(answer, 3)
    assert [r.status for r in replies] == [200, 200, 200]
    assert server.connections == 2 and len(server.requests) == 4


def test_a_connection_that_the_server_closes_is_not_kept() -> None:
    replies, server = asked(lambda request, n: until_close(chat_events(3)), 2)
    assert [(r.status, r.body) for r in replies] == [(200, None)] * 2
    assert server.connections == 2 and "[DONE]" in replies[1].text


def test_a_streamed_answer_and_an_error() -> None:
    def answer(request: Request, n: int) -> list[Step]:
        return [plain("503 Busy", {"detail": "busy"})] if n else [chunked(chat_events(3))]

    (streamed, refused), server = asked(answer, 2)
    assert streamed.status == 200 and streamed.text.count("data: ") == 6
    assert (refused.status, refused.body) == (503, {"detail": "busy"})
    assert server.connections == 1


def test_the_pieces_of_a_streamed_answer_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read takes CPU time of the command, and the probe asks for thousands of pieces."""
    whole = chunked(chat_events(8))
    places = [0, *range(400, len(whole), 60), len(whole)]
    receive, was_read, reads = Connection.receive_data_and_time_ns, threading.Event(), []

    def counted(self: Connection) -> tuple[bytes | None, int]:
        found = receive(self)
        reads.append(len(found[0] or b""))
        was_read.set()
        return found

    def answer(request: Request, n: int) -> Iterable[Step]:
        for begin, end in pairwise(places):
            was_read.clear()
            yield whole[begin:end]
            was_read.wait(0.01)  # a client that reads each piece reads it by then

    monkeypatch.setattr(Connection, "receive_data_and_time_ns", counted)
    (reply,), _ = asked(answer)
    assert reply.text.count("data: ") == 11 and sum(reads) == len(whole)
    assert len(reads) < len(places) / 2


def test_bytes_that_are_not_utf8() -> None:
    (reply,), _ = asked(lambda request, n: [plain("200 OK", b'{"said": "\xff"}')])
    assert reply.invalid_utf8 and reply.body == {"said": "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([FIN], "reset: "),
        ([OK[:-3], FIN], "the server closed the connection before the end of the answer"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "invalid HTTP/1.x status line"),
        ([plain("200 OK", b"x", headers=b"Content-Encoding: gzip\r\n")], "is compressed"),
        ([chunked(chat_events(9))], "is larger than"),
    ],
)
def test_what_is_no_answer_is_a_problem(
    steps: list[Step], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_client, "_MAX_ANSWER_BYTES", 200)
    (reply,), _ = asked(lambda request, n: steps)
    assert reply.status is None and problem in reply.problem


def test_a_server_that_says_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_client, "CONNECT_TIMEOUT_S", 0.05)
    (reply,), _ = asked(lambda request, n: [OK[:-3], SILENCE], limit_s=0.05)
    assert "did not answer within" in reply.problem


def test_no_server() -> None:
    async def ask(url: str) -> Reply:
        with closing(AnswerClient(BenchSpec(url, "m"))) as client:
            return await client.post({}, 5.0)

    refused, unknown = asyncio.run(ask("http://127.0.0.1:1")), asyncio.run(ask("ftp://h"))
    assert "refused" in refused.problem.lower() and "invalid server URL" in unknown.problem


def test_https_with_the_certificates_of_the_spec(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    replies, server = asked(lambda request, n: [OK], 2, tls=tls, ca_file=str(pem))
    assert [r.status for r in replies] == [200, 200] and server.connections == 1
    (reply,), _ = asked(lambda request, n: [OK], tls=tls)
    assert reply.status is None and "certificate" in reply.problem.lower()
