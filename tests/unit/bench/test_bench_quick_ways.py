"""The client's fast paths against its general code: both give the same results for any bytes in any
pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import chunk, usage

from workbench.bench import records
from workbench.bench.exchange import Exchange
from workbench.bench.http1 import HttpError, ResponseReader
from workbench.bench.reply import Reply
from workbench.bench.sse import SseDecoder, SseError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted({p % (len(data) + 1) for p in points}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


CUTS = st.lists(st.integers(0, 10**6), max_size=10)


def broken_in_places(draw: Callable[..., Any], data: bytes) -> bytes:
    """Return bytes with a few of them changed, inserted or removed."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from([b"", b"\n", b"\r", b"0", b'"', b"\\", b"\xff"]))
        data = data[:at] + what + data[at + draw(st.integers(0, 2)) :]
    return data


# -- chunked bodies --------------------------------------------------------------------------------


class Plodding(ResponseReader):
    """A reader without the fast path for complete chunks."""

    @staticmethod
    def _append_whole_chunks_and_find_end(data: bytes, out: list[bytes]) -> int:
        return 0


FRAME = st.one_of(
    st.binary(max_size=30).map(lambda p: b"%x\r\n%b\r\n" % (len(p), p)),
    st.binary(max_size=300).map(lambda p: b"%X\r\n%b\r\n" % (len(p), p)),
    st.binary(max_size=9).map(lambda p: b"%04x;name=value\r\n%b\r\n" % (len(p), p)),
    st.binary(max_size=9).map(lambda p: b" %x \r\n%b\r\n" % (len(p), p)),
    st.sampled_from(
        [
            b"0\r\n\r\n",
            b"0\r\nA: b\r\n\r\n",
            b"00\r\n\r\n",
            b"5\r\nab\r\n",
            b"-1\r\n",
            b"g\r\n",
            b"\r\n",
        ]
    ),
)


def read(reader: ResponseReader, pieces: list[bytes]) -> tuple[Any, ...]:
    body, failed = b"", None
    try:
        for piece in pieces:
            body += reader.feed(piece)
        if not reader.complete:
            reader.end_at_closed_connection()
    except HttpError as error:
        failed = (str(error), error.truncated)
    return (
        body if failed is None else None,
        failed,
        reader.complete,
        reader.keep_alive,
        reader.rest,
        reader.received,
    )


@settings(deadline=None, max_examples=100)
@given(data=st.data(), frames=st.lists(FRAME, max_size=8), ended=st.booleans(), points=CUTS)
def test_chunked_bodies(
    data: st.DataObject, frames: list[bytes], ended: bool, points: list[int]
) -> None:
    body = broken_in_places(data.draw, b"".join(frames) + (b"0\r\n\r\n" if ended else b""))
    pieces = cut(HEAD + body, points)
    assert read(ResponseReader(), pieces) == read(Plodding(), pieces)
    whole, *_ = read(ResponseReader(), [HEAD + body])
    assert whole == read(Plodding(), [bytes([b]) for b in HEAD + body])[0]


# -- events ----------------------------------------------------------------------------------------

BLOCK = st.one_of(
    st.sampled_from(
        ['{"a":1}', "[DONE]", "", " ", "data: x", "\u2028", "é😀", "\n", "x\ndata: y", "\n\n"]
    ).map(lambda t: b"data: " + t.encode() + b"\n\n"),
    st.binary(max_size=12).map(lambda b: b"data: " + b + b"\n\n"),
    st.sampled_from(
        [
            b"data:x\n\n",
            b"data\n\n",
            b": ping\n\n",
            b"event: error\ndata: x\n\n",
            b"error: x\n\n",
            b"\n\n",
        ]
    ),
)


def plain_events(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Parse the whole stream line by line as the standard says, with unfinished events and `error`
    fields as in SseDecoder."""
    events, name, data, errors = [], b"", [], []
    lines = (
        stream.removeprefix(b"\xef\xbb\xbf")
        .replace(b"\r\n", b"\n")
        .replace(b"\r", b"\n")
        .split(b"\n")
    )
    for line in [*lines, b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            events += [(name, b"\n".join(data))] if data else []
            events += [(b"error", one) for one in errors]
            name, data, errors = b"", [], []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            errors.append(value)
    return events


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    blocks=st.lists(BLOCK, max_size=8),
    points=CUTS,
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_events(data: st.DataObject, blocks: list[bytes], points: list[int], end: bytes) -> None:
    stream = broken_in_places(data.draw, b"".join(blocks).replace(b"\n", end))
    decoder = SseDecoder()
    events = [e for piece in cut(stream, points) for e in decoder.feed(piece)]
    assert events + decoder.close() == plain_events(stream)


# -- content chunks --------------------------------------------------------------------------------


class Forgetful(Reply):
    """A reply that parses every event."""

    def _store_bytes_around_text(self, data: bytes) -> None:
        pass


TEXT = st.one_of(
    st.sampled_from(
        ["", "a", " the", '"', "\\", 'a","finish_reason":"stop","x":"b', "\u2028", "\x7f", "\x00"]
    ),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=8),
)
EVENT = st.one_of(
    st.builds(lambda t: json.dumps(chunk({"content": t}), separators=(",", ":")).encode(), TEXT),
    st.builds(lambda t: json.dumps(chunk({"content": t}), ensure_ascii=False).encode(), TEXT),
    st.builds(
        lambda t: json.dumps(chunk({"reasoning_content": t, "content": None})).encode(), TEXT
    ),
    st.builds(
        lambda t: json.dumps(
            {"choices": [{"index": 0, "text": t, "finish_reason": None}]}
        ).encode(),
        TEXT,
    ),
    st.builds(lambda t: json.dumps(chunk({"tool_calls": [{"text": t}]})).encode(), TEXT),
    st.builds(
        lambda t: json.dumps({**chunk({"content": "a"}), "error": {"text": t}}).encode(), TEXT
    ),
    st.builds(lambda t: json.dumps({**chunk({"content": t}), "usage": usage(3, 1)}).encode(), TEXT),
    st.builds(lambda t: json.dumps(chunk({"content": t}, "length")).encode(), TEXT),
    st.builds(
        lambda t: (
            b'{"choices":[{"delta":{"content":"a"},"delta":{"content":"' + t.encode() + b'"}}]}'
        ),
        TEXT,
    ),
    st.sampled_from(
        [b"[DONE]", b" ", b"null", b"{", b'{"error":"x"}', b"\0abc", b"\0", b'{"choices":[{}]}']
    ),
)
NAME = st.sampled_from([b"", b"", b"", b"", b"error", b"message"])


def heard(reply: Reply, events: list[tuple[bytes, bytes]], batch: int) -> tuple[Any, ...]:
    for at in range(0, len(events), batch):
        reply.feed(events[at : at + batch], at + 1)
    reply.check_answer_and_set_error(2)
    return (
        list(reply.stamps_ns),
        reply.finish_reason,
        reply.done,
        reply.usage,
        reply.first_tokens,
        reply.error,
        reply.detail,
    )


@settings(deadline=None, max_examples=100)
@given(data=st.data(), pool=st.lists(EVENT, min_size=1, max_size=5), batch=st.integers(1, 4))
def test_content_chunks(data: st.DataObject, pool: list[bytes], batch: int) -> None:
    """A few forms of events that occur again and again, as in a real stream, some of them changed
    inside."""
    chosen = data.draw(st.lists(st.tuples(NAME, st.sampled_from(pool)), max_size=14))
    events = [
        (name, broken_in_places(data.draw, e) if data.draw(st.booleans()) else e)
        for name, e in chosen
    ]
    assert heard(Reply(), events, batch) == heard(Forgetful(), events, batch)


@pytest.mark.parametrize("data", [b"\0abc", b"\0", b"abc", b"\r"])
def test_first_events_before_any_content(data: bytes) -> None:
    reply = Reply()
    reply.feed([(b"", data)], 1)
    assert not reply.stamps_ns and reply.error == (None if data == b"\r" else records.MALFORMED)


def test_an_error_event_of_the_form_of_a_chunk_is_an_error_and_nothing_after_it_counts() -> None:
    good = json.dumps(chunk({"content": "a"})).encode()
    reply = Reply()
    reply.feed([(b"", good), (b"", good), (b"error", good), (b"", good)], 1)
    assert (len(reply.stamps_ns), reply.error) == (2, records.STREAM_ERROR)


# -- chunks that contain only text -----------------------------------------------------------------


class Parsing(Exchange):
    """An exchange that parses every read."""

    def _prepare_text_matching(self) -> None:
        pass


def taken(exchange: Exchange, pieces: list[bytes]) -> tuple[Any, ...]:
    failed: object = None
    try:
        for at, piece in enumerate(pieces, start=1):
            exchange.receive_bytes(piece, at)
            if exchange.response.complete:
                break
    except (HttpError, SseError) as error:
        failed = str(error)
    reply, response = exchange.reply, exchange.response
    seen = list(reply.stamps_ns), reply.finish_reason, reply.done, reply.error, reply.detail
    return *seen, response.received, response.complete, exchange.last_byte_ns, failed


@settings(deadline=None, max_examples=100)
@given(data=st.data(), pool=st.lists(EVENT, min_size=1, max_size=3))
def test_reads_of_chunks(data: st.DataObject, pool: list[bytes]) -> None:
    """Reads that contain one chunk each, as of a paced stream, some of them changed or cut inside,
    or several."""
    events = [
        b"data: " + e + b"\n\n" for e in data.draw(st.lists(st.sampled_from(pool), max_size=14))
    ]
    form = data.draw(st.sampled_from([b"%x\r\n%b\r\n", b"%X\r\n%b\r\n", b"%04x\r\n%b\r\n"]))
    chunks = [form % (len(e), e) for e in events]
    broken = [broken_in_places(data.draw, c) if data.draw(st.booleans()) else c for c in chunks]
    pieces = [
        EVENT_STREAM,
        *(
            p
            for c in broken
            for p in (cut(c, data.draw(CUTS)) if data.draw(st.booleans()) else [c])
        ),
    ]
    together = data.draw(st.integers(1, 4))
    pieces = [b"".join(pieces[at : at + together]) for at in range(0, len(pieces), together)]
    pieces = [p for p in pieces if p]
    assert taken(Exchange(0, False, b""), pieces) == taken(Parsing(0, False, b""), pieces)
