"""Tests of the HTTP/1.1 parser with bytes cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.http1 import HttpError, ResponseReader

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(p, len(data)) for p in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


CUTS = st.lists(st.integers(0, 400), max_size=12)


def read(pieces: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    return reader, b"".join(reader.feed(p) for p in pieces)


def chunked(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    frames = b"".join(b"%X%b\r\n%b\r\n" % (len(p), extension, p) for p in parts)
    return (
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        + frames
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


@given(
    parts=BODIES,
    points=CUTS,
    extension=st.sampled_from([b"", b";a=b"]),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
)
def test_chunked_body_whatever_the_cuts(
    parts: list[bytes], points: list[int], extension: bytes, trailer: bytes
) -> None:
    reader, body = read(cut(chunked(parts, extension, trailer), points))
    assert body == b"".join(parts)
    assert reader.complete and reader.keep_alive and reader.rest == b""
    reader.end_at_closed_connection()


@given(parts=BODIES, points=CUTS)
def test_sized_body_whatever_the_cuts(parts: list[bytes], points: list[int]) -> None:
    body = b"".join(parts)
    data = b"HTTP/1.1 200 OK\r\ncontent-length:%d\r\n\r\n%b" % (len(body), body)
    reader, seen = read(cut(data, points))
    assert seen == body and reader.complete and reader.status == 200


@given(parts=BODIES, points=CUTS)
def test_body_until_close(parts: list[bytes], points: list[int]) -> None:
    body = b"".join(parts)
    reader, seen = read(cut(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n" + body, points))
    assert seen == body and not reader.complete
    reader.end_at_closed_connection()
    assert reader.complete and not reader.keep_alive


@given(parts=BODIES.filter(bool), points=CUTS, missing=st.integers(1, 60))
def test_a_body_that_ends_early_is_truncated(
    parts: list[bytes], points: list[int], missing: int
) -> None:
    data = chunked(parts)
    reader, _ = read(cut(data[: max(1, len(data) - missing)], points))
    with pytest.raises(HttpError) as caught:
        reader.end_at_closed_connection()
    assert caught.value.truncated


@given(data=st.binary(max_size=200), points=CUTS)
def test_any_bytes_end_in_a_body_or_an_http_error(data: bytes, points: list[int]) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        reader = ResponseReader()
        try:
            for piece in cut(start + data, points):
                reader.feed(piece)
            reader.end_at_closed_connection()
        except HttpError:
            continue
        assert reader.complete


def test_interim_responses_are_passed_over() -> None:
    reader, body = read(
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]
    )
    assert (reader.status, body, reader.complete) == (200, b"ok", True)


def test_bytes_beyond_the_end_are_kept_apart() -> None:
    reader, body = read([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1"])
    assert (body, reader.rest) == (b"ok", b"HTTP/1.1")
    reader, body = read([chunked([b"ab"]) + b"more"])
    assert (body, reader.rest) == (b"ab", b"more")


def test_connection_close_is_heard() -> None:
    reader, _ = read([b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n"])
    assert reader.complete and not reader.keep_alive
    reader, _ = read([b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"])
    assert reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
    ],
)
def test_answers_that_are_not_http_are_malformed(data: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        read([data])
    assert not caught.value.truncated
    with pytest.raises(HttpError):
        read([data[i : i + 97] for i in range(0, len(data), 97)])


def test_close_before_the_head_is_truncated() -> None:
    reader = ResponseReader()
    with pytest.raises(HttpError, match="without a response") as caught:
        reader.end_at_closed_connection()
    assert caught.value.truncated
    reader.feed(b"HTTP/1.1 200")
    with pytest.raises(HttpError, match="middle of the response head"):
        reader.end_at_closed_connection()
