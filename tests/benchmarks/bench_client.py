"""Capacity and accuracy of the load client against a server that knows its own schedule.

    python tests/benchmarks/bench_client.py [--quick] [--rounds 3] [--no-screen] [--only TEXT]
    [--peer NAME=COMMAND …]

Capacity ("drain"): zero delay, 256 tokens a request, written at once or chunk by chunk: tokens per
second, and CPU seconds of the whole worker (start, records and summary included) per million
tokens. Accuracy ("paced"): TTFT 50 ms, ITL 10 ms: reported minus true, in ms, request by request
and gap by gap, with the CPU seconds of the whole worker and of its window alone per million tokens,
and whether the run refused itself (1) or not (0); the same while `workbench demo` draws its screen
in a terminal as often as it can. Steady window: its rate against the tokens that the server wrote
in that time. Start-up: from the call, and from the exec of `workbench bench`, to the first request;
end: from its last answer to the end of the command. One process against two: the same run in the
order A B B A; the mean change in percent and the half width of its 95 % interval, which should hold
0.

Server and worker are pinned to a core each where there are two, the server before others where that
is allowed; the worker of "two cores" is not pinned and uses as many processes as it wants. Rounds
go through all rows in turn, peers' (peers.py) among them; each row gives the median and the best of
its rounds, and the limit where one is set. What else runs on the machine is in the figures: read
them with the load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "benchmarks")]

from peers import Peer, children_cpu_s  # noqa: E402
from terminal import Terminal, run_s  # noqa: E402
from truth_server import TruthProcess  # noqa: E402

from workbench.bench import runner  # noqa: E402
from workbench.bench.records import BenchOutcome  # noqa: E402
from workbench.bench.workers import LocalWorker  # noqa: E402
from workbench.bench.workload import unique_prompt_mark  # noqa: E402
from workbench.model.bench import BenchSpec  # noqa: E402
from workbench.model.distribution import quantile  # noqa: E402
from workbench.model.student_t import t_quantile  # noqa: E402

Figures = dict[str, float]
ASKED = {  # row, figure -> the limit
    ("start-up", "s after the exec"): "<= 0.6",
    ("start-up", "s after the last answer"): "<= 0.3",
    ("capacity, 64 streams", "tok/s"): ">= 170,000",
    ("capacity, 64 streams", "CPU s per 1M tokens"): "<= 5",
    ("capacity, 64 streams, chunk by chunk", "CPU s per 1M tokens"): "<= 5",
    ("accuracy, 64 streams", "CPU s per 1M tokens"): "<= 27",
    ("accuracy, 256 streams", "refused"): "0",
    ("accuracy, 256 streams, two cores", "TTFT error mean"): "<= 0.5",
    ("accuracy, 256 streams, two cores", "p99"): "<= 2",
    ("accuracy, 256 streams, two cores", "refused"): "0",
    **{
        (f"accuracy, 128 streams{beside}", figure): limit
        for beside in ("", ", screen")
        for figure, limit in (
            ("TTFT error mean", "<= 0.05"),
            ("p99", "<= 2"),
            ("gap p99", "<= 0.1"),
        )
    },
}
_start = LocalWorker.start


async def _start_pinned() -> LocalWorker:
    worker = await _start()
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(worker.process.pid, {1})
    return worker


def pin_workers() -> None:
    """Run the client's processes on core 1. The server has core 0."""
    LocalWorker.start = _start_pinned  # type: ignore[method-assign,assignment]


@contextmanager
def truth_server(*options: str) -> Iterator[TruthProcess]:
    with TruthProcess(*options) as server:
        pid = server._process.pid
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(pid, {0})
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
        yield server


def run(url: str, processes: int | None = None, **fields: Any) -> BenchOutcome:
    return asyncio.run(runner.run_load(BenchSpec(url, "m", **fields), processes=processes))


@contextmanager
def unpinned() -> Iterator[None]:
    pinned = LocalWorker.start
    LocalWorker.start = _start  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalWorker.start = pinned  # type: ignore[method-assign]


def errors_ms(
    outcome: BenchOutcome, truth: dict[str, dict[str, Any]]
) -> tuple[list[float], list[float]]:
    """Return (TTFT errors, gap errors) in ms, reported minus true, ascending. The true time is a
    range if the server was off its core between its stamps around a write; inside the range the
    error is 0."""
    ttft, gaps = [], []
    for record in outcome.requests:
        true = truth[unique_prompt_mark(outcome.spec.salt, f"r/{record.index}")]
        sent = true["sent_ns"]
        assert record.ok and record.ttft_us is not None, record.error
        ttft.append(
            beyond(
                record.ttft_us,
                sent[0] - true["request_ns"],
                true["done_ns"][0] - true["request_ns"],
            )
        )
        ranges = pairwise(zip(sent, true["done_ns"], strict=True))
        for seen_us, ((a, a_done), (b, b_done)) in zip(record.gaps_us, ranges, strict=True):
            gaps.append(beyond(seen_us, b - a_done, b_done - a))
    return sorted(ttft), sorted(gaps)


def beyond(seen_us: int, least_ns: int, most_ns: int) -> float:
    """Return the milliseconds by which `seen_us` lies outside a range; 0 inside it, to a
    microsecond."""
    seen_ns = seen_us * 1000
    if seen_ns + 1000 < least_ns:
        return (seen_ns - least_ns) / 1e6
    return max(0, seen_ns - most_ns) / 1e6


def capacity(streams: int, requests: int, *options: str) -> Figures:
    with truth_server("--ttft-ms", "0", "--itl-ms", "0", *options) as server:
        before = children_cpu_s()
        outcome = run(
            server.url, concurrency=streams, requests=requests, warmup=streams, max_tokens=256
        )
        cpu_s = children_cpu_s() - before
    summary = outcome.summary
    assert summary.requests_ok == requests and summary.output_tokens == requests * 256
    tokens = summary.output_tokens + (summary.warmup_output_tokens or 0)
    return {"tok/s": summary.whole_run_tok_s or 0, "CPU s per 1M tokens": 1e6 * cpu_s / tokens}


def accuracy(streams: int, rounds: int, *options: str) -> Figures:
    with truth_server("--ttft-ms", "50", "--itl-ms", "10", *options) as server:
        before = children_cpu_s()
        outcome = run(
            server.url,
            concurrency=streams,
            requests=streams * rounds,
            warmup=streams,
            max_tokens=128,
        )
        cpu_s = children_cpu_s() - before
        ttft, gaps = errors_ms(outcome, server.stop())
    off, summary = sorted(abs(g) for g in gaps), outcome.summary
    client_pct = summary.client_cpu_pct or 0.0
    return {
        "TTFT error mean": sum(ttft) / len(ttft),
        "p99": quantile(ttft, 0.99),
        "gap error p50": quantile(off, 0.5),
        "gap p99": quantile(off, 0.99),
        "gap max": off[-1],
        "client % of a core": client_pct,
        "CPU s per 1M tokens": 1e6
        * cpu_s
        / ((summary.output_tokens or 0) + (summary.warmup_output_tokens or 0)),
        "in the window": 1e4 * client_pct / (summary.output_tok_s or float("nan")),
        "refused": float(bool(summary.refused)),
    }


def accuracy_on_two_cores(streams: int, rounds: int, *options: str) -> Figures:
    with unpinned():
        return accuracy(streams, rounds, *options)


def one_against_two(streams: int, pairs: int) -> Figures:
    """Compare runs of one process with runs of two, in the order A B B A. Return the mean change of
    each metric in percent, and the half width of its 95 % interval (a paired t interval on log
    ratios)."""
    metrics: dict[str, Callable[[BenchOutcome], float]] = {
        "tok/s": lambda o: o.summary.output_tok_s or 0.0,
        "TTFT": lambda o: o.summary.ttft_ms.mean if o.summary.ttft_ms else 0.0,
        "ITL p99": lambda o: o.summary.itl_ms.p99 if o.summary.itl_ms else 0.0,
        "in flight": lambda o: o.summary.in_flight_mean or 0.0,
    }

    def once(processes: int) -> BenchOutcome:
        with (
            truth_server("--ttft-ms", "50", "--itl-ms", "10", "--jitter", "0.3") as server,
            unpinned(),
        ):
            return run(
                server.url,
                processes,
                concurrency=streams,
                requests=6 * streams,
                warmup=streams,
                max_tokens=64,
            )

    ratios: dict[str, list[float]] = defaultdict(list)
    for pair in range(pairs):
        found = {processes: once(processes) for processes in ((1, 2), (2, 1))[pair % 2]}
        for name, value in metrics.items():
            ratios[name].append(log(value(found[2]) / value(found[1])))
    figures = {}
    for name, values in ratios.items():
        figures[f"{name} change %"] = 100 * (exp(mean(values)) - 1)
        figures[f"{name} ± %"] = 100 * t_quantile(0.975, pairs - 1) * stdev(values) / sqrt(pairs)
    return figures


@contextmanager
def screen() -> Iterator[Terminal]:
    """Run `workbench demo` while a thread makes it draw all the time: it opens and closes the
    palette without a pause and reads the output."""
    with tempfile.TemporaryDirectory() as folder:
        env = {
            name: f"{folder}/{name}"
            for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        }
        argv = [sys.executable, "-m", "workbench", "demo", "--interval", "0.5"]
        with Terminal(argv, 160, 48, {**env, "PYTHONPATH": str(ROOT)}) as terminal:
            terminal.until(b"palette")
            ended = threading.Event()

            def drive() -> None:
                keys = 0
                while not ended.is_set():
                    os.write(terminal.master, (b"?", b"\x1b", b"\t", b"j")[keys % 4])
                    keys += 1
                    terminal.drain(0.03)

            thread = threading.Thread(target=drive)
            thread.start()
            try:
                yield terminal
            finally:
                ended.set()
                thread.join()


def accuracy_beside_screen(streams: int, rounds: int) -> Figures:
    with screen() as terminal:
        cpu_s, sent, began = run_s(terminal.child.pid), terminal.bytes, time.monotonic()
        figures = accuracy(streams, rounds)
        wall = time.monotonic() - began
        figures["screen % of a core"] = 100 * (run_s(terminal.child.pid) - cpu_s) / wall
        figures["screen KB/s"] = (terminal.bytes - sent) / wall / 1000
    return figures


def steady(streams: int) -> Figures:
    """Return the error of the window's rate in percent, compared with the tokens that the server
    wrote in that time."""
    with truth_server("--ttft-ms", "50", "--itl-ms", "10", "--jitter", "0.3") as server:
        outcome = run(
            server.url,
            concurrency=streams,
            requests=8 * streams,
            warmup=streams,
            max_tokens=100,
            length_spread=0.3,
        )
        truth = server.stop()
    summary, shift = outcome.summary, time.monotonic() - time.time()
    begin, end = ((t + shift) * 1e9 for t in (outcome.window_t0_unix, outcome.window_t1_unix))
    written = sorted(t for one in truth.values() for t in one["done_ns"])
    true = (bisect_right(written, end) - bisect_right(written, begin)) / (end - begin) * 1e9
    assert summary.window == "steady" and summary.output_tok_s and summary.whole_run_tok_s
    return {
        "steady rate off by %": 100 * (summary.output_tok_s / true - 1),
        "whole run off by %": 100 * (summary.whole_run_tok_s / true - 1),
        "in flight": summary.in_flight_mean or 0.0,
    }


def start_up() -> Figures:
    with truth_server("--ttft-ms", "0", "--itl-ms", "0") as server:
        began = time.time()
        outcome = run(server.url, concurrency=1, requests=1, warmup=0, max_tokens=1)
        called = outcome.t0_unix - began
    with (
        truth_server("--ttft-ms", "0", "--itl-ms", "0") as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        env = {
            name: f"{folder}/{name}"
            for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
        }
        inherited = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        argv = [
            sys.executable,
            "-m",
            "workbench",
            "bench",
            "--url",
            server.url,
            "--model",
            "m",
            "--requests",
            "1",
        ]
        argv += ["--concurrency", "1", "--warmup", "0", "--max-tokens", "1"]
        began_ns = 0
        for _ in range(2):  # the first compiles the modules
            began_ns = time.monotonic_ns()
            subprocess.run(
                argv,
                env={**inherited, **env, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                check=False,
            )
        ended_ns = time.monotonic_ns()
        records = [one for one in server.stop().values() if one["request_ns"] > began_ns]
    asked, answered = (
        min(one["request_ns"] for one in records),
        max(one["done_ns"][-1] for one in records),
    )
    return {
        "s after the call": called,
        "s after the exec": (asked - began_ns) / 1e9,
        "s after the last answer": (ended_ns - answered) / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="half a minute instead of minutes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-screen", action="store_true")
    parser.add_argument(
        "--only", default="", help="only the rows with this text, such as 'one process against two'"
    )
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="see peers.py"
    )
    asked = parser.parse_args()
    quick = asked.quick
    pin_workers()
    rows: dict[str, Any] = {
        "start-up": start_up,
        "capacity, 64 streams": lambda: capacity(64, 1000 if quick else 4000),
    }
    rows["capacity, 64 streams, chunk by chunk"] = lambda: capacity(
        64, 500 if quick else 2000, "--write-each"
    )
    rows["accuracy, 64 streams"] = lambda: accuracy(64, 4, "--exact")
    if not quick:
        rows["capacity, 256 streams"] = lambda: capacity(256, 4000)
        rows["accuracy, 16 streams"] = lambda: accuracy(16, 4)
        rows["accuracy, 64 streams, jitter"] = lambda: accuracy(64, 4, "--jitter", "0.3")
        rows["accuracy, 128 streams, burst"] = lambda: accuracy(128, 4, "--burst")
        rows["accuracy, 256 streams"] = lambda: accuracy(256, 4, "--exact")
        rows["accuracy, 256 streams, two cores"] = lambda: accuracy_on_two_cores(256, 4, "--exact")
        rows["one process against two, 32 streams"] = lambda: one_against_two(32, 6)
    rows["accuracy, 128 streams"] = lambda: accuracy(128, 2 if quick else 4)
    if not asked.no_screen:
        rows["accuracy, 128 streams, screen"] = lambda: accuracy_beside_screen(
            128, 2 if quick else 4
        )
    rows["steady window, 32 streams"] = lambda: steady(32)
    for peer in map(Peer, asked.peer):
        rows |= peer_rows(peer, quick)
    rows = {name: row for name, row in rows.items() if asked.only in name}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    found: dict[str, list[Figures]] = defaultdict(list)
    for turn in range(1 if quick else asked.rounds):
        for name, row in rows.items():
            found[name].append(row())
            said = "  ".join(f"{k} {v:,.3f}" for k, v in found[name][-1].items())
            print(f"  {turn + 1} {name:30} {said}  (load {os.getloadavg()[0]:.1f})", flush=True)
    tell(found)


def peer_rows(peer: Peer, quick: bool) -> dict[str, Any]:
    def capacity_of() -> Figures:
        with truth_server("--ttft-ms", "0", "--itl-ms", "0") as server:
            return peer.measure(server, streams=64, requests=1000 if quick else 4000, tokens=256)

    def accuracy_of() -> Figures:
        with truth_server("--ttft-ms", "50", "--itl-ms", "10") as server:
            return peer.measure(server, streams=128, requests=256 if quick else 512, tokens=128)

    return {
        f"{peer.name}: capacity, 64 streams": capacity_of,
        f"{peer.name}: accuracy, 128 streams": accuracy_of,
    }


def tell(found: dict[str, list[Figures]]) -> None:
    for name, rounds in found.items():
        print(name)
        for figure in rounds[0]:
            values = sorted((r[figure] for r in rounds), key=abs)
            best = values[-1] if figure == "tok/s" else values[0]
            limit = ASKED.get((name, figure))
            asked = f"   asked {limit}" if limit else ""
            print(f"    {figure:22} median {median(values):12,.3f}   best {best:12,.3f}{asked}")


if __name__ == "__main__":
    main()
