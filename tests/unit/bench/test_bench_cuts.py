"""One exchange, without sockets, fed with bytes that are cut anywhere: every single cut, and many
at a time."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import (
    FIN,
    HEAD,
    RST,
    SILENCE,
    ScriptedServer,
    Step,
    chat_events,
    chunk,
    chunked,
    event,
    plain,
    sized,
    usage,
)
from test_bench_tls import certificate

from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.exchange import Exchange
from workbench.bench.http1 import HttpError
from workbench.bench.records import RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.sse import SseError
from workbench.bench.summary import summarize
from workbench.model.bench import BenchSpec
from workbench.model.json_records import from_json

TEXTS = ["é漢😀", "\u2028\u2029\u0085", 'a"\\\n', "data: x", "[DONE]", "\r"]


def crlf(event: bytes) -> bytes:
    return event.replace(b"\n", b"\r\n")


def cr(event: bytes) -> bytes:
    return event.replace(b"\n", b"\r")


def lf(event: bytes) -> bytes:
    return event


def busy_stream(line_end: Callable[[bytes], bytes]) -> list[bytes]:
    """Return a stream with everything at once: keep-alives, a role-only chunk, empty deltas,
    reasoning, a tool call, odd text, usage at the end. It has eight chunks with content; the
    reasoning is the first."""
    call = [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    events = [
        b": keep-alive\n\n",
        event(chunk({"role": "assistant", "content": ""})),
        event(chunk({})),
        b": ping\n\n:\n\n",
        event(chunk({"reasoning_content": "hm", "content": None})),
        event(chunk({"content": ""})),
        event(chunk({"tool_calls": call})),
        *[event(chunk({"content": text})) for text in TEXTS],
        event(chunk({}, "length")),
        event({**chunk(), "choices": [], "usage": usage(20, 9)}),
        event(b"[DONE]"),
    ]
    return [line_end(e) for e in events]


def fed(
    pieces: list[bytes], *, stream: bool = True, eof: bool = False
) -> tuple[Exchange, str | None]:
    """Return the exchange after these pieces, received one nanosecond apart, and how it failed."""
    exchange = Exchange(0, False, b"{}", stream=stream)
    exchange.began_ns = exchange.sent_ns = 1
    complete = False
    try:
        for at, piece in enumerate(pieces, start=2):
            assert not complete, "complete before its last byte"
            if piece:
                exchange.receive_bytes(piece, at)
                complete = exchange.response.complete
        if eof and not complete:
            exchange.receive_bytes(b"", len(pieces) + 2)
            complete = exchange.response.complete
    except HttpError as error:
        return exchange, exchange.describe_invalid_response(error)[0]
    except SseError:
        return exchange, records.MALFORMED
    if not complete:
        return exchange, "open"
    refused = exchange.http_error()
    if refused is not None:
        return exchange, refused[0]
    exchange.reply.check_answer_and_set_error(9)
    return exchange, exchange.reply.error


def cut(whole: bytes, *points: int) -> list[bytes]:
    return [whole[a:b] for a, b in pairwise([0, *sorted(points), len(whole)])]


def whole_reply(form: str, line_end: Callable[[bytes], bytes]) -> bytes:
    events = busy_stream(line_end)
    return {
        "chunked": chunked(events),
        "sized": sized(events),
        "joined": chunked([b"".join(events)]),
    }[form]


LINE_ENDS = [lf, crlf, cr]


@pytest.mark.parametrize("form", ["chunked", "sized", "joined"])
@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_every_single_cut(form: str, line_end: Callable[[bytes], bytes]) -> None:
    whole = whole_reply(form, line_end)
    for at in range(1, len(whole)):
        exchange, error = fed(cut(whole, at))
        assert (error, len(exchange.reply.stamps_ns), exchange.reply.output_tokens) == (
            None,
            8,
            9,
        ), at
    exchange, error = fed([whole[i : i + 1] for i in range(len(whole))])
    assert (error, len(exchange.reply.stamps_ns), exchange.reply.output_tokens) == (None, 8, 9)


@settings(deadline=None)
@given(data=st.data())
def test_many_cuts(data: st.DataObject) -> None:
    whole = whole_reply(
        data.draw(st.sampled_from(["chunked", "sized", "joined"])),
        data.draw(st.sampled_from(LINE_ENDS)),
    )
    points = data.draw(st.lists(st.integers(1, len(whole) - 1), max_size=40, unique=True))
    exchange, error = fed(cut(whole, *points))
    assert (error, len(exchange.reply.stamps_ns), exchange.reply.output_tokens) == (None, 8, 9)
    assert list(exchange.reply.stamps_ns) == sorted(exchange.reply.stamps_ns)


@pytest.mark.parametrize("form", ["chunked", "sized"])
@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_every_early_end(form: str, line_end: Callable[[bytes], bytes]) -> None:
    """Closed after any number of bytes: never a success, and never more chunks than were sent."""
    whole = whole_reply(form, line_end)
    for at in range(len(whole)):
        exchange, error = fed([whole[:at]], eof=True)
        assert error == (records.TRUNCATED if at else records.CONNECTION_RESET), at
        assert len(exchange.reply.stamps_ns) <= 8


def test_a_body_until_close_ends_well_only_after_its_finish_reason() -> None:
    head = HEAD + b"Connection: close\r\n\r\n"
    whole = head + b"".join(busy_stream(lf))
    finish = whole.index(b'"finish_reason":"length"')
    for at in range(len(head), len(whole) + 1):
        _, error = fed([whole[:at]], eof=True)
        if at < finish:
            assert error in (records.TRUNCATED, records.MALFORMED), at
        elif at == len(whole):
            assert error is None
        else:
            assert error in (None, records.MALFORMED, records.TRUNCATED), at


@settings(deadline=None)
@given(data=st.data())
def test_bytes_turned_over_never_break_the_client(data: st.DataObject) -> None:
    """With any byte of a reply changed, the outcome is a known kind, never an exception."""
    whole = bytearray(chunked(chat_events(9)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    exchange = Exchange(0, False, b"{}")
    try:
        exchange.receive_bytes(bytes(whole), 5)
        if exchange.response.complete:
            exchange.http_error()
            exchange.reply.check_answer_and_set_error(9)
    except HttpError as error:
        kind, said = exchange.describe_invalid_response(error)
        assert kind and isinstance(said, str)
    except SseError:
        pass
    assert len(exchange.reply.stamps_ns) <= 9
    json.dumps(exchange.make_record(0, None, None).as_json())


def test_brackets_without_end_are_malformed() -> None:
    _, error = fed([chunked([event(b"[" * 200_000)])])
    assert error == records.MALFORMED


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(1, 10**6), max_size=8))
def test_a_reply_over_tls_in_any_segments(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    server, pem = _tls(tmp_path_factory)
    whole = whole_reply("chunked", lf)
    points = sorted({1 + c % (len(whole) - 1) for c in cuts})
    exchange, error = fed(_through_tls(server, pem, cut(whole, *points), cuts))
    assert (error, len(exchange.reply.stamps_ns), exchange.reply.output_tokens) == (None, 8, 9)


_CONTEXT: list[tuple[ssl.SSLContext, Path]] = []


def _tls(factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    if not _CONTEXT:
        pem = certificate(factory.mktemp("tls"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        _CONTEXT.append((context, pem))
    return _CONTEXT[0]


def _through_tls(
    context: ssl.SSLContext, pem: Path, pieces: list[bytes], cuts: list[int]
) -> list[bytes]:
    """Return the bytes that the client's TLS yields if the records of `pieces` arrive in segments
    of other sizes."""
    from types import SimpleNamespace

    from workbench.bench.connection import _Tls

    trusting = ssl.create_default_context(cafile=str(pem))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    endpoint: Any = SimpleNamespace(tls=trusting, host="127.0.0.1")
    tls = _Tls(endpoint)
    inbox: list[bytes] = []
    connection: Any = SimpleNamespace(
        send_raw=to_server.write, receive_undecrypted=lambda: inbox.pop(0) if inbox else None
    )
    server_done = done = False
    while not (done and server_done):
        done = done or tls.advance_handshake(connection)
        if not server_done:
            try:
                server.do_handshake()
                server_done = True
            except ssl.SSLWantReadError:
                pass
        if raw := to_client.read():
            inbox.append(raw)
    for piece in pieces:
        server.write(piece)
    raw = b"".join(inbox) + to_client.read()
    points = sorted({1 + c % (len(raw) - 1) for c in cuts})
    return [plain for segment in cut(raw, *points) if (plain := tls.decrypt(segment)) is not None]


# -- answers that are not streamed -----------------------------------------------------------------


def answer(tokens: int = 9, **message: Any) -> dict[str, Any]:
    said = message or {"content": "a é b"}
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "length"}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage(20, tokens)}


def test_every_single_cut_of_an_answer_without_a_stream() -> None:
    whole = plain("200 OK", json.dumps(answer(), ensure_ascii=False).encode())
    for at in range(1, len(whole)):
        exchange, error = fed(cut(whole, at), stream=False)
        assert (error, exchange.reply.output_tokens, exchange.reply.prompt_tokens) == (
            None,
            9,
            20,
        ), at
        assert not exchange.reply.stamps_ns
        assert fed([whole[:at]], stream=False, eof=True)[1] == records.TRUNCATED


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (answer(), None),
        (answer(content=None, tool_calls=[{"id": "c"}]), None),
        ({"choices": [{"text": "a", "finish_reason": "stop"}], "usage": usage(1, 9)}, None),
        # no usage: a length cannot be judged
        ({"choices": [{"text": "a", "finish_reason": "stop"}]}, None),
        (answer(8), records.SHORT_ANSWER),
        (answer(10), records.LONG_ANSWER),
        ({"error": {"message": "busy"}}, records.STREAM_ERROR),
        ({"choices": [{"message": {"content": "a"}}]}, records.TRUNCATED),
        (
            {"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]},
            records.STREAM_ERROR,
        ),
        ({}, records.TRUNCATED),
        (b"", records.MALFORMED),
        (b"[1]", records.MALFORMED),
        (b'{"choices": [', records.MALFORMED),
        (b"data: [DONE]\n\n", records.MALFORMED),
        (b'{"choices": [7]}', records.MALFORMED),
    ],
)
def test_kinds_without_a_stream(body: Any, kind: str | None) -> None:
    exchange, error = fed([plain("200 OK", body)], stream=False)
    assert error == kind and (kind is None or exchange.reply.detail)


def test_a_long_answer_is_read_whole() -> None:
    _, error = fed([plain("200 OK", answer(content="x" * 300_000))], stream=False)
    assert error is None


def run(steps: list[Step], **fields: Any) -> Client:
    with ScriptedServer(lambda request, n: steps) as server:
        given = {
            "concurrency": 2,
            "requests": 6,
            "warmup": 0,
            "max_tokens": 9,
            "timeout_s": 10.0,
            **fields,
        }
        spec = BenchSpec(server.url, "m", stream=False, **given)
        client = Client(spec, resolve_endpoint(spec), None, lambda r: None)
        client.run()
        assert all(
            r.body["stream"] is False and "stream_options" not in r.body for r in server.requests
        )
        assert {r.headers["accept"] for r in server.requests} == {"application/json"}
    return client


def test_a_run_without_streams() -> None:
    client = run([plain("200 OK", answer())])
    s = summarize(client.spec, client.counted, (), ClientFacts())
    assert (s.requests_ok, s.output_tokens, s.prompt_tokens, s.ttft_ms, s.itl_ms) == (
        6,
        54,
        120,
        None,
        None,
    )
    assert s.e2e_ms and s.e2e_ms.count == 6 and s.output_tok_s and s.output_tok_s > 0
    names = ("ttft_ms", "itl_ms", "tpot_ms", "tokens_per_chunk", "per_stream_tok_s")
    assert {s.absent[n] for n in names} == {"the replies were not streamed"}
    assert from_json(RequestRecord, client.counted[0].as_json()) == client.counted[0]


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([plain("200 OK", answer())[:-5], FIN], records.TRUNCATED),
        ([RST], records.CONNECTION_RESET),
        ([plain("503 Service Unavailable", {"error": "busy"})], "http 503"),
        ([plain("200 OK", answer())[:-5], SILENCE], records.STALL),
        ([plain("200 OK", answer())[:20], SILENCE], records.TIMEOUT),
        ([chunked(chat_events(9))], records.MALFORMED),
    ],
)
def test_faults_without_a_stream(steps: list[Step], kind: str) -> None:
    client = run(steps, requests=2, timeout_s=0.6, stall_s=0.2)
    assert [r.error for r in client.counted] == [kind] * 2 and all(r.detail for r in client.counted)


def test_a_run_without_any_usage_counts_requests_and_no_tokens() -> None:
    with ScriptedServer(lambda request, n: [chunked(chat_events(5, with_usage=False))]) as server:
        spec = BenchSpec(
            server.url, "m", concurrency=2, requests=8, warmup=2, max_tokens=5, until_steady=True
        )
        client = Client(spec, resolve_endpoint(spec), None, lambda r: None)
        client.run()
    s = summarize(spec, client.counted, client.warmups, ClientFacts())
    assert (s.requests_ok, s.window, s.output_tokens, s.output_tok_s, s.window_output_tokens) == (
        8,
        "steady",
        None,
        None,
        None,
    )
    assert (
        s.absent["output_tok_s"]
        == s.absent["window_output_tokens"]
        == ("8 of 8 replies had no token usage")
    )
    assert s.request_s and s.e2e_ms and s.e2e_ms.count == 8
