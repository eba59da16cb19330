"""Tests of which results are valid: failures, stalls, overload, drift and length."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import HEAD, RST, SILENCE, ScriptedServer, chat_events, chunked

from workbench.bench.client import Client
from workbench.bench.connection import resolve_endpoint
from workbench.bench.records import STALL, RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.steady_window import request_end_s
from workbench.bench.summary import summarize
from workbench.model.bench import BenchSpec, BenchSummary

SPEC = BenchSpec("http://127.0.0.1:1", "m", concurrency=4, requests=64, max_tokens=20)
TOKENS = 20


def reply(index: int, start_s: float, took_s: float, **fields: Any) -> RequestRecord:
    gap_us = round(took_s * 1e6 / TOKENS)
    base = RequestRecord(
        index=index,
        warmup=False,
        start_s=start_s,
        end_us=gap_us * TOKENS,
        ttft_us=gap_us,
        gaps_us=(gap_us,) * (TOKENS - 1),
        chunks=TOKENS,
        prompt_tokens=10,
        output_tokens=TOKENS,
        finish_reason="length",
    )
    return replace(base, **fields)


def closed_loop(durations_s: list[float], streams: int = 4) -> list[RequestRecord]:
    free, made = [0.001 * i for i in range(streams)], []
    for index, took_s in enumerate(durations_s):
        stream = min(range(streams), key=lambda s: free[s])
        made.append(reply(index, free[stream], took_s))
        free[stream] = request_end_s(made[-1])
    return made


def judged(made: list[RequestRecord], **fields: Any) -> BenchSummary:
    return summarize(replace(SPEC, requests=len(made), **fields), made, (), ClientFacts())


# -- how much a run varies in itself ----------------------------------------------------------------


def test_the_rate_of_a_run_is_as_sure_as_its_parts_agree() -> None:
    assert judged(closed_loop([0.1] * 64)).rate_error_pct == pytest.approx(0.0, abs=0.001)
    # each round of the four streams is 10 % slower or faster than the one before
    uneven = [0.1 + 0.01 * (index // 8 % 2) for index in range(64)]
    error = judged(closed_loop(uneven)).rate_error_pct
    assert error is not None and 1.0 < error < 3.0
    assert judged(closed_loop([0.1] * 12)).rate_error_pct is None  # too short
    assert judged(closed_loop([0.1] * 64), rate=10.0).rate_error_pct is None


# -- stalls ----------------------------------------------------------------------------------------


def stop_server(made: list[RequestRecord], at_s: float, for_s: float) -> list[RequestRecord]:
    """Return the records of a run whose server stood still at a time, as SIGSTOP makes it."""
    return [_delay_record(one, at_s, for_s) for one in made]


def _delay_record(one: RequestRecord, at_s: float, for_s: float) -> RequestRecord:
    if one.start_s >= at_s:
        return replace(one, start_s=one.start_s + for_s)
    if request_end_s(one) <= at_s:
        return one
    for_us = round(for_s * 1e6)
    gap_us = one.gaps_us[0]
    at_chunk = int((at_s - one.start_s) * 1e6 // gap_us)
    gaps = list(one.gaps_us)
    if at_chunk == 0:
        return replace(one, ttft_us=gap_us + for_us, end_us=one.end_us + for_us)
    gaps[at_chunk - 1] += for_us
    return replace(one, gaps_us=tuple(gaps), end_us=one.end_us + for_us)


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("at_s", [7.77, 8.02])  # the second: some streams wait for a first chunk
def test_a_server_that_stood_still_rejects_the_result_with_time_and_length(
    streams: int, at_s: float
) -> None:
    calm = closed_loop([1.0] * 64, streams)
    assert not judged(calm, concurrency=streams).refused
    summary = judged(stop_server(calm, at_s, 19.8), concurrency=streams)
    (why,) = [why for why in summary.refused if why.startswith("a stall of 19.")]
    said = re.search(r", ([\d.]+) s after the first request: .* (\d+) % of the steady", why)
    assert said is not None, why
    assert float(said[1]) == pytest.approx(at_s, abs=0.3)
    assert float(said[2]) == pytest.approx(100 * 19.8 / summary.window_s, abs=1)


def test_a_stall_of_a_long_run_is_a_mark_and_not_a_reason() -> None:
    calm = closed_loop([1.0] * 480)  # 120 s
    summary = judged(stop_server(calm, 60.3, 3.0))
    assert not summary.refused
    assert any(why.startswith("a stall of 3.") for why in summary.marked)


def test_two_stalls_are_counted_together() -> None:
    once = stop_server(closed_loop([1.0] * 240), 20.3, 5.0)
    (why,) = judged(stop_server(once, 50.3, 4.0)).refused
    assert "a stall of 5." in why and "and 1 more" in why


def test_a_stall_of_one_stream_beside_others_is_no_stall_of_the_server() -> None:
    made = closed_loop([1.0] * 64)
    slow = replace(made[20], gaps_us=(*made[20].gaps_us[:-1], 9_000_000), end_us=10_000_000)
    assert not any("a stall of" in why for why in judged([*made[:20], slow, *made[21:]]).refused)


def test_a_long_prefill_and_a_time_without_requests_are_no_stalls() -> None:
    # each request waits 6 s for its first chunk
    prefill = [
        reply(index, 7.0 * index, 7.0, ttft_us=6_000_000, gaps_us=(50_000,) * 19)
        for index in range(8)
    ]
    summary = judged(prefill, concurrency=1)
    assert not any("a stall" in why for why in (*summary.refused, *summary.marked))
    # one prompt in eight is 50 times as long as the others
    long = replace(
        reply(8, 56.0, 12.0), prompt_tokens=500, ttft_us=10_000_000, gaps_us=(100_000,) * 19
    )
    short = [reply(index, 7.0 * index, 1.0) for index in range(8)]
    summary = judged([*short, long], concurrency=1)
    assert not any("a stall" in why for why in (*summary.refused, *summary.marked))
    # between two requests of a low rate, nothing is in flight
    seldom = [reply(index, 30.0 * index, 1.0, due_s=30.0 * index) for index in range(8)]
    summary = judged(seldom, rate=1 / 30)
    assert not any("a stall" in why for why in (*summary.refused, *summary.marked))


def test_a_trace_with_a_stall_is_marked() -> None:
    summary = judged(stop_server(closed_loop([1.0] * 64), 7.77, 19.8), trace_name="users")
    assert not any("a stall" in why for why in summary.refused)
    assert any(why.startswith("a stall of 19.") for why in summary.marked)


# -- failures --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(total=st.integers(1, 400), failed=st.integers(0, 20))
def test_more_than_one_percent_of_failures_rejects_a_result(total: int, failed: int) -> None:
    failed = min(failed, total)
    made = [reply(i, 0.1 * i, 0.1, error="reset" if i < failed else None) for i in range(total)]
    summary = judged(made, concurrency=1)
    assert any("requests failed at the server" in why for why in summary.refused) == (
        failed > total / 100
    )


def test_a_model_without_a_chat_template_is_sent_to_the_other_endpoint() -> None:
    said = "default chat template is no longer allowed"
    made = [reply(i, 0.1 * i, 0.1, error="http 400", detail=said) for i in range(8)]
    advice = "the model has no chat template: measure it with --endpoint completions"
    assert advice in judged(made).notes
    assert advice not in judged(made, endpoint="completions").notes


def test_embeddings_need_no_usage_of_output() -> None:
    made = [reply(i, 0.1 * i, 0.1, output_tokens=None) for i in range(8)]
    assert any("no token usage" in note for note in judged(made).notes)
    of_embeddings = judged(made, endpoint="embeddings", stream=False)
    assert not any("no token usage" in note for note in of_embeddings.notes)


def test_the_cause_of_idle_streams_is_the_server_where_requests_failed() -> None:
    made = [
        replace(r, error="reset" if i % 2 else None, end_us=1000 if i % 2 else r.end_us)
        for i, r in enumerate(closed_loop([0.1] * 64))
    ]
    (why,) = judged(made).refused
    assert (
        why.startswith("32 of 64 requests failed at the server (32 x reset)")
        and "client" not in why
    )


def test_a_stalled_stream_is_not_in_flight_and_its_window_is_not_steady() -> None:
    """One of four streams stalls for 60 s. It counts as in flight only until its last byte."""
    stalled = reply(0, 0.0, 60.1, error=STALL, silent_us=60_000_000)
    made = [stalled, *(reply(i, 0.1 * i, 0.1) for i in range(1, 600))]
    summary = judged(made, concurrency=4)
    assert summary.window == "whole run" and any(
        "let 1 of 600 streams stall" in note for note in summary.notes
    )
    assert summary.in_flight_mean == pytest.approx(1.0, abs=0.02)
    assert summary.refused == ()  # 1 of 600 failed


def test_a_server_that_stalls_now_and_then_is_rejected() -> None:
    """Every fifth reply stops after three tokens."""
    whole, part = [chunked(chat_events(20))], [chunked(chat_events(20)[:4], end=False), SILENCE]
    with ScriptedServer(lambda request, n: part if n % 5 == 0 else whole) as server:
        spec = BenchSpec(
            server.url, "m", concurrency=4, requests=32, warmup=0, max_tokens=20, stall_s=0.2
        )
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    summary = summarize(spec, client.counted, (), ClientFacts())
    stalled = summary.errors[STALL]
    assert stalled >= 6 and summary.window == "whole run"
    assert summary.refused[0].startswith(
        f"{stalled} of 32 requests failed at the server ({stalled} x stall)"
    )
    assert summary.in_flight_mean is not None and summary.in_flight_mean < 2
    assert all(0.15e6 < r.silent_us <= r.end_us for r in client.counted if r.error == STALL)


@pytest.mark.parametrize("steps", [[RST], [HEAD, RST], [chunked([b"data: nonsense\n\n"])]])
def test_a_server_that_fails_most_requests_is_rejected(steps: list[bytes | str]) -> None:
    with ScriptedServer(
        lambda request, n: [chunked(chat_events(3))] if n % 8 == 0 else steps
    ) as server:
        spec = BenchSpec(server.url, "m", concurrency=4, requests=64, warmup=0, max_tokens=3)
        client = Client(spec, resolve_endpoint(spec), None, lambda record: None)
        client.run()
    summary = summarize(spec, client.counted, (), ClientFacts())
    assert summary.requests_failed > 40 and "requests failed at the server" in summary.refused[0]


# -- an open loop that the server does not keep up with --------------------------------------------


def open_loop(
    rate: float, capacity: float, seconds: float, base_s: float, seed: int = 0
) -> list[RequestRecord]:
    """Return records of Poisson arrivals at a server that completes at most `capacity` requests/s,
    each `base_s` after its turn."""
    draw, at, free, made = random.Random(seed), 0.0, 0.0, []
    while at < seconds:
        free = max(free, at) + 1 / capacity
        made.append(reply(len(made), at, free + base_s - at, due_s=at))
        at += draw.expovariate(rate)
    return made


@pytest.mark.parametrize(
    ("rate", "capacity", "seconds", "base_s"),
    [(80, 40, 5, 0.03), (12, 10, 60, 0.5), (20, 5, 10, 1)],
)
def test_an_open_loop_that_falls_behind_is_rejected(
    rate: float, capacity: float, seconds: float, base_s: float
) -> None:
    summary = judged(open_loop(rate, capacity, seconds, base_s), rate=rate, concurrency=256)
    (why,) = summary.refused
    assert why.startswith("the server did not keep up:") and "requests/s were due" in why


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    base_s=st.sampled_from([0.05, 1.0, 4.0]),
    load=st.sampled_from([0.3, 0.7, 0.85]),
)
def test_an_open_loop_below_capacity_is_not_rejected(seed: int, base_s: float, load: float) -> None:
    made = open_loop(20 * load, 20, 30, base_s, seed)
    assert judged(made, rate=20 * load, concurrency=256).refused == ()


def test_a_burst_that_is_over_before_the_first_answer_is_not_called_an_overload() -> None:
    made = [reply(i, 0.01 * i, 2.0, due_s=0.01 * i) for i in range(60)]
    assert judged(made, rate=100.0, concurrency=256).refused == ()


@pytest.mark.parametrize(("late", "is_refused"), [(0.02, False), (0.05, True)])
def test_a_client_that_falls_behind_its_rate_by_some_percent_is_rejected(
    late: float, is_refused: bool
) -> None:
    made = [reply(i, (1 + late) * 0.1 * i, 0.05, due_s=0.1 * i) for i in range(100)]
    refused = " ".join(judged(made, rate=10.0, concurrency=256).refused)
    assert ("instead of the scheduled" in refused) == is_refused


# -- length and drift ------------------------------------------------------------------------------


def test_a_short_measurement_is_marked() -> None:
    one = judged([reply(0, 0.0, 0.009)], concurrency=1)
    assert one.marked[0] == (
        "the measurement is short: one request in 0.009 s; use at least 4 requests and 1 s"
    )
    enough = judged([reply(i, 0.1 * i, 0.1) for i in range(4)], concurrency=1)
    assert "is short: 4 requests in" in enough.marked[0]
    assert enough.marked[0].endswith("use at least 1 s")
    assert judged(closed_loop([0.01] * 40)).marked and not judged(closed_loop([0.1] * 64)).marked


def test_halves_that_disagree_are_marked() -> None:
    """The server is cold for 20 of the 32 measured requests."""
    cold = closed_loop([0.34] * 20 + [0.045] * 60, streams=2)
    (why,) = judged(cold, concurrency=2).marked
    assert why.startswith("the two halves of the run differ:") and "--until-steady" in why


@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_scatter_alone_is_not_marked(seed: int) -> None:
    draw = random.Random(seed)
    made = closed_loop([0.1 * draw.lognormvariate(0, 0.1) for _ in range(128)])
    assert judged(made).marked == ()
