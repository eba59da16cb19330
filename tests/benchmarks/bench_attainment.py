"""The attainment of an SLO that Workbench reports beside the one of the server's own stamps.

    python tests/benchmarks/bench_attainment.py [--requests 2000] [--rounds 3] [--only TEXT]

The server (truth_server.py) writes down when each request reached this machine, and when it began
and ended to write each token. Its latencies vary evenly by 30 %, and each limit lies among them, so
that requests on both sides of it are close to it. The true attainment is a range: with the times
before the writes it is higher, with those after them lower. The reported one is a range too, if late
reads returned several chunks with one time. `off` is how many points lie between the two ranges; the
goal is 0.1. `shift` is the median by which Workbench's latencies are longer
than the server's in ms, and `points per ms` is how much one such ms counts at the limit. Server and
worker are pinned to a core each. On a busy machine Workbench withholds the attainment, because it
read too late; it is computed all the same, and the row says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

from bench_client import pin_workers, run, truth_server  # noqa: E402
from truth_attainment import latencies_ms, points_off, reported_range, true_percent  # noqa: E402

from workbench.model.slo import parse_slo  # noqa: E402

TOKENS = 16


@dataclass(frozen=True)
class Row:
    name: str
    slo: str
    load: dict[str, Any]
    server: tuple[str, ...] = ("--ttft-ms", "50", "--itl-ms", "10", "--jitter", "0.3", "--exact")


SLOW = ("--ttft-ms", "400", "--itl-ms", "10", "--jitter", "0.3", "--exact")
ROWS = (
    Row("16 users, all limits near", "ttft<=60@p80, tpot<=10.4@p80", {"concurrency": 16}),
    Row("16 users, ttft at its p95", "ttft<=63.5@p95", {"concurrency": 16}),
    Row("64 users, tpot at its middle", "tpot<=10@p50", {"concurrency": 64}),
    Row("64 users, e2e", "e2e<=205@p90", {"concurrency": 64}),
    Row("64 users, slow first token", "ttft<=500@p90, tpot<=10.5@p95", {"concurrency": 64}, SLOW),
    Row("100 requests/s", "ttft<=60@p80, e2e<=210@p90", {"rate": 100.0, "arrival": "poisson"}),
    Row("200 requests/s", "ttft<=500@p90", {"rate": 200.0, "arrival": "poisson"}, SLOW),
)


def measure(row: Row, requests: int) -> dict[str, float]:
    with truth_server(*row.server) as server:
        outcome = run(
            server.url, requests=requests, warmup=16, max_tokens=TOKENS, slo=row.slo, **row.load
        )
        truth = server.stop()
    limits = parse_slo(row.slo)
    least, most = reported_range(outcome, limits)
    pairs = latencies_ms(outcome, truth, limits[0].latency)
    near = [ours for ours, _ in pairs if abs(ours - limits[0].most_ms) <= 1.0]
    return {
        "withheld": float(outcome.summary.slo_pct is None),
        "least": least,
        "most": most,
        "true": true_percent(outcome, truth, limits, written=True),
        "to": true_percent(outcome, truth, limits, written=False),
        "off": points_off(outcome, truth, limits),
        "shift": median(ours - true for ours, true in pairs),
        "points per ms": 100 * len(near) / len(pairs) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    pin_workers()
    print(f"load {os.getloadavg()[0]:.1f}, {given.requests:,} requests")
    print("| load | SLO | reported | the server's own | off | shift | points per ms |")
    print("|---|---|---|---|---|---|---|")
    for row in (one for one in ROWS if given.only in one.name):
        for _ in range(given.rounds):
            found = measure(row, given.requests)
            withheld = " (withheld)" if found["withheld"] else ""
            print(
                f"| {row.name} | `{row.slo}` | {found['least']:.2f} to {found['most']:.2f} %{withheld} "
                f"| {found['true']:.2f} to {found['to']:.2f} % | {found['off']:.2f} "
                f"| {found['shift']:.3f} ms | {found['points per ms']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
