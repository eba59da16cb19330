"""Tests of server-sent events cut anywhere, against a decoder that gets the whole stream at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.sse import SseDecoder, SseError

LINE = st.one_of(
    st.sampled_from(
        [
            "data: x",
            "data:y",
            "data: ",
            "data",
            ": ping",
            ":",
            "event: error",
            "event:",
            "id: 7",
            "retry: 10",
            'data: {"content": "\u2028\u2029\u0085é漢😀"}',
            "data: [DONE]",
            "",
            "",
            "",
        ]
    ),
    st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12),
)
STREAM = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n", "\r"])), max_size=30)


def reference(text: str) -> list[tuple[bytes, bytes]]:
    """Apply the standard's algorithm to a whole stream, line by line, with `error` fields and an
    unfinished event as in SseDecoder."""
    events, name, data, errors = [], "", [], []
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in [*lines, ""]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                events.append((name.encode(), "\n".join(data).encode()))
            events += [(b"error", e.encode()) for e in errors]
            name, data, errors = "", [], []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "error":
            errors.append(value)
    return events


@given(lines=STREAM, bom=st.booleans(), points=st.lists(st.integers(0, 500), max_size=15))
def test_whatever_the_cuts_and_line_ends(
    lines: list[tuple[str, str]], bom: bool, points: list[int]
) -> None:
    text = ("\ufeff" if bom else "") + "".join(line + end for line, end in lines)
    data = text.encode()
    edges = [0, *sorted(min(p, len(data)) for p in points), len(data)]
    decoder = SseDecoder()
    events = [e for a, b in itertools.pairwise(edges) for e in decoder.feed(data[a:b])]
    assert events + decoder.close() == reference(text)


@given(lines=STREAM)
def test_byte_by_byte(lines: list[tuple[str, str]]) -> None:
    text = "".join(line + end for line, end in lines)
    decoder = SseDecoder()
    events = [e for byte in text.encode() for e in decoder.feed(bytes([byte]))]
    assert events + decoder.close() == reference(text)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_an_event_is_given_as_soon_as_its_blank_line_is_in(end: bytes) -> None:
    assert SseDecoder().feed(b"data: a" + end) == [(b"", b"a")]


def test_lines_of_data_are_joined() -> None:
    assert SseDecoder().feed(b"data: a\ndata:  b\n\n") == [(b"", b"a\n b")]


def test_an_event_without_end_is_given_up() -> None:
    decoder = SseDecoder()
    with pytest.raises(SseError):
        for _ in range(40):
            decoder.feed(b"data: " + b"x" * 1_000_000)
