"""What is known of GPU types beyond NVML: bandwidth, power range, chip, quirks. Each row names its sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuType:
    """One GPU type. Bandwidth in GB/s (1e9), clocks in MHz as NVML gives them, power in watts; None: not established.

    `bandwidth_gbs` is nominal. `bandwidth_achievable_gbs` is a measured (low, high) range where somebody published one.
    """

    id: str
    nvml_names: tuple[str, ...]
    architecture: str
    compute_capability: str
    chip: str
    memory_gb: float
    memory_type: str
    memory_bus_bits: int | None
    bandwidth_gbs: float
    bandwidth_achievable_gbs: tuple[float, float] | None
    sm_boost_mhz: int | None
    sm_max_mhz: int | None
    memory_max_mhz: int | None
    memory_under_compute_mhz: int | None
    tdp_w: float
    power_default_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    unified_memory: bool
    nvlink: bool
    quirks: tuple[str, ...]
    sources: tuple[str, ...]


def memory_bandwidth_gbs(memory_mhz: float, bus_bits: int) -> float:
    """GB/s from NVML's memory clock: two transfers per clock over the bus width.

    Agrees with the vendor's figure for every row of the table that has both (GDDR6, GDDR6X, GDDR7, HBM2, HBM3).
    """
    return 2 * memory_mhz * bus_bits / 8 / 1000


@cache
def all_types() -> tuple[GpuType, ...]:
    import json
    from importlib.resources import files

    rows = json.loads(files("workbench.engines").joinpath("gpu_table.json").read_text("utf-8"))["gpus"]
    return tuple(GpuType(**{key: _frozen(value) for key, value in row.items()}) for row in rows)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def find(nvml_name: str) -> GpuType | None:
    """The type with exactly this NVML name ("NVIDIA GB10" must not match GB100), or None."""
    wanted = nvml_name.strip()
    return next((t for t in all_types() if wanted in t.nvml_names), None)
