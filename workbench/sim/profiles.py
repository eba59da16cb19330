"""The simulated hosts by name: their GPUs, and the GPU settings that the driver allows. The data is
in profiles.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.model.lazy_dataclass import dataclass


@dataclass(frozen=True)
class GpuModel:
    """One type of GPU. Units are MHz, watts, °C, MiB, GB/s (1e9) and dense TFLOP/s. None stands for
    a value that the driver does not report.
    """

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    bus_bits: int
    bandwidth_gbs: float  # at memory_max_mhz
    efficiency: float  # share of the bandwidth that a good decoding kernel reaches
    tflops_bf16: float
    tflops_fp8: float | None
    tflops_fp4: float | None
    sm_idle_mhz: int
    sm_compute_mhz: int  # boost clock during decoding, without locks and below the power limit
    sm_voltage_mhz: int  # limit set by the voltage if a lock requests more
    sm_max_mhz: int
    sm_step_mhz: float
    memory_idle_mhz: int
    memory_compute_mhz: int
    memory_max_mhz: int
    memory_steps_mhz: tuple[int, ...]
    pstate_idle: int
    pstate_compute: int
    power_idle_w: float
    power_floor_w: float  # high clocks, no kernel running
    power_decode_w: float  # single-stream decoding at sm_compute_mhz, below the limit
    # additional draw of a compute-bound kernel, as a share of (decode - floor)
    compute_weight: float
    power_default_w: float | None
    power_min_w: float | None
    power_max_w: float | None
    ambient_c: float
    thermal_c_per_w: float
    thermal_tau_s: float
    slowdown_c: float
    pcie_gen: int
    pcie_width: int
    fan: bool = True
    ecc: bool | None = None
    unified_memory: bool = False
    reports_memory_clock: bool = True
    memory_locks: bool = True

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


@dataclass(frozen=True)
class Interconnect:
    """The cost of an all-reduce between two GPUs of a host: a fixed time in microseconds, and a
    bandwidth in GB/s."""

    title: str
    # the engine's own kernel, two GPUs with peer access; None: no peer access
    custom_us: float | None
    nccl_us: float
    # the same, launched from Python: adds launch and the wait for the slowest rank
    nccl_eager_us: float
    link_gbs: float


@dataclass(frozen=True)
class HostProfile:
    name: str
    title: str
    gpu: GpuModel
    count: int
    interconnect: Interconnect
    virtualization: int = 0  # NVML_GPU_VIRTUALIZATION_MODE: 0 none, 1 pass-through
    locks_work: bool = True
    driver_version: str = "580.95.05"
    cuda_version: int = 13000
    nvml_version: str = "13.580.95.05"
    numa_nodes: int = 1
    host_memory_kib: int | None = None  # set if the GPU uses the host's memory
    pci_buses: tuple[int, ...] = (0x01,)
    pci_domain: int = 0
    pcie_width: int | None = None  # lanes in use, if fewer than the card has
    container: str | None = None
    mig: tuple[str, int] | None = None  # profile and number of the instances of each GPU
    # lines of `workbench.doctor.host_values` that stand in for this machine's
    doctor: tuple[str, ...] = ()

    def uuid(self, index: int) -> str:
        import hashlib

        digest = hashlib.sha256(f"workbench-sim/{self.name}/{index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def mig_instance_uuid(self, index: int, number: int) -> str:
        """Return the UUID of the MIG instance `number` of the GPU `index`."""
        return f"MIG-{self.uuid(index)[4:-2]}{number:02x}"

    @property
    def mig_instance_bytes(self) -> int:
        """The memory of a MIG instance: an eighth of the GPU's for a profile of one slice."""
        return self.gpu.memory_bytes // 8

    def bus_id(self, index: int) -> str:
        return f"{self.pci_domain + (index if self.pci_domain else 0):08X}:{self.pci_buses[index]:02X}:00.0"

    def numa_node(self, index: int) -> int:
        return index * self.numa_nodes // self.count


def _load_profiles() -> dict[str, HostProfile]:
    data = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    gpus = {name: GpuModel(**_freeze_fields(fields)) for name, fields in data["gpus"].items()}
    found = {}
    for fields in data["profiles"]:
        link = Interconnect(**fields["interconnect"])
        known = {
            "doctor": tuple(data["doctor"]),
            **_freeze_fields(fields),
            "gpu": gpus[fields["gpu"]],
            "interconnect": link,
        }
        found[fields["name"]] = HostProfile(**known)
    return found


def _freeze_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items() if k != "notes"}


PROFILES = _load_profiles()


def get_profile(name: str) -> HostProfile:
    """Return the profile called `name`. Raises KeyError, with the known names, if there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise KeyError(
            f"no simulated host is called {name!r}; known: {', '.join(PROFILES)}"
        ) from None
