"""Measure the cost of the GPU guard for its host, CPU and memory, on a simulated NVML library.

    python tests/benchmarks/bench_guard.py [--seconds 20] [--rounds 3] [--beside TREE] [--busy]

Needs a C compiler. Idle: one GPU, beside the least that such a program can be ("floor": a Python
with the guard's modules of the standard library that wakes up once a second, and so does a thread
of it). With --beside, the guard of another checkout of Workbench runs at the same time. --busy:
eight GPUs with three settings each, of four Workbenches that send heartbeats; the journal is
written again every five seconds, and every core of the machine is busy.

CPU times are the kernel's, in ns. What runs at the same time is disturbed alike by other work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_telemetry import SOURCE
from speed_home import ROOT
from terminal import load_1m, run_s

from workbench.gpu.settings import owners

BEAT_S = 5.0
CHANGES = (
    ("power_limit_w", 600.0, 450.0),
    ("gpu_clocks", "default", "1000,2000"),
    ("persistence", False, True),
)


def entries(gpus: int, sessions: int) -> list[dict[str, Any]]:
    facts = owners.identity_of_this_process()
    return [
        {
            "gpu_uuid": f"GPU-{gpu:08d}-0000-4000-8000-000000000000",
            "gpu_index": gpu,
            "gpu_name": "x",
            "setting": setting,
            "before": before,
            "before_known": "read",
            "now": now,
            "since_unix_s": time.time(),
            "boot_id": facts["boot_id"],
            "driver": None,
            "who": "ada@box",
            "owner": {**facts, "pid": gpu % sessions},
            "state": "applied",
            "watch": {"heartbeat_s": 600.0},
        }
        for gpu in range(gpus)
        for setting, before, now in CHANGES
    ]


# A Python that does nothing, with the modules that the guard needs.
FLOOR = """
import contextlib, ctypes, errno, fcntl, json, pwd, re, resource, select, selectors, shlex, signal
import subprocess, threading, time, traceback, typing
def work():
    wait = threading.Event()
    while True: wait.wait(1.0)
threading.Thread(target=work, daemon=True).start()
poll = select.poll()
while True: poll.poll(1000)
"""
# Of another checkout: its guard, started with that checkout's own modules.
START = """
import sys
sys.path.insert(0, sys.argv[1])
from workbench.gpu import remote_programs
import json, subprocess
argv = remote_programs.GUARD_PROGRAM.argv(sys.executable, False, {"root": sys.argv[2]})
frame = remote_programs.GUARD_PROGRAM.stdin_frame(False)
print(subprocess.run(argv, input=frame, capture_output=True, check=True).stdout.decode())
"""


def start(tree: Path, root: Path, gpus: int, sessions: int) -> int:
    """Start the guard of the checkout `tree` over a journal in `root`. Return its process id."""
    root.mkdir()
    write_journal(root, gpus, sessions)
    argv = [sys.executable, "-c", START, str(tree), str(root)]
    done = subprocess.run(argv, capture_output=True, check=True, cwd=root)
    return int(json.loads(done.stdout)["pid"])


def write_journal(root: Path, gpus: int, sessions: int) -> None:
    document = {"version": 1, "entries": entries(gpus, sessions), "log": []}
    (root / "journal.json").write_text(json.dumps(document, indent=1))


def beat(root: Path, sessions: int) -> None:
    facts = owners.identity_of_this_process()
    for session in range(sessions):
        name = f"{facts['boot_id']}.{session}.{facts['start']}"
        (root / "guard" / "beats" / name).touch()


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in status)
    return int(found["VmRSS"].split()[0]) / 1024


def shares(pids: dict[str, int], seconds: float, each_beat: Callable[[], None]) -> dict[str, float]:
    """Return the CPU of each process over `seconds`, in % of a core."""
    began, before = time.monotonic(), {name: run_s(pid) for name, pid in pids.items()}
    while time.monotonic() - began < seconds:
        each_beat()
        time.sleep(min(BEAT_S, seconds))
    took = time.monotonic() - began
    return {name: 100 * (run_s(pid) - before[name]) / took for name, pid in pids.items()}


Idle = dict[str, tuple[list[float], float]]


def idle(home: Path, seconds: float, rounds: int, other: Path | None = None) -> Idle:
    """Return (CPU in % of a core in each window, resident MiB) of the guard, of the floor, and of
    the guard of the checkout `other` as "beside"."""
    trees = {"guard": ROOT, **({"beside": other} if other else {})}
    roots = {name: home / name for name in trees}
    pids = {name: start(tree, roots[name], 1, 1) for name, tree in trees.items()}
    floor = subprocess.Popen([sys.executable, "-I", "-S", "-c", FLOOR])
    pids["floor"] = floor.pid
    try:
        time.sleep(3.0)
        found = [
            shares(pids, seconds, lambda: [beat(root, 1) for root in roots.values()])
            for _ in range(rounds)
        ]
        for root in roots.values():
            check(root, 1)
        return {
            name: ([one[name] for one in found], resident_mib(pid)) for name, pid in pids.items()
        }
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        floor.wait()


def busy(home: Path, seconds: float) -> None:
    root = home / "busy"
    pid = start(ROOT, root, 8, 4)

    def each_beat() -> None:
        beat(root, 4)
        write_journal(root, 8, 4)

    try:
        time.sleep(3.0)
        with work():
            share = shares({"guard": pid}, seconds, each_beat)["guard"]
        print(f"busy, 8 GPUs: {share:.3f} % of a core, RSS {resident_mib(pid):.1f} MiB", flush=True)
        check(root, 8)
    finally:
        os.kill(pid, signal.SIGKILL)


def check(root: Path, gpus: int) -> None:
    state = json.loads((root / "guard" / "state.json").read_text())
    assert state["problem"] is None and len(state["limits_c"]) == gpus, state


@contextlib.contextmanager
def work() -> Iterator[None]:
    """Keep every core busy."""
    argv = ["nice", sys.executable, "-c", "while True: sum(range(100000))"]
    running = [subprocess.Popen(argv) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stand_in() -> Iterator[Path]:
    """Give a directory, and let the environment name a stand-in for the driver with eight GPUs."""
    with tempfile.TemporaryDirectory() as directory:
        home, library = Path(directory), Path(directory) / "libnvml_stub.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        (home / "script").write_text("gpus * 8\n")
        names = {
            "WORKBENCH_NVML_LIBRARY": str(library),
            "NVML_STUB_SCRIPT": str(home / "script"),
        }
        os.environ |= names
        try:
            yield home
        finally:
            for name in names:
                del os.environ[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="TREE", help="another checkout of Workbench")
    parser.add_argument("--busy", action="store_true", help="measure the busy guard as well")
    chosen = parser.parse_args()
    other = Path(chosen.beside).resolve() if chosen.beside else None
    with stand_in() as home:
        for name, (each, resident) in idle(home, chosen.seconds, chosen.rounds, other).items():
            rounds = ", ".join(f"{one:.3f}" for one in each)
            print(
                f"idle, 1 GPU, {name}: {statistics.median(each):.3f} % of a core ({rounds}), "
                f"RSS {resident:.1f} MiB; load {load_1m():.1f}"
            )
        if chosen.busy:
            busy(home, chosen.seconds)


if __name__ == "__main__":
    main()
