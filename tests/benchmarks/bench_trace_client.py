"""What a trace costs the load client: CPU time beside an equal load without one, the time to the
first request, and memory.

    python tests/benchmarks/bench_trace_client.py [--pairs 7] [--requests 2000]

Cost: a trace of equal prompts (512 tokens, 64 tokens of answer, all due at once) and the same number
of requests of real text at a rate that no server reaches, in turn, against a server that answers at
once (truth_server.py). CPU seconds of all of the client's processes, start included, for a million
tokens; the median of the pairs' ratios should be at most 1.2. Start: from the exec of `workbench
bench --trace` with 10,000 requests to the first request at the server (goal: 1 s; beside it the same
with 10 requests), with the CPU seconds until the end, and the largest process (goal: 60 MB more).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic_ns

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

from bench_client import children_cpu_s, truth_server  # noqa: E402

INPUT_TOKENS, OUTPUT_TOKENS = 512, 64
STREAMS = 64


def write_trace(path: Path, requests: int, apart_ms: int) -> Path:
    rows = (
        {
            "timestamp": apart_ms * number,
            "input_length": INPUT_TOKENS,
            "output_length": OUTPUT_TOKENS,
            "hash_ids": [number],
        }
        for number in range(requests)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def bench(url: str, home: Path, *options: str) -> tuple[float, int]:
    """Run the command. Return the CPU seconds of its processes and the time of its exec."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    homes = {f"XDG_{kind}_HOME": str(home) for kind in ("STATE", "DATA", "CONFIG")}
    argv = [sys.executable, "-m", "workbench", "bench", "--url", url, "--model", "m"]
    before_s, began_ns = children_cpu_s(), monotonic_ns()
    done = subprocess.run(
        [*argv, "--warmup", "2", *options],
        env={**inherited, **homes, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr.startswith("Error") and done.returncode in (0, 1, 3), done
    return children_cpu_s() - before_s, began_ns


def cost(home: Path, requests: int, pairs: int) -> None:
    trace = write_trace(home / "equal.jsonl", requests, 0)
    streams = ("--concurrency", str(STREAMS))
    lengths = ("--input-tokens", str(INPUT_TOKENS), "--max-tokens", str(OUTPUT_TOKENS))
    ways = {
        "at a rate": ("--rate", "100000", "--requests", str(requests), *lengths, *streams),
        "from a trace": ("--trace", str(trace), *streams),
    }
    per_million = 1e6 / (requests * OUTPUT_TOKENS)
    took: dict[str, list[float]] = {name: [] for name in ways}
    for pair in range(pairs):
        for name in list(ways)[:: 1 if pair % 2 else -1]:
            with truth_server("--ttft-ms", "0", "--itl-ms", "0") as server:
                took[name].append(bench(server.url, home, *ways[name])[0] * per_million)
    for name, values in took.items():
        print(
            f"{name:<14} CPU s per 1M tokens: median {median(values):.2f}, best {min(values):.2f}"
        )
    ratios = [b / a for a, b in zip(*took.values(), strict=True)]
    print(
        f"ratio of the pairs: median {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def start(home: Path, requests: int) -> None:
    trace = write_trace(home / f"{requests}.jsonl", requests, 1)
    with truth_server("--ttft-ms", "0", "--itl-ms", "0") as server:
        cpu_s, began_ns = bench(server.url, home, "--trace", str(trace), "--seconds", "0.1")
        first_ns = min(one["request_ns"] for one in server.stop().values())
    largest_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{requests:,} requests: first one {(first_ns - began_ns) / 1e9:.2f} s after the exec, "
        f"{cpu_s:.2f} s of CPU until the end, largest process so far {largest_mb:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=2000)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for requests in (10, 10, 10_000, 10_000):  # the first compiles the modules
            start(Path(folder), requests)
        cost(Path(folder), given.requests, given.pairs)


if __name__ == "__main__":
    main()
