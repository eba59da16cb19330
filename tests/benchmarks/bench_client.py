"""Capacity and accuracy of the load client against a server that knows its own schedule.

    python tests/benchmarks/bench_client.py [--quick]

Capacity: zero delay, 256 tokens a request: tokens per second, and CPU seconds of the whole worker process (start,
records and summary included) per million tokens. Accuracy: TTFT 50 ms, ITL 10 ms: reported minus true, in ms, request
by request and gap by gap. The server shares the machine with the client: read the figures with `nproc` and load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from truth_server import TruthProcess  # noqa: E402

from workbench.bench.records import BenchOutcome  # noqa: E402
from workbench.bench.runner import run  # noqa: E402
from workbench.bench.summary import quantile  # noqa: E402
from workbench.bench.workload import request_mark  # noqa: E402
from workbench.model.bench import BenchSpec  # noqa: E402


def errors_ms(outcome: BenchOutcome, truth: dict[str, dict[str, Any]]) -> tuple[list[float], list[float]]:
    """(TTFT errors, gap errors), reported minus true, ascending. True is a range where the server was off its core
    between its stamps around a write: inside it the error is 0."""
    ttft, gaps = [], []
    for record in outcome.requests:
        true = truth[request_mark(outcome.spec.salt, f"r/{record.index}")]
        sent = true["sent_ns"]
        assert record.ok and record.ttft_us is not None, record.error
        ttft.append(beyond(record.ttft_us, sent[0] - true["request_ns"], true["done_ns"][0] - true["request_ns"]))
        ranges = pairwise(zip(sent, true["done_ns"], strict=True))
        for seen_us, ((a, a_done), (b, b_done)) in zip(record.gaps_us, ranges, strict=True):
            gaps.append(beyond(seen_us, b - a_done, b_done - a))
    return sorted(ttft), sorted(gaps)


def beyond(seen_us: int, least_ns: int, most_ns: int) -> float:
    """Milliseconds that `seen_us` lies outside a range, 0 inside it (a microsecond is its grain)."""
    seen_ns = seen_us * 1000
    if seen_ns + 1000 < least_ns:
        return (seen_ns - least_ns) / 1e6
    return max(0, seen_ns - most_ns) / 1e6


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def capacity(streams: int, requests: int) -> None:
    with TruthProcess("--ttft-ms", "0", "--itl-ms", "0") as server:
        spec = BenchSpec(server.url, "m", concurrency=streams, requests=requests, warmup=streams, max_tokens=256)
        before = children_cpu_s()
        outcome = asyncio.run(run(spec))
        cpu_s = children_cpu_s() - before
    summary = outcome.summary
    assert summary.requests_ok == requests and summary.output_tokens == requests * 256
    tokens = summary.output_tokens + (summary.warmup_output_tokens or 0)
    print(
        f"capacity {streams:4} streams: {summary.output_tok_s or 0:10,.0f} tok/s"
        f"   {1e6 * cpu_s / tokens:6.2f} CPU s per 1M tokens   client {summary.client_cpu_pct} % of a core",
        flush=True,
    )


def accuracy(streams: int, rounds: int, *options: str) -> None:
    with TruthProcess("--ttft-ms", "50", "--itl-ms", "10", *options) as server:
        count = streams * rounds
        spec = BenchSpec(server.url, "m", concurrency=streams, requests=count, warmup=streams, max_tokens=128)
        outcome = asyncio.run(run(spec))
        ttft, gaps = errors_ms(outcome, server.stop())
    off = sorted(abs(g) for g in gaps)
    print(
        f"accuracy {streams:4} streams {' '.join(options):20} TTFT error mean {sum(ttft) / len(ttft):7.3f}"
        f"  p50 {quantile(ttft, 0.5):7.3f}  p99 {quantile(ttft, 0.99):7.3f} ms"
        f"   gap error |p50| {quantile(off, 0.5):6.3f}  |p99| {quantile(off, 0.99):6.3f}  max {off[-1]:7.3f} ms"
        f"   client {outcome.summary.client_cpu_pct} % of a core",
        flush=True,
    )


def start_up() -> None:
    with TruthProcess("--ttft-ms", "0", "--itl-ms", "0") as server:
        spec = BenchSpec(server.url, "m", concurrency=1, requests=1, warmup=0, max_tokens=1)
        walls = []
        for _ in range(5):
            began = time.time()
            outcome = asyncio.run(run(spec))
            walls.append(outcome.t0_unix - began)
    print(f"start-up: first request {min(walls):.3f} s best, {sorted(walls)[2]:.3f} s median after the call")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="half a minute instead of minutes")
    quick = parser.parse_args().quick
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    start_up()
    for streams in (64,) if quick else (1, 64, 256):
        capacity(streams, 1000 if quick else 4000)
    for streams in (1, 16, 64) if quick else (1, 16, 64, 128, 256):
        accuracy(streams, 1 if quick else 4)
    if not quick:
        accuracy(64, 4, "--jitter", "0.3")
        accuracy(128, 4, "--burst")


if __name__ == "__main__":
    main()
