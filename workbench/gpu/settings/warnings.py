"""What is known to go otherwise than a setting promises, told before it is set. proof.py tells it of what was seen."""

from __future__ import annotations

from workbench.engines.gpu_table import find
from workbench.gpu.settings.setting_traps import trap
from workbench.model.gpu import GpuInfo
from workbench.model.settings import ClockRange

NEAR_TOP = 0.95  # of the table's highest clock: what cards hold under load lies below (2790 to 2865 of 3090 MHz)


def of_lock(setting: str, clocks: ClockRange, info: GpuInfo) -> str:
    """What to know of a clock lock on this card; "" for nothing."""
    known = find(info.name)
    found = []
    if setting == "gpu_clocks" and info.sm_max_mhz and clocks.min_mhz >= NEAR_TOP * info.sm_max_mhz:
        found.append(trap("clock.max-is-not-sustained"))
    if setting == "memory_clocks" and known is not None:
        normal = known.memory_under_compute_mhz
        if normal and clocks.min_mhz > normal:
            found.append(trap("memory.normal-clock", mhz=normal))
        elif normal and clocks.min_mhz == clocks.max_mhz == normal:
            found.append(trap("memory.lock-is-where-it-runs", mhz=normal))
        if known.chip == "GB202":
            found.append(trap("memory.lock-can-cost", chip=known.chip))
    return "; ".join(one.text for one in found)


def instead(info: GpuInfo) -> str | None:
    """The next step on a card that lacks a setting, where there is one."""
    known = find(info.name)
    return trap("gb10.clock-lock-only").text if known is not None and known.chip.endswith("GB10") else None
