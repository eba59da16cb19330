"""Run experiments through the whole product: `workbench experiment` as a user types it, on
simulated engines that are real server processes, with a known difference, noise from server to
server and a machine that drifts.

    python tests/benchmarks/bench_experiments_served.py --minutes 30 --out FILE [--lanes 2] [--pairs
    3] python tests/benchmarks/bench_experiments_served.py --report FILE

The report says how often the interval contains the truth, as bench_experiments.py does for
thousands of experiments without servers. Each line of FILE is one experiment; another call appends
to FILE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.command_line import CommandLine  # noqa: E402
from support.serving import free_port  # noqa: E402

EFFECTS = (0.0, 0.01, 0.03, 0.10)
# of the simulated engine, so that steps are long beside what a shared core adds to them
SPEED = 0.2
NOISE, DRIFT = "0.007", "0.005"  # from server to server, and of the machine
SHAPE = (
    "--concurrency",
    "4",
    "--requests",
    "16",
    "--max-tokens",
    "64",
    "--input-tokens",
    "16",
    "--warmup",
    "4",
)


def one(line: CommandLine, effect: float, pairs: int) -> dict[str, Any]:
    began, load = time.monotonic(), os.getloadavg()[0]
    ran = line(
        "experiment",
        "vllm-any",
        "--set",
        f"port={free_port()}",
        *SHAPE,
        "--pairs",
        pairs,
        "--no-throw-away",
        "--env-a",
        f"WORKBENCH_SIM_SPEEDUP={SPEED}",
        "--env-b",
        f"WORKBENCH_SIM_SPEEDUP={SPEED * (1 + effect)}",
        timeout_s=900,
    )
    found: dict[str, Any] = {
        "effect": effect,
        "load": load,
        "took_s": time.monotonic() - began,
        "code": ran.code,
    }
    if ran.code == 0:
        change = ran.document["comparison"]["metrics"][0]
        states = [r["state"] for r in ran.document["runs"]]
        found |= {name: change[name] for name in ("change_pct", "interval_pct", "verdict", "pairs")}
        found |= {"failed": states.count("failed"), "sentence": ran.document["verdict"]}
    else:
        found["error"] = ran.document.get("error")
    return found


def lane(out: Path, effects: Iterator[float], end: float, pairs: int, lock: threading.Lock) -> None:
    with tempfile.TemporaryDirectory(prefix="workbench-served-") as directory:
        homes = {
            f"XDG_{name}_HOME": f"{directory}/{name}"
            for name in ("CONFIG", "STATE", "CACHE", "DATA")
        }
        line = CommandLine(
            Path(directory),
            before=("--simulate", "rtx-pro-6000"),
            **homes,
            WORKBENCH_SIM_NOISE=NOISE,
            WORKBENCH_SIM_START_S="0.2",
            WORKBENCH_SIM_DRIFT=DRIFT,
        )
        try:
            while time.monotonic() < end:
                with lock:
                    effect = next(effects)
                found = one(line, effect, pairs)
                with lock, out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
        finally:
            line.stop_all()


def report(out: Path) -> None:
    rows = [json.loads(text) for text in out.read_text().splitlines()]
    for effect in (*EFFECTS, None):
        those = [r for r in rows if effect in (None, r["effect"]) and r["code"] == 0]
        if not those:
            continue
        held = sum(abs(r["change_pct"] - 100 * r["effect"]) <= r["interval_pct"] for r in those)
        shown = sum(r["verdict"] in ("better", "worse") for r in those)
        width = statistics.median(r["interval_pct"] for r in those)
        name = "all" if effect is None else f"{100 * effect:g} %"
        print(
            f"{name:>5}: {held} of {len(those)} hold the truth ({100 * held / len(those):.1f} %), "
            f"{shown} show a "
            "difference, mean "
            f"{statistics.fmean(r['change_pct'] - 100 * r['effect'] for r in those):+.2f} % off, "
            f"median ± {width:.2f}"
        )
    loads = [r["load"] for r in rows]
    again, ended = sum(r.get("failed", 0) for r in rows), sum(r["code"] != 0 for r in rows)
    print(
        f"load of the machine {min(loads):.1f} to {max(loads):.1f}, {again} runs made again, "
        f"{ended} not finished"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("experiments-served.jsonl"))
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    if given.report is None:
        end, lock, effects = (
            time.monotonic() + 60 * given.minutes,
            threading.Lock(),
            itertools.cycle(EFFECTS),
        )
        lanes = [
            threading.Thread(target=lane, args=(given.out, effects, end, given.pairs, lock))
            for _ in range(given.lanes)
        ]
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()
    report(given.report or given.out)


if __name__ == "__main__":
    main()
