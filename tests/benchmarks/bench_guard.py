"""Measure the cost of the GPU guard for its host: CPU over a minute and memory, on a simulated NVML
library.

python tests/benchmarks/bench_guard.py [SECONDS]      one line per case; needs a C compiler

Idle: one GPU. Busy: eight GPUs with three settings each, of four Workbenches that send heartbeats;
the journal is written again every five seconds, and every core of the machine is busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_telemetry import SOURCE, cpu_s

from workbench.gpu import remote_programs
from workbench.gpu.settings import owners

BEAT_S = 5.0
CHANGES = (
    ("power_limit_w", 600.0, 450.0),
    ("gpu_clocks", "default", "1000,2000"),
    ("persistence", False, True),
)


def entries(gpus: int, sessions: int) -> list[dict[str, Any]]:
    facts = owners.owner_facts()
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


def measure(name: str, gpus: int, sessions: int, seconds: float, home: Path, rewrite: bool) -> None:
    root = home / f"gpu{gpus}"
    root.mkdir()
    journal = root / "journal.json"

    def write() -> None:
        journal.write_text(
            json.dumps({"version": 1, "entries": entries(gpus, sessions), "log": []}, indent=1)
        )

    write()
    argv = remote_programs.GUARD.argv(sys.executable, False, {"root": str(root)})
    done = subprocess.run(
        argv, input=remote_programs.GUARD.frame(False), capture_output=True, check=True
    )
    pid = json.loads(done.stdout)["pid"]
    try:
        time.sleep(2)
        facts = owners.owner_facts()
        began, spent = time.monotonic(), cpu_s(pid)
        while time.monotonic() - began < seconds:
            for session in range(sessions):
                (
                    root / "guard" / "beats" / f"{facts['boot_id']}.{session}.{facts['start']}"
                ).touch()
            if rewrite:
                write()
            time.sleep(BEAT_S)
        passed = time.monotonic() - began
        share = (cpu_s(pid) - spent) / passed
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        rss, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
        print(
            f"{name}: {share:.3%} of a core over {passed:.0f} s, RSS {rss:.1f} MiB, peak "
            f"{peak:.1f} MiB",
            flush=True,
        )
        state = json.loads((root / "guard" / "state.json").read_text())
        assert state["problem"] is None and len(state["limits_c"]) == gpus, state
    finally:
        os.kill(pid, signal.SIGKILL)


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


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as directory:
        home, library = Path(directory), Path(directory) / "libnvml_stub.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        (home / "script").write_text("gpus * 8\n")
        os.environ |= {
            "WORKBENCH_NVML_LIBRARY": str(library),
            "NVML_STUB_SCRIPT": str(home / "script"),
        }
        measure("idle, 1 GPU", 1, 1, seconds, home, rewrite=False)
        with work():
            measure("busy, 8 GPUs", 8, 4, seconds, home, rewrite=True)


if __name__ == "__main__":
    main()
