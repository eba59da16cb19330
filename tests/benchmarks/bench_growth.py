"""Measure whether the CPU and the memory of a settled screen grow with what it does not show: results,
runs, presets, days of history and known hosts, with the GPUs, with the processes of this machine,
and with the hosts of a fleet, for which the screen's own process counts: the agents run on hosts.

    python tests/benchmarks/bench_growth.py [--seconds 20] [--rounds 2] [--only TEXT]

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
from terminal import Terminal, load_1m, memory_mib, run_s  # noqa: E402

RESULTS, RUNS, PRESETS, HOURS, PROCESSES = 20_000, 1_000, 300, 24, 300
DAYS, HOSTS, FLEET = 14, 200, (4, 16)
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


def days(stack: contextlib.ExitStack) -> tuple[Terminal, Terminal]:
    homes = stack.enter_context(new_home()), stack.enter_context(new_home())
    homes[0].add_history(1)
    homes[1].add_history(24 * DAYS)
    return (
        stack.enter_context(demo(homes[0], PROFILE)),
        stack.enter_context(demo(homes[1], PROFILE)),
    )


def hosts(stack: contextlib.ExitStack) -> tuple[Terminal, Terminal]:
    homes = stack.enter_context(new_home()), stack.enter_context(new_home())
    homes[1].add_hosts(HOSTS)
    return (
        stack.enter_context(demo(homes[0], PROFILE)),
        stack.enter_context(demo(homes[1], PROFILE)),
    )


def fleet(stack: contextlib.ExitStack) -> tuple[Terminal, Terminal]:
    screens = []
    for count in FLEET:
        home = stack.enter_context(new_home())
        names = [f"sim:{PROFILE}@{number:02d}" for number in range(count)]
        argv = [sys.executable, "-m", "workbench", "fleet", *names]
        screens.append(stack.enter_context(Terminal(argv, env=home.env)))
    return screens[0], screens[1]


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
    """Measure both screens of a case, with all processes below them unless these are agents of a
    fleet's hosts."""
    own = case is fleet

    def of(screen: Terminal) -> float:
        return run_s(screen.child.pid) if own else spent_s(screen)

    with contextlib.ExitStack() as stack:
        both = list(case(stack))
        drain(both, WARM_S)
        cores = sorted(os.sched_getaffinity(0))
        shares: list[tuple[float, ...]] = []
        for turn in range(rounds):
            for number, screen in enumerate(both):
                pin(screen, cores[(turn + number) % len(cores)])
            began, before = time.monotonic(), [of(screen) for screen in both]
            drain(both, seconds)
            took = time.monotonic() - began
            spent = [of(screen) - was for screen, was in zip(both, before, strict=True)]
            shares.append(tuple(100 * one / took for one in spent))
        small, large = (statistics.median(one) for one in zip(*shares, strict=True))
        pids = [[screen.child.pid] if own else tree(screen) for screen in both]
        pss = [sum(memory_mib(pid)[1] for pid in each) for each in pids]
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
    parser.add_argument("--only", default="", help="only the cases with this text")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    stored_text = f"{RESULTS:,} results, {RUNS:,} runs, {PRESETS} presets, {HOURS} h"
    cases: list[tuple[str, Case, int]] = [
        (f"an empty home, and {stored_text}", stored, 0),
        (f"history of 1 hour and of {DAYS} days", days, 0),
        (f"0 and {HOSTS} hosts in hosts.toml", hosts, 0),
        ("4 and 8 GPUs", gpus, 0),
        *(
            (f"{count} engine processes on this machine, 4 and 8 GPUs", gpus, count)
            for count in (0, PROCESSES)
        ),
        (f"a fleet of {FLEET[0]} and {FLEET[1]} hosts with 4 GPUs", fleet, 0),
    ]
    for name, case, count in cases:
        if chosen.only in name:
            with processes(count):
                print(compared(name, case, chosen.seconds, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
