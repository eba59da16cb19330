"""Measure the CPU of Workbench's screen with all its processes beside nvitop's. Both show this
machine, at the same time, with the same stand-in for the driver (tests/support/nvml_stub).

    python tests/benchmarks/bench_beside_nvitop.py --nvitop DIR [--seconds 16] [--rounds 3]
        [--only TEXT] [--awake]

Each program has a core of its own, and they change cores after each window. CPU times are the
kernel's, in ns, so a busy machine changes them little. "Programs" are those that the screen starts
in each window, counted by strace in a run of their own.

A core that rests between two readings may run several times slower when it wakes up, and the same
work then takes several times as much CPU time. With `--awake`, a loop of the kernel's idle class
keeps each core awake. It runs only while nothing else wants the core.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from speed_home import STUB_FIGURES, Home, driver, new_home, nvitop
from terminal import Terminal, load_1m, run_s

WARM_S = 26.0  # what a start looks at, twice for the guard; and one slow reading
ENGINE_PROCESSES = 16
NVITOP_FIGURES = b"600W"
KEEP_AWAKE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


class Case(NamedTuple):
    name: str
    gpus: int
    busy: bool
    interval_s: float = 1.0
    columns: int = 120
    rows: int = 40
    engines: bool = False  # whether processes of the host have names of engines


CASES = (
    Case("4 GPUs, 1 s, idle", gpus=4, busy=False),
    Case("4 GPUs, 1 s, busy", gpus=4, busy=True),
    Case("4 GPUs, 0.5 s, busy", gpus=4, busy=True, interval_s=0.5),
    Case("8 GPUs, 200x60, busy, 16 engine processes", 8, True, 1.0, 200, 60, engines=True),
)


class Found(NamedTuple):
    """CPU in % of a core, and bytes per second, of Workbench and of nvitop."""

    own: float
    peer: float
    own_bytes: float
    peer_bytes: float


@contextmanager
def gpus_of(case: Case, folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment in which this machine has the GPUs of `case`. If they are busy, their
    values change every 0.4 s."""
    script = folder / "gpus.txt"
    ended = threading.Event()

    def publish(turn: int) -> None:
        lines = [f"gpus * {case.gpus}"]
        for gpu in range(case.gpus if case.busy else 0):
            level = (turn * 7 + gpu * 3) % 40
            lines += [
                f"nvmlDeviceGetPowerUsage {gpu} {250000 + 7000 * level}",
                f"util.gpu {gpu} {50 + level}",
                f"util.memory {gpu} {30 + level}",
                f"temperature {gpu} {50 + level // 4}",
                f"clock.sm {gpu} {2000 + 15 * level}",
                f"memory.used {gpu} {(20 + level % 5) * 10**9}",
            ]
        new = script.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(script)

    def work() -> None:
        turn = 0
        while not ended.wait(0.4):
            turn += 1
            publish(turn)

    publish(0)
    thread = threading.Thread(target=work, daemon=True)
    if case.busy:
        thread.start()
    try:
        # a register of its own: what other users of this machine measure does not matter here
        register = {"WORKBENCH_GPU_REGISTER": str(folder / "register")}
        yield {**driver(), **register, "NVML_STUB_SCRIPT": str(script)}
    finally:
        ended.set()
        if case.busy:
            thread.join()


@contextmanager
def engine_processes(count: int) -> Iterator[None]:
    """Run processes whose command lines name an engine, as its workers do."""
    children = [
        subprocess.Popen([f"vllm-worker-{n}", "3600"], executable="/bin/sleep")
        for n in range(count)
    ]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep each core awake with a loop that runs only while nothing else wants the core."""
    cores = sorted(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", KEEP_AWAKE, str(core)]) for core in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def screen(home: Home, case: Case, env: dict[str, str], *before: str) -> Terminal:
    (home.config / "workbench").mkdir(parents=True, exist_ok=True)
    text = f"[ui]\nrefresh_s = {case.interval_s}\n"
    (home.config / "workbench" / "config.toml").write_text(text)
    argv = [*before, sys.executable, "-m", "workbench"]
    return Terminal(argv, case.columns, case.rows, env={**home.env, **env})


def tree(terminal: Terminal) -> list[int]:
    return [terminal.child.pid, *terminal.children()]


def pin(terminal: Terminal, core: int) -> None:
    """Put all threads of a program and of the processes below it on one core."""
    for pid in tree(terminal):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})


def spent_s(terminal: Terminal) -> float:
    total = 0.0
    for pid in tree(terminal):
        with contextlib.suppress(OSError):
            total += run_s(pid)
    return total


def measure(case: Case, chosen: argparse.Namespace) -> list[Found]:
    command = nvitop("--monitor", "full", "--interval", f"{case.interval_s:g}", place=chosen.nvitop)
    if command is None:
        sys.exit("nvitop, or cc for the stand-in of the driver, is missing")
    found = []
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(new_home())
        env = stack.enter_context(gpus_of(case, home.state.parent))
        if case.engines:
            stack.enter_context(engine_processes(ENGINE_PROCESSES))
        argv, place = command
        size = case.columns, case.rows
        with screen(home, case, env) as first:  # compiles, and keeps the part of pynvml
            first.until(STUB_FIGURES)
            first.drain(3.0)
        own = stack.enter_context(screen(home, case, env))
        peer = stack.enter_context(Terminal(argv, *size, env={**place, **env}))
        drain([own, peer], WARM_S)
        if chosen.awake:
            stack.enter_context(awake_cores())
        if own.child.poll() is not None or peer.child.poll() is not None:
            sys.exit("a program has ended: " + repr((own.recent[-300:], peer.recent[-300:])))
        cores = sorted(os.sched_getaffinity(0))
        for turn in range(chosen.rounds):
            pin(own, cores[turn % len(cores)])
            pin(peer, cores[(turn + 1) % len(cores)])
            began, before = time.monotonic(), (spent_s(own), spent_s(peer))
            sent = own.bytes, peer.bytes
            drain([own, peer], chosen.seconds)
            took = time.monotonic() - began
            found.append(
                Found(
                    100 * (spent_s(own) - before[0]) / took,
                    100 * (spent_s(peer) - before[1]) / took,
                    (own.bytes - sent[0]) / took,
                    (peer.bytes - sent[1]) / took,
                )
            )
    return found


def drain(terminals: list[Terminal], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for terminal in terminals:
            terminal.read(0.02)


def programs_started(
    case: Case, seconds: float, rounds: int, nvitop_place: str
) -> dict[str, list[int]]:
    """Return how many programs the settled screen starts in each of `rounds` windows of `seconds`, and
    nvitop at the same time if it is there, by name. {} without strace."""
    if shutil.which("strace") is None:
        return {}
    peer = nvitop("--monitor", "full", place=nvitop_place)
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(new_home())
        env = stack.enter_context(gpus_of(case, home.state.parent))
        if case.engines:
            stack.enter_context(engine_processes(ENGINE_PROCESSES))
        logs = {"Workbench": home.state.parent / "workbench.strace"}
        traced = [stack.enter_context(screen(home, case, env, *_tracer(logs["Workbench"])))]
        traced[0].until(STUB_FIGURES)
        if peer is not None:
            logs["nvitop"] = home.state.parent / "nvitop.strace"
            argv = [*_tracer(logs["nvitop"]), *peer[0]]
            terminal = Terminal(argv, case.columns, case.rows, env={**peer[1], **env})
            traced.append(stack.enter_context(terminal))
            terminal.until(NVITOP_FIGURES)
        drain(traced, WARM_S + 4.0)
        found: dict[str, list[int]] = {name: [] for name in logs}
        for _ in range(rounds):
            before = {name: _programs(log) for name, log in logs.items()}
            drain(traced, seconds)
            for name, log in logs.items():
                found[name].append(_programs(log) - before[name])
        return found


def _tracer(log: Path) -> list[str]:
    return ["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(log)]


def _programs(log: Path) -> int:
    return sum(line.rstrip().endswith("= 0") for line in log.read_text().splitlines())


def told(case: Case, found: list[Found], programs: list[int]) -> str:
    own, peer, own_bytes, peer_bytes = (
        statistics.median(each) for each in zip(*found, strict=True)
    )
    # both ran at the same time, so a slow moment of the machine is in both figures of a window
    windows = [one.own / one.peer for one in found]
    ratio = statistics.median(windows)
    ratios = ", ".join(f"{one:.2f}" for one in windows)
    counts = ", ".join(map(str, programs))
    started = f"; programs in each window {counts}" if programs else ""
    return (
        f"{case.name}: {own:.2f} % of a core, nvitop {peer:.2f} %: {ratio:.2f} ({ratios}); "
        f"{own_bytes:.0f} B/s, nvitop {peer_bytes:.0f} B/s{started}; load {load_1m():.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvitop", default="", metavar="DIR", help="where nvitop is")
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only the cases with this text")
    parser.add_argument("--awake", action="store_true", help="keep the cores awake")
    parser.add_argument("--programs", action=argparse.BooleanOptionalAction, default=True)
    chosen = parser.parse_args()
    for case in CASES:
        if chosen.only in case.name:
            found = measure(case, chosen)
            programs: dict[str, list[int]] = {}
            if chosen.programs:
                programs = programs_started(case, chosen.seconds, chosen.rounds, chosen.nvitop)
            print(told(case, found, programs.get("Workbench", [])), flush=True)


if __name__ == "__main__":
    main()
