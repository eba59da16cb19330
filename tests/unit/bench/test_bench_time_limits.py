"""Tests of the time limits of a request, a silence and a run, with a clock that the tests set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import SILENCE, ScriptedServer, chat_events, chunked

from workbench.bench import records
from workbench.bench import time_limits as limits_module
from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.exchange import Exchange
from workbench.bench.time_limits import MAX_RUN_TIMEOUT_S, RUN_TIMEOUT_S, TimeLimits
from workbench.model.bench import BenchSpec
from workbench.session.bench.spec import spec_from_fields

S = 1_000_000_000


def exchange(*stamps_s: float, began_s: float = 0.0) -> Exchange:
    one = Exchange(0, False, b"{}")
    one.began_ns = one.sent_ns = one.last_byte_ns = int(began_s * S)
    one.reply.stamps_ns.extend(int(s * S) for s in stamps_s)
    if stamps_s:
        one.last_byte_ns = int(stamps_s[-1] * S)
    return one


def spec(**fields: Any) -> BenchSpec:
    return BenchSpec("http://127.0.0.1:1", "m", **{"concurrency": 1, "input_tokens": 1, **fields})


@given(tok_s=st.floats(0.2, 200))
def test_a_reply_that_keeps_coming_has_no_time_limit(tok_s: float) -> None:
    """500 tokens at 3.17 tok/s take 158 s."""
    stamps = [i / tok_s for i in range(1, 500)]
    limits = TimeLimits(spec())
    assert (
        limits.exceeded_limit_failure(exchange(*stamps), int((stamps[-1] + 0.9 / tok_s) * S))
        is None
    )


@given(tok_s=st.floats(0.2, 200), chunks=st.integers(2, 50))
def test_a_silence_in_a_reply_ends_it(tok_s: float, chunks: int) -> None:
    stamps = [i / tok_s for i in range(1, chunks)]
    limits, quiet_s = TimeLimits(spec()), max(60.0, 100 / tok_s)
    assert (
        limits.exceeded_limit_failure(exchange(*stamps), int((stamps[-1] + 0.98 * 60) * S)) is None
    )
    found = limits.exceeded_limit_failure(
        exchange(*stamps), int((stamps[-1] + 1.02 * quiet_s + 1) * S)
    )
    assert found is not None and found[0] == records.STALL


def test_before_the_first_token_others_that_get_theirs_keep_a_request_waiting() -> None:
    limits = TimeLimits(spec())
    waiting, served = exchange(), exchange(100.0, 200.0)
    assert limits.exceeded_limit_failure(waiting, 119 * S) is None
    assert limits.exceeded_limit_failure(waiting, 121 * S) == (
        records.TIMEOUT,
        "the request got no first token for 120.02 s, and no other request got a token either",
    )
    limits.update_newest_content_time([waiting, served])
    assert (
        limits.exceeded_limit_failure(waiting, 319 * S) is None
        and limits.exceeded_limit_failure(waiting, 321 * S) is not None
    )


def test_long_prompts_have_longer_until_the_first_token() -> None:
    long = TimeLimits(spec(concurrency=4, input_tokens=8192))
    assert (
        long.exceeded_limit_failure(exchange(), 700 * S) is None
        and long.exceeded_limit_failure(exchange(), 900 * S) is not None
    )
    own = TimeLimits(spec(prompts=('"' + "x" * 100_000 + '"',)))
    assert own.exceeded_limit_failure(exchange(), 600 * S) is None


def test_given_limits_hold_as_they_are() -> None:
    limits = TimeLimits(spec(timeout_s=10.0, stall_s=2.0, deadline_s=30.0))
    assert limits.exceeded_limit_failure(exchange(1.0, 2.0, 9.5), 10 * S) is None
    assert limits.exceeded_limit_failure(exchange(1.0, 2.0, 9.5), 11 * S) == (
        records.TIMEOUT,
        "the reply was not complete after 10 s and 3 chunks",
    )
    assert limits.exceeded_limit_failure(exchange(1.0), 4 * S) == (
        records.STALL,
        "the server sent no byte for 2 s after 1 chunks",
    )
    assert not limits.is_run_over(30.0, lambda: 0.9) and limits.is_run_over(30.1, lambda: 0.9)


def test_a_reply_without_end_is_ended() -> None:
    limits = TimeLimits(spec())
    assert limits.endless_reply_failure(5000, 500) is None
    assert limits.endless_reply_failure(5001, 500) == (
        records.LONG_ANSWER,
        "5001 chunks arrived, although 500 tokens were requested",
    )


@given(needs_s=st.floats(100, 100_000))
def test_a_run_has_the_time_that_its_pace_asks_for(needs_s: float) -> None:
    """A run at an even pace is not cut off, unless it would take longer than four hours."""
    limits = TimeLimits(spec())
    at = 0.0
    while at < needs_s:
        if limits.is_run_over(at, lambda share=at / needs_s: share):
            assert needs_s > MAX_RUN_TIMEOUT_S and at >= RUN_TIMEOUT_S
            return
        at += 60.0
    assert needs_s <= MAX_RUN_TIMEOUT_S + 60


def test_a_run_by_time_has_that_time_and_its_tail() -> None:
    limits = TimeLimits(spec(seconds=7200.0))
    assert not limits.is_run_over(7200 + 1799, lambda: 0.1) and limits.is_run_over(
        7200 + 1801, lambda: 0.1
    )


@contextmanager
def scaled(factor: float) -> Iterator[None]:
    """Multiply all time limits by a factor."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_TOKEN_TIMEOUT_S", "STALL_TIMEOUT_S", "RUN_TIMEOUT_S"):
            patch.setattr(limits_module, name, getattr(limits_module, name) / factor)
        yield


def slow(tokens: int) -> Any:
    """Answer token by token, 20 ms apart."""

    def steps(*_: object) -> Iterator[bytes | str]:
        head, *events = chat_events(tokens)
        yield chunked([head], end=False)
        for one in events:
            time.sleep(0.02)
            yield b"%x\r\n%b\r\n" % (len(one), one)
        yield b"0\r\n\r\n"

    return steps


@pytest.mark.slow
def test_a_slow_server_finishes_the_document_profile() -> None:
    """Scaled by 1000: a request takes 0.24 s where the old limit was 0.12 s, and the run 2.4 s
    instead of 1.8 s."""
    with scaled(1000), ScriptedServer(slow(10)) as server:
        options = {"profile": "document", "max_tokens": 10, "content": "words"}
        asked = replace(spec_from_fields(None, options), url=server.url, model="m")
        client = Client(asked, resolve_endpoint(asked), None, lambda record: None)
        client.run()
    assert [r.error for r in client.counted] == [None] * 10


def test_a_dead_server_does_not_hold_a_run() -> None:
    with scaled(1000), ScriptedServer(lambda request, n: [SILENCE]) as server:
        asked = BenchSpec(
            server.url, "m", concurrency=2, requests=4, max_tokens=10, input_tokens=1, warmup=0
        )
        client = Client(asked, resolve_endpoint(asked), None, lambda record: None)
        client.run()
    assert [r.error for r in client.counted] == [records.TIMEOUT] * 4
