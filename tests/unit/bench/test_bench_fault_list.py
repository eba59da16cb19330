"""Every fault of a server, over plain and TLS sockets. Hypothesis chooses which replies of a run
fail, how, and where their bytes are cut.

Each fault is counted once under its own kind, no token is lost or counted twice, the run ends, and
a comparison with it has a warning. Silence has its own test, since only there a time limit decides.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
    usage,
)
from support import made_results
from test_bench_tls import certificate

from workbench.bench import records
from workbench.bench.client import Client
from workbench.bench.compare import compare
from workbench.bench.connection import resolve_endpoint
from workbench.bench.records import SILENT_SERVER_KINDS, RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.summary import summarize
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import BenchSpec, BenchSummary
from workbench.model.json_records import from_json

TOKENS = 5
# role, five of content (the last with the finish reason), usage, [DONE]
EVENTS = chat_events(TOKENS)
FINISHED = EVENTS[1 + TOKENS :]
CLOSING = HEAD + b"Connection: close\r\n\r\n"
OK = None


class Played(NamedTuple):
    """The answer to one request, and what its record must contain. `chunks` and `tokens` are exact;
    None means at most as many as were sent (a reset may lose bytes), or unknown."""

    steps: tuple[Step, ...]
    kind: str | None
    chunks: int | None = None
    tokens: int | None = None


def good(data: bytes, end: tuple[Step, ...] = ()) -> Played:
    return Played((data, *end), OK, TOKENS, TOKENS)


def after(
    n: int, kind: str, *more: bytes, end: tuple[Step, ...] = (), chunks: int | None = -1
) -> Played:
    """Return `n` chunks with content, followed by the fault."""
    data = chunked([*EVENTS[: 1 + n], *more], end=not end)
    return Played((data, *end), kind, n if chunks == -1 else chunks)


def refusal(status: str, body: Any) -> Played:
    return Played((plain(status, body),), f"http {status[:3]}", 0)


def with_line_ends(end: bytes) -> Played:
    return good(chunked([e.replace(b"\n", end) for e in EVENTS]))


def odd_text(text: str) -> Played:
    said = [event(chunk({"content": text})) for _ in range(TOKENS - 1)]
    return good(chunked([EVENTS[0], *said, EVENTS[TOKENS], *FINISHED]))


def other_kinds() -> Played:
    """Return content of every kind: reasoning, a tool call, a refusal and text."""
    call = [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    ]
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": call},
        {"refusal": "no"},
    ]
    return good(chunked([EVENTS[0], *(event(chunk(d)) for d in deltas), EVENTS[TOKENS], *FINISHED]))


USAGE_BESIDE = event({**chunk({"content": "x"}, "length"), "usage": usage(20, TOKENS)})
RUNNING_USAGE = [
    event({**chunk({"content": "x"}), "usage": usage(20, n)}) for n in range(1, TOKENS)
]
EMPTY = [
    event(chunk({})),
    event(chunk({"content": ""})),
    event(chunk({"content": None})),
    event({"choices": []}),
]
TRAILED = chunked(EVENTS, end=False) + b"0\r\nX-Trailer: 1\r\n\r\n"
EXTENDED = (
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x;n=%d\r\n%b\r\n" % (len(e), i, e) for i, e in enumerate(EVENTS))
    + b"0\r\n\r\n"
)

# Item of the list -> how it is played; `n` is how many content chunks come before.
FAULTS: dict[str, Callable[[int], Played]] = {
    "reset after n tokens": lambda n: after(n, records.CONNECTION_RESET, end=(RST,), chunks=None),
    "reset before any byte": lambda n: Played((RST,), records.CONNECTION_RESET, 0),
    "closed before any byte": lambda n: Played((FIN,), records.CONNECTION_RESET, 0),
    "closed in the response head": lambda n: Played((HEAD[: 1 + 7 * n], FIN), records.TRUNCATED, 0),
    "closed in mid-stream, chunked": lambda n: after(n, records.TRUNCATED, end=(FIN,)),
    "closed in mid-stream, sized": lambda n: Played(
        (sized(EVENTS)[: -1 - n], FIN), records.TRUNCATED
    ),
    "closed in mid-stream, no length": lambda n: Played(
        (CLOSING + b"".join(EVENTS[: 1 + n]), FIN), records.TRUNCATED, n
    ),
    "closed without [DONE], no length": lambda n: Played(
        (CLOSING + b"".join(EVENTS[:-1]), FIN), records.TRUNCATED, TOKENS, TOKENS
    ),
    "closed before the last chunk": lambda n: Played(
        (chunked(EVENTS, end=False), FIN), records.TRUNCATED, TOKENS, TOKENS
    ),
    "401": lambda n: refusal("401 Unauthorized", {"error": {"message": "no key"}}),
    "404": lambda n: refusal("404 Not Found", {"detail": "no such model"}),
    "429": lambda n: refusal("429 Too Many Requests", {"error": "slow down"}),
    "500": lambda n: refusal("500 Internal Server Error", b""),
    "503": lambda n: refusal("503 Service Unavailable", b"<html>\xff</html>"),
    "an error page of 200": lambda n: Played(
        (plain("200 OK", {"error": {"message": "x"}}),), records.STREAM_ERROR, 0
    ),
    "malformed JSON": lambda n: after(
        n, records.MALFORMED, event(b'{"choices": [{"del'), *FINISHED
    ),
    "JSON cut by a line end": lambda n: after(
        n, records.MALFORMED, b'data: {"choices":\n\ndata: []}\n\n', *FINISHED
    ),
    "not UTF-8": lambda n: after(
        n, records.MALFORMED, event(b'{"choices":[{"delta":{"content":"\xc3("}}]}'), *FINISHED
    ),
    "not a chunk": lambda n: after(n, records.MALFORMED, event(b'{"choices": [7]}'), *FINISHED),
    "an error object": lambda n: after(
        n, records.STREAM_ERROR, event({"error": {"message": "CUDA"}}), *FINISHED
    ),
    "an error event": lambda n: after(
        n, records.STREAM_ERROR, b'event: error\ndata: "gone"\n\n', event(b"[DONE]")
    ),
    "an error field": lambda n: after(n, records.STREAM_ERROR, b'error: {"message":"slot"}\n\n'),
    "an error, then a reset": lambda n: after(
        n, records.STREAM_ERROR, event({"error": "x"}), end=(b"", FIN)
    ),
    "aborted by the engine": lambda n: after(
        n, records.STREAM_ERROR, event(chunk({}, "abort")), *FINISHED, chunks=n
    ),
    "a chunk size that is none": lambda n: Played(
        (chunked(EVENTS[: 1 + n], end=False) + b"zz\r\n", FIN), records.MALFORMED
    ),
    "too few tokens": lambda n: Played(
        (chunked(chat_events(TOKENS - 1)),), records.SHORT_ANSWER, TOKENS - 1, TOKENS - 1
    ),
    "too many tokens": lambda n: Played(
        (chunked(chat_events(TOKENS + 2)),), records.LONG_ANSWER, TOKENS + 2, TOKENS + 2
    ),
    "[DONE] in place of the rest": lambda n: after(min(n, 4), records.TRUNCATED, event(b"[DONE]")),
    "no answer but an end": lambda n: Played((chunked([]),), records.TRUNCATED, 0),
}

# What is odd and right.
ODD: dict[str, Callable[[int], Played]] = {
    "plain": lambda n: good(chunked(EVENTS)),
    "sized": lambda n: good(sized(EVENTS)),
    "until close": lambda n: good(CLOSING + b"".join(EVENTS), (FIN,)),
    "missing [DONE]": lambda n: good(chunked(EVENTS[:-1])),
    "CRLF": lambda n: with_line_ends(b"\r\n"),
    "CR": lambda n: with_line_ends(b"\r"),
    "raw U+2028, U+2029, U+0085": lambda n: odd_text("\u2028\u2029\u0085"),
    "characters of four bytes": lambda n: odd_text("😀é漢"),
    "text like the protocol's": lambda n: odd_text('\n\ndata: [DONE]\n\n"error": 0\r\n'),
    "comments and keep-alives": lambda n: good(
        chunked([b": ping\n\n" + e + b":\n\n" for e in EVENTS])
    ),
    "an early role-only chunk": lambda n: good(
        chunked([EVENTS[0], b": wait\n\n", EVENTS[0], *EVENTS[1:]])
    ),
    "no role chunk": lambda n: good(chunked(EVENTS[1:])),
    "empty deltas": lambda n: good(
        chunked([e for one in EVENTS[:-1] for e in (*EMPTY, one)] + EVENTS[-1:])
    ),
    "content of any kind": lambda n: other_kinds(),
    "usage only at the end": lambda n: good(chunked(EVENTS)),
    "usage beside the last chunk": lambda n: good(
        chunked([*EVENTS[:TOKENS], USAGE_BESIDE, EVENTS[-1]])
    ),
    "usage in every chunk": lambda n: good(
        chunked([EVENTS[0], *RUNNING_USAGE, EVENTS[TOKENS], *FINISHED])
    ),
    "no usage at all": lambda n: Played(
        (chunked([*EVENTS[: 1 + TOKENS], EVENTS[-1]]),), OK, TOKENS, None
    ),
    "trailers": lambda n: good(TRAILED),
    "chunk extensions": lambda n: good(EXTENDED),
    "an interim answer": lambda n: good(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(EVENTS)),
    "all in one chunk": lambda n: good(chunked([b"".join(EVENTS)])),
    "a byte a chunk": lambda n: good(chunked([bytes([b]) for e in EVENTS for b in e])),
    "kept connection closed": lambda n: good(
        chunked(EVENTS, extra=b"Connection: close\r\n"), (FIN,)
    ),
}

_TLS: list[tuple[ssl.SSLContext, Path]] = []


@pytest.fixture(params=["http", "https"])
def tls(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    if request.param == "http":
        return None
    if not _TLS:
        pem = certificate(tmp_path_factory.mktemp("tls"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        _TLS.append((context, pem))
    monkeypatch.setenv("SSL_CERT_FILE", str(_TLS[0][1]))
    return _TLS[0][0]


def in_segments(steps: Iterable[Step], points: list[int]) -> list[Step]:
    """Return the same bytes in separate pieces, each piece cut at these places."""
    pieces: list[Step] = []
    for step in steps:
        if not isinstance(step, bytes):
            pieces.append(step)
        elif step:
            edges = [0, *sorted({p % len(step) for p in points} - {0}), len(step)]
            pieces += [step[a:b] for a, b in pairwise(edges)]
    return pieces


def run(
    scripts: list[list[Step]], tls: ssl.SSLContext | None = None, **fields: Any
) -> list[RequestRecord]:
    """Make one request for each script, in order."""
    given = {"concurrency": 3, "timeout_s": 30.0, "stall_s": 30.0, **fields}
    marks = {unique_prompt_mark("ab", f"r/{i}"): script for i, script in enumerate(scripts)}

    def answer(request: Request, n: int) -> list[Step]:
        found = re.search(r"\[(\d{12})\]", request.body["messages"][0]["content"])
        assert found
        return marks[found[1]]

    with ScriptedServer(answer, tls) as server:
        spec = BenchSpec(
            server.url, "m", salt="ab", requests=len(scripts), warmup=0, max_tokens=TOKENS, **given
        )
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    if "timeout_s" not in fields and "stall_s" not in fields:
        silent = [r for r in client.counted if r.error in SILENT_SERVER_KINDS]
        assert not silent, "no limit of time was needed"
    assert sorted(r.index for r in client.counted) == list(range(len(scripts)))
    return sorted(client.counted, key=lambda r: r.index)


def check(record: RequestRecord, played: Played) -> None:
    assert record.error == played.kind, (record, played)
    assert record.error is None or record.detail
    if played.chunks is not None:
        assert record.chunks == played.chunks
    assert record.chunks <= TOKENS + 2 and len(record.gaps_us) == max(0, record.chunks - 1)
    if record.ok or played.tokens is not None:
        assert record.output_tokens == played.tokens
    assert from_json(RequestRecord, json.loads(json.dumps(record.as_json()))) == record


def summary_of(found: list[RequestRecord]) -> BenchSummary:
    return summarize(BenchSpec("http://x", "m", concurrency=3), found, (), ClientFacts())


def compared_warnings(summary: BenchSummary) -> str:
    """Return the warnings of a comparison of this run with a clean one."""
    clean = made_results.result(1)
    comparison = compare(clean, replace(made_results.result(2), summary=summary))
    assert comparison.like_for_like == (not comparison.warnings)
    return "\n".join(comparison.warnings)


CUTS = st.lists(st.integers(0, 10**6), max_size=5)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    chosen=st.lists(
        st.tuples(st.sampled_from(sorted({**FAULTS, **ODD})), st.integers(0, TOKENS), CUTS),
        min_size=1,
        max_size=12,
    )
)
def test_any_mixture_of_faults_cut_anywhere(
    tls: ssl.SSLContext | None, chosen: list[tuple[str, int, list[int]]]
) -> None:
    all_of_them = {**FAULTS, **ODD}
    played = [all_of_them[name](n) for name, n, _ in chosen]
    found = run(
        [in_segments(one.steps, cuts) for one, (_, _, cuts) in zip(played, chosen, strict=True)],
        tls,
    )
    for record, one in zip(found, played, strict=True):
        check(record, one)

    summary = summary_of(found)
    kinds = Counter(one.kind for one in played if one.kind)
    assert (summary.errors, summary.requests_failed) == (dict(kinds), sum(kinds.values()))
    right = [one.tokens for one in played if one.kind is None]
    assert summary.requests_ok == len(right)
    assert summary.output_tokens == (
        sum(t for t in right if t) if right and None not in right else None
    )
    warnings = compared_warnings(summary)
    assert all(f"{n} {kind}" in warnings for kind, n in kinds.items())
    assert f"{len(played) - len(right)} of {len(played)} requests failed" in warnings or not kinds


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({**FAULTS, **ODD}))
def test_each_of_them(name: str, tls: ssl.SSLContext | None) -> None:
    """Every fault after every number of tokens, each reply in one piece and byte by byte."""
    played = [{**FAULTS, **ODD}[name](n) for n in range(TOKENS + 1)]
    scripts = [
        in_segments(one.steps, points) for one in played for points in ([], list(range(400)))
    ]
    for record, one in zip(
        run(scripts, tls), [one for one in played for _ in range(2)], strict=True
    ):
        check(record, one)


def test_unusual_but_valid_replies_give_notes() -> None:
    found = run(
        [list(ODD[name](0).steps) for name in ("missing [DONE]", "no usage at all", "plain")]
    )
    notes = summary_of(found).notes
    assert "1 of 3 replies had no [DONE], but their bodies were complete" in notes
    assert "1 of 3 replies had no token usage, and chunks are not tokens" in notes


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(where=st.lists(st.integers(0, 10**6), min_size=12, max_size=24))
def test_silence_after_any_byte(tls: ssl.SSLContext | None, where: list[int]) -> None:
    """A stall once content has arrived, otherwise the request's timeout. All run at once, so that
    the limit passes only once."""
    whole = chunked(EVENTS)
    # where the first content is complete
    first = whole.index(b"\n\n", whole.index(b'"content":" t0"')) + 2
    counted = [at % len(whole) for at in where]
    scripts: list[list[Step]] = [[whole[:at], SILENCE] if at else [SILENCE] for at in counted]
    found = run(scripts, tls, concurrency=len(scripts), timeout_s=1.5, stall_s=0.4)
    for record, at in zip(found, counted, strict=True):
        assert record.error == (records.STALL if at >= first else records.TIMEOUT), at
        assert record.chunks <= TOKENS and record.detail
    assert summary_of(found).requests_ok == 0


def test_keep_alives_for_ever_do_not_hold_up_a_run(tls: ssl.SSLContext | None) -> None:
    """Bytes arrive all the time but never an answer: the request's limit ends it."""
    drip: list[Step] = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"5\r\n: hm\n\r\n" * 3]

    class Endless(list[Step]):
        def __iter__(self) -> Any:
            yield from drip
            until = time.monotonic() + 20
            while time.monotonic() < until:
                time.sleep(0.02)
                yield b"2\r\n:\n\r\n"

    (record,) = run([Endless()], tls, timeout_s=0.5, stall_s=0.2)
    assert (record.error, record.chunks) == (records.TIMEOUT, 0)


def test_a_reply_without_end_is_ended(tls: ssl.SSLContext | None) -> None:
    """Content without end and without a finish reason: counted as far as it came, and failed."""

    class Endless(list[Step]):
        def __iter__(self) -> Any:
            yield HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
            until = time.monotonic() + 20
            while time.monotonic() < until:
                time.sleep(0.005)
                yield b"%x\r\n%b\r\n" % (len(EVENTS[1]), EVENTS[1])

    (record,) = run_unchecked(Endless(), tls)
    assert record.error == records.TIMEOUT and record.chunks > 1 and record.output_tokens is None


def run_unchecked(script: list[Step], tls: ssl.SSLContext | None) -> list[RequestRecord]:
    return run([script], tls, timeout_s=0.5, stall_s=0.4)
