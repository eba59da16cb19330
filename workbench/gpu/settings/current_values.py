"""The values that a host's settings have now: the readings of its GPUs, and the CPU governors if a setting needs
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from workbench.gpu.telemetry.source import read_once
from workbench.hosts.base import Host, HostFacts
from workbench.hosts.shell_scripts import sh
from workbench.model import setting_commands
from workbench.model.errors import HostError, InputError
from workbench.model.gpu import GpuSample, Telemetry
from workbench.model.settings import GOVERNOR, SettingValue, live_sample, setting_of

# WORKBENCH_SIM_SYSFS: a simulated host's own /sys. Prints "CPU GOVERNOR AVAILABLE…" for each core with a governor.
READ = r"""
root=${WORKBENCH_SIM_SYSFS:-/sys}
echo "$root"
for cpufreq in "$root"/devices/system/cpu/cpu[0-9]*/cpufreq; do
    read -r governor 2>/dev/null <"$cpufreq/scaling_governor" && [ -n "$governor" ] || continue
    available=
    read -r available 2>/dev/null <"$cpufreq/scaling_available_governors"
    cpu=${cpufreq%/cpufreq}
    echo "${cpu##*/cpu} $governor $available"
done
exit 0
"""


@dataclass(frozen=True, slots=True)
class Governors:
    """The CPU frequency governors of a host by core. Without cpufreq `by_core` is empty and `problem` says why. `sysfs`
    is the mount point of sysfs."""

    by_core: Mapping[int, str] = field(default_factory=dict)
    available: tuple[str, ...] = ()  # governors that every core can have
    problem: str | None = None
    sysfs: str = setting_commands.SYSFS

    @property
    def value(self) -> str | None:
        """The governors as one setting value: a name if all cores have the same governor, otherwise each name with its
        cores. None without cpufreq."""
        return setting_commands.governor_value(self.by_core)

    def check(self, wanted: str) -> None:
        """Raise InputError if a core cannot have the governor `wanted`."""
        if not self.by_core:
            raise InputError(f"the CPU governor cannot be set: {self.problem}")
        if wanted not in self.available:
            known = ", ".join(self.available) or "no governor that all cores share"
            raise InputError(f"the CPUs here have no governor {wanted!r}", next_step=f"choose one of {known}")


async def governors_on(host: Host) -> Governors:
    """Read the CPU governors of a host. Raises HostError if the host is out of reach."""
    done = await host.run(sh(READ), timeout_s=20)
    sysfs, *lines = done.out.splitlines() or [setting_commands.SYSFS]
    by_core: dict[int, str] = {}
    shared: dict[str, None] | None = None
    for cpu, governor, *available in (line.split() for line in lines):
        by_core[int(cpu)] = governor
        shared = dict.fromkeys(available if shared is None else (g for g in shared if g in available))
    if by_core:
        return Governors(by_core, tuple(shared or ()), None, sysfs)
    return Governors(problem=_without(await host.facts()), sysfs=sysfs)


def _without(facts: HostFacts) -> str:
    if facts.container:
        return f"no cpufreq in this container ({facts.container}): set it on the machine that runs it"
    if facts.virtualization not in (None, "none"):
        return f"no cpufreq in this virtual machine ({facts.virtualization}): set it on the machine that runs it"
    return "no cpufreq here: a virtual machine, or a kernel without a driver for this CPU's clocks"


NOT_READ = Governors(problem="the governors were not read")


@dataclass(frozen=True, slots=True)
class CurrentValues:
    """The values of a host's settings at one moment."""

    telemetry: Telemetry
    governors: Governors = NOT_READ

    @property
    def energy_j(self) -> dict[str, float]:
        """The GPUs' energy counters in joules by UUID, without GPUs that report none."""
        return {s.uuid: s.energy_j for s in self.telemetry.gpus if s.energy_j is not None}

    def sample(self, uuid: str) -> GpuSample | None:
        return live_sample(self.telemetry, uuid)

    def value(self, uuid: str, setting: str) -> SettingValue | None:
        """Return the value of a setting on the GPU `uuid`, or of the host; None if it cannot be read, as for a clock
        lock."""
        return self.governors.value if setting == GOVERNOR.key else setting_of(setting).read(self.telemetry, uuid)

    def index(self, uuid: str, otherwise: int) -> int:
        """Return the present index of the GPU `uuid`, or `otherwise` if the GPU is missing."""
        return next((i.index for i in self.telemetry.infos if i.uuid == uuid), otherwise)


async def read_values(host: Host, settings: Collection[str]) -> CurrentValues:
    """Read the current values of the settings with these keys. Raises HostError if the host is out of reach."""
    telemetry = await read_once(host)
    return CurrentValues(telemetry, await governors_on(host)) if GOVERNOR.key in settings else CurrentValues(telemetry)


async def read_values_again(host: Host, settings: Collection[str]) -> CurrentValues | None:
    """Read the values after a change; return None if the host is out of reach."""
    try:
        return await read_values(host, settings)
    except HostError:
        return None
