"""The simulated hosts by name: which GPUs, how many, and how far the driver lets itself be set.

Sources of constants: vendor data sheets and TechPowerUp for bandwidth, power and boost clocks; nvidia-smi dumps of
bare-metal cards for clocks under compute (RTX PRO 6000: 2779-2790 MHz SM, memory P1 at 13365 MHz, 483-522 W in
single-stream decode at a 600 W limit); public power sweeps for the shape of power over clock (see physics.py).
Where nothing public exists the comment says "assumed".
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GpuModel:
    """One kind of GPU. MHz, watts, °C, MiB, GB/s (1e9) and dense TFLOP/s; None where the driver gives nothing."""

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    bus_bits: int
    bandwidth_gbs: float  # at memory_max_mhz
    efficiency: float  # share of the bandwidth that a well-written decode kernel streams
    tflops_bf16: float
    tflops_fp8: float | None
    tflops_fp4: float | None
    sm_idle_mhz: int
    sm_compute_mhz: int  # where boost settles under decode, nothing locked, power limit not reached
    sm_voltage_mhz: int  # what voltage allows when a lock asks for more
    sm_max_mhz: int
    sm_step_mhz: float
    memory_idle_mhz: int
    memory_compute_mhz: int
    memory_max_mhz: int
    memory_steps_mhz: tuple[int, ...]
    pstate_idle: int
    pstate_compute: int
    power_idle_w: float
    power_floor_w: float  # clocks up, nothing running
    power_decode_w: float  # single-stream decode at sm_compute_mhz, no limit reached
    compute_weight: float  # how much a compute-bound kernel adds to that draw, as a share of (decode - floor)
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
    """What an all-reduce between two GPUs of a host costs: microseconds each, GB/s for its bytes."""

    title: str
    custom_us: float | None  # the engine's own kernel, two GPUs with peer access; None: no peer access
    nccl_us: float
    nccl_eager_us: float  # the same, launched from Python: adds launch and the wait for the slowest rank
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
    host_memory_kib: int | None = None  # given where the GPU's memory is the host's
    pci_buses: tuple[int, ...] = (0x01,)
    pci_domain: int = 0

    def uuid(self, index: int) -> str:
        import hashlib

        digest = hashlib.sha256(f"workbench-sim/{self.name}/{index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def bus_id(self, index: int) -> str:
        return f"{self.pci_domain + (index if self.pci_domain else 0):08X}:{self.pci_buses[index]:02X}:00.0"

    def numa_node(self, index: int) -> int:
        return index * self.numa_nodes // self.count


RTX_PRO_6000 = GpuModel(
    name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    architecture="Blackwell",
    compute_capability=(12, 0),
    memory_mib=97887,
    reserved_mib=638,
    bus_bits=512,
    bandwidth_gbs=1792.1,
    efficiency=0.90,
    tflops_bf16=457.6,
    tflops_fp8=905.3,
    tflops_fp4=1608.2,
    sm_idle_mhz=180,
    sm_compute_mhz=2790,
    sm_voltage_mhz=2865,
    sm_max_mhz=3090,
    sm_step_mhz=7.5,
    memory_idle_mhz=405,
    memory_compute_mhz=13365,
    memory_max_mhz=14001,
    memory_steps_mhz=(14001, 13365, 7001, 810, 405),
    pstate_idle=8,
    pstate_compute=1,
    power_idle_w=14.0,
    power_floor_w=59.0,
    power_decode_w=503.0,
    compute_weight=0.8,
    power_default_w=600.0,
    power_min_w=150.0,
    power_max_w=600.0,
    ambient_c=27.0,
    thermal_c_per_w=0.1,
    thermal_tau_s=24.0,
    slowdown_c=90.0,
    pcie_gen=5,
    pcie_width=16,
    ecc=False,
)

RTX_5060TI = GpuModel(
    name="NVIDIA GeForce RTX 5060 Ti",
    architecture="Blackwell",
    compute_capability=(12, 0),
    memory_mib=16311,
    reserved_mib=405,
    bus_bits=128,
    bandwidth_gbs=448.0,
    efficiency=0.86,
    tflops_bf16=47.0,
    tflops_fp8=94.8,  # FP32-accumulate figure; a higher measured one exists without an explanation
    tflops_fp4=341.9,
    sm_idle_mhz=180,
    sm_compute_mhz=2745,  # assumed: above the 2572 MHz boost, as these cards run
    sm_voltage_mhz=2850,
    sm_max_mhz=3090,
    sm_step_mhz=7.5,
    memory_idle_mhz=405,
    memory_compute_mhz=14001,
    memory_max_mhz=14001,
    memory_steps_mhz=(14001, 13801, 7001, 810, 405),
    pstate_idle=8,
    pstate_compute=1,
    power_idle_w=5.0,
    power_floor_w=24.0,
    power_decode_w=170.0,
    compute_weight=0.7,
    power_default_w=180.0,
    power_min_w=150.0,
    power_max_w=180.0,
    ambient_c=27.0,
    thermal_c_per_w=0.23,
    thermal_tau_s=20.0,
    slowdown_c=88.0,
    pcie_gen=5,
    pcie_width=8,
)

GB10 = GpuModel(
    name="NVIDIA GB10",
    architecture="Blackwell",
    compute_capability=(12, 1),
    memory_mib=124610,  # MemTotal 127600748 kB of a 128 GB unit
    reserved_mib=0,
    bus_bits=256,
    bandwidth_gbs=273.0,
    efficiency=0.825,  # measured streams: 213-226 of 273 GB/s
    tflops_bf16=118.8,
    tflops_fp8=237.7,
    tflops_fp4=500.0,
    sm_idle_mhz=208,
    sm_compute_mhz=2405,
    sm_voltage_mhz=2600,  # assumed
    sm_max_mhz=3003,
    sm_step_mhz=13.0,
    memory_idle_mhz=8533,
    memory_compute_mhz=8533,
    memory_max_mhz=8533,  # the roofline's scale only: the driver gives no memory clock
    memory_steps_mhz=(),
    pstate_idle=8,
    pstate_compute=0,
    power_idle_w=4.5,
    power_floor_w=11.0,
    power_decode_w=41.0,
    compute_weight=2.0,
    power_default_w=None,
    power_min_w=None,
    power_max_w=None,
    ambient_c=30.0,
    thermal_c_per_w=0.75,
    thermal_tau_s=40.0,
    slowdown_c=90.0,
    pcie_gen=1,
    pcie_width=1,
    fan=False,
    unified_memory=True,
    reports_memory_clock=False,
    memory_locks=False,
)

A100_PCIE_40 = GpuModel(
    name="NVIDIA A100-PCIE-40GB",
    architecture="Ampere",
    compute_capability=(8, 0),
    memory_mib=40960,
    reserved_mib=571,
    bus_bits=5120,
    bandwidth_gbs=1555.2,
    efficiency=0.85,
    tflops_bf16=250.0,  # vendor 312; assumed reachable share
    tflops_fp8=None,
    tflops_fp4=None,
    sm_idle_mhz=210,
    sm_compute_mhz=1410,
    sm_voltage_mhz=1410,
    sm_max_mhz=1410,
    sm_step_mhz=15.0,
    memory_idle_mhz=1215,
    memory_compute_mhz=1215,
    memory_max_mhz=1215,
    memory_steps_mhz=(1215,),
    pstate_idle=0,
    pstate_compute=0,
    power_idle_w=34.0,
    power_floor_w=46.0,
    power_decode_w=205.0,
    compute_weight=0.8,
    power_default_w=250.0,
    power_min_w=150.0,  # assumed from the 80 GB PCIe card
    power_max_w=250.0,
    ambient_c=30.0,
    thermal_c_per_w=0.16,
    thermal_tau_s=30.0,
    slowdown_c=87.0,
    pcie_gen=4,
    pcie_width=16,
    fan=False,
    ecc=True,
)

ALONE = Interconnect("one GPU", None, 30.0, 140.0, 20.0)

_PRO = HostProfile(
    name="rtx-pro-6000",
    title="1x RTX PRO 6000 Blackwell 96 GB, bare metal",
    gpu=RTX_PRO_6000,
    count=1,
    interconnect=ALONE,
    driver_version="595.45.04",
    cuda_version=13010,
    nvml_version="13.595.45.04",
)

PROFILES: dict[str, HostProfile] = {
    p.name: p
    for p in (
        _PRO,
        replace(
            _PRO,
            name="rtx-pro-6000-passthrough",
            title="1x RTX PRO 6000 Blackwell 96 GB, passed through a hypervisor: locks are accepted and change nothing",
            virtualization=1,
            locks_work=False,
        ),
        HostProfile(
            name="rtx-5060ti-x2",
            title="2x RTX 5060 Ti 16 GB, PCIe 5.0 x8, no peer access",
            gpu=RTX_5060TI,
            count=2,
            interconnect=Interconnect("PCIe through host memory", None, 60.0, 170.0, 9.0),
            pci_buses=(0x01, 0x02),
        ),
        HostProfile(
            name="gb10",
            title="1x DGX Spark (GB10, 128 GB unified memory)",
            gpu=GB10,
            count=1,
            interconnect=ALONE,
            host_memory_kib=127600748,
            pci_domain=0xF,
        ),
        HostProfile(
            name="gb10-x2",
            title="2x DGX Spark (GB10, 128 GB unified memory each) over 200 Gb/s RoCE, shown as one host",
            gpu=GB10,
            count=2,
            interconnect=Interconnect("RoCE", None, 45.0, 160.0, 20.0),
            host_memory_kib=127600748,
            pci_domain=0xF,
            pci_buses=(0x01, 0x01),
        ),
        HostProfile(
            name="four-pcie",
            title="4x A100 PCIe 40 GB, PCIe 4.0, no NVLink",
            gpu=A100_PCIE_40,
            count=4,
            interconnect=Interconnect("PCIe 4.0", 30.0, 55.0, 155.0, 18.0),
            numa_nodes=2,
            pci_buses=(0x17, 0x31, 0x98, 0xCA),
        ),
    )
}


def get(name: str) -> HostProfile:
    """The profile called `name`; KeyError with the known names where there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise KeyError(f"no simulated host is called {name!r}; known: {', '.join(PROFILES)}") from None
