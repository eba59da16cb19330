"""Tests of the metrics computed from request records."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.records import SHORT_ANSWER, RequestRecord
from workbench.bench.request_latency import tpot_ms
from workbench.bench.result_validity import ClientFacts
from workbench.bench.summary import summarize
from workbench.model.bench import BenchSpec, BenchSummary, Distribution
from workbench.model.distribution import distribution_of, quantile
from workbench.model.json_records import from_json, to_json
from workbench.model.known_values import sum_or_none

SPEC = BenchSpec(
    "http://127.0.0.1:1", "m", concurrency=2, requests=2, max_tokens=5, input_tokens=10
)
FLOATS = st.lists(st.floats(0, 1e6), min_size=2, max_size=60)


def record(index: int = 0, **fields: Any) -> RequestRecord:
    """Return a record of 5 tokens: TTFT 100 ms, then 4 gaps of 10 ms, ended 5 ms after the last
    chunk."""
    base = RequestRecord(
        index=index,
        warmup=False,
        start_s=1.0,
        end_us=145_000,
        ttft_us=100_000,
        gaps_us=(10_000,) * 4,
        chunks=5,
        prompt_tokens=10,
        output_tokens=5,
        cached_tokens=0,
        finish_reason="length",
    )
    return replace(base, **fields)


def summary(*counted: RequestRecord, facts: ClientFacts | None = None, **spec: Any) -> BenchSummary:
    return summarize(replace(SPEC, **spec), counted, (), facts or ClientFacts())


@given(values=FLOATS)
def test_quantiles_are_those_of_the_statistics_module(values: list[float]) -> None:
    ordered = sorted(values)
    expected = statistics.quantiles(ordered, n=100, method="inclusive")
    for percent in (1, 50, 90, 99):
        assert quantile(ordered, percent / 100) == pytest.approx(
            expected[percent - 1], rel=1e-9, abs=1e-9
        )


def test_quantiles_known_values() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile([1, 2, 3, 4], 0.9) == pytest.approx(3.7)
    assert quantile([7], 0.99) == 7


@given(values=FLOATS)
def test_a_distribution_is_in_order(values: list[float]) -> None:
    d = distribution_of(values)
    assert d is not None and d.count == len(values)
    assert d.p95 is not None and d.min <= d.p50 <= d.p90 <= d.p95 <= d.max
    assert d.min - 1e-3 <= d.mean <= d.max + 1e-3
    assert distribution_of([]) is None


def test_the_statistics_of_a_distribution_have_four_decimals() -> None:
    d = distribution_of([1, 2, 2], unit=3)
    assert d is not None
    assert (d.mean, d.min, d.p50, d.max) == (0.5556, 0.3333, 0.6667, 0.6667)


def test_a_handful_of_values_has_no_p99() -> None:
    few, enough = (distribution_of(float(n) for n in range(count)) for count in (999, 1000))
    assert few is not None and few.p99 is None and few.p95 is not None
    assert enough is not None and enough.p99 == pytest.approx(989.01)
    stored = {**to_json(enough), "count": 64}
    assert from_json(Distribution, stored).p99 is None, "also in results of earlier versions"


def test_the_metrics_of_a_run() -> None:
    s = summary(record(0), record(1, start_s=1.055))
    assert (s.requests_ok, s.requests_failed, s.errors) == (2, 0, {})
    assert (s.prompt_tokens, s.output_tokens, s.cached_tokens) == (20, 10, 0)
    assert s.duration_s == pytest.approx(0.2)
    assert s.output_tok_s == pytest.approx(50) and s.request_s == pytest.approx(10)
    assert s.ttft_ms and s.itl_ms and s.tpot_ms and s.e2e_ms
    assert (s.ttft_ms.mean, s.itl_ms.mean, s.tpot_ms.mean, s.e2e_ms.mean) == (100, 10, 10, 145)
    assert (s.itl_ms.count, s.ttft_ms.count) == (8, 2)
    assert s.tokens_per_chunk == 1 and s.per_stream_tok_s == pytest.approx(100)
    assert set(s.absent) == {"power_w", "energy_j", "tok_per_joule", "rate_error_pct"}


def test_several_tokens_in_a_chunk_are_no_faster_gaps() -> None:
    """Speculative decoding: 9 tokens in 3 chunks, 10 ms between chunks."""
    r = record(gaps_us=(10_000, 10_000), chunks=3, output_tokens=9, first_tokens=3)
    s = summary(r, max_tokens=9)
    assert s.itl_ms and s.itl_ms.mean == 10
    assert s.tpot_ms and s.tpot_ms.mean == pytest.approx(20 / 6, abs=1e-3)
    assert s.tokens_per_chunk == 3
    assert tpot_ms(replace(r, first_tokens=None)) == pytest.approx(20 / 8)


def test_failed_requests_count_only_in_the_duration() -> None:
    bad = record(
        1, error="http 503", detail="busy", end_us=500_000, output_tokens=3, gaps_us=(1,), ttft_us=5
    )
    s = summary(record(0), bad)
    assert (s.requests_ok, s.requests_failed, s.errors) == (1, 1, {"http 503": 1})
    assert (
        s.output_tokens == 5
        and s.duration_s == pytest.approx(0.5)
        and s.output_tok_s == pytest.approx(10)
    )
    assert s.ttft_ms and s.ttft_ms.count == 1 and s.itl_ms and s.itl_ms.count == 4
    assert "1 x http 503: busy" in s.notes


def test_without_usage_tokens_are_unknown() -> None:
    s = summary(record(0), record(1, output_tokens=None, prompt_tokens=None, cached_tokens=None))
    assert (s.output_tokens, s.prompt_tokens, s.output_tok_s, s.tokens_per_chunk) == (
        None,
        None,
        None,
        None,
    )
    why = "1 of 2 replies had no token usage"
    assert {
        s.absent[n] for n in ("output_tokens", "prompt_tokens", "cached_tokens", "output_tok_s")
    } == {why}
    assert s.ttft_ms is not None and s.itl_ms is not None


@given(
    values=st.lists(
        st.builds(
            record,
            error=st.sampled_from([None, "reset", SHORT_ANSWER]),
            output_tokens=st.sampled_from([None, 0, 1, 5]),
            prompt_tokens=st.sampled_from([None, 10]),
            cached_tokens=st.sampled_from([None, 0, 9]),
            ttft_us=st.sampled_from([None, 100]),
            gaps_us=st.sampled_from([(), (1,), (5, 5)]),
            first_tokens=st.sampled_from([None, 1, 5]),
            end_us=st.integers(0, 1000),
        ),
        max_size=5,
    )
)
def test_every_missing_value_has_a_reason_and_json_keeps_all(values: list[RequestRecord]) -> None:
    s = summary(*values)
    data = to_json(s)
    elsewhere = {
        "gpu",
        "client_cpu_pct",
        "idle_power_w",
        "net_tok_per_joule",
        "energy_per_request_j",
        "engine",
        "text",
    }
    of_a_rate = {"queue_ms", "ttft_from_schedule_ms", "e2e_from_schedule_ms"}
    of_embeddings = {"prompt_tok_s"}
    of_slo = {"slo_pct", "goodput_request_s", "goodput_tok_s", "users"}
    other = elsewhere | of_a_rate | of_embeddings | of_slo | {"command_exit", "in_flight_mean"}
    assert {n for n, v in data.items() if v is None and n not in other} == {
        n for n in s.absent if data[n] is None
    }
    assert all(data[n] is None for n in s.absent)
    assert s.requests_ok + s.requests_failed == len(values)
    assert from_json(BenchSummary, data) == s


def test_notes_name_what_distorts_the_metrics() -> None:
    facts = ClientFacts(
        notes=("x",),
        dropped=("ignore_eos",),
        client_cpu_pct=97,
        calibrated=True,
        reads=100,
        unstamped_reads=3,
        late_reads=5,
    )
    s = summary(
        record(cached_tokens=8), record(1, error=SHORT_ANSWER, detail="2 tokens"), facts=facts
    )
    for part in (
        "x",
        "the server rejected the request fields ignore_eos",
        "prompts of 10 tokens each (10 requested, calibrated",
        "rates cover the whole run, including ramp and tail: a steady window needs 8 requests (4 "
        "per stream)",
        "1 replies ended before the requested length",
        "the client timed 3 of 100 reads itself",
    ):
        assert any(n.startswith(part) or part in n for n in s.notes), part
    assert s.refused == (
        "1 of 2 requests failed at the server (1 x short); more than 1 % are too many, since the "
        "others"
        " then ran under another load than the requested one",
        "the client itself used 97 % of a core (the limit is 95 %), so it may have limited the "
        "load",
        "80 % of the prompt tokens came from the prefix cache and were not computed",
    )


def test_a_requested_cache_gives_no_note() -> None:
    s = summary(record(cached_tokens=8), shared_prefix=True)
    assert not any("prefix cache" in n for n in (*s.notes, *s.refused))


def test_totals() -> None:
    assert (sum_or_none([]), sum_or_none([1, 2]), sum_or_none([1, None])) == (0, 3, None)
