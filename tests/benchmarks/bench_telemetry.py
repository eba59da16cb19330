"""Measure the cost of telemetry: CPU of the agent and of the process that reads it, and memory, on
a simulated NVML library.

python tests/benchmarks/bench_telemetry.py [SECONDS]      one line per GPU count and interval; needs a C compiler
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench.gpu.telemetry.source import TelemetrySource
from workbench.hosts.local import LocalHost

SOURCE = Path(__file__).resolve().parents[1] / "support" / "nvml_stub" / "nvml_stub.c"
FIELDS = "".join(f"field.{n} * 250000\n" for n in (186, 185, 83, 197, 198, 82))


def cpu_s(pid: int) -> float:
    """Return the exact run time of all threads (schedstat counts nanoseconds; /proc/PID/stat counts
    ticks of 10 ms)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def agent_pid(script: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (
                    b"-c\0# workbench telemetry agent" in (entry / "cmdline").read_bytes()
                    and not (entry / "cmdline").read_bytes().startswith(b"sh\0")
                    and script.encode() in (entry / "environ").read_bytes()
                ):
                    return int(entry.name)
            except OSError:
                continue
    raise SystemExit("no agent")


async def measure(gpus: int, interval_s: float, seconds: float, script: Path) -> None:
    script.write_text(f"gpus * {gpus}\n{FIELDS}")
    source = TelemetrySource(LocalHost(), interval_s)
    await source.start()
    await source.wait_for_first_reading()
    await asyncio.sleep(1)
    pid = agent_pid(str(script))
    began, agent, own = time.monotonic(), cpu_s(pid), time.process_time()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    agent, own = cpu_s(pid) - agent, time.process_time() - own
    peak_kib = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]
    print(
        f"{gpus} GPUs at {interval_s:g} s: agent {agent / passed:.3%}, reader {own / passed:.3%} "
        "of a core; "
        f"agent peak {int(peak_kib) / 1024:.1f} MiB"
    )
    await source.close()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with tempfile.TemporaryDirectory() as directory:
        library, script = Path(directory) / "libnvml_stub.so", Path(directory) / "script"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        os.environ |= {"WORKBENCH_NVML_LIBRARY": str(library), "NVML_STUB_SCRIPT": str(script)}
        for gpus, interval_s in ((1, 1.0), (4, 1.0), (4, 0.5), (8, 1.0)):
            asyncio.run(measure(gpus, interval_s, seconds, script))


if __name__ == "__main__":
    main()
