"""Errors of the reported TTFT and ITL against a server that knows its own schedule, from 64 to
1,000 streams, with the client on one core and on all.

    python tests/benchmarks/bench_latency_errors.py [--streams 64,512] [--rounds 3] [--processes N]

TTFT 50 ms, ITL 10 ms, 64 tokens a request. Each row gives the error of the reported mean and
percentiles in ms, or says which of them the run withheld, or that it refused itself. A row is wrong
if a statistic that was reported is off by more than 0.5 ms; the last line counts such rows. Server
and client have a core each; in rows with two cores the client may run on both. `--processes` sets
the number of client processes in these rows, where the client itself would use fewer.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from typing import Any

from bench_client import pin_workers, run, truth_server, unpinned

from workbench.bench.records import BenchOutcome
from workbench.bench.workload import unique_prompt_mark
from workbench.model.bench import Distribution
from workbench.model.distribution import PERCENTILES, distribution_of

LIMIT_MS = 0.5
PARTS = ("mean", *PERCENTILES)


def truth_of(
    outcome: BenchOutcome, truth: dict[str, dict[str, Any]]
) -> dict[str, Distribution | None]:
    """Return the latencies by the server's own stamps. The time of a write is the middle of the
    stamps around it, which are milliseconds apart if the server was off its core."""
    ttft, gaps = [], []
    for record in outcome.requests:
        one = truth[unique_prompt_mark(outcome.spec.salt, f"r/{record.index}")]
        wrote = [sum(pair) / 2 for pair in zip(one["sent_ns"], one["done_ns"], strict=True)]
        ttft.append((wrote[0] - one["request_ns"]) / 1e6)
        gaps += [(b - a) / 1e6 for a, b in pairwise(wrote)]
    return {"ttft_ms": distribution_of(ttft), "itl_ms": distribution_of(gaps)}


def recorded(outcome: BenchOutcome, name: str) -> Distribution:
    """Return a withheld latency as it would have been reported."""
    if name == "ttft_ms":
        found = distribution_of((r.ttft_us or 0) / 1000 for r in outcome.requests)
    else:
        found = distribution_of(gap / 1000 for r in outcome.requests for gap in r.gaps_us)
    assert found is not None
    return found


def measured(streams: int, cores: int, processes: int | None) -> tuple[str, bool]:
    """Return the text of a row, and whether the row is wrong."""
    options = ("--ttft-ms", "50", "--itl-ms", "10", "--exact")
    fields = {"concurrency": streams, "requests": 4 * streams, "warmup": streams, "max_tokens": 64}
    with truth_server(*options) as server:
        if cores == 1:
            outcome = run(server.url, 1, **fields)
        else:
            with unpinned():
                outcome = run(server.url, processes, **fields)
        truth = truth_of(outcome, server.stop())
    summary, told, wrong = outcome.summary, [], False
    for name, true in truth.items():
        seen: Distribution | None = getattr(summary, name)
        assert true is not None
        kept = seen is not None
        seen = seen or recorded(outcome, name)
        known = [part for part in PARTS if getattr(seen, part) is not None]
        off = {part: getattr(seen, part) - (getattr(true, part) or 0.0) for part in known}
        worst = max(off.values(), key=abs)
        wrong |= kept and abs(worst) > LIMIT_MS
        if not kept:
            why = summary.absent[name].partition(":")[0]
            told.append(f"{name[:-3]} {why} (it would be off by {worst:+.3f})")
            continue
        told.append(f"{name[:-3]} mean {off['mean']:+.3f}, worst statistic {worst:+.3f}")
    count = next((n for n in summary.notes if "processes of the load client" in n), "1 process")
    refused = f"; REFUSED: {'; '.join(summary.refused)}" if summary.refused else ""
    pct = f"{summary.client_cpu_pct or 0:.0f} % of a core"
    wrong = wrong and not refused
    return f"{count.split(' of ')[0]}, {pct}: {'; '.join(told)}{refused}", wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", default="64,128,256,512,1000")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--processes", type=int)
    asked = parser.parse_args()
    pin_workers()
    rows = [
        (int(streams), int(cores))
        for cores in asked.cores.split(",")
        for streams in asked.streams.split(",")
    ]
    wrong = 0
    for _ in range(asked.rounds):
        for streams, cores in rows:
            text, bad = measured(streams, cores, asked.processes)
            wrong += bad
            load = f"load {os.getloadavg()[0]:.1f}"
            sign = "WRONG " if bad else ""
            print(f"{streams:5} streams, {cores} core(s), {load}: {sign}{text}", flush=True)
    print(f"{wrong} of {asked.rounds * len(rows)} rows report a statistic off by > {LIMIT_MS} ms")


if __name__ == "__main__":
    main()
