"""Measure the cost of `workbench fleet` with 16 simulated hosts of 8 GPUs each: CPU and memory of
the screen's own process, and those of the telemetry agents, which on real hosts run on these hosts.

    python tests/benchmarks/bench_fleet.py [--hosts 16] [--seconds 30] [--size 120x40] [--busy]
    [--hang 4]

--busy: the GPUs of all hosts work, so that every value changes each second. --hang: stop the agents
of so many hosts (SIGSTOP) for a second measurement, and report what the others and the keys do
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from bench_screen import busy_gpus, own_directories, workbench  # noqa: E402
from terminal import Terminal, load_1m, memory_mib, run_s  # noqa: E402

WARM_S = 20.0
LIMIT_PCT, LIMIT_MIB = 10.0, 150.0  # of the screen's own process


def names(count: int) -> list[str]:
    return [f"sim:eight@{n:02d}" for n in range(count)]


def agents(screen: Terminal) -> dict[int, str]:
    """Return the telemetry agents below the screen by pid, each with the name of its simulated
    host."""
    found = {}
    for pid in screen.children():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
            place = re.search(r"WORKBENCH_SIM_STATE=[^\0]*/sim/([^/\0]*)/", environment)
            if place and "python" in Path(f"/proc/{pid}/comm").read_text():
                found[pid] = place[1]
    return found


def cpu_s(pids: list[int]) -> dict[int, float]:
    """Return the CPU seconds of each of these processes that lives."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = run_s(pid)
    return found


def measured(screen: Terminal, seconds: float, what: str) -> float:
    """Print the costs over so many seconds. Return the share of a core that the screen's own
    process used, in percent."""
    pids = list(agents(screen))
    own, theirs, began, sent = run_s(screen.child.pid), cpu_s(pids), time.monotonic(), screen.bytes
    screen.drain(seconds)
    took = time.monotonic() - began
    share = 100 * (run_s(screen.child.pid) - own) / took
    others = 100 * sum(seconds - theirs[pid] for pid, seconds in cpu_s(pids).items()) / took
    print(
        f"{what}: screen {share:.1f} % of a core, {len(pids)} agents {others:.1f} %, "
        f"{(screen.bytes - sent) / took:,.0f} B/s, load {load_1m():.1f}"
    )
    return share


def memory(screen: Terminal) -> float:
    """Print the memory. Return the resident memory of the screen's own process in MiB."""
    rss, pss = memory_mib(screen.child.pid)
    each = [memory_mib(pid) for pid in agents(screen)]
    print(
        f"MiB: screen {rss:.0f} RSS {pss:.0f} PSS; {len(each)} agents "
        f"{sum(r for r, _ in each):.0f} RSS "
        f"{sum(p for _, p in each):.0f} PSS, each {statistics.median(p for _, p in each):.0f} PSS"
    )
    return rss


def key_ms(screen: Terminal) -> float:
    """Return the median time from a key to the first byte of the answer, in milliseconds."""
    took = []
    for key in (b"j", b"k") * 8:
        screen.drain(0.23)
        screen.recent = b""
        began = time.monotonic()
        os.write(screen.master, key)
        while not screen.recent and time.monotonic() - began < 5.0:
            screen.read(0.05)
        took.append(1000 * (time.monotonic() - began))
    return statistics.median(took)


def hang(screen: Terminal, count: int, hosts: int, seconds: float) -> None:
    """Stop the agents of `count` hosts, and measure again."""
    chosen = names(count)
    stopped = [pid for pid, name in agents(screen).items() if f"sim:{name}" in chosen]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    screen.recent = b""
    wanted = f"{hosts - count}/{hosts} hosts live".encode()
    began = time.monotonic()
    while wanted not in screen.recent.replace(b"\x1b", b""):
        screen.read(0.1)
        if time.monotonic() - began > 20.0:
            break
    measured(screen, seconds, f"{count} hosts hang")
    print(f"{count} hosts hang: key to first byte {key_ms(screen):.0f} ms (median of 16)")
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--size", default="120x40", help="columns x rows of the terminal")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--hang", type=int, default=0)
    chosen = parser.parse_args()
    os.chdir(HERE.parents[1])
    columns, rows = map(int, chosen.size.split("x"))
    with own_directories() as env, contextlib.ExitStack() as stack:
        if chosen.busy:
            for name in names(chosen.hosts):
                stack.enter_context(busy_gpus(env, name.removeprefix("sim:")))
        screen = stack.enter_context(
            Terminal(workbench("fleet", *names(chosen.hosts)), columns, rows, env=env)
        )
        screen.drain(WARM_S)
        share = measured(screen, chosen.seconds, f"{chosen.hosts} hosts, {chosen.size}")
        print(f"key to first byte {key_ms(screen):.0f} ms (median of 16)")
        resident = memory(screen)
        if chosen.hang:
            hang(screen, chosen.hang, chosen.hosts, chosen.seconds)
    kept = share < LIMIT_PCT and resident < LIMIT_MIB
    print(
        f"{'kept' if kept else 'NOT KEPT'}: {LIMIT_PCT:g} % and {LIMIT_MIB:g} MiB of the "
        "screen's own process"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
