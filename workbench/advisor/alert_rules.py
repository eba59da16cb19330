"""What the alert rules measure: one function per rule, from a reading to a value. Pure.

A function returns None if the value is not known. A rule without a unit has 1.0 while its condition
holds, and 0.0 otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.advisor.gpu_rules import THERMAL_REASONS, has_stuck_clock
from workbench.model.gpu import GpuInfo, GpuSample, GpuState, Telemetry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.timeline import QUIET_REASONS

_HARDWARE = ("HW slowdown", "HW power brake slowdown")
_NOT_READABLE = (GpuState.LOST, GpuState.ERROR)
ZeroOrOne = float  # 1.0 while a condition holds, and 0.0 otherwise


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What is known of a host now. `engine` has the newest values of the live metrics of its server
    by field name, and `server` says which one that is; "" if there is none. `capped` are the GPUs
    of which a load has shown that a clock is capped by a limiter that the driver does not name."""

    telemetry: Telemetry
    engine: Mapping[str, float]
    capped: frozenset[int] = frozenset()
    server: str = ""


def measure_heat_slowdown(info: GpuInfo, sample: GpuSample, facts: LiveFacts) -> ZeroOrOne | None:
    return _is_any_clock_reason_active(sample, THERMAL_REASONS)


def measure_hardware_slowdown(
    info: GpuInfo, sample: GpuSample, facts: LiveFacts
) -> ZeroOrOne | None:
    return _is_any_clock_reason_active(sample, _HARDWARE)


def _is_any_clock_reason_active(sample: GpuSample, reasons: tuple[str, ...]) -> ZeroOrOne | None:
    """Return 1.0 if the driver names one of the reasons for lower clocks, else 0.0. None if it
    names no reasons at all."""
    if "event_reasons" in sample.absent:
        return None
    return float(any(reason in reasons for reason in sample.event_reasons))


def measure_hidden_clock_cap(
    info: GpuInfo, sample: GpuSample, facts: LiveFacts
) -> ZeroOrOne | None:
    """Return 1.0 if a clock is low without a reason that the driver names, else 0.0. None without a
    load, or if the reasons are unknown. A GPU in `facts.capped` always has 1.0."""
    if sample.index in facts.capped:
        return 1.0
    if sample.sm_mhz is None or sample.gpu_util_pct is None or "event_reasons" in sample.absent:
        return None
    stuck = has_stuck_clock(info.name, sample.sm_mhz, sample.gpu_util_pct)
    if stuck is None:
        return None
    named = set(sample.event_reasons) - set(QUIET_REASONS)
    return float(stuck and not named)


def measure_degrees_below_slowdown(
    info: GpuInfo, sample: GpuSample, facts: LiveFacts
) -> float | None:
    """Return how many °C the GPU is below the temperature at which it slows down; None if one of
    the two temperatures is unknown. Negative if the GPU is hotter."""
    if sample.temperature_c is None or info.temperature_slowdown_c is None:
        return None
    return info.temperature_slowdown_c - sample.temperature_c


def measure_free_gpu_memory_pct(info: GpuInfo, sample: GpuSample, facts: LiveFacts) -> float | None:
    """Return the free share of the GPU's memory in percent; with MIG on, that of the fullest
    instance. None for a GPU that uses the host's memory."""
    if info.unified_memory:
        return None
    if info.mig:
        free = [
            _free_memory_pct(sample.instance_used_bytes.get(one.uuid), one.memory_total_bytes)
            for one in info.instances
        ]
        return min((share for share in free if share is not None), default=None)
    return _free_memory_pct(sample.memory_used_bytes, sample.memory_total_bytes)


def _free_memory_pct(used: int | None, total: int | None) -> float | None:
    if used is None or not total:
        return None
    return 100.0 * (total - used) / total


def measure_gpu_unreadable(info: GpuInfo, sample: GpuSample, facts: LiveFacts) -> ZeroOrOne | None:
    return float(sample.state in _NOT_READABLE)


def read_newest_xid_number(info: GpuInfo, sample: GpuSample, facts: LiveFacts) -> float | None:
    """Return the Xid number of the newest error that the driver reported; 0 if it reported none,
    None if it does not report errors."""
    return sample.xid


def read_pcie_errors_per_min(info: GpuInfo, sample: GpuSample, facts: LiveFacts) -> float | None:
    return sample.pcie_replays_per_min


def measure_available_host_memory_pct(facts: LiveFacts) -> float | None:
    """Return the available share of the host's memory in percent; None if it is unknown."""
    host = facts.telemetry.host
    if host.memory_available_bytes is None or not host.memory_total_bytes:
        return None
    return 100.0 * host.memory_available_bytes / host.memory_total_bytes


def read_memory_pressure_pct(facts: LiveFacts) -> float | None:
    return facts.telemetry.host.memory_pressure_pct


def read_disk_pressure_pct(facts: LiveFacts) -> float | None:
    return facts.telemetry.host.io_pressure_pct


def measure_cpu_prochot(facts: LiveFacts) -> ZeroOrOne | None:
    held = facts.telemetry.host.prochot
    return None if held is None else float(held)


def read_queued_requests(facts: LiveFacts) -> float | None:
    return facts.engine.get("waiting")


def read_kv_cache_use_pct(facts: LiveFacts) -> float | None:
    return facts.engine.get("kv_use_pct")


OfGpu = Callable[[GpuInfo, GpuSample, LiveFacts], float | None]
OfHost = Callable[[LiveFacts], float | None]
OF_GPU: Mapping[str, OfGpu] = {
    "heat-slowdown": measure_heat_slowdown,
    "hardware-slowdown": measure_hardware_slowdown,
    "hidden-clock-cap": measure_hidden_clock_cap,
    "temperature": measure_degrees_below_slowdown,
    "gpu-memory": measure_free_gpu_memory_pct,
    "gpu-lost": measure_gpu_unreadable,
    "gpu-error": read_newest_xid_number,
    "pcie-errors": read_pcie_errors_per_min,
}
OF_HOST: Mapping[str, OfHost] = {
    "host-memory": measure_available_host_memory_pct,
    "memory-pressure": read_memory_pressure_pct,
    "disk-pressure": read_disk_pressure_pct,
    "prochot": measure_cpu_prochot,
    "queue": read_queued_requests,
    "kv-cache": read_kv_cache_use_pct,
}
OF_SERVER = ("queue", "kv-cache")
