"""Readings of GPUs and of their host, as the screen and the results use them.

A missing value is None, never zero, and `absent` gives the reason under the field's name ("not
supported", "no permission", "gpu is lost", …). Field names contain the unit; memory is in bytes,
and shares are in percent (0..100).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum

from workbench.model.gpu_readings import READINGS
from workbench.model.lazy_dataclass import dataclass

FEW_CLOCKS = 8  # so many are listed one by one
MOST_RUNS = 4  # of clocks with one step


class DriverStatus(StrEnum):
    OK = "ok"
    NO_DRIVER = "no driver"  # NVML_ERROR_DRIVER_NOT_LOADED (9)
    NO_LIBRARY = "no library"  # libnvidia-ml.so.1 absent and no nvidia-smi either
    MISMATCH = "driver/library mismatch"  # 18: reboot or reload needed
    NO_GPU = "no gpu"  # 28, or zero devices
    NO_PERMISSION = "no permission"  # 4 / 17 (blocked by OS or cgroup) at init
    HUNG = "driver hung"  # a call did not return, so the agent was abandoned
    ERROR = "error"  # any other problem; see `message`


class GpuState(StrEnum):
    LIVE = "live"
    LOST = "lost"  # NVML_ERROR_GPU_IS_LOST (15, XID 79): this GPU only, the others continue
    NO_PERMISSION = "no permission"
    ERROR = "error"
    # another GPU's call has not returned, and the driver processes one call at a time
    NOT_READ = "not read"


def format_supported_clocks(clocks_mhz: Sequence[int]) -> str:
    """Return supported clocks in a short form: "405, 810, 14001 MHz" for few, "210-3090 MHz in
    steps of 15 (193 clocks)" for many. A step may vary by 1 MHz, because the driver rounds. "" for
    no clocks."""
    found = sorted(set(clocks_mhz))
    if len(found) <= FEW_CLOCKS:
        return f"{', '.join(map(str, found))} MHz" if found else ""
    runs = [[found[0]]]
    for mhz in found[1:]:
        steps = {b - a for a, b in itertools.pairwise((*runs[-1], mhz))}
        if max(steps) - min(steps) > 1:
            runs.append([])
        runs[-1].append(mhz)
    return (
        f"{', '.join(map(_format_clock_steps, runs[:MOST_RUNS]))}{', …' if runs[MOST_RUNS:] else ''} "
        f"({len(found)} clocks)"
    )


def _format_clock_steps(clocks_mhz: Sequence[int]) -> str:
    steps = sorted({b - a for a, b in itertools.pairwise(clocks_mhz)})
    if len(clocks_mhz) < 3:
        return f"{', '.join(map(str, clocks_mhz))} MHz"
    return f"{clocks_mhz[0]}-{clocks_mhz[-1]} MHz in steps of {' or '.join(map(str, steps))}"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int
    memory_bytes: int | None
    name: str | None = None  # None if host PIDs cannot be resolved (containers)
    kind: str = "compute"
    # where it runs if not on this host itself: "docker:0123456789ab", or the host around a
    # container
    place: str = ""

    @property
    def title(self) -> str:
        """The name of a process that uses a GPU, followed by "in" and its container if it runs in
        one. The name is "?" if it is unknown."""
        name = self.name or "?"
        return f"{name} in {self.place}" if self.place else name


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that is divided with MIG. For CUDA it is a GPU of its own, with its own
    memory."""

    index: int  # on its GPU
    uuid: str  # "MIG-…", as CUDA_VISIBLE_DEVICES names it
    profile: str  # "1g.10gb"
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """Properties of a GPU that rarely change, such as its name and its limits. The telemetry agent
    on the host sends them when it starts and when they have changed."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    sm_max_mhz: int | None = None
    memory_max_mhz: int | None = None
    # at the highest memory clock, ascending; () if the driver lists none
    supported_sm_mhz: tuple[int, ...] = ()
    supported_memory_mhz: tuple[int, ...] = ()
    power_default_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    # the GPU uses the host's memory (GB10); values come from /proc/meminfo
    unified_memory: bool = False
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    memory_bus_bits: int | None = None
    temperature_slowdown_c: float | None = None
    virtualization: str | None = None  # "none", "passthrough", "vgpu", "host vgpu", "host vsga"
    ecc: bool | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    node: str = ""  # of a cluster, whose GPUs are numbered through; "" on a single host
    mig: bool | None = None  # whether MIG is on; None if the GPU has no MIG
    instances: tuple[MigInstance, ...] = ()  # with MIG on

    @property
    def mig_text(self) -> str:
        """How the GPU is divided with MIG, such as "MIG 7x 1g.10gb"; "" without MIG."""
        if not self.mig:
            return ""
        counts = Counter(instance.profile for instance in self.instances)
        parts = [f"{count}x {profile}" for profile, count in counts.items()]
        return f"MIG {', '.join(parts) or 'without an instance'}"

    def mig_instance_as_gpu(self, instance: MigInstance) -> GpuInfo:
        """Return an instance of this GPU as CUDA shows it: as a GPU with the instance's memory."""
        return replace(
            self,
            uuid=instance.uuid,
            name=f"{self.name} MIG {instance.profile}",
            memory_total_bytes=instance.memory_total_bytes,
            memory_reserved_bytes=0,
            mig=False,
            instances=(),
        )


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU: clocks, power, temperature, memory and processes."""

    index: int
    uuid: str
    state: GpuState = GpuState.LIVE
    message: str | None = None  # the driver's message if the state is not LIVE
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    # instantaneous (field 186) if available, otherwise the 1 s average
    power_w: float | None = None
    power_average_w: float | None = None
    power_limit_w: float | None = None  # requested (management) limit
    power_limit_enforced_w: float | None = None  # after all limiters
    gpu_util_pct: float | None = None  # share of time with a kernel running, not throughput
    memory_util_pct: float | None = None
    memory_used_bytes: int | None = None  # without the driver's reserved memory (NVML v2)
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    fan_pct: float | None = None
    pstate: int | None = None
    event_reasons: tuple[str, ...] = ()  # clocks event reasons by name, e.g. "SW power cap"
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_rx_mb_s: float | None = None
    pcie_tx_mb_s: float | None = None
    pcie_replays_per_min: float | None = None  # packets that the link sent again, lately
    # the newest error of the last seconds that the driver reported by its number; 0: none
    xid: int | None = None
    energy_j: float | None = None  # counter since driver load
    pcie_replay_count: int | None = None  # packets that the PCIe link sent again, since driver load
    temperature_margin_c: float | None = None  # to the highest operating temperature
    persistence: bool | None = None
    processes: tuple[GpuProcess, ...] | None = None  # None: not read yet or not available
    absent: Mapping[str, str] = field(default_factory=dict)
    instance_used_bytes: Mapping[str, int] = field(default_factory=dict)  # by UUID, with MIG on

    @property
    def known_processes(self) -> tuple[GpuProcess, ...]:
        """The processes on the GPU; () also if they were not read or are not available."""
        return self.processes or ()

    @property
    def limit_w(self) -> float | None:
        """The power limit of the GPU in watts that applies now. This is the limit that the driver
        enforces, or the requested limit if the driver reports no enforced one. None if it reports
        neither."""
        return self.power_limit_enforced_w or self.power_limit_w

    @property
    def has_readings(self) -> bool:
        return self.state is GpuState.LIVE


NEEDS_SECOND = "needs a second reading"  # a reason why a rate is absent
_TITLES = {  # of fields whose name does not say it
    "ecc": "ECC",
    "memory_max_mhz": "highest memory clock",
    "sm_max_mhz": "highest SM clock",
    "pcie_gen": "PCIe generation",
    "pcie_gen_max": "highest PCIe generation",
    "pcie_width": "PCIe lanes",
    "pcie_width_max": "most PCIe lanes",
    "pcie_replay_count": "PCIe replays",
    "pcie_replays_per_min": "PCIe replays per minute",
    "power_limit_w": "requested power limit",
    "power_limit_enforced_w": "enforced power limit",
    "power_min_w": "lowest power limit",
    "power_max_w": "highest power limit",
    "power_default_w": "default power limit",
    "temperature_slowdown_c": "slowdown temperature",
    "temperature_margin_c": "margin to the highest temperature",
    "xid": "Xid errors",
    **{name: one.label for name, one in READINGS.items()},
}
_UNITS = ("_bytes", "_mhz", "_mb_s", "_pct", "_bits", "_w", "_c", "_j")


def reasons_with_missing_values(absent: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (reason, titles of the values that are missing for it, separated by commas) for each
    reason. `absent` has the reason of each missing value by its field in GpuSample or GpuInfo."""
    titles: dict[str, list[str]] = {}
    for field_name, reason in absent.items():
        titles.setdefault(reason, []).append(_title(field_name))
    return [(reason, ", ".join(sorted(set(names)))) for reason, names in titles.items()]


def _title(field_name: str) -> str:
    unit = next((one for one in _UNITS if field_name.endswith(one)), "")
    plain = field_name.removesuffix(unit).replace("_", " ").replace("pcie", "PCIe")
    return _TITLES.get(field_name, plain)


@dataclass(frozen=True, slots=True)
class HostSample:
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    # "performance", "powersave", "mixed: …"; None with a reason in absent
    cpu_governor: str | None = None
    load_1m: float | None = None
    cpu_count: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    # "on", "off", "off:2-3", "mixed: …"; None with a reason in absent
    cpu_c_states: str | None = None
    # share of the last 10 s in which all processes that could run waited for memory (PSI)
    memory_pressure_pct: float | None = None
    io_pressure_pct: float | None = None  # the same for the disk
    # of a DGX Spark with the kernel module spark_hwmon: whether the board holds its processors
    # down, the number of the active power limit, and watts by rail, such as "dc_input"
    prochot: bool | None = None
    power_level: int | None = None
    rails_w: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriverInfo:
    status: DriverStatus = DriverStatus.OK
    message: str | None = None  # the problem and the next step, for the user
    driver_version: str | None = None
    cuda_version: str | None = None
    nvml_version: str | None = None
    source: str = "nvml"  # "nvml" or "nvidia-smi" (the fallback)

    @property
    def is_ok(self) -> bool:
        return self.status is DriverStatus.OK


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One reading of one host with all its GPUs. `t_s` is the monotonic clock of the telemetry
    agent on that host, in seconds; `unix_s` is the host's wall clock."""

    t_s: float
    unix_s: float
    driver: DriverInfo
    host: HostSample
    infos: tuple[GpuInfo, ...]
    gpus: tuple[GpuSample, ...]
    simulated: bool = False
    took_s: float | None = None  # how long the reading took; None if it was quick
    slowest: str = ""  # the driver's slowest call in it, with its time

    @property
    def slow_reading_text(self) -> str:
        """A sentence that says how long this reading took, if it took long; "" if it was quick."""
        if self.took_s is None:
            return ""
        return (
            f"the driver is slow: one reading takes {self.took_s:.1f} s (slowest: {self.slowest})"
        )

    @property
    def why_no_gpus(self) -> str | None:
        """Why the reading has no GPU; None if it has one."""
        if self.gpus:
            return None
        return self.driver.message or "the driver sees no GPU"

    @property
    def energy_j_by_uuid(self) -> dict[str, float]:
        """The energy counters of the GPUs that have one, in joules."""
        return {gpu.uuid: gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None}

    def info(self, index: int) -> GpuInfo | None:
        return next((i for i in self.infos if i.index == index), None)
