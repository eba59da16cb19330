"""The metrics of a GPU on the main screen: the value, its text, and the range of its sparkline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.tui.formats import GIB, NA, short_gpu_name

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo, GpuSample

TEMPERATURE_FLOOR_C = 20.0  # room temperature: the sparkline starts here
PCIE_MB_S_PER_LANE = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}  # PCI-SIG, after line coding


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a GPU on the screen. `field` is its field of GpuSample. `floor` and `top` are the values at the
    bottom and the top of its sparkline."""

    label: str
    field: str
    value: Callable[[GpuSample], float | None]
    text: Callable[[GpuSample, GpuInfo | None], str]
    top: Callable[[GpuSample, GpuInfo | None], float]
    floor: float = 0.0


def limit_w(s: GpuSample, i: GpuInfo | None) -> float | None:
    return s.limit_w or (i.power_max_w if i else None)


def total_bytes(s: GpuSample, i: GpuInfo | None) -> int | None:
    return s.memory_total_bytes or (i.memory_total_bytes if i else None)


def _power(s: GpuSample, i: GpuInfo | None) -> str:
    if s.power_w is None:
        return NA
    limit = limit_w(s, i)
    return f"{s.power_w:.0f}/{limit:.0f}W" if limit else f"{s.power_w:.0f}W"


def _memory(s: GpuSample, i: GpuInfo | None) -> str:
    if s.memory_used_bytes is None:
        return NA
    total = total_bytes(s, i)
    used = s.memory_used_bytes / GIB
    return f"{used:.1f}/{total / GIB:.0f}G" if total else f"{used:.1f}G"


def _pcie(s: GpuSample) -> float | None:
    if s.pcie_rx_mb_s is None and s.pcie_tx_mb_s is None:
        return None
    return (s.pcie_rx_mb_s or 0.0) + (s.pcie_tx_mb_s or 0.0)


def _pcie_text(s: GpuSample) -> str:
    rate = _pcie(s)
    return NA if rate is None else f"{rate / 1000:.1f}G/s" if rate >= 100 else f"{rate:.0f}M/s"


def _pcie_top(s: GpuSample, i: GpuInfo | None) -> float:
    gen = (i.pcie_gen_max if i else None) or s.pcie_gen or 4
    lanes = (i.pcie_width_max if i else None) or s.pcie_width or 16
    return float(PCIE_MB_S_PER_LANE.get(gen, 1969) * lanes)


def _number(value: float | None, unit: str) -> str:
    return NA if value is None else f"{value:.0f}{unit}"


UTIL = Metric(
    "util", "gpu_util_pct", lambda s: s.gpu_util_pct, lambda s, i: _number(s.gpu_util_pct, "%"), lambda s, i: 100.0
)
POWER = Metric("power", "power_w", lambda s: s.power_w, _power, lambda s, i: limit_w(s, i) or 600.0)
SM = Metric(
    "sm",
    "sm_mhz",
    lambda s: s.sm_mhz,
    lambda s, i: _number(s.sm_mhz, " MHz"),
    lambda s, i: float((i.sm_max_mhz if i else None) or 3000),
)
MEM_CLOCK = Metric(
    "mem",
    "memory_mhz",
    lambda s: s.memory_mhz,
    lambda s, i: _number(s.memory_mhz, " MHz"),
    lambda s, i: float((i.memory_max_mhz if i else None) or 14000),
)
VRAM = Metric(
    "vram",
    "memory_used_bytes",
    lambda s: s.memory_used_bytes,
    _memory,
    lambda s, i: float(total_bytes(s, i) or 80 * GIB),
)
TEMPERATURE = Metric(
    "temp",
    "temperature_c",
    lambda s: s.temperature_c,
    lambda s, i: _number(s.temperature_c, "C"),
    lambda s, i: (i.temperature_slowdown_c if i else None) or 95.0,
    TEMPERATURE_FLOOR_C,
)
PCIE = Metric("pcie", "pcie_rx_mb_s", _pcie, lambda s, i: _pcie_text(s), _pcie_top)
FAN = Metric("fan", "fan_pct", lambda s: s.fan_pct, lambda s, i: _number(s.fan_pct, "%"), lambda s, i: 100.0)

# metric columns per GPU -> metrics, row by row
LAYOUTS: dict[int, tuple[Metric, ...]] = {
    4: (UTIL, POWER, SM, MEM_CLOCK, VRAM, TEMPERATURE, PCIE, FAN),
    2: (UTIL, POWER, VRAM, SM, TEMPERATURE, PCIE),
    1: (UTIL, VRAM, POWER, TEMPERATURE, SM, PCIE),
}
SPARE = (MEM_CLOCK, FAN)  # fill a row that would not be full


def gpu_title(sample: GpuSample, info: GpuInfo | None) -> str:
    """Return "GPU0 RTX PRO 6000 96G", with "unified" if the GPU shares the memory of the host."""
    title = f"GPU{sample.index}"
    if info is not None:
        total = total_bytes(sample, info)
        title += f" {short_gpu_name(info.name)}"
        if total:
            title += f" {total / GIB:.0f}G"
        if info.unified_memory:
            title += " unified"
    return title
