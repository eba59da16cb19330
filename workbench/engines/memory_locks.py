"""A lock of the memory clock of the chip GB202, which can cost throughput while every clock reads
as requested. Workbench advises against it wherever such a lock is planned."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.engines.gpu_table import find_gpu_type
from workbench.model.findings import Finding, Level

CHIP = "GB202"
SOURCE = "open-gpu-kernel-modules #1265, #1266"


def does_memory_lock_cost_throughput(nvml_name: str) -> bool:
    """Return whether a lock of the memory clock is known to cost throughput on the GPU with this
    NVML name."""
    known = find_gpu_type(nvml_name)
    return known is not None and known.chip == CHIP


def warn_of_memory_locks(nvml_names: Iterable[str]) -> Finding | None:
    """Return the warning about a lock of the memory clock of GPUs with these NVML names. None if it
    is not known to cost throughput on any of them."""
    concerned = tuple(
        dict.fromkeys(name for name in nvml_names if does_memory_lock_cost_throughput(name))
    )
    if not concerned:
        return None
    text = (
        f"a memory lock on {CHIP} can cost up to 32 % of the tok/s while every clock reads as "
        "requested"
    )
    return Finding(
        Level.WARN,
        "gpu.memory-lock",
        text,
        fix="leave the memory clock to the driver; if you lock it, take only tok/s with and without "
        "the lock as a proof, never the clock",
        source=SOURCE,
        evidence=", ".join(concerned),
    )
