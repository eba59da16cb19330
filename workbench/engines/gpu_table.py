"""Properties of GPU types that NVML does not report: memory bandwidth, power range, chip. Each row
names its sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class GpuType:
    """A type of GPU: nominal memory bandwidth in GB/s (1e9 bytes), clocks in MHz as NVML reports
    them, power in watts. None stands for an unknown value.
    """

    id: str
    nvml_names: tuple[str, ...]
    chip: str
    memory_bus_bits: int | None
    bandwidth_gbs: float
    sm_max_mhz: int | None
    memory_max_mhz: int | None
    memory_under_compute_mhz: int | None
    power_default_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    unified_memory: bool
    tflops: Mapping[str, float | None]  # dense tensor throughput by format: "bf16", "fp8", "fp4"
    nvlink: bool
    sources: tuple[str, ...]


def compute_memory_bandwidth_gbs(memory_mhz: float, bus_bits: int) -> float:
    """Return the memory bandwidth in GB/s, computed from the memory clock that NVML reports and the
    width of the bus. The memory makes two transfers per clock.

    The result agrees with the vendor's value for every row of the table that has both (GDDR6,
    GDDR6X, GDDR7, HBM2, HBM3).
    """
    return 2 * memory_mhz * bus_bits / 8 / 1000


@cache
def load_gpu_types() -> tuple[GpuType, ...]:
    """Return every GPU type of the table."""
    return tuple(GpuType(**row) for row in load_packaged_table_rows("gpu_table", "gpus"))


def load_packaged_table_rows(table: str, key: str) -> list[dict[str, Any]]:
    """Return the rows of the list `key` in `table`.json, a file of this package. Lists inside a row
    become tuples."""
    import json
    from importlib.resources import files

    document = json.loads(files("workbench.engines").joinpath(f"{table}.json").read_text("utf-8"))
    return [
        {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        for row in document[key]
    ]


@cache
def find_gpu_type(nvml_name: str) -> GpuType | None:
    """Return the GPU type whose NVML name is exactly `nvml_name`, or None. Parts of names are not
    compared, because "NVIDIA GB10" must not match GB100.
    """
    wanted = nvml_name.strip()
    return next((t for t in load_gpu_types() if wanted in t.nvml_names), None)
