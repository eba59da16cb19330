"""Tests of the steady window: nothing is counted by whole requests, and the rate is the server's
with all streams in flight."""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from truth_server import TruthProcess

from workbench.bench.records import RequestRecord
from workbench.bench.runner import run_load
from workbench.bench.schedule import stagger_duration_s
from workbench.bench.steady_window import (
    Window,
    choose_rate_window,
    count_requests_in,
    count_tokens_in,
    mean_requests_in_flight,
    request_end_s,
)
from workbench.model.bench import BenchSpec

TTFT_S, ITL_S = 0.05, 0.01
SPEC = BenchSpec("http://127.0.0.1:1", "m", concurrency=4, requests=64)


def reply(index: int, start_s: float, tokens: int, **fields: Any) -> RequestRecord:
    gap_us = round(ITL_S * 1e6)
    base = RequestRecord(
        index=index,
        warmup=False,
        start_s=start_s,
        end_us=round(TTFT_S * 1e6) + gap_us * (tokens - 1),
        ttft_us=round(TTFT_S * 1e6),
        gaps_us=(gap_us,) * (tokens - 1),
        chunks=tokens,
        prompt_tokens=10,
        output_tokens=tokens,
        finish_reason="length",
    )
    return replace(base, **fields)


def closed_loop(streams: int, lengths: list[int], stagger: float) -> list[RequestRecord]:
    """Return records of a server with a fixed pace: each stream starts its next request when the
    previous one has ended."""
    free = [stagger * i / streams for i in range(streams)]
    made = []
    for index, tokens in enumerate(lengths):
        stream = min(range(streams), key=lambda s: free[s])
        made.append(reply(index, free[stream], tokens))
        free[stream] = request_end_s(made[-1])
    return made


def rate(spec: BenchSpec, made: list[RequestRecord], ramp_end_s: float = 0.0) -> float:
    window = choose_rate_window(spec, made, ramp_end_s)
    assert window.name == "steady"
    return (count_tokens_in(window, made) or 0) / window.seconds


@pytest.mark.parametrize("rounds", [4, 8, 16])
@pytest.mark.parametrize("spread", [0.0, 0.2, 0.5])
def test_the_rate_is_the_steady_one_and_unbiased(rounds: int, spread: float) -> None:
    """Compared with the simulated pace, over many seeds. The rate over the whole run is 3 to 25 %
    below it."""
    streams, mean_length, seeds = 16, 100, 40
    truth = streams * mean_length / (TTFT_S + (mean_length - 1) * ITL_S)
    spec = replace(SPEC, concurrency=streams, requests=rounds * streams)
    steady, whole = [], []
    for seed in range(seeds):
        draw = random.Random(seed)
        low, high = round(mean_length * (1 - spread)), round(mean_length * (1 + spread))
        made = closed_loop(streams, [draw.randint(low, high) for _ in range(spec.requests)], 1.0)
        steady.append(rate(spec, made, ramp_end_s=15 / 16) / truth)
        whole.append(
            sum(r.output_tokens or 0 for r in made) / max(map(request_end_s, made)) / truth
        )
    assert sum(steady) / seeds == pytest.approx(1.0, abs=0.01)
    assert max(abs(s - 1) for s in steady) < 0.04
    assert sum(whole) / seeds < 1 - 0.5 / rounds


def test_requests_per_second_do_not_depend_on_who_ends_inside() -> None:
    """Streams in step: three rounds end inside the window, but two rounds fit into it."""
    made = closed_loop(4, [100] * 16, 0.0)
    spec = replace(SPEC, requests=16)
    window = choose_rate_window(spec, made)
    assert window.seconds == pytest.approx(2 * 1.04)
    assert count_requests_in(window, made) / window.seconds == pytest.approx(4 / 1.04)
    assert (count_tokens_in(window, made) or 0) / window.seconds == pytest.approx(4 * 100 / 1.04)


PARTS = st.lists(st.floats(0, 20), min_size=1, max_size=6, unique=True)


@given(
    cuts=PARTS,
    tokens=st.integers(1, 30),
    first=st.sampled_from([None, 1, 3]),
    form=st.sampled_from(["chunks", "one chunk", "no chunks"]),
)
def test_no_token_is_lost_or_counted_twice(
    cuts: list[float], tokens: int, first: int | None, form: str
) -> None:
    """Adjacent windows together contain all tokens and requests of the run, wherever they are cut."""
    made = [reply(i, float(i), tokens, first_tokens=first) for i in range(3)]
    if form == "one chunk":
        made = [replace(r, gaps_us=(), chunks=1) for r in made]
    elif form == "no chunks":
        made = [replace(r, gaps_us=(), chunks=0, ttft_us=None) for r in made]
    edges = [-1.0, *sorted(cuts), 21.0]
    windows = [Window("steady", a, b) for a, b in pairwise(edges)]
    assert sum(count_tokens_in(w, made) or 0 for w in windows) == pytest.approx(3 * tokens)
    assert sum(count_requests_in(w, made) for w in windows) == pytest.approx(3)
    in_flight = sum((mean_requests_in_flight(w, made) or 0) * w.seconds for w in windows)
    assert in_flight == pytest.approx(sum(r.end_us for r in made) / 1e6)


def test_too_few_requests_are_a_whole_run() -> None:
    made = closed_loop(4, [100] * 15, 1.0)
    window = choose_rate_window(replace(SPEC, requests=15), made, 0.75)
    assert (window.name, window.begin_s) == ("whole run", 0.0)
    assert window.end_s == max(map(request_end_s, made))
    assert window.why == "a steady window needs 16 requests (4 per stream)"


def test_one_stream_has_neither_ramp_nor_tail() -> None:
    made = closed_loop(1, [10, 10], 0.0)
    window = choose_rate_window(replace(SPEC, concurrency=1, requests=2), made)
    assert (window.name, window.begin_s, window.end_s) == ("steady", 0.0, pytest.approx(0.28))
    assert mean_requests_in_flight(window, made) == pytest.approx(1.0)


def test_an_open_loop_takes_two_mean_requests() -> None:
    spec = replace(SPEC, rate=10.0)
    made = [reply(i, i / 10, 50, due_s=i / 10) for i in range(30)]
    window = choose_rate_window(spec, made)
    assert (window.name, window.begin_s, window.end_s) == (
        "steady",
        pytest.approx(0.54),
        pytest.approx(2.9),
    )
    assert (count_tokens_in(window, made) or 0) / window.seconds == pytest.approx(500, rel=0.02)
    assert choose_rate_window(spec, made[:10]).name == "whole run"


def test_without_success_there_is_no_steady_window() -> None:
    assert choose_rate_window(SPEC, []).why == "no request was made"
    bad = [replace(r, error="reset") for r in closed_loop(4, [5] * 20, 0.0)]
    assert choose_rate_window(SPEC, bad).why == "no request succeeded"


def test_first_starts_are_spread_over_one_request_where_the_ramp_is_not_counted() -> None:
    assert stagger_duration_s(replace(SPEC, requests=16), 2.0) == 2.0
    assert stagger_duration_s(replace(SPEC, requests=15), 2.0) == pytest.approx(2.0 * 0.02 * 15 / 4)
    assert stagger_duration_s(replace(SPEC, requests=10_000, seconds=5.0), 2.0) < 2.0
    assert stagger_duration_s(replace(SPEC, concurrency=1), 2.0) == 0.0
    assert stagger_duration_s(replace(SPEC, rate=1.0), 2.0) == 0.0
    assert stagger_duration_s(SPEC, None) == pytest.approx(0.004)


@pytest.mark.slow
def test_the_server_s_own_record_of_the_window() -> None:
    """Tokens that the server wrote inside the window, and the rate that follows from its pace."""
    options = ("--ttft-ms", "40", "--itl-ms", "10")
    with TruthProcess(*options) as server:
        spec = BenchSpec(
            server.url, "m", concurrency=8, requests=64, warmup=8, max_tokens=30, length_spread=0.3
        )
        outcome = asyncio.run(run_load(spec))
        truth = server.stop()
    s = outcome.summary
    shift = time.monotonic() - time.time()
    begin, end = ((t + shift) * 1e9 for t in (outcome.window_t0_unix, outcome.window_t1_unix))
    written = sorted(t for one in truth.values() for t in one["done_ns"])
    inside = bisect_right(written, end) - bisect_right(written, begin)
    assert s.window == "steady" and s.window_s == pytest.approx((end - begin) / 1e9, abs=1e-3)
    assert s.window_output_tokens == pytest.approx(inside, abs=16)
    assert s.output_tok_s == pytest.approx(inside / s.window_s, rel=0.015)
    assert s.whole_run_tok_s is not None and s.whole_run_tok_s < 0.97 * s.output_tok_s
    assert s.in_flight_mean is not None and 7.6 < s.in_flight_mean <= 8.0
    assert outcome.t0_unix < outcome.window_t0_unix < outcome.window_t1_unix < outcome.t1_unix
