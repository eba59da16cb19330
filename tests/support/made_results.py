"""Invented results, an experiment and a sweep, for tests of reports and plots."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
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
from workbench.model.quality import (
    AnswerScores,
    ForkCount,
    ForkedAnswer,
    InstrumentProof,
    Interval,
    QualityMeasure,
    QualityResult,
    TextDifference,
    WorstText,
)
from workbench.model.sweep import Sweep, SweepPoint
from workbench.session.bench.row import BenchRow

EVIL = '<script>alert("x")</script>'


def samples(requests: int = 40, streams: int = 4, tokens: int = 32) -> tuple[dict[str, Any], ...]:
    """Return requests that follow each other on each stream; every value is a function of the
    index."""
    made, ends = [], [0.0] * streams
    for i in range(requests):
        ttft, gaps = (
            80_000 + 1_000 * (i * 7 % 23),
            [9_000 + 10 * (i * j % 90) for j in range(tokens - 1)],
        )
        end = ttft + sum(gaps)
        made.append(
            {
                "index": i,
                "start_s": ends[i % streams],
                "end_us": end,
                "ttft_us": ttft,
                "gaps_us": gaps,
                "chunks": tokens,
                "prompt_tokens": 100,
                "output_tokens": tokens,
                "finish_reason": "length",
            }
        )
        ends[i % streams] += end / 1e6
    return tuple(made)


def result(number: int = 7, *, model: str = "org/tiny", **conditions: Any) -> BenchResult:
    made = Conditions(
        host="box",
        engine="vllm",
        engine_version="0.33.0",
        model=model,
        argv=("vllm", "serve", model, "--api-key", "sesame", "--max-num-seqs", "256"),
        env={"HF_TOKEN": "sesame"},
        flags={"max-num-seqs": 256},
        driver_version="580.1",
        cuda_version="13.0",
        run_id="20261121-031502-vllm-3f2a",
        gpus=({"name": "RTX PRO 6000"},),
        gpu_settings={"gpu0.power_limit_w": 500.0},
        in_force={"gpu0.power_limit_w": "yes"},
        model_digest="3f1c99d0a1b2c3d4",
        model_bytes="4 files, 1.2 GB",
    )
    spread = Distribution(90.0, 88.0, 99.0, 101.0, 80.0, 102.0, 40)
    summary = BenchSummary(
        requests_ok=40,
        requests_failed=0,
        errors={},
        prompt_tokens=4000,
        output_tokens=1280,
        cached_tokens=0,
        duration_s=3.7,
        output_tok_s=346.2,
        request_s=10.8,
        ttft_ms=spread,
        itl_ms=spread,
        tpot_ms=spread,
        e2e_ms=spread,
        tokens_per_chunk=1.0,
        per_stream_tok_s=100.0,
        power_w=412.0,
        energy_j=1524.0,
        tok_per_joule=0.84,
        net_tok_per_joule=1.02,
        idle_power_w=72.0,
        window="steady",
        window_s=3.1,
        engine=EngineDuring(40, 4000, 1280, 3.9, 4, absent={"kv_use_max_pct": "not given"}),
    )
    spec = BenchSpec("http://127.0.0.1:8000", model, concurrency=4, requests=40, max_tokens=32)
    return BenchResult(number, 1_790_000_000.0, spec, replace(made, **conditions), summary)


def simulated(number: int = 7) -> BenchResult:
    return result(number, simulated=True)


PAIRS = ((340.1, 351.0), (341.9, 352.2), (339.5, 350.9))


def comparison() -> Comparison:
    return Comparison(
        7,
        8,
        ({"kind": "flag", "name": "max-num-seqs", "a": 256, "b": 512},),
        (
            MetricChange("output_tok_s", "tok/s", 340.5, 351.4, 3.2, 0.9, True, "better", PAIRS),
            MetricChange("ttft_ms.p50", "ms", 88.0, 95.4, 8.4, 2.0, False, "worse"),
            MetricChange("power_w", "W", 412.0, 413.2, 0.3, 0.4, False, "no difference shown"),
            MetricChange("queue_ms.mean", "ms", None, None, None, None, False, "not measured"),
        ),
        ("the runs are not alike",),
        False,
        False,
        3,
        3,
        ("three pairs",),
    )


def experiment(**fields: Any) -> Experiment:
    runs = tuple(
        ExperimentRun(i, i // 2, arm, "done", 7 + i, PAIRS[i // 2]["AB".index(arm)], 30.5)
        for i, arm in enumerate("ABBAAB")
    )
    spec = ExperimentSpec(
        Arm(), Arm(sets=("max-num-seqs=512",)), {"model": "org/tiny"}, until_pct=1.0, pairs=3
    )
    made = Experiment(
        3, 1_790_000_000.0, "box", spec, runs, "done", comparison(), "B is faster by 3.2 % ± 0.9"
    )
    return replace(made, smallest_pct=1.4, restarts=True, **fields)


def sweep(levels: Mapping[str, float | None] | None = None, **fields: Any) -> Sweep:
    levels = levels or {f"c={n}": float(n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)}
    points = tuple(
        SweepPoint(
            label,
            x,
            "done",
            (7,),
            5800 * n / (n + 3),
            2 + n / 9,
            400.0,
            2400,
            66,
            100 + 9 * n,
            160 + 30 * n,
        )
        for n, (label, x) in enumerate(levels.items(), start=1)
    )
    made = Sweep(4, 1_790_000_000.0, "box", "concurrency", "concurrency", "", points, "done", 3)
    return replace(made, **{"knee_text": "little is gained beyond", **fields})


def multiply(path: Path, count: int) -> None:
    """Store the first result of a database `count` times more, with the word "copyN", as quickly as
    SQLite can."""
    with sqlite3.connect(path) as db:
        names = [
            row[1]
            for row in db.execute("PRAGMA table_info(results)")
            if row[1] not in ("id", "uid", "note")
        ]
        columns = ", ".join(names)
        db.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
            f" INSERT INTO results (uid, note, {columns})"
            f" SELECT lower(hex(randomblob(16))), 'copy' || i, {columns} FROM results, n"
            " WHERE id = (SELECT min(id) FROM results)"
        )
    db.close()


def quality() -> QualityResult:
    """Return a comparison of answers that differ."""
    return QualityResult(
        a="llama-8b",
        b="llama-8b kv-cache-dtype=fp8",
        verdict="differs",
        summary="its answers differ: KLD >= 0.035 ± 0.003",
        measures=(
            QualityMeasure(
                "kl",
                Interval(0.035, 0.032, 0.038),
                Interval(0.0002),
                margin=0.001,
                verdict="differs",
            ),
            QualityMeasure(
                "answer_score",
                Interval(-0.152, -0.21, -0.094),
                Interval(0.001, -0.01, 0.012),
                verdict="differs",
                texts=32,
                lane="greedy",
                concurrency=8,
            ),
        ),
        answer_scores=AnswerScores(-0.412, -0.564, 32, 4010),
        forks=ForkCount(3, 1, 2000, 32, Interval(1.5, 0.3, 4.4)),
        texts=(TextDifference("prose-orchard", "prose", 255, 0.04, 0.01, 0.93),),
        forked=ForkedAnswer(
            name="code-c-ring",
            kind="code",
            position=6,
            before="for (int i",
            a=" = 0; i < n; i++)",
            b=" a a a a a a a",
            concurrency=8,
        ),
        worst=WorstText("prose-orchard", "prose", 0.04, 12, " the", " a", " under"),
        proofs=(InstrumentProof("A", "prefill", True, positions=64, largest=1e-5),),
        text_set="workbench",
        text_version="1",
        simulated=True,
        conditions_a={"engine": "vllm", "flag kv-cache-dtype": "auto"},
        conditions_b={"engine": "vllm", "flag kv-cache-dtype": "fp8"},
        unix_s=1_790_000_000.0,
    )


def bench_row(number: int, label: str, tok_s: float | None, **other: Any) -> BenchRow:
    """Return the row of a result that has only a speed."""
    fields: dict[str, Any] = {
        "unix_s": 0.0,
        "model": "m",
        "engine": "vllm",
        "concurrency": 4,
        "ttft_p50_ms": None,
        "ttft_p90_ms": None,
        "itl_mean_ms": None,
        "power_w": None,
        "tok_per_joule": None,
        "requests_ok": 8,
        "requests_failed": 0,
        "simulated": False,
    }
    return BenchRow(id=number, label=label, output_tok_s=tok_s, **{**fields, **other})
