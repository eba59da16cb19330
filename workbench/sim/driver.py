"""The entry point of the simulated driver for the telemetry agent, a program that reads the GPUs.
The agent calls `library()` to get a replacement for `pynvml.nvmlLib`.

The agent runs this file by path (runpy) with a bare python3. The environment variables
WORKBENCH_SIM_PROFILE and WORKBENCH_SIM_STATE select the simulated host.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    sys.path.append(str(Path(__file__).resolve().parents[2]))
# the agent was sent from another machine, with few of the modules
for _name in ("workbench", "workbench.model"):
    _package = sys.modules.get(_name)
    if _package is not None and not _package.__path__:
        _sources = Path(__file__).resolve().parents[2]
        _package.__path__.append(str(_sources.joinpath(*_name.split("."))))

if TYPE_CHECKING:
    from workbench.sim.driver_state import SimState
    from workbench.sim.nvml_library import SimulatedNvml


# then the governors are files in that directory
_HAS_CORES = bool(os.environ.get("WORKBENCH_SIM_SYSFS"))


@functools.lru_cache(maxsize=1)
def _simulated_host_state() -> SimState:
    from workbench.sim import driver_state

    return driver_state.sim_state_from_environment()


def library() -> SimulatedNvml:
    """Return the simulated NVML library of the simulated host that this process's environment
    variables select."""
    from workbench.sim import nvml_library

    return nvml_library.SimulatedNvml(_simulated_host_state())


def host_file(path: str) -> str | None:
    """Return the simulated contents of the host's file at `path`, or None if the real file applies.

    These files are simulated: /proc/meminfo on a host with unified memory, because its contents
    follow the GPU memory that the engines use, the governors of CPU cores if the real machine has
    none, and /proc/pressure/memory with the fault "pressure".
    """
    pressure_pct = _simulated_host_state().faults().get("pressure")
    if path == "/proc/pressure/memory" and pressure_pct is not None:
        return f"full avg10={pressure_pct:.2f} avg60=0.00 avg300=0.00 total=0\n"
    total = _simulated_host_state().profile.host_memory_kib
    if path != "/proc/meminfo" or total is None:
        return "performance\n" if path.endswith("/scaling_governor") and not _HAS_CORES else None
    readings = _simulated_host_state().gpu_readings()
    used = sum(r.memory_used_bytes for r in readings) // len(readings) >> 10
    available = max(0, total - 5_200_000 - used)
    return (
        f"MemTotal:       {total} kB\nMemFree:        {available} kB\nMemAvailable:   "
        f"{available} kB\n"
    )
