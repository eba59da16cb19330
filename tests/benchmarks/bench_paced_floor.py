"""Where the CPU time of the load client's process goes with 64 streams of 100 tokens/s, beside the least
that a client in C and a loop in Python can do.

    python tests/benchmarks/bench_paced_floor.py [--rounds 3]

The bare loop (clients/bare_client.py) waits for sockets, reads them and keeps the kernel's times. It
runs as it is, where all streams start together and each token wakes it, and as the load client: with
streams that start one after the other, and with rests of 2.5 ms. The parts of the load client are
CPU times of its thread within its methods; "one piece of text each" is what is left: reads in which
one more token came, nearly all.

The server has core 1 and the clients core 0, before other programs where that is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench_client_cpu import ROOT, to_core
from speed_home import built
from truth_server import TruthProcess

from workbench.bench import client, worker
from workbench.model.load_spec import BenchSpec

SERVER = ("--ttft-ms", "50", "--itl-ms", "10", "--exact")
STREAMS, REQUESTS, WARMUP, TOKENS = 64, 256, 64, 128
SPREAD_S, REST_MS = 1.3, 2.5  # an answer takes 1.3 s; the client rests 2.5 ms at 10 ms a chunk
WHOLE, LEFT = "the load client", "reads of one piece of text each"
PARTS = {
    "_poll_events_begin_and_end_ns": "rests and epoll",
    "_process_received_data": "first and last reads of an answer, which are parsed",
    "_finish_or_prepare_one_request": "records and bodies of requests",
    "_start_due_and_next_due_ns": "requests sent",
    "_run_periodic_checks": "limits, rests and progress, ten times a second",
}


def work_in_parts() -> int:
    """Be the load client, and write the CPU seconds of its parts to stderr."""
    spent: dict[str, float] = defaultdict(float)

    def timed(work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*arguments)
            finally:
                spent[part] += time.thread_time() - began

        return call

    for name, part in {**PARTS, "run": "run"}.items():
        setattr(client.Client, name, timed(getattr(client.Client, name), part))
    code = worker.main()
    whole = spent.pop("run")
    spent[LEFT] = whole - sum(spent.values())
    spent["start and end of the process"] = time.process_time() - whole
    print(json.dumps(spent), file=sys.stderr)
    return code


def commands() -> dict[str, list[str]]:
    """Return the programs, to which the URL of the server is added as the first argument, by name."""
    numbers = [str(number) for number in (STREAMS, REQUESTS + WARMUP, TOKENS)]
    compiled = built(ROOT / "tests/benchmarks/clients/sse_client.c", "cc", "-O2", "-D_GNU_SOURCE")
    assert compiled, "there is no C compiler"
    bare = [sys.executable, "-I", "-S", str(ROOT / "tests/benchmarks/clients/bare_client.py")]
    return {
        "C": [str(compiled), "", *numbers],
        "C, streams spread": [str(compiled), "", *numbers, f"{SPREAD_S}"],
        "C, streams spread, rests": [str(compiled), "", *numbers, f"{SPREAD_S}", f"{REST_MS}"],
        "bare loop": [*bare, "", *numbers],
        "bare loop, streams spread": [*bare, "", *numbers, f"{SPREAD_S}", "0"],
        "bare loop, streams spread, rests": [*bare, "", *numbers, f"{SPREAD_S}", f"{REST_MS}"],
        WHOLE: [sys.executable, __file__, "--parts"],
    }


def measured(argv: list[str]) -> tuple[float, dict[str, float]]:
    """Return the CPU us of a program per token, and those of its parts if it tells them."""
    with TruthProcess(*SERVER) as server:
        pid = server._process.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(pid, {1})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(20))
        spec = BenchSpec(server.url, "m", concurrency=STREAMS, requests=REQUESTS, salt="s")
        fields = {**asdict(spec), "warmup": WARMUP, "max_tokens": TOKENS, "processes": 1}
        child = subprocess.Popen(
            [part or server.url for part in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: to_core(0, 10),
        )
        assert child.stdin is not None and child.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # the other clients do not read
            child.stdin.write(json.dumps(fields).encode() + b"\n")
            child.stdin.flush()
        said = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        server.stop()
    assert child.returncode == 0, said[-500:]
    tokens = sum(len(one["sent_ns"]) for one in server.records)
    parts = json.loads(said) if said else {}
    each_us = {part: 1e6 * seconds / tokens for part, seconds in parts.items()}
    return 1e6 * (used.ru_utime + used.ru_stime) / tokens, each_us


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.parts:
        sys.argv = sys.argv[:1]
        return work_in_parts()
    programs = commands()
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(chosen.rounds):
        for name, argv in programs.items():
            us, parts = measured(argv)
            for what, each in {
                name: us,
                **{f"    {part}": us for part, us in parts.items()},
            }.items():
                found[what].append(each)
    of_c = statistics.median(found["C"])
    for what, each in found.items():
        us = statistics.median(each)
        print(
            f"{what}: {us:.1f} us a token ({min(each):.1f} to {max(each):.1f}), {us / of_c:.2f} x C"
        )
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
