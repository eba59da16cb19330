"""What the screen costs: CPU of a core, bytes to the terminal, memory, first paint; nvitop beside it where it can run.

    python tests/benchmarks/bench_screen.py [--gpus 4] [--seconds 20] [--interval 1.0 0.5] [--size 120x40] [--nvitop]

The screen runs in a pseudo-terminal that is read all the time, with a scripted session (tests/support/fake_session.py)
as its source, so the figures are those of the screen alone. `--command` measures any other command line the same way,
e.g. `--command "workbench demo --host-profile four-pcie"`, children (the agent) included.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
WARM_S = 3.0

CHILD = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
os.environ.setdefault("TEXTUAL_FPS", "40"); os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
from tests.support.fake_session import FakeSession, walked
gpus, interval, stage, flood = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], int(sys.argv[5])
class Live(FakeSession):
    async def open(self):
        self.task = asyncio.create_task(self.tick_for_ever(interval))
        if flood:
            self.flood = asyncio.create_task(self.pour(flood))
    async def pour(self, lines_per_s):
        number = 0
        while True:
            await asyncio.sleep(0.05)
            last = number + lines_per_s // 20
            self.log_lines([f"INFO 12:00:00 [x.py:1] line {i} of a server that says much" for i in range(number, last)])
            number = last
session = Live(gpus)
if stage != "none":
    asyncio.run(walked(session, stage))
import workbench.tui
workbench.tui.run(session, mouse=False)
"""


def spawn(argv: list[str], columns: int, rows: int, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    child = subprocess.Popen(
        argv, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True, close_fds=True
    )
    os.close(slave)
    return child, master


def cpu_s(process: psutil.Process) -> float:
    """User and system time of the process and its living children."""
    total = 0.0
    for p in (process, *process.children(recursive=True)):
        try:
            times = p.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def drain(master: int, seconds: float) -> tuple[int, list[float]]:
    """Bytes read in that time, and when each piece came."""
    end, count, stamps = time.monotonic() + seconds, 0, []
    while (left := end - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            count += len(data)
            stamps.append(time.monotonic())
    return count, stamps


def measure(argv: list[str], columns: int, rows: int, seconds: float) -> dict[str, float]:
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    started = time.monotonic()
    child, master = spawn(argv, columns, rows, env)
    try:
        seen, first_s = 0, 0.0
        while seen < columns * rows // 3 and time.monotonic() - started < 20:  # a frame, not the mode switches
            if select.select([master], [], [], 5)[0]:
                seen += len(os.read(master, 65536))
                first_s = time.monotonic() - started
        drain(master, WARM_S)
        process = psutil.Process(child.pid)
        before, begin = cpu_s(process), time.monotonic()
        count, _ = drain(master, seconds)
        took = time.monotonic() - begin
        used = cpu_s(process) - before
        rss = sum(p.memory_info().rss for p in (process, *process.children(recursive=True)))
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.close(master)
    return {
        "cpu_pct": round(100 * used / took, 2),
        "bytes_per_s": round(count / took),
        "rss_mib": round(rss / 2**20, 1),
        "first_paint_ms": round(first_s * 1000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval", type=float, nargs="*", default=[1.0, 0.5])
    parser.add_argument("--size", default="120x40")
    parser.add_argument("--stage", default="compare")
    parser.add_argument("--flood", type=int, default=0, help="log lines per second")
    parser.add_argument("--command", help="measure this command line instead")
    parser.add_argument("--nvitop", action="store_true", help="measure nvitop too (needs an NVML library)")
    chosen = parser.parse_args()
    columns, rows = (int(n) for n in chosen.size.split("x"))
    report: dict[str, dict[str, float]] = {}
    for interval in chosen.interval:
        if chosen.command:
            argv = shlex.split(chosen.command)
        else:
            argv = [
                sys.executable,
                "-c",
                CHILD,
                str(ROOT),
                str(chosen.gpus),
                str(interval),
                chosen.stage,
                str(chosen.flood),
            ]
        report[f"screen {interval:g} s"] = measure(argv, columns, rows, chosen.seconds)
        if chosen.nvitop:
            peer = [sys.executable, "-m", "nvitop", "--monitor", "full", "--interval", f"{interval:g}"]
            report[f"nvitop {interval:g} s"] = measure(peer, columns, rows, chosen.seconds)
    print(json.dumps({"gpus": chosen.gpus, "size": chosen.size, **report}, indent=2))


if __name__ == "__main__":
    main()
