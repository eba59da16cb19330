"""Entry of the simulated driver for the telemetry agent: `library()` stands in for `pynvml.nvmlLib`.

Executed by path (runpy) with a bare python3; WORKBENCH_SIM_PROFILE and WORKBENCH_SIM_STATE say which host it is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ in (None, ""):
    sys.path.append(str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from workbench.sim.nvml import SimulatedNvml


def library() -> SimulatedNvml:
    """The simulated NVML of this process's simulated host."""
    from workbench.sim import nvml, state

    return nvml.SimulatedNvml(state.from_environment())
