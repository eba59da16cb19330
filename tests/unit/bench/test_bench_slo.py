"""Tests of the share of requests that keep an SLO, and of goodput."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.experiment import require_measurable_metric, why_metric_is_unusable
from workbench.bench.metric_changes import choose_compared_metrics
from workbench.bench.records import CONNECTION_RESET, RequestRecord
from workbench.bench.result_validity import ClientFacts
from workbench.bench.slo_attainment import slo_metric_values
from workbench.bench.steady_window import Window
from workbench.bench.summary import summarize
from workbench.model.bench import BenchResult, BenchSpec, Conditions
from workbench.model.errors import InputError
from workbench.model.json_records import from_json, to_json
from workbench.model.slo import LimitAttained, parse_slo

WINDOW = Window("whole run", 0.0, 10.0)


def record(index: int, ttft_ms: float = 100, tpot_ms: float = 10) -> RequestRecord:
    """Return a request of one second's slot that has 5 tokens in 5 chunks."""
    gap_us = round(tpot_ms * 1000)
    return RequestRecord(
        index=index,
        warmup=False,
        start_s=float(index),
        end_us=round(ttft_ms * 1000) + 4 * gap_us,
        ttft_us=round(ttft_ms * 1000),
        gaps_us=(gap_us,) * 4,
        chunks=5,
        prompt_tokens=10,
        output_tokens=5,
        finish_reason="length",
    )


def test_attainment_and_goodput_of_known_requests() -> None:
    fast, late, slow = record(0), record(1, ttft_ms=600), record(2, tpot_ms=50)
    failed = replace(record(3), error=CONNECTION_RESET)
    found = slo_metric_values(
        "ttft<=500@p95, tpot<=40@p50", [fast, late, slow, failed], WINDOW, None, ()
    )
    assert found["slo"] == (
        LimitAttained("ttft<=500@p95", 95, 50.0, None, 500.0),
        LimitAttained("tpot<=40@p50", 50, 50.0, 10.0, 40.0),
    )
    assert found["slo_pct"] == 25.0  # only the first keeps both, and a failed request keeps none
    assert found["goodput_request_s"] == 0.1 and found["goodput_tok_s"] == 0.5


def test_a_wait_for_a_free_stream_counts_at_a_rate() -> None:
    waited = replace(record(1), due_s=0.5)  # sent half a second after it was due
    assert slo_metric_values("ttft<=600@p95", [waited], WINDOW, None, ())["slo_pct"] == 100
    assert slo_metric_values("ttft<=599@p95", [waited], WINDOW, None, ())["slo_pct"] == 0
    assert slo_metric_values("e2e<=640@p95", [waited], WINDOW, None, ())["slo_pct"] == 100
    assert slo_metric_values("e2e<=639@p95", [waited], WINDOW, None, ())["slo_pct"] == 0


def test_a_latency_that_was_not_timed_well_enough_is_not_judged() -> None:
    late = replace(record(0, ttft_ms=510), unsure=((0, 1, 50_000),))  # from 460 to 510 ms
    found = slo_metric_values("ttft<=500@p95, e2e<=900@p95", [late], WINDOW, None, {"ttft_ms"})
    assert found == {
        "slo": (
            LimitAttained("ttft<=500@p95", 95, None, None, 500.0),
            LimitAttained("e2e<=900@p95", 95, 100.0, 550.0, 900.0),
        )
    }


def test_what_could_not_be_judged_says_why() -> None:
    spec = BenchSpec("http://127.0.0.1:1", "m", slo="ttft<=500@p95")
    uncounted = replace(record(0), output_tokens=None)
    counted = summarize(spec, [record(0)], (), ClientFacts())
    assert counted.slo_pct == 100 and not {"slo_pct", "goodput_tok_s"} & set(counted.absent)
    without_tokens = summarize(spec, [uncounted], (), ClientFacts())
    assert without_tokens.slo_pct == 100
    assert "did not report the tokens" in without_tokens.absent["goodput_tok_s"]
    empty = summarize(spec, [], (), ClientFacts())
    assert empty.slo_pct is None and "no request was measured" in empty.absent["slo_pct"]
    assert from_json(type(counted), to_json(counted)) == counted
    no_time = ClientFacts(window=Window("whole run", 5.0, 5.0))
    at_once = summarize(spec, [record(0)], (), no_time)
    assert (at_once.slo_pct, at_once.goodput_request_s) == (100, None)
    reasons = {at_once.absent[name] for name in ("goodput_request_s", "goodput_tok_s")}
    assert reasons == {"the run took no time that can be measured"}


def test_without_an_slo_or_without_requests_nothing_is_claimed() -> None:
    assert slo_metric_values("", [record(0)], WINDOW, None, ()) == {}
    assert slo_metric_values("ttft<=1@p50", [], WINDOW, None, ()) == {
        "slo": (LimitAttained("ttft<=1@p50", 50, None, None, 1.0),)
    }


def test_an_unknown_count_of_tokens_leaves_only_the_rate_of_requests() -> None:
    uncounted = replace(record(0), output_tokens=None)
    found = slo_metric_values("ttft<=500@p95", [uncounted], WINDOW, None, ())
    assert found["goodput_request_s"] == 0.1 and "goodput_tok_s" not in found


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100)), min_size=1, max_size=40),
    st.integers(1, 1000),
    st.integers(1, 100),
)
def test_a_percentile_within_its_limit_is_a_limit_that_is_kept(
    times: list[tuple[int, int]], most_ttft_ms: int, most_tpot_ms: int
) -> None:
    records = [record(i, ttft, tpot) for i, (ttft, tpot) in enumerate(times)]
    slo = f"ttft<={most_ttft_ms}@p50, tpot<={most_tpot_ms}@p50"
    found = slo_metric_values(slo, records, WINDOW, None, ())
    both = sum(ttft <= most_ttft_ms and tpot <= most_tpot_ms for ttft, tpot in times)
    assert found["slo_pct"] == pytest.approx(100 * both / len(times), abs=1e-4)
    for attained, limit in zip(found["slo"], parse_slo(slo), strict=True):  # type: ignore[call-overload]
        at = 0 if limit.latency == "ttft" else 1
        kept = sum(each[at] <= limit.most_ms for each in times)
        assert attained.kept_pct == pytest.approx(100 * kept / len(times), abs=1e-4)
        assert attained.reached_ms is not None
        assert (attained.reached_ms <= limit.most_ms) == (2 * kept >= len(times))


def slo_result(number: int, slo: str, goodput: float) -> BenchResult:
    spec = BenchSpec("http://127.0.0.1:1", "m", slo=slo)
    summary = summarize(spec, [record(0)], (), ClientFacts())
    conditions = Conditions("local", "vllm", "0.33.0", "m")
    changed = replace(summary, goodput_request_s=goodput)
    return BenchResult(number, 1.8e9, spec, conditions, changed)


def test_goodput_is_compared_only_under_the_same_slo() -> None:
    a, b = slo_result(1, "e2e<=500@p95", 2.0), slo_result(2, "e2e<=500@p95", 3.0)
    compared = {metric.name for metric in choose_compared_metrics((a, b))}
    assert {"slo_pct", "goodput_request_s", "goodput_tok_s"} <= compared
    other = slo_result(3, "e2e<=900@p95", 3.0)
    assert not {"slo_pct", "goodput_request_s"} & {
        m.name for m in choose_compared_metrics((a, other))
    }


def test_goodput_decides_an_experiment_only_with_limits() -> None:
    spec = BenchSpec("http://127.0.0.1:1", "m", slo="e2e<=500@p95")
    require_measurable_metric("goodput_request_s", spec)
    with pytest.raises(InputError, match="without limits"):
        require_measurable_metric("goodput_request_s", replace(spec, slo=""))


def test_a_goodput_of_zero_is_said_as_such() -> None:
    nothing = replace(slo_result(1, "e2e<=1@p95", 0.0).summary, goodput_request_s=0.0)
    assert why_metric_is_unusable(nothing, "goodput_request_s") == (
        "goodput_request_s was 0, and a ratio needs more"
    )


def test_late_reads_make_the_attainment_a_range() -> None:
    spec = BenchSpec("http://127.0.0.1:1", "m", slo="ttft<=500@p50, tpot<=40@p50")
    sure = [record(index) for index in range(98)]
    late_first = replace(record(98, ttft_ms=501), unsure=((0, 1, 1_500),))
    late_last = replace(record(99, tpot_ms=41), unsure=((4, 1, 5_000),))
    found = summarize(spec, [*sure, late_first, late_last], (), ClientFacts())
    assert found.slo_pct == 98
    assert [note for note in found.notes if "kept the SLO" in note] == [
        "between 98.0 and 100.0 % of the requests kept the SLO: the load client got several chunks"
        " with one time"
    ]
    # a first chunk that came earlier than recorded makes TPOT longer
    too_short = replace(record(99, tpot_ms=39), unsure=((0, 1, 5_000),))
    found = summarize(spec, [*sure, record(98), too_short], (), ClientFacts())
    assert found.slo_pct == 100 and any("between 99.0 and 100.0 %" in n for n in found.notes)
    surely_late = replace(late_first, unsure=((0, 1, 500),))
    narrow = summarize(spec, [*sure, surely_late], (), ClientFacts())
    assert not [note for note in narrow.notes if "kept the SLO" in note]
