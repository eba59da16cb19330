"""The client against faulty servers, at the byte level and over real sockets."""

from __future__ import annotations

import gzip
import json
import select
import socket
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import (
    FIN,
    HEAD,
    RST,
    SILENCE,
    Request,
    ScriptedServer,
    Step,
    chat_events,
    chunk,
    chunked,
    event,
    plain,
    sized,
    until_close,
    usage,
)

from workbench.bench import client as client_module
from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.client_report import client_notes
from workbench.bench.connection import resolve_endpoint
from workbench.bench.poller import PollPoller
from workbench.bench.records import RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.summary import summarize
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import BenchSpec
from workbench.model.json_records import from_json

OK = chunked(chat_events(3))


def bench(url: str, **fields: Any) -> Client:
    """Run a small benchmark in this thread. At its end every request has one record, and no
    connection is open."""
    given = {
        "concurrency": 1,
        "requests": 1,
        "warmup": 0,
        "max_tokens": 3,
        "timeout_s": 10.0,
        "stall_s": 10.0,
        **fields,
    }
    spec = BenchSpec(url=url, model="m", salt="ab", **given)
    client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
    client.run()
    assert sorted(r.index for r in client.counted) == list(range(len(client.counted)))
    return client


def one(steps: Iterable[Step], **fields: Any) -> RequestRecord:
    """Return the record of a single request that is answered with `steps`."""
    with ScriptedServer(lambda request, n: steps) as server:
        (record,) = bench(server.url, **fields).counted
    return record


# -- whole replies, in every form ------------------------------------------------------------------

FORMS: dict[str, Callable[[list[bytes]], list[Step]]] = {
    "chunked": lambda events: [chunked(events)],
    "sized": lambda events: [sized(events)],
    "until close": until_close,
    "one chunk": lambda events: [chunked([b"".join(events)])],
}


def crlf(events: list[bytes]) -> list[bytes]:
    return [e.replace(b"\n", b"\r\n") for e in events]


def cr(events: list[bytes]) -> list[bytes]:
    return [e.replace(b"\n", b"\r") for e in events]


def with_comments(events: list[bytes]) -> list[bytes]:
    return [b": ping\n\n" + e for e in events]


def multi_line(events: list[bytes]) -> list[bytes]:
    return [e.replace(b'"choices"', b'\ndata: "choices"') for e in events]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [list, crlf, cr, with_comments, multi_line])
def test_whole_replies(form: str, shape: Callable[[list[bytes]], list[bytes]]) -> None:
    record = one(FORMS[form](shape(chat_events(3))))
    assert (record.error, record.output_tokens, record.chunks, record.prompt_tokens) == (
        None,
        3,
        3,
        150,
    )
    assert (
        record.ttft_us is not None and len(record.gaps_us) == 2 and record.finish_reason == "length"
    )


@pytest.mark.parametrize(
    "events",
    [
        chat_events(3, done=False),
        chat_events(3)[1:],
        [event(chunk({"role": "assistant"})), event(chunk({})), *chat_events(3)],
        [event(chunk({"content": "\u2028\u2029\u0085é😀"})), *chat_events(3)[2:]],
        [*chat_events(3, done=False)[:-1], event({**chunk(), "usage": usage(150, 3)})],
        [*chat_events(3, done=False), event(b"[DONE]", end=b"\n")],
        [*chat_events(3, done=False), event(b"[DONE]", end=b"")],
    ],
)
def test_replies_as_engines_vary_them(events: list[bytes]) -> None:
    record = one([chunked(events)])
    assert (record.error, record.output_tokens, record.chunks) == (None, 3, 3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_reply_cut_into_segments_anywhere(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([" é漢😀\u2028", "x", '"\\n']))
    events = [event(chunk({"content": text})), *chat_events(3)[2:]]
    shape = data.draw(st.sampled_from([list, crlf, cr]))
    form = data.draw(st.sampled_from(sorted(FORMS)))
    whole, *rest = FORMS[form](shape(events))
    assert isinstance(whole, bytes)
    points = data.draw(st.lists(st.integers(1, len(whole) - 1), max_size=6, unique=True))
    pieces = [whole[a:b] for a, b in pairwise([0, *sorted(points), len(whole)])]
    record = one([*pieces, *rest])
    assert (record.error, record.output_tokens, record.chunks) == (None, 3, 3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_reply_that_ends_anywhere_is_never_ok(data: st.DataObject) -> None:
    """FIN or RST after any number of bytes: one record, not a success, and no more tokens than the
    server reported."""
    form = data.draw(st.sampled_from(["chunked", "sized"]))
    (whole,) = FORMS[form](chat_events(3))
    assert isinstance(whole, bytes)
    at = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.sampled_from([FIN, RST]))
    record = one([whole[:at], end] if at else [end])
    # A reset may take bytes with it that had been sent before.
    kinds = {records.CONNECTION_RESET, records.TRUNCATED}
    assert record.error in ({records.TRUNCATED} if end == FIN and at else kinds)
    assert record.output_tokens in (None, 3) and record.chunks <= 3


# -- faults, each under its own kind ---------------------------------------------------------------

PART = chunked(chat_events(3)[:3], end=False)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([FIN], records.CONNECTION_RESET),
        ([RST], records.CONNECTION_RESET),
        ([b"HTTP/1.1 200", FIN], records.TRUNCATED),
        ([PART, FIN], records.TRUNCATED),
        ([PART, RST], records.CONNECTION_RESET),
        ([chunked(chat_events(3), end=False), FIN], records.TRUNCATED),
        (until_close(chat_events(3)[:2]), records.TRUNCATED),
        ([chunked(chat_events(3)[:2])], records.TRUNCATED),
        ([plain("401 Unauthorized", {"error": {"message": "no key"}})], "http 401"),
        ([plain("404 Not Found", {"detail": "no such model"})], "http 404"),
        ([plain("429 Too Many Requests", {})], "http 429"),
        ([plain("500 Internal Server Error", b"")], "http 500"),
        ([plain("503 Service Unavailable", b"<html>")], "http 503"),
        ([b"HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nhalf", FIN], "http 500"),
        ([plain("302 Found", b"", headers=b"Location: /x\r\n")], "http 302"),
        ([plain("200 OK", {"choices": []})], records.MALFORMED),
        ([plain("200 OK", {"error": {"message": "busy"}})], records.STREAM_ERROR),
        ([b"SSH-2.0-OpenSSH\r\n", FIN], records.MALFORMED),
        ([chunked([event(b'{"choices": [')])], records.MALFORMED),
        ([chunked([*chat_events(3)[:3], event(b"{"), *chat_events(3)[3:]])], records.MALFORMED),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], records.MALFORMED),
        (
            [chunked([*chat_events(3)[:2], event({"error": {"message": "CUDA error"}})])],
            records.STREAM_ERROR,
        ),
        (
            [chunked([*chat_events(3)[:2], event({"error": "x"})], end=False), FIN],
            records.STREAM_ERROR,
        ),
        ([chunked([b"error: {}\n\n"])], records.STREAM_ERROR),
        ([chunked(chat_events(2))], records.SHORT_ANSWER),
        ([chunked(chat_events(4))], records.LONG_ANSWER),
    ],
)
def test_kinds(steps: list[Step], kind: str) -> None:
    record = one(steps)
    assert record.error == kind
    assert record.detail


def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = bench(f"http://127.0.0.1:{port}", requests=50, concurrency=4)
    assert [r.error for r in client.counted] == [records.CONNECT_REFUSED] * 50


@pytest.mark.slow
def test_no_answer_is_a_timeout_and_silence_in_the_middle_a_stall() -> None:
    assert one([SILENCE], timeout_s=0.3).error == records.TIMEOUT
    assert one([HEAD + b"\r\n", SILENCE], timeout_s=0.3, stall_s=0.1).error == records.TIMEOUT
    record = one([PART, SILENCE], stall_s=0.3)
    assert (record.error, record.chunks) == (records.STALL, 2)
    assert record.detail == "the server sent no byte for 0.3 s after 2 chunks"
    assert one([chunked(chat_events(3), end=False), SILENCE], stall_s=0.3).error == records.STALL


def test_an_unreachable_address_times_out() -> None:
    backlog = socket.socket()
    with backlog:
        backlog.bind(("127.0.0.1", 0))
        backlog.listen(0)
        fill = [socket.socket() for _ in range(4)]
        for sock in fill:
            sock.setblocking(False)
            sock.connect_ex(backlog.getsockname())
        (record,) = bench(f"http://127.0.0.1:{backlog.getsockname()[1]}", timeout_s=0.4).counted
        for sock in fill:
            sock.close()
    assert record.error == records.TIMEOUT


def test_the_run_ends_at_its_deadline_with_everything_accounted_for() -> None:
    with ScriptedServer(lambda request, n: [OK] if n < 3 else [PART, SILENCE]) as server:
        client = bench(server.url, requests=40, concurrency=2, deadline_s=0.5)
    assert [r.error for r in client.counted].count(records.DEADLINE) == 2
    assert sum(r.ok for r in client.counted) == 3 and len(client.counted) == 5
    assert client_notes(client.spec, [client.report()]) == (
        "stopped at the run's deadline of 0.5 s; 35 of 40 requests were not sent",
    )


def test_a_hopeless_run_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_GIVE_UP_AFTER_NS", 300_000_000)
    with ScriptedServer(lambda request, n: [SILENCE]) as server:
        client = bench(server.url, requests=100, concurrency=2, timeout_s=0.2, warmup=2)
    assert 2 <= len(client.counted) < 10
    assert "no request had succeeded" in client_notes(client.spec, [client.report()])[0]


def test_a_server_that_falls_silent_for_good_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a lost link: each request would use up its whole time limit."""
    monkeypatch.setattr(client_module, "_GIVE_UP_AFTER_NS", 300_000_000)
    with ScriptedServer(lambda request, n: [OK] if n < 10 else [SILENCE]) as server:
        client = bench(server.url, requests=100, concurrency=2, timeout_s=0.2)
    assert sum(r.ok for r in client.counted) == 10 and 14 <= len(client.counted) < 20
    assert "no longer answered" in client_notes(client.spec, [client.report()])[0]


def test_a_server_that_dies_in_the_middle() -> None:
    """The counts are complete: each request ends once, as a success or with a kind of failure."""
    with ScriptedServer(lambda request, n: die(server) if n == 10 else [OK]) as server:
        client = bench(server.url, requests=40, concurrency=4)
    kinds = {r.error for r in client.counted if r.error}
    assert len(client.counted) == 40 and 7 <= sum(r.ok for r in client.counted) < 40
    # of the requests that were under way
    late = {records.CONNECT_FAILED, records.CONNECTION_RESET, records.TRUNCATED}
    assert kinds <= {records.CONNECT_REFUSED, *late} and records.CONNECT_REFUSED in kinds


def die(server: ScriptedServer) -> list[Step]:
    server.close()
    return [SILENCE]


def test_mixed_faults_are_each_counted_once() -> None:
    script: list[list[Step]] = [
        [OK],
        [plain("503 Service Unavailable", {"error": "busy"})],
        [PART, FIN],
        [chunked([event({"error": "x"})])],
        [OK],
    ]
    with ScriptedServer(lambda request, n: script[n % 5]) as server:
        client = bench(server.url, requests=100, concurrency=5)
    summary = summarize(client.spec, client.counted, client.warmups, ClientFacts())
    assert (summary.requests_ok, summary.requests_failed) == (40, 60)
    assert summary.errors == {"http 503": 20, records.TRUNCATED: 20, records.STREAM_ERROR: 20}
    assert (summary.output_tokens, summary.prompt_tokens) == (120, 40 * 150)


# -- connections -----------------------------------------------------------------------------------


def test_connections_are_kept() -> None:
    with ScriptedServer(lambda request, n: [OK]) as server:
        bench(server.url, requests=20, concurrency=2)
        assert server.connections == 2


@pytest.mark.parametrize("end", [FIN, RST])
def test_a_kept_connection_that_the_server_closes_costs_no_request(end: str) -> None:
    """llama.cpp closes connections after 100 requests, and after 5 s of silence."""
    answered: dict[int, int] = {}

    def answer(request: Request, n: int) -> list[Step]:
        seen = answered[request.connection] = answered.get(request.connection, 0) + 1
        return [end] if seen > 3 else [OK]

    with ScriptedServer(answer) as server:
        client = bench(server.url, requests=20, concurrency=2)
    assert all(r.ok for r in client.counted)
    # After the first such close, every request has a connection of its own.
    assert 1 <= sum(r.reconnected for r in client.counted) <= 2
    assert server.connections >= 2 + (20 - 8)


def test_a_server_that_closes_after_each_answer_is_asked_on_fresh_connections() -> None:
    """The real llama-server announces to keep a connection, and closes it after each stream."""
    closed: set[int] = set()

    def answer(request: Request, n: int) -> list[Step]:
        known = request.connection in closed
        closed.add(request.connection)
        return [FIN] if known else [OK, FIN]

    with ScriptedServer(answer) as server:
        client = bench(server.url, requests=20, concurrency=2)
        assert server.connections == 20
    assert all(r.ok for r in client.counted)
    summary = summarize(client.spec, client.counted, client.warmups, ClientFacts())
    assert not any("again" in note for note in summary.notes)


def test_a_request_is_never_sent_twice_once_an_answer_had_begun() -> None:
    with ScriptedServer(lambda request, n: [OK] if n == 0 else [b"H", FIN]) as server:
        client = bench(server.url, requests=2)
        assert len(server.requests) == 2
    assert [r.error for r in client.counted] == [None, records.TRUNCATED]


def test_a_fresh_connection_that_is_closed_is_not_tried_again() -> None:
    with ScriptedServer(lambda request, n: [FIN]) as server:
        bench(server.url, requests=3)
        assert len(server.requests) == 3


def test_without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")
    with ScriptedServer(lambda request, n: [OK]) as server:
        client = bench(server.url, requests=20, concurrency=4, warmup=4)
    assert isinstance(client.poller, PollPoller) and sum(r.ok for r in client.counted) == 20


# -- what is sent ----------------------------------------------------------------------------------


def prompts(server: ScriptedServer) -> list[str]:
    return [r.body["messages"][0]["content"] for r in server.requests]


def test_the_body_of_a_request() -> None:
    with ScriptedServer(lambda request, n: [OK]) as server:
        bench(server.url + "/v1/", extra_body={"top_k": 3})
        (request,) = server.requests
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.headers["host"] == server.url.removeprefix("http://")
    body = {k: v for k, v in request.body.items() if k != "messages"}
    assert body == {
        "model": "m",
        "max_tokens": 3,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "min_tokens": 3,
        "top_k": 3,
    }


def test_completions_endpoint() -> None:
    events = [event({"choices": [{"text": "a", "finish_reason": "length"}], "usage": usage(1, 3)})]
    with ScriptedServer(lambda request, n: [chunked(events)]) as server:
        client = bench(server.url, endpoint="completions")
        assert server.requests[0].line.startswith("POST /v1/completions ")
        assert server.requests[0].body["prompt"].startswith(f"[{unique_prompt_mark('ab', 'r/0')}] ")
    assert client.counted[0].ok


def test_no_two_prompts_share_their_front_and_two_runs_ask_the_same_words() -> None:
    seen = []
    for salt in ("aa", "bb"):
        with ScriptedServer(lambda request, n: [OK]) as server:
            spec = BenchSpec(
                server.url, "m", concurrency=2, requests=6, warmup=2, max_tokens=3, salt=salt
            )
            Client(spec, resolve_endpoint(spec), None, lambda r: None).run()
            seen.append(prompts(server))
    assert sorted(p[14:] for p in seen[0]) == sorted(p[14:] for p in seen[1])
    assert len({p[:6] for p in (*seen[0], *seen[1])}) == 16


def test_a_shared_prefix_on_request() -> None:
    with ScriptedServer(lambda request, n: [OK]) as server:
        bench(server.url, requests=3, shared_prefix=True)
        texts = prompts(server)
    assert len({t[:-14] for t in texts}) == 1 and len(set(texts)) == 3


def test_prompt_length_follows_the_tokens_that_the_warm_up_measured() -> None:
    def answer(request: Request, n: int) -> list[Step]:
        words = len(request.body["messages"][0]["content"].split())
        return [chunked(chat_events(3, prompt=3 * words))]

    with ScriptedServer(answer) as server:
        client = bench(server.url, requests=4, warmup=2, input_tokens=300)
    assert client.workload.calibrated
    assert all(abs((r.prompt_tokens or 0) - 300) <= 30 for r in client.counted)


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
def test_rejected_fields_are_dropped_with_a_note(status: str) -> None:
    def answer(request: Request, n: int) -> list[Step]:
        for name in ("ignore_eos", "min_tokens"):
            if name in request.body:
                return [
                    plain(
                        status,
                        {
                            "detail": [
                                {"loc": ["body", name], "msg": "Extra inputs are not permitted"}
                            ]
                        },
                    )
                ]
        return [chunked(chat_events(2))]

    with ScriptedServer(answer) as server:
        client = bench(server.url, requests=8, concurrency=4, warmup=4)
        assert all("ignore_eos" not in r.body for r in server.requests[-8:])
    assert client.workload.dropped == ["ignore_eos", "min_tokens"]
    assert all(r.ok and r.output_tokens == 2 for r in client.counted) and len(client.counted) == 8


def test_a_400_about_something_else_is_a_failure() -> None:
    with ScriptedServer(
        lambda request, n: [plain("400 Bad Request", {"error": "context too long"})]
    ) as server:
        client = bench(server.url)
        assert len(server.requests) == 2  # once more without usage in each chunk
    assert (client.counted[0].error, client.counted[0].detail) == ("http 400", "context too long")


def test_a_server_that_rejects_a_dropped_field_fails_in_bounded_time() -> None:
    with ScriptedServer(
        lambda request, n: [plain("400 Bad Request", {"error": "ignore_eos"})]
    ) as server:
        client = bench(server.url)
        assert len(server.requests) == 3
    assert client.counted[0].error == "http 400"


def test_a_long_prompt_is_sent_whole() -> None:
    with ScriptedServer(lambda request, n: [OK]) as server:
        client = bench(server.url, input_tokens=400_000)
        assert len(prompts(server)[0].split()) > 400_000
    assert client.counted[0].ok


def test_records_go_to_json_and_back() -> None:
    record = one([OK])
    assert from_json(RequestRecord, json.loads(json.dumps(record.as_json()))) == record


# -- bodies that are encoded, errors that look like none -------------------------------------------


@pytest.mark.parametrize(("name", "window"), [("gzip", 31), ("deflate", 15), ("GZIP", 31)])
@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_compressed_reply_is_read(name: str, window: int, cut: int) -> None:
    squeeze = zlib.compressobj(wbits=window)
    parts = [squeeze.compress(e) + squeeze.flush(zlib.Z_SYNC_FLUSH) for e in chat_events(3)]
    body = b"".join([*parts, squeeze.flush()])
    pieces = [body[i : i + cut] for i in range(0, len(body), cut)]
    with ScriptedServer(
        lambda request, n: [chunked(pieces, extra=f"Content-Encoding: {name}\r\n".encode())]
    ) as server:
        client = bench(server.url)
        assert server.requests[0].headers["accept-encoding"] == "identity"
    (record,) = client.counted
    assert (record.error, record.output_tokens, record.encoded) == (None, 3, True)
    notes = summarize(client.spec, client.counted, (), ClientFacts()).notes
    assert any(n.startswith("1 of 1 replies were compressed") for n in notes)


@pytest.mark.parametrize(
    ("name", "body", "kind", "said"),
    [
        ("br", [b"x"], records.MALFORMED, "Content-Encoding 'br', which Workbench cannot decode"),
        ("gzip", chat_events(3), records.MALFORMED, "the body of the answer is not valid gzip"),
        (
            "gzip",
            [gzip.compress(b"".join(chat_events(3)))[:-20]],
            records.TRUNCATED,
            "the answer, compressed with gzip, ended early",
        ),
    ],
)
def test_a_body_that_does_not_match_its_encoding_is_malformed(
    name: str, body: list[bytes], kind: str, said: str
) -> None:
    record = one([chunked(body, extra=f"Content-Encoding: {name}\r\n".encode())])
    assert record.error == kind and said in str(record.detail)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_object_without_the_key_error_keeps_its_message(stream: bool) -> None:
    error = {"object": "error", "message": "out of memory", "type": "Internal", "code": 500}
    steps = (
        [chunked([*chat_events(3)[:2], event(error), event(b"[DONE]")])]
        if stream
        else [plain("200 OK", error)]
    )
    record = one(steps, stream=stream)
    assert (record.error, record.detail) == (records.STREAM_ERROR, "out of memory")
