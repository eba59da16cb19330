"""Tests of comparisons: no claim beyond what the runs support."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.bench.compare import compare
from workbench.model import distribution
from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Comparison,
    Conditions,
    Distribution,
    GpuDuring,
    MetricChange,
    format_half_width,
)
from workbench.model.distribution import PERCENTILES, highest_shared_percentile
from workbench.model.student_t import incomplete_beta, t_cdf, t_quantile


def spread(mean: float, count: int = 2000) -> Distribution:
    return Distribution(mean, mean, mean * 1.2, mean * 2, mean / 2, mean * 3, count)


GPU = GpuDuring(500, None, 2400, 13000, 60, 97)
CONDITIONS = Conditions(
    host="box",
    engine="vllm",
    engine_version="0.33.0",
    model="m",
    argv=("vllm", "serve", "m"),
    flags={"max-num-seqs": 256},
    driver_version="580.1",
    gpus=({"name": "RTX"},),
)


def result(
    number: int = 1, speed: float = 100.0, summary: Any = None, **conditions: Any
) -> BenchResult:
    spec = BenchSpec("http://127.0.0.1:8000", "m", salt=f"s{number}")
    figures = BenchSummary(
        requests_ok=64,
        requests_failed=0,
        errors={},
        prompt_tokens=6400,
        output_tokens=8192,
        cached_tokens=0,
        duration_s=8192 / speed,
        output_tok_s=speed,
        request_s=speed / 128,
        ttft_ms=spread(100),
        itl_ms=spread(1000 / speed),
        tpot_ms=spread(1000 / speed, 64),
        e2e_ms=spread(128_000 / speed, 64),
        tokens_per_chunk=1,
        per_stream_tok_s=speed / 8,
        power_w=500,
        energy_j=1,
        tok_per_joule=speed / 500,
        gpu=GPU,
        client_cpu_pct=5,
    )
    return BenchResult(
        number, 1e9, spec, replace(CONDITIONS, **conditions), replace(figures, **(summary or {}))
    )


def metric(comparison: Comparison, name: str) -> MetricChange:
    return next(m for m in comparison.metrics if m.metric == name)


# -- what the arms are -----------------------------------------------------------------------------


def test_two_addresses_are_never_the_same_configuration() -> None:
    """For servers that others started. Ports of forwarded runs differ each time and mean nothing."""

    def at(port: int, **conditions: Any) -> BenchResult:
        one = result(port, **conditions)
        return replace(one, spec=replace(one.spec, url=f"http://127.0.0.1:{port}"))

    both = compare(at(1), at(2))
    assert [d for d in both.differences if d["kind"] == "server"] == [
        {"kind": "server", "name": "address", "a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"}
    ]
    assert both.like_for_like, "which server it is, is the question"
    assert not compare(at(1), at(1)).differences
    assert not compare(at(1, run_id="r1"), at(2, run_id="r2")).differences
    forwarded = {"client": "tunnel", "address": "http://127.0.0.1:8000"}
    assert not compare(at(1, **forwarded), at(2, **forwarded)).differences
    mixed = compare([at(1), at(2)], [at(3), at(3)])
    assert "the runs of A differ among themselves in configuration: address" in mixed.warnings


def test_two_builds_of_an_engine_are_never_the_same_configuration() -> None:
    a, b = (
        [result(n, argv=(program, "serve")) for n in (1, 2)]
        for program in ("vllm", "/opt/fork/bin/vllm")
    )
    shown = {"kind": "executable", "name": "executable", "a": "vllm", "b": "/opt/fork/bin/vllm"}
    assert shown in compare(a, b).differences and compare(a, b).like_for_like, "it is the question"
    assert ("the runs of A differ among themselves in configuration: executable") in compare(
        [*a, *b], b
    ).warnings


def test_the_subject_of_a_comparison_causes_no_warning() -> None:
    a, b = result(1), result(2, speed=80, model="other", engine="sglang")
    assert compare(a, b).warnings[:2] == (
        "different models: m and other",
        "different engines: vllm and sglang",
    )
    assert compare(a, b, arms=("model", "engine")).like_for_like
    longer = replace(b, summary=replace(b.summary, prompt_tokens=7000))
    assert any("prompt tokens per request differ" in w for w in compare(a, longer).warnings)
    told = compare(a, longer, arms=("model", "engine"))
    assert told.like_for_like and any(
        "count tokens differently or use other chat templates" in note for note in told.notes
    )


def test_answers_that_end_earlier_are_less_work_whoever_gave_them() -> None:
    """Half the tokens per request give twice the requests per second, not a faster server."""
    a, b = ([result(n, 100.0 + n / 10, model=m) for n in (1, 2, 3)] for m in ("m", "other"))
    shorter = [
        replace(r, summary=replace(r.summary, output_tokens=r.summary.output_tokens // 2))
        for r in b
    ]  # type: ignore[operator]
    for paired in (False, True):
        assert compare(a, b, paired=paired, arms=("model",)).like_for_like
        said = compare(a, shorter, paired=paired, arms=("model", "engine"))
        assert (
            any("output tokens per request differ" in w for w in said.warnings)
            and not said.like_for_like
        )
        assert not {"better", "worse"} & {m.verdict for m in said.metrics}


def test_gaps_between_chunks_of_different_lengths_are_not_compared() -> None:
    """A server that sends four tokens in a chunk has four times the gaps, and is no slower."""
    merged = {"tokens_per_chunk": 4.0, "itl_ms": spread(41)}
    a = [result(n, 100.0 + n / 10) for n in (1, 2, 3)]
    b = [result(n, 100.0 + n / 10, summary=merged) for n in (1, 2, 3)]
    assert metric(compare(a, a[::-1]), "itl_ms.p50").verdict == "no difference shown"
    found = compare(a, b)
    assert any("a chunk has 1.00 tokens in A and 4.00 in B; compare TPOT" in n for n in found.notes)
    assert metric(found, "itl_ms.p50").verdict == "hint only" and found.like_for_like
    assert not any("ITL" in note for note in compare(b, b[::-1]).notes)
    unknown = [result(1, summary=merged | {"itl_ms": None})]
    assert not any("gap between" in note for note in compare(a[0], unknown).notes)
    slower = [result(n, 50.0 + n / 10, summary={"tokens_per_chunk": 4.0}) for n in (1, 2, 3)]
    assert metric(compare(a, slower), "tpot_ms.p50").verdict == "worse", "of a token"


def test_rates_of_different_windows_are_not_compared() -> None:
    """A rate over the whole run includes ramp and tail: it is 0.79 to 0.96 of the steady rate."""
    steady, whole = (
        [result(n, speed + n / 10, summary={"window": window}) for n in (1, 2, 3)]
        for window, speed in (("steady", 100.0), ("whole run", 80.0))
    )
    assert compare(whole, whole).like_for_like
    said = compare(steady, whole)
    assert said.warnings == (
        "rates cover different parts of the runs (A steady, B whole run): use more --requests or "
        "--seconds",
    )
    assert not compare([*steady, *whole], steady).like_for_like


def test_groups_have_welch_s_interval() -> None:
    a = [result(n, speed) for n, speed in enumerate((100, 101, 99, 100.5))]
    b = [result(n, speed) for n, speed in enumerate((110, 111, 109), start=9)]
    found = metric(compare(a, b), "output_tok_s")
    logs = [[math.log(r.summary.output_tok_s or 0) for r in side] for side in (a, b)]
    assert found.verdict == "better" and found.change_pct == pytest.approx(
        100 * math.expm1(sum(logs[1]) / 3 - sum(logs[0]) / 4)
    )
    assert (compare(a, b).runs_a, compare(a, b).runs_b) == (4, 3)


def test_a_spread_below_the_resolution_is_no_precision() -> None:
    """Three times 100.00 against three times 100.01 tok/s is not a difference of 0.0 % ± 0.0."""
    for paired in (False, True):
        same = compare(
            [result(n, 100.0) for n in (1, 2, 3)],
            [result(n, 100.01) for n in (4, 5, 6)],
            paired=paired,
        )
        assert {m.verdict for m in same.metrics} == {"no difference shown"}
        assert all(m.interval_pct is not None and m.interval_pct > 0.05 for m in same.metrics)
    watts = compare(
        [result(n, summary={"power_w": 60.0}) for n in (1, 2)],
        [result(n, summary={"power_w": 61.0}) for n in (3, 4)],
    )
    assert metric(watts, "power_w").verdict == ("no difference shown"), (
        "one step of a driver that reports whole watts"
    )


# -- Student's t -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("df", "expected"),  # two-sided 95 %, from printed tables
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (7, 2.3646),
        (10, 2.2281),
        (30, 2.0423),
        (120, 1.9799),
    ],
)
def test_t_quantiles(df: int, expected: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(expected, abs=6e-5)


@given(p=st.floats(0.5, 0.9995), df=st.floats(1, 200))
def test_quantile_undoes_the_distribution(p: float, df: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


@given(t=st.floats(-50, 50))
def test_closed_forms(t: float) -> None:
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-11)
    assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-11)


def test_incomplete_beta_at_the_ends() -> None:
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)
    assert incomplete_beta(0.3, 1, 1) == pytest.approx(0.3)


# -- one run each ----------------------------------------------------------------------------------


def test_one_run_each_claims_nothing() -> None:
    c = compare(result(1), result(2, 115.8, flags={"max-num-seqs": 512}))
    assert c.differences == ({"kind": "flag", "name": "max-num-seqs", "a": 256, "b": 512},)
    speed = metric(c, "output_tok_s")
    assert speed.change_pct == pytest.approx(15.8)
    assert (speed.interval_pct, speed.verdict) == (None, "single pair")
    assert {m.verdict for m in c.metrics} == {"single pair"}
    assert any("cannot be distinguished from the noise" in n for n in c.notes)
    assert c.like_for_like and not c.warnings and (c.a, c.b) == (1, 2)


def test_the_tail_is_p99_only_where_there_are_samples_for_it() -> None:
    names = {m.metric for m in compare(result(1), result(2)).metrics}
    assert {"ttft_ms.p99", "itl_ms.p99", "tpot_ms.p90", "e2e_ms.p90"} <= names
    assert not {"ttft_ms.p90", "tpot_ms.p99"} & names


def test_at_a_rate_the_wait_before_a_stream_was_free_is_compared_too() -> None:
    """The server alone seems as fast as before; times from the schedule show the wait."""
    waits = {
        "ttft_from_schedule_ms": replace(result(1).summary.ttft_ms, p50=900.0),
        "e2e_from_schedule_ms": None,
    }
    c = compare(result(1), result(2, summary=waits))
    assert metric(c, "ttft_from_schedule_ms.p50").b == 900.0
    assert not any("from_schedule" in m.metric for m in compare(result(1), result(2)).metrics)


def test_a_missing_value_is_not_measured() -> None:
    c = compare(result(1), result(2, summary={"tok_per_joule": None, "itl_ms": None}))
    for name, a in (("tok_per_joule", 0.2), ("itl_ms.mean", 10.0)):
        m = metric(c, name)
        assert (m.a, m.b, m.change_pct, m.verdict) == (a, None, None, "not measured")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"model": "n"}, "different models: m and n"),
        ({"engine_version": "0.32.0"}, "different engine versions"),
        ({"engine": "sglang"}, "different engines"),
        ({"driver_version": None}, "different drivers: 580.1 and unknown"),
        ({"host": "other"}, "different hosts"),
        ({"client": "tunnel"}, "different places"),
        ({"gpus": ()}, "different GPUs"),
        ({"simulated": True}, "one result is simulated"),
        (
            {"summary": {"requests_failed": 3, "errors": {"reset": 3}}},
            "3 of 67 requests failed (3 reset)",
        ),
        (
            {"summary": {"cached_tokens": 4480}},
            "the prefix cache supplied 0 % of the prompt tokens in A and 70 % in B",
        ),
        ({"summary": {"client_cpu_pct": 97}}, "used 97 % of a core"),
        ({"summary": {"output_tokens": 4096}}, "output tokens per request differ: 128.0 and 64.0"),
        ({"summary": {"gpu": replace(GPU, sm_mhz=2000)}}, "SM clocks differed"),
        ({"summary": {"gpu": replace(GPU, memory_mhz=810)}}, "memory clocks differed"),
        ({"summary": {"gpu": replace(GPU, temperature_c=80)}}, "temperatures differed"),
    ],
)
def test_not_like_for_like(other: dict[str, Any], said: str) -> None:
    c = compare(result(1), result(2, **other))
    assert not c.like_for_like and any(said in w for w in c.warnings), c.warnings
    back = compare(result(2, **other), result(1))
    assert not back.like_for_like


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        ("0.33.0+cpu", "0.33.0", "engine build"),
        ("0.33.0", "0.33.0+cu129", "engine build"),
        ("0.33.0+cpu", "0.33.0+cu129", "engine_version"),
        ("0.33.0+cpu", "0.33.1", "engine_version"),
        ("0.33.0", None, "engine_version"),
        ("", None, "engine_version"),
    ],
)
def test_a_log_names_the_release_and_a_package_also_the_build(
    a: str, b: str | None, kind: str
) -> None:
    c = compare(result(1, engine_version=a), result(2, engine_version=b))
    assert c.differences == ({"kind": kind, "name": "engine_version", "a": a, "b": b},)
    assert c.like_for_like == (kind == "engine build")


def test_what_ran_the_server_is_told_and_can_be_compared() -> None:
    c = compare(result(1, run_as="process"), result(2, run_as="slurm"))
    assert (
        c.differences == ({"kind": "run as", "name": "run as", "a": "process", "b": "slurm"},)
        and c.like_for_like
    )
    assert compare(result(1), result(2, run_as="slurm")).differences == (), (
        "the older result does not tell"
    )


def test_equal_prefix_cache_hits_cause_no_warning() -> None:
    """The first tokens of a chat template are in every prompt, and every engine caches them."""
    alike = {"cached_tokens": 640}
    assert compare(result(1, summary=alike), result(2, summary=alike)).like_for_like
    unknown = {"cached_tokens": None}
    assert compare(result(1, summary=unknown), result(2, summary=alike)).like_for_like


def test_a_single_value_is_compared_unchanged() -> None:
    c = compare(
        result(1, summary={"output_tok_s": 94.0144}), result(2, summary={"output_tok_s": 92.8976})
    )
    assert (metric(c, "output_tok_s").a, metric(c, "output_tok_s").b) == (94.0144, 92.8976)


def test_another_workload_is_not_like_for_like() -> None:
    b = replace(result(2), spec=replace(result(2).spec, concurrency=16, max_tokens=64))
    c = compare(result(1), b)
    assert c.warnings[0] == "different workloads: concurrency 8 and 16, max_tokens 128 and 64"
    assert {"kind": "workload", "name": "concurrency", "a": 8, "b": 16} in c.differences


def test_clocks_that_were_set_apart_are_the_experiment() -> None:
    c = compare(
        result(1),
        result(
            2, gpu_settings={"gpu_clocks": "2000,2000"}, summary={"gpu": replace(GPU, sm_mhz=2000)}
        ),
    )
    assert c.like_for_like and c.differences[0]["kind"] == "gpu setting"


def test_simulated_is_marked() -> None:
    c = compare(result(1, simulated=True), result(2, simulated=True))
    assert c.simulated and c.like_for_like and any("SIMULATED" in n for n in c.notes)
    assert not compare(result(1), result(2)).simulated


def test_a_command_without_flags_is_compared_as_a_command() -> None:
    c = compare(result(1, flags={}), result(2, flags={}, argv=("vllm", "serve", "m", "--x")))
    assert [d["kind"] for d in c.differences] == ["command"]


def test_environment_that_is_only_on_one_side() -> None:
    c = compare(result(1, env={"A": "1"}), result(2, env={"B": "2"}))
    assert c.differences == (
        {"kind": "env", "name": "B", "a": None, "b": "2"},
        {"kind": "env", "name": "A", "a": "1", "b": None},
    )


# -- several runs ----------------------------------------------------------------------------------


def runs(first: int, *speeds: float) -> list[BenchResult]:
    return [result(first + i, s) for i, s in enumerate(speeds)]


def test_several_runs_give_an_interval_and_a_verdict() -> None:
    c = compare(runs(1, 100, 101, 99), runs(4, 110, 111, 109))
    speed, itl = metric(c, "output_tok_s"), metric(c, "itl_ms.mean")
    assert speed.verdict == itl.verdict == "better" and speed.change_pct == pytest.approx(
        10, abs=0.1
    )
    assert speed.interval_pct == pytest.approx(2.4, abs=0.3)
    assert itl.change_pct == pytest.approx(-100 / 11, abs=0.1)
    assert (
        metric(compare(runs(4, 110, 111, 109), runs(1, 100, 101, 99)), "output_tok_s").verdict
        == "worse"
    )
    assert (c.runs_a, c.runs_b, len(c.notes)) == (3, 3, 1) and "not made in pairs" in c.notes[0]


def test_runs_that_are_not_alike_claim_nothing_however_many() -> None:
    b = [
        replace(r, conditions=replace(r.conditions, driver_version="999"))
        for r in runs(4, 110, 111, 109)
    ]
    c = compare(runs(1, 100, 101, 99), b)
    assert c.warnings == ("different drivers: 580.1 and 999",)
    speed = metric(c, "output_tok_s")
    assert speed.verdict == "hint only" and speed.change_pct == pytest.approx(10, abs=0.1)


def test_unmeasured_metrics_have_reasons() -> None:
    why = dict.fromkeys(("tok_per_joule", "power_w"), "too short")
    c = compare(
        result(1), result(2, summary={"tok_per_joule": None, "power_w": None, "absent": why})
    )
    assert "not measured: tok_per_joule, power_w (too short)" in c.notes


def test_a_withheld_latency_has_the_word_that_bench_uses() -> None:
    """Compare said "not measured", and Bench "withheld", of one TTFT."""
    why = {
        "ttft_ms": "withheld, because its mean is between 52.4 and 55.2 ms",
        "itl_ms": "no chunk",
    }
    c = compare(result(1), result(2, summary={"ttft_ms": None, "itl_ms": None, "absent": why}))
    verdicts = [metric(c, name).verdict for name in ("ttft_ms.p50", "itl_ms.p50")]
    assert verdicts == ["withheld", "not measured"]
    said = [note for note in c.notes if note.startswith("withheld: ttft_ms.mean, ttft_ms.p50")]
    assert len(said) == 1 and said[0].endswith("(its mean is between 52.4 and 55.2 ms)")


def test_a_change_inside_the_noise_is_no_difference_shown() -> None:
    c = compare(runs(1, 100, 110, 90), runs(4, 103, 113, 93))
    assert metric(c, "output_tok_s").verdict == "no difference shown"


def test_pairs_see_through_a_drift_that_both_share() -> None:
    a, b = runs(1, 100, 80, 60), runs(4, 102, 81.7, 61.2)
    assert metric(compare(a, b), "output_tok_s").verdict == "no difference shown"
    assert metric(compare(a, b, paired=True), "output_tok_s").verdict == "better"


@pytest.mark.parametrize(
    ("half", "text"), [(0.04, "0.0"), (9.25, "9.2"), (401.2, "401.2"), (18429183.4, ">999")]
)
def test_a_meaningless_width_is_shown_as_above_999(half: float, text: str) -> None:
    assert format_half_width(half) == text


def test_one_side_with_a_single_run_has_no_interval() -> None:
    c = compare(runs(1, 100), runs(2, 110, 111))
    assert metric(c, "output_tok_s").verdict == "single pair" and "single run" in c.notes[0]


def test_runs_of_one_side_must_be_of_one_configuration() -> None:
    c = compare([result(1), result(2, flags={"x": 1})], runs(3, 100, 101))
    assert any("the runs of A differ among themselves" in w for w in c.warnings)


@pytest.mark.parametrize(
    ("a", "b", "paired"), [([], [1], False), ([1], [], False), ([1], [1, 2], True)]
)
def test_sides_that_make_no_comparison(a: list[int], b: list[int], paired: bool) -> None:
    with pytest.raises(ValueError, match="a comparison needs a result on each side"):
        compare([result(n) for n in a], [result(n) for n in b], paired=paired)


@pytest.mark.ci_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("paired", [False, True])
def test_the_interval_contains_the_truth_as_often_as_its_level_says(paired: bool) -> None:
    """Of 400 experiments of 4 + 4 runs with 1 % noise and a true change of +3 %, 95 % of the
    intervals contain it (± 3 standard errors of that share). Without a true change, as few
    experiments show one."""
    source = random.Random(7)
    held = false_alarms = 0
    for _ in range(400):
        a = [result(i, 100 * math.exp(source.gauss(0, 0.01))) for i in range(4)]
        b = [result(i, 103 * math.exp(source.gauss(0, 0.01))) for i in range(4)]
        same = [result(i, 100 * math.exp(source.gauss(0, 0.01))) for i in range(4)]
        speed = compare(a, b, paired=paired).metrics[0]
        assert speed.change_pct is not None and speed.interval_pct is not None
        held += abs(speed.change_pct - 3) <= speed.interval_pct
        false_alarms += compare(a, same, paired=paired).metrics[0].verdict != "no difference shown"
    assert 367 <= held <= 393
    assert 7 <= false_alarms <= 33


def test_net_efficiency_says_that_the_idle_power_differed() -> None:
    def made(number: int, idle_w: float) -> BenchResult:
        one = result(number)
        energy = {"idle_power_w": idle_w, "net_tok_per_joule": 2.0}
        return replace(one, summary=replace(one.summary, **energy))

    notes = compare(made(1, 184.0), made(2, 136.0)).notes
    assert any(
        note.startswith("net tokens per joule are not comparable") and "136 to 184 W" in note
        for note in notes
    )
    assert not any("net tokens" in n for n in compare(made(1, 184.0), made(2, 180.0)).notes)


def test_a_difference_that_late_reads_could_explain_is_no_verdict() -> None:
    def runs(first: int, mean_ms: float, unsure_ms: float) -> list[BenchResult]:
        times = {"ttft_ms": spread(mean_ms), "unsure_ms": {"ttft_ms": unsure_ms}}
        return [result(first + n, summary=times) for n in range(4)]

    exact = compare(
        runs(1, 100.0, 0.0), runs(5, 99.4, 0.0), paired=True, chosen_metric="ttft_ms.p50"
    )
    assert metric(exact, "ttft_ms.p50").verdict == "better"
    for unsure_a, unsure_b in ((0.9, 0.0), (0.0, 0.9), (0.9, 0.9)):
        a, b = runs(1, 100.0, unsure_a), runs(5, 99.4, unsure_b)
        found = metric(compare(a, b, paired=True, chosen_metric="ttft_ms.p50"), "ttft_ms.p50")
        assert found.verdict == "no difference shown"
        assert found.interval_pct is not None and found.interval_pct > 0.9
    larger = compare(
        runs(1, 100.0, 0.9), runs(5, 97.0, 0.9), paired=True, chosen_metric="ttft_ms.p50"
    )
    assert metric(larger, "ttft_ms.p50").verdict == "better"


def test_results_from_before_a_percentile_are_compared_by_one_that_all_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparison had only the new percentile, which stored results lack, and so no tail."""
    old, new = spread(100.0, 100), replace(spread(100.0, 100), p95=150.0)
    monkeypatch.setattr(distribution, "COMPARED_PERCENTILES", tuple(PERCENTILES.values()))
    assert highest_shared_percentile([new, new]).name == "p95"
    assert highest_shared_percentile([new, old]).name == "p90"
    assert highest_shared_percentile([spread(100.0)]).name == "p99"
    assert highest_shared_percentile([]).name == "p95", "of those that need no number of values"
