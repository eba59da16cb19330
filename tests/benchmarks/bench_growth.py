"""Measure whether the CPU and the memory of a settled screen grow with what it does not show: results,
runs, presets and hours of history, with the GPUs, and with the processes of this machine.

    python tests/benchmarks/bench_growth.py [--seconds 20] [--rounds 2]

Two screens run at the same time, a small and a large one, and swap cores after each window: compare
the two, since other work on the machine changes both.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from bench_beside_nvitop import WARM_S, drain, pin, spent_s, tree  # noqa: E402
from speed_home import PROFILE, Home, new_home  # noqa: E402
from terminal import Terminal, load_1m, memory_mib  # noqa: E402

RESULTS, RUNS, PRESETS, HOURS, PROCESSES = 20_000, 1_000, 300, 24, 300
Case = Callable[[contextlib.ExitStack], tuple[Terminal, Terminal]]


def demo(home: Home, profile: str) -> Terminal:
    argv = [sys.executable, str(ROOT / "tests/benchmarks/eight_gpus.py")]
    return Terminal([*argv, "demo", "--host-profile", profile], env=home.env)


def stored(stack: contextlib.ExitStack) -> tuple[Terminal, Terminal]:
    small, large = stack.enter_context(new_home()), stack.enter_context(new_home())
    large.add_results(RESULTS)
    large.add_runs(RUNS)
    large.add_presets(PRESETS)
    large.add_history(HOURS)
    return (
        stack.enter_context(demo(small, PROFILE)),
        stack.enter_context(demo(large, PROFILE)),
    )


def gpus(stack: contextlib.ExitStack) -> tuple[Terminal, Terminal]:
    homes = stack.enter_context(new_home()), stack.enter_context(new_home())
    return (
        stack.enter_context(demo(homes[0], PROFILE)),
        stack.enter_context(demo(homes[1], "eight")),
    )


@contextmanager
def processes(count: int) -> Iterator[None]:
    """Run processes whose command lines name an engine."""
    argv = ["vllm-worker", "3600"]
    children = [subprocess.Popen(argv, executable="/bin/sleep") for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def compared(name: str, case: Case, seconds: float, rounds: int) -> str:
    with contextlib.ExitStack() as stack:
        both = list(case(stack))
        drain(both, WARM_S)
        cores = sorted(os.sched_getaffinity(0))
        shares: list[tuple[float, ...]] = []
        for turn in range(rounds):
            for number, screen in enumerate(both):
                pin(screen, cores[(turn + number) % len(cores)])
            began, before = time.monotonic(), [spent_s(screen) for screen in both]
            drain(both, seconds)
            took = time.monotonic() - began
            spent = [spent_s(screen) - was for screen, was in zip(both, before, strict=True)]
            shares.append(tuple(100 * one / took for one in spent))
        small, large = (statistics.median(one) for one in zip(*shares, strict=True))
        pss = [sum(memory_mib(pid)[1] for pid in tree(screen)) for screen in both]
    return (
        f"{name}: {small:.2f} and {large:.2f} % of a core, {pss[0]:.1f} and {pss[1]:.1f} MiB PSS; "
        f"load {load_1m():.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    what = f"an empty home, and {RESULTS:,} results, {RUNS:,} runs, {PRESETS} presets, {HOURS} h"
    print(compared(what, stored, chosen.seconds, chosen.rounds), flush=True)
    print(compared("4 and 8 GPUs", gpus, chosen.seconds, chosen.rounds), flush=True)
    for count in (0, PROCESSES):
        with processes(count):
            name = f"{count} engine processes on this machine, 4 and 8 GPUs"
            print(compared(name, gpus, chosen.seconds, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
