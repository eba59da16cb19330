"""Content of the scripted session: a comparison, a result, and experiments and sweeps at several
stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.model.bench import (
    BenchResult,
    BenchSpec,
    BenchSummary,
    Comparison,
    Conditions,
    Distribution,
    EngineDuring,
    MetricChange,
)
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
from workbench.model.series_state import SeriesState
from workbench.model.setting_records import GuardView
from workbench.model.sweep import PointState, Sweep, SweepPoint, SweepSpec
from workbench.model.tune import TUNE, LeftOut, TuneCandidate, TuneLimits, TuneSpec
from workbench.model.tune_standings import format_point_label

NOW = 1_795_000_000.0  # a fixed wall clock for what is drawn from Unix times


def canned_comparison(simulated: bool = True) -> Comparison:
    change = MetricChange
    return Comparison(
        41,
        42,
        ({"kind": "flag", "name": "max-num-seqs", "a": 256, "b": 512},),
        (
            change("output", "tok/s", 5812, 6731, 15.8, 1.7, True, "better"),
            change("TTFT p50", "ms", 212, 298, 40.6, 9.4, False, "worse"),
            change("ITL mean", "ms", 21.4, 24.9, 16.4, 1.2, False, "worse"),
            change("power", "W", 603, 611, 1.3, 2.0, False, "no difference shown"),
            change("efficiency", "tok/J", 9.64, 11.02, 14.3, 2.0, True, "better"),
        ),
        (),
        True,
        simulated,
    )


def canned_result(number: int, **fields: Any) -> BenchResult:
    d = Distribution(230.0, 212.0, 540.0, 890.0, 120.0, 910.0, 64, 700.0)
    engine = EngineDuring(
        requests_finished=72,
        prompt_tokens=9216,
        generation_tokens=9216,
        running_mean=7.8,
        running_max=8,
        waiting_mean=0.4,
        waiting_max=3,
        kv_use_max_pct=41.0,
        prefix_hit_pct=0.0,
        prefix_hit_tokens=0,
        samples=14,
    )
    summary = BenchSummary(
        64,
        0,
        {},
        8192,
        8192,
        0,
        1.41,
        5812.0,
        45.4,
        d,
        d,
        d,
        d,
        1.0,
        26.1,
        603.0,
        850.0,
        9.64,
        window="steady",
        window_s=1.1,
        whole_run_tok_s=5410.0,
        in_flight_mean=7.9,
        in_flight_nominal=8.0,
        idle_power_w=91.0,
        net_tok_per_joule=11.35,
        energy_per_request_j=13.3,
        engine=engine,
    )
    conditions = Conditions(
        "four-pcie",
        "vllm",
        "0.33.0",
        "Qwen/Qwen3-VL-2B-Instruct",
        ("vllm", "serve", "m"),
        {"HF_TOKEN": "****"},
        preset_id="qwen3-vl-2b-dp4",
        simulated=True,
    )
    result = BenchResult(number, NOW, BenchSpec("http://127.0.0.1:8000", "m"), conditions, summary)
    return replace(result, summary=replace(summary, **fields)) if fields else result


def guard(**fields: Any) -> GuardView:
    return replace(
        GuardView(
            True, 5151, NOW, 60.0, 1.2, log="guard.log", temperature_limits_c={"GPU-0000": 85.0}
        ),
        **fields,
    )


# experiments: three pairs in the order A B B A A B
_VALUES = {"A": (5812.0, 5790.0, 5841.0), "B": (6731.0, 6702.0, 6688.0)}
_ORDER = ("A", "B", "B", "A", "A", "B")
_CHANGES = {  # metric: unit, A, B, change, half width after 2 and after 3 pairs, higher is better
    "output_tok_s": ("tok/s", 5814.0, 6707.0, 15.4, 5.9, 1.7, True),
    "tok_per_joule": ("tok/J", 9.64, 11.02, 14.3, 7.1, 2.0, True),
    "ttft_ms.p50": ("ms", 212.0, 298.0, 40.6, 22.0, 9.4, False),
    "ttft_ms.p99": ("ms", 890.0, 921.0, 3.5, 30.0, 12.0, False),
    "itl_ms.mean": ("ms", 21.4, 24.9, 16.4, 4.4, 1.2, False),
    "power_w": ("W", 603.0, 608.6, 0.9, 5.5, 1.6, False),
}


def _experiment_comparison(pairs: int) -> Comparison:
    metrics = []
    for name, (unit, a, b, change, wide, narrow, higher) in _CHANGES.items():
        half = wide if pairs == 2 else narrow
        better = (change > 0) == higher
        verdict = "no difference shown" if abs(change) < half else "better" if better else "worse"
        raw = ((a, b),) * pairs
        metrics.append(MetricChange(name, unit, a, b, change, half, higher, verdict, raw))
    differences = ({"kind": "flag", "name": "max-num-seqs", "a": 256, "b": 512},)
    return Comparison(51, 52, differences, tuple(metrics), (), True, True, pairs, pairs)


def canned_experiment(done: int = 6, *, state: str | None = None, number: int = 7) -> Experiment:
    """Return an experiment with `done` of its six runs; while it runs, the next one is being
    measured."""
    runs = []
    seen = {"A": 0, "B": 0}
    for place, arm in enumerate(_ORDER):
        value = _VALUES[arm][seen[arm]]
        seen[arm] += 1
        run = ExperimentRun(place, place // 2, arm)
        if place < done:
            run = replace(run, state="done", result_id=51 + place, value=value, took_s=61.0 + place)
        elif place == done and state in (None, "running"):
            run = replace(run, state="measuring")
        runs.append(run)
    pairs = done // 2
    spec = ExperimentSpec(
        Arm(sets=("max-num-seqs=256",)),
        Arm(sets=("max-num-seqs=512",)),
        {"engine": "vllm"},
        "qwen3-vl-2b-dp4",
        {"concurrency": 8, "requests": 64},
        3,
    )
    over = done == len(runs)
    verdict = (
        ("B is better: output_tok_s +15.4 % ± 1.7 (95 %, 3 pairs)" if over else "")
        if state != "failed"
        else ""
    )
    return Experiment(
        number,
        NOW,
        "four-pcie",
        spec,
        tuple(runs),
        state or ("done" if over else "running"),
        _experiment_comparison(pairs) if pairs > 1 else None,
        verdict,
        2.4,
        True,
        None if over else (6 - done) * 62.0,
        True,
    )


# sweeps: power limit in watts
_POWER = (
    (300, 4101.0, 296.0, 1725),
    (350, 4692.0, 345.0, 1980),
    (400, 5204.0, 394.0, 2235),
    (450, 5398.0, 443.0, 2430),
    (500, 5496.0, 489.0, 2580),
    (550, 5561.0, 531.0, 2685),
    (600, 5583.0, 561.0, 2790),
)


def canned_sweep(done: int = 7, *, state: str | None = None) -> Sweep:
    points = []
    for place, (watts, tok_s, power, sm) in enumerate(_POWER):
        point = SweepPoint(f"{watts} W", float(watts))
        if place < done:
            forced = "capped by power, 97 %" if watts < 600 else "in force"
            point = replace(
                point,
                state="done",
                tok_s=tok_s,
                power_w=power,
                tok_per_joule=tok_s / power,
                sm_mhz=sm,
                temperature_c=48.0 + 4 * place,
                ttft_p50_ms=230.0 - 3 * place,
                ttft_p90_ms=900.0,
                itl_mean_ms=24.0 - place,
                in_force=forced,
                result_ids=(60 + place,),
            )
        elif place == done and state in (None, "running"):
            point = replace(point, state="measuring")
        points.append(point)
    over = done == len(points)
    knee = "400 W: the highest tok/J that keeps 93 % of the throughput" if over else ""
    return Sweep(
        3,
        NOW,
        "four-pcie",
        "power_limit_w",
        "power limit",
        "W",
        tuple(points),
        state or ("done" if over else "running"),
        2 if over else None,
        knee,
        True,
        None if over else (7 - done) * 31.0,
    )


# a tune of output tok/s: the race in two blocks, and its final
SPECULATION = (
    'speculative-config={"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'
)
_RACE = (  # the changes of a server, its tok/s in the first block, and why it is out
    ((), 2431.0, None),
    (("max-num-seqs=64",), 3105.0, None),
    (("max-num-batched-tokens=8192",), 2518.0, None),
    ((SPECULATION,), 2102.0, None),
    (
        ("kv-cache-dtype=fp8",),
        2490.0,
        "breaks a limit: ttft<=500@p95: 91.2 % of the requests kept it",
    ),
    (("attention-backend=FLASHINFER",), None, "not started: the server failed (exit code 1)"),
)
_LOG = (
    "1: kv-cache-dtype=fp8: out, breaks a limit: ttft<=500@p95: 91.2 % of the requests kept it",
    "1: attention-backend=FLASHINFER: out, not started: the server failed (exit code 1)",
    "1: max-num-seqs=64: place 1 with +27.7 % against the start preset in one start; goes on",
    "1: max-num-batched-tokens=8192: place 2 with +3.6 % against the start preset in one start; "
    "out, too far behind for chance",
    "1: speculative-config={ngram,3,4}: place 3 with -13.5 % against the start preset in one start; "
    "out, too far behind for chance",
)
_FINAL = "max-num-seqs=64: leads the race, with +27.4 %, and meets the start preset in the final"


def tune_spec() -> TuneSpec:
    reasons = (
        "40 of the requests wait",
        "fewer steps for prompts",
        "guessed tokens",
        "half the KV",
    )
    candidates = tuple(
        TuneCandidate(entry, reason)
        for (entry, _, _), reason in zip(_RACE[1:], (*reasons, "kernels differ"), strict=True)
    )
    left_out = (
        LeftOut("tensor-parallel-size=4", "it does not fit: the model has 6 heads"),
        LeftOut("memory clocks", "a lock can lower other clocks of the GPU unseen"),
        LeftOut("async-scheduling=true", "no room in 24 starts; --starts allows more"),
        LeftOut("performance-mode=throughput", "no room in 24 starts; --starts allows more"),
    )
    limits = TuneLimits("ttft<=500@p95", 400.0, 83.0)
    return TuneSpec("tok_s", 24, candidates, left_out, limits)


def canned_tune(*, over: bool = False, number: int = 5) -> Sweep:
    """Return a tune whose race is in its second block, or one that has ended with a gain."""
    points = []
    for place, (entry, tok_s, error) in enumerate(_RACE):
        state = PointState.FAILED if tok_s is None else PointState.DONE
        point = SweepPoint(
            format_point_label(1, entry), None, state, (70 + place,), tok_s, error=error
        )
        points.append(replace(point, result_ids=()) if tok_s is None else point)
    points.append(SweepPoint("2: start", None, PointState.DONE, (76,), 2440.0))
    best = SweepPoint("2: max-num-seqs=64", None, PointState.MEASURING)
    if over:
        best = replace(best, state=PointState.DONE, result_ids=(77,), tok_s=3101.0)
    points.append(best)
    found = (
        "+15.4 % (at least +13.7 %) output tok/s with max-num-seqs=64; quality not measured; "
        "14 starts, 21 min"
    )
    wrote = "wrote the preset tuned-5 (/presets/tuned-5.toml): `workbench presets apply tuned-5`"
    return Sweep(
        id=number,
        unix_s=NOW,
        host="four-pcie",
        kind=TUNE,
        name="tune of output tok/s",
        unit="",
        points=tuple(points),
        state=SeriesState.DONE if over else SeriesState.RUNNING,
        knee_text=found if over else "",
        simulated=True,
        left_s=None if over else 512.0,
        notes=(*_LOG, _FINAL, wrote) if over else _LOG,
        experiment_id=7 if over else None,
        confirmed=True if over else None,
        spec=SweepSpec((), runs=2, pairs=5, tune=tune_spec()),
    )
