"""The CPU frequency governors of a host's cores: read over any kind of host. They are set by restore.steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.gpu.settings import revert
from workbench.hosts.base import Host, HostFacts
from workbench.hosts.shell_scripts import sh
from workbench.model.errors import InputError

# WORKBENCH_SIM_SYSFS: a simulated host's own /sys. A line "CPU GOVERNOR AVAILABLE…" for each core that has one.
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
    """`by_core` is empty where there is no cpufreq, and `problem` then says why. `sysfs`: where they lie."""

    by_core: Mapping[int, str] = field(default_factory=dict)
    available: tuple[str, ...] = ()  # that every core can have
    problem: str | None = None
    sysfs: str = revert.SYSFS

    @property
    def value(self) -> str | None:
        """As a setting: one name, or each with its cores."""
        return revert.governor_value(self.by_core)

    def check(self, wanted: str) -> None:
        """InputError when the cores cannot have it."""
        if not self.by_core:
            raise InputError(f"the CPU governor cannot be set: {self.problem}")
        if wanted not in self.available:
            known = ", ".join(self.available) or "none that all cores share"
            raise InputError(f"the CPUs here have no governor {wanted!r}", next_step=f"take one of {known}")


async def governors_on(host: Host) -> Governors:
    """HostError when the host cannot be asked."""
    done = await host.run(sh(READ), timeout_s=20)
    sysfs, *lines = done.out.splitlines() or [revert.SYSFS]
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
