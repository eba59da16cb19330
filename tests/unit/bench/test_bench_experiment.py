"""Tests of an experiment's design: order, repetition, the end, and verdicts that claim no more than
was shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_runs import CONDITIONS, result_of

from workbench.bench import experiment as design
from workbench.bench.metric_changes import HINT, find_metric
from workbench.engines.answer_settings import collect_answer_settings
from workbench.model.bench import BenchResult, BenchSpec
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
from workbench.model.quality import QualityResult
from workbench.model.settings import GpuSettings
from workbench.model.student_t import detectable_shift_in_errors, t_power, t_quantile

KNOB = Arm(sets=("knob=2",))


def spec(**options: Any) -> ExperimentSpec:
    return ExperimentSpec(**{"a": Arm(), "b": KNOB, "plan": {}, **options})


def experiment(*states: str, **options: Any) -> Experiment:
    """Return an experiment whose runs follow the design and have these states."""
    one = Experiment(1, 0.0, "box", spec(**options))
    for state in states:
        error = "lost" if state == "failed" else None
        one = design.add_or_replace_run(
            one, replace(design.next_run_to_make(one), state=state, error=error)
        )
    return one


def measured(
    speeds: list[tuple[float, float]],
    state: str = "done",
    flags: dict[str, Any] | None = None,
    quality: Sequence[QualityResult] = (),
    **options: Any,
) -> Experiment:
    """Return an experiment whose pairs have these speed factors of A and B. `flags` are further
    flags of B."""
    results: dict[int, BenchResult] = {}
    runs = []
    for pair, factors in enumerate(speeds):
        for arm in design.arm_order_of_pair(spec(**options), pair):
            number = len(results) + 1
            result = result_of(number, arm, factors["AB".index(arm)], seed=pair)
            if flags and arm == "B":
                made = replace(result.conditions, flags={**result.conditions.flags, **flags})
                result = replace(result, conditions=made)
            results[number] = result
            runs.append(ExperimentRun(number - 1, pair, arm, "done", number))
    one = Experiment(1, 0.0, "box", spec(**options), tuple(runs), state)
    return design.evaluate_experiment(one, results, quality)


def test_runs_without_spread_could_not_have_shown_less_than_a_metric_tells() -> None:
    """The verdict never says that a difference of 0.0 % or more would have been shown."""
    same, close = measured([(1.0, 1.0)] * 5), measured([(1.0, 1.0), (1.0, 1.0003)] * 3)
    for one in (same, close):
        assert one.comparison is not None and one.smallest_pct is not None
        width = one.comparison.metrics[0].interval_pct
        assert width is not None and one.smallest_pct > width, (
            "the smallest that is shown lies outside the interval"
        )


@pytest.mark.parametrize(("metric", "resolution"), [("power_w", 0.5), ("itl_ms.mean", 0.01)])
def test_smallest_difference_follows_exactly_from_the_values(
    metric: str, resolution: float
) -> None:
    """Later versions recompute the numbers of a proof and compare them exactly, so the smallest
    value itself limits the resolution, and not the exponential of its logarithm."""
    for percent in range(100, 120):
        one = measured([(percent / 100, percent / 100)] * 4, metric=metric)
        assert one.comparison is not None
        value, _ = one.comparison.metrics[0].pairs[0]
        assert value is not None
        least = detectable_shift_in_errors(3) * math.sqrt(2 * (resolution / value) ** 2 / 4)
        assert one.smallest_pct == 100 * math.expm1(least)


# -- what comes next -------------------------------------------------------------------------------


def test_pairs_turn() -> None:
    one = experiment(*["done"] * 10)
    assert "".join(r.arm for r in one.runs) == "ABBAABBAAB"
    assert [r.pair for r in one.runs] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and one.completed_pairs == 5


def test_the_order_inside_pairs_is_drawn_from_a_stored_seed() -> None:
    def drawn(seed: int) -> str:
        return "".join(
            design.arm_order_of_pair(spec(order_seed=seed), pair)[0] for pair in range(12)
        )

    orders = {drawn(seed) for seed in range(50)}
    assert drawn(7) == drawn(7) and len(orders) > 45, (
        "the same again when resumed; another one for each experiment"
    )
    first = sum(drawn(seed).count("A") for seed in range(200)) / 2400
    assert 0.46 < first < 0.54
    seconds = [drawn(seed)[1] for seed in range(400) if drawn(seed)[0] == "A"]
    assert 0.4 < seconds.count("A") / len(seconds) < 0.6, "one pair tells nothing of the next"


def test_both_runs_of_a_pair_have_one_seed_and_every_pair_its_own() -> None:
    seeds = [design.workload_seed_of_pair(spec(seed=7), pair) for pair in range(4)]
    assert seeds == [7, 8, 9, 10]


@pytest.mark.parametrize("states", [["failed"], ["done", "failed"]])
def test_a_pair_with_a_failed_run_is_made_again_whole(states: list[str]) -> None:
    one = experiment(*states, "done", "done")
    assert [r.arm for r in one.runs[-2:]] == ["A", "B"] and {r.pair for r in one.runs} == {0}
    assert one.completed_pairs == 1 and len(design.list_complete_pairs(one)) == 1
    assert (
        [r.state for r in one.runs[:-2]] == ["failed"]
        if len(states) == 1
        else ["dropped", "failed"]
    )


@given(st.lists(st.sampled_from(["done", "done", "done", "failed"]), max_size=40))
def test_whatever_fails_pairs_are_of_neighbours_in_the_right_order(states: list[str]) -> None:
    one = experiment(*states)
    assert [r.place for r in one.runs] == list(range(len(states)))
    pairs = design.list_complete_pairs(one)
    assert len(pairs) == one.completed_pairs
    for number, (a, b) in enumerate(pairs):
        assert (a.pair, b.pair, a.arm, b.arm) == (number, number, "A", "B") and abs(
            a.place - b.place
        ) == 1
        assert (a.place < b.place) == (number % 2 == 0)


def test_half_a_pair_from_before_an_interruption_is_made_again() -> None:
    one = experiment("done", "done", "done")
    one = design.add_or_replace_run(one, replace(design.next_run_to_make(one), state="measuring"))
    again = design.prepare_experiment_to_resume(one)
    assert [r.state for r in again.runs] == ["done", "done", "dropped", "failed"]
    assert design.count_failed_runs(again, 1) == 0, "an interruption is no failure of the pair"
    assert (design.next_run_to_make(again).arm, design.next_run_to_make(again).pair) == ("B", 1)


def test_restarts_follow_from_what_differs() -> None:
    gpu = Arm(gpu=GpuSettings(power_limit_w=400))
    assert design.starts_server_for_each_run(Arm(), KNOB) and design.starts_server_for_each_run(
        Arm(envs=("A=1",)), Arm()
    )
    assert not design.starts_server_for_each_run(
        Arm(), gpu
    ) and not design.starts_server_for_each_run(KNOB, replace(gpu, sets=KNOB.sets))
    assert design.starts_server_for_each_run(Arm(), Arm(unsets=("enforce-eager",))), (
        "a removed flag needs a start"
    )
    assert not design.starts_server_for_each_run(Arm(), Arm())
    assert design.changes_gpu_settings(spec(b=gpu)) and not design.changes_gpu_settings(spec())


def test_gpu_settings_in_words_are_accepted_by_gpu_set() -> None:
    from workbench.cli.experiment_arms import parse_gpu_settings

    words = "power-limit=412.5 gpu-clocks=210-2400 memory-clocks=810-9001 persistence=on"
    for typed in (
        words,
        "memory-clocks=reset persistence=off governor=performance",
        "power-limit=400",
    ):
        assert " ".join(parse_gpu_settings(typed.split(), "b").command_line_words) == typed
    options = (
        "power-limit=412.5W lock-gpu-clocks=210,2400 lock-memory-clocks=810,9001 persistence=on"
    )
    assert " ".join(parse_gpu_settings(options.split(), "b").command_line_words) == words
    assert parse_gpu_settings(["reset-gpu-clocks"], "b").command_line_words == ("gpu-clocks=reset",)
    assert GpuSettings().command_line_words == ()


@pytest.mark.parametrize(
    "options",
    [
        {"pairs": 0},
        {"pairs": 65},
        {"metric": "speed"},
        {"metric": "ttft_ms.p42"},
        {"until_pct": 0.0, "pairs": 9},
        {"until_pct": 2.0, "pairs": 4},
        {"max_minutes": 0.0},
        {"match_temperature_c": float("inf")},
    ],
)
def test_designs_that_cannot_be_carried_out(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        design.check_experiment_spec(spec(**options))


@pytest.mark.parametrize(
    "name", ["output_tok_s", "power_w", "ttft_ms.p99", "e2e_ms.mean", "energy_per_request_j"]
)
def test_metrics_that_can_be_claimed(name: str) -> None:
    assert design.check_experiment_spec(spec(metric=name)).metric == find_metric(name).name


# -- runs that are not compared --------------------------------------------------------------------


def test_runs_that_are_not_compared() -> None:
    good = result_of(1, "A", 1.0).summary
    assert design.why_result_is_unusable(good, "output_tok_s") is None
    failed = replace(good, requests_failed=2, errors={"reset": 2})
    assert (
        design.why_result_is_unusable(failed, "output_tok_s")
        == "2 of 130 requests failed (2 reset)"
    )
    assert (
        design.why_result_is_unusable(
            replace(good, refused=("the cache answered",)), "output_tok_s"
        )
        == "invalid result: the cache answered"
    )
    absent = replace(good, tok_per_joule=None, absent={"tok_per_joule": "too short"})
    assert (
        design.why_result_is_unusable(absent, "tok_per_joule")
        == "tok_per_joule was not measured: too short"
    )
    assert (
        design.why_result_is_unusable(replace(good, ttft_ms=None), "ttft_ms.p50")
        == "ttft_ms.p50 was not measured: the result has no value"
    )


# -- when it is enough -----------------------------------------------------------------------------


def wobble(count: int, spread: float, change: float = 1.0) -> list[tuple[float, float]]:
    """Return pairs whose log ratios have exactly this standard deviation (for an even count)."""
    size = spread * ((count - 1) / count) ** 0.5
    return [(1.0, change * (1 + (size if i % 2 else -size))) for i in range(count)]


def test_a_fixed_number_ends_by_number_whatever_is_seen() -> None:
    assert design.why_enough_pairs(measured(wobble(2, 0.001, 1.5), "running")) is None
    assert (
        design.why_enough_pairs(measured(wobble(3, 0.001, 1.5), "running"))
        == "all 3 pairs are done"
    )


def test_until_ends_by_width_and_not_before_five_pairs() -> None:
    options = {"until_pct": 2.0, "pairs": 16}
    assert design.why_enough_pairs(measured(wobble(4, 1e-4, 1.5), "running", **options)) is None
    assert design.why_enough_pairs(measured(wobble(5, 1e-4, 1.5), "running", **options)) == (
        "the interval is within ± 2 %"
    )
    assert design.why_enough_pairs(measured(wobble(8, 0.10, 1.5), "running", **options)) is None
    assert "was not reached" in (
        design.why_enough_pairs(measured(wobble(16, 0.10), "running", **options)) or ""
    )


def test_how_many_pairs_it_will_take() -> None:
    options = {"until_pct": 1.0, "pairs": 30}
    assert design.estimate_pairs_needed(experiment("done", "done", **options)) == 5
    wanted = design.estimate_pairs_needed(measured(wobble(4, 0.01), "running", **options))
    width = [100 * t_quantile(0.9825, n - 1) * 0.01 / n**0.5 for n in (wanted - 1, wanted)]
    assert width[0] > 1.0 >= width[1]
    one = measured(wobble(4, 0.01), "running", **options)
    runs = tuple(replace(r, took_s=30.0) for r in one.runs)
    assert design.estimate_remaining_s(replace(one, runs=runs)) == pytest.approx(
        30.0 * 2 * (wanted - 4)
    )
    assert design.estimate_remaining_s(one) is None, "nothing is known of how long a run takes"


# -- what it shows ---------------------------------------------------------------------------------


def test_a_difference_is_claimed_with_its_interval() -> None:
    one = measured(wobble(4, 0.004, 1.031))
    assert one.verdict.startswith("B is faster by 3.1 % ± 0.") and one.verdict.endswith(
        "(output tok/s, 4 pairs)"
    )
    assert one.comparison is not None and one.comparison.metrics[0].metric == "output_tok_s"
    assert len(one.comparison.metrics[0].pairs) == 4
    assert measured(wobble(4, 0.004, 0.95)).verdict.startswith("B is slower by 5.0 %")
    latency = measured(wobble(4, 0.004, 1.1), metric="ttft_ms.p50")
    assert latency.verdict.startswith("B is lower by") and "(ttft p50, 4 pairs)" in latency.verdict
    assert latency.comparison is not None and latency.comparison.metrics[0].verdict == "better"
    assert measured(wobble(4, 0.004, 1.1), metric="tok_per_joule").verdict.startswith(
        "B gives more per joule"
    )


FP8 = {"kv-cache-dtype": "fp8"}


def compared_answers(verdict: str, summary: str) -> QualityResult:
    """Return a measured comparison of the answers of A with those of B with an FP8 KV cache."""
    a, b = CONDITIONS["A"], CONDITIONS["B"]
    changed = replace(b, flags={**b.flags, **FP8})
    return QualityResult(
        "A",
        "B",
        verdict,
        summary,
        simulated=True,
        conditions_a=collect_answer_settings(a),
        conditions_b=collect_answer_settings(changed),
    )


@pytest.mark.parametrize("change", [1.031, 1.001, 0.9])
def test_speed_is_never_said_alone_if_the_answers_may_differ(change: float) -> None:
    one = measured(wobble(4, 0.004, change), flags=FP8)
    assert "(output tok/s, 4 pairs); quality not measured" in one.verdict
    assert one.comparison is not None
    assert one.comparison.quality == "quality not measured"
    assert one.comparison.answer_changes == ("kv-cache-dtype",)
    other = measured(wobble(4, 0.004, change))
    assert "quality" not in other.verdict


def test_a_verdict_has_both_halves() -> None:
    same = compared_answers("same", "its answers are the same within 0.001 KLD")
    one = measured(wobble(4, 0.004, 1.31), flags=FP8, quality=[same])
    assert one.verdict.startswith("B is faster by 31.0 % ± ")
    assert one.verdict.endswith(
        "(output tok/s, 4 pairs); its answers are the same within 0.001 KLD"
    )
    differ = compared_answers("differs", "its answers differ: KLD >= 0.035 ± 0.003")
    two = measured(wobble(4, 0.004, 1.31), flags=FP8, quality=[differ, same])
    assert two.verdict.endswith(", but its answers differ: KLD >= 0.035 ± 0.003")
    assert two.comparison is not None and two.comparison.quality_verdict == "differs"


def test_measured_quality_of_other_settings_is_not_used() -> None:
    same = compared_answers("same", "its answers are the same within 0.001 KLD")
    other = {**FP8, "quantization": "fp8"}
    one = measured(wobble(4, 0.004, 1.31), flags=other, quality=[same])
    assert "quality not measured" in one.verdict


def test_no_difference_comes_with_the_smallest_that_would_have_been_seen() -> None:
    one = measured(wobble(4, 0.01, 1.001))
    assert one.verdict.startswith("no difference that 4 pairs can show: +0.1 % ± 1.6")
    assert one.smallest_pct == pytest.approx(
        100 * detectable_shift_in_errors(3) * 0.01 / 2, rel=0.02
    )
    assert (
        f"with this spread, a difference of {one.smallest_pct:.1f} % or more would have been shown"
    ) in one.verdict
    two = measured(wobble(2, 0.01, 1.001))
    assert two.smallest_pct is None and two.verdict.endswith(
        "; the smallest difference that so few pairs could have shown is unknown"
    )


def test_no_claim_about_unfinished_or_incomparable_runs() -> None:
    pairs = wobble(4, 0.004, 1.1)
    assert measured(pairs, "running").verdict.startswith("so far +10.")
    rates = measured(pairs, "running", metric="request_s")
    assert "(requests/s, 4 pairs)" in rates.verdict  # it said "request s"
    for state in ("stopped", "failed"):
        assert measured(pairs, state).verdict.startswith(
            "no claim: the experiment was not finished; so far +10."
        )
    for state in ("running", "stopped", "failed"):
        compared = measured(pairs, state).comparison
        assert compared is not None and compared.metrics[0].verdict == HINT
        assert not {m.verdict for m in compared.metrics} & {"better", "worse"}
    assert measured(pairs[:1]).verdict == (
        "no claim: 1 pair cannot be distinguished from the noise between runs"
    )
    assert measured([]).verdict == "no claim: no pair is complete"
    assert measured([], "running").verdict == ""


def test_nothing_is_claimed_when_results_are_gone_or_unlike() -> None:
    one = measured(wobble(4, 0.004, 1.1))
    results = {
        n: result_of(n, r.arm, 1.0 if r.arm == "A" else 1.1, seed=r.pair)
        for n, r in enumerate(one.runs, 1)
    }
    gone = design.evaluate_experiment(one, {n: r for n, r in results.items() if n != 3})
    assert gone.verdict == "no claim: the results of 1 of 4 pairs were deleted"
    other = replace(results[2], conditions=replace(CONDITIONS["B"], driver_version="999"))
    unlike = design.evaluate_experiment(one, {**results, 2: other})
    assert unlike.verdict.startswith("no claim: the runs are not comparable (")
    assert unlike.comparison is not None and unlike.comparison.metrics[0].verdict == HINT


def test_equal_configurations_that_differ_are_a_fault_of_the_setup() -> None:
    assert (
        "something other than the configuration" in measured(wobble(4, 0.001, 1.05), a=KNOB).verdict
    )


def test_clocks_that_an_arm_causes_are_a_note_and_no_warning() -> None:
    from workbench.model.bench import GpuDuring

    def with_clock(result: BenchResult, mhz: float) -> BenchResult:
        return replace(
            result, summary=replace(result.summary, gpu=GpuDuring(None, None, mhz, 13000, 70, 99))
        )

    one = measured(wobble(4, 0.004, 1.1))
    clocks = {"A": 2700.0, "B": 2400.0}
    results = {
        n: with_clock(result_of(n, r.arm, 1.0, seed=r.pair), clocks[r.arm])
        for n, r in enumerate(one.runs, 1)
    }
    found = design.evaluate_experiment(one, results).comparison
    assert found is not None and found.like_for_like
    assert any("SM clocks differed" in note for note in found.notes)


def test_more_pairs_after_a_look_and_looking_until_cost_width() -> None:
    once = measured(wobble(6, 0.01))
    results = {n: result_of(n, r.arm, 1.0) for n, r in enumerate(once.runs, 1)}
    again = design.evaluate_experiment(replace(once, extensions=1), results)
    assert (design.confidence_level(once), design.confidence_level(again)) == (0.95, 0.9875)
    assert again.comparison is not None and any(
        "98.75 % interval" in note for note in again.comparison.notes
    )
    assert design.confidence_level(experiment(until_pct=2.0, pairs=9)) == 0.965


def test_other_metrics_are_claimed_only_after_correction_for_their_number() -> None:
    """One metric of 16 outside its own interval is expected by chance; one as far outside as Holm's
    procedure requires is claimed."""
    verdicts = {}
    for change in (1.013, 1.4):
        one = measured(wobble(4, 0.004, change))
        assert one.comparison is not None
        verdicts[change] = {m.metric: m.verdict for m in one.comparison.metrics}
    assert verdicts[1.013]["output_tok_s"] == "better", "the chosen one is tested alone"
    assert verdicts[1.013]["request_s"] == HINT
    assert verdicts[1.4]["request_s"] == "better"


# -- power -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("df", "shift", "expected"),  # by simulation, 4e6 draws
    [(2, 3.0, 0.3873), (4, 3.0, 0.6194), (7, 3.0, 0.7308), (7, 1.0, 0.1398)],
)
def test_power_of_student_s_test(df: int, shift: float, expected: float) -> None:
    assert t_power(shift, df, 0.05) == pytest.approx(expected, abs=1e-3)


@given(df=st.integers(1, 60), alpha=st.sampled_from([0.05, 0.035, 0.01]))
def test_without_a_difference_power_is_the_level(df: int, alpha: float) -> None:
    assert t_power(0.0, df, alpha) == pytest.approx(alpha, abs=1e-5)


def test_the_smallest_difference_is_seen_four_times_in_five() -> None:
    for df in (1, 2, 4, 7, 30):
        assert t_power(detectable_shift_in_errors(df), df, 0.05) == pytest.approx(0.8, abs=1e-6)


def test_a_metric_of_the_first_token_needs_answers_that_are_streamed() -> None:
    whole = BenchSpec("http://x", "m", stream=False)
    with pytest.raises(InputError, match="not streamed"):
        design.require_measurable_metric("ttft_ms.p50", whole)
    design.require_measurable_metric("output_tok_s", whole)
    design.require_measurable_metric("ttft_ms.p50", replace(whole, stream=True))


def test_a_metric_that_does_not_exist_is_not_measurable() -> None:
    """Whatever the length of the runs, and also for a latency without its statistic."""
    for seconds in (None, 1.0, 60.0):
        shape = BenchSpec("http://x", "m", seconds=seconds)
        for name in ("no_such_metric", "ttft_ms"):
            with pytest.raises(InputError, match="no metric is called"):
                design.require_measurable_metric(name, shape)
