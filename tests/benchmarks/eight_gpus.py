"""The command line of Workbench with one more simulated host, `eight`: eight of four-pcie's GPUs.
Also the host's NVML driver.

python tests/benchmarks/eight_gpus.py demo --host-profile eight
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workbench.sim import profiles

_four = profiles.PROFILES["four-pcie"]
_buses = tuple(0x10 + 0x11 * n for n in range(8))
profiles.PROFILES["eight"] = replace(
    _four, name="eight", title="8x A100 PCIe", count=8, pci_buses=_buses
)


def library() -> Any:
    """Return the library for the telemetry agent (WORKBENCH_SIM_DRIVER), which runs this file by
    its path."""
    from workbench.sim import driver

    return driver.library()


def host_file(path: str) -> str | None:
    from workbench.sim import driver

    return driver.host_file(path)


if __name__ == "__main__":
    from workbench.__main__ import main
    from workbench.sim import simulated_host

    simulated_host.DRIVER = str(Path(__file__).resolve())
    sys.exit(main())
