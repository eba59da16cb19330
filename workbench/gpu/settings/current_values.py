"""The current values of a host's settings: the readings of its GPUs and, if needed, the settings of
its CPU cores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from workbench.gpu.telemetry.source_of_host import read_telemetry_once
from workbench.hosts.base import Host, HostFacts
from workbench.hosts.script_files import read_script
from workbench.hosts.shell_scripts import shell_argv
from workbench.model import core_values, setting_commands
from workbench.model.errors import HostError, InputError
from workbench.model.gpu import GpuInfo, GpuSample, Telemetry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import OF_CORES
from workbench.model.settings import (
    C_STATES,
    GOVERNOR,
    SettingValue,
    find_readable_gpu_sample,
    label_of,
    setting_of,
)
from workbench.model.untrusted_numbers import parse_whole_number

READ_CORES_SCRIPT = read_script(__file__, "read_cores.sh")
_KERNEL_PART_OF_SETTING = {
    GOVERNOR.key: "cpufreq",
    C_STATES.key: "cpuidle",
}  # that offers the setting


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """The settings of a host's CPU cores, as mappings from a core's number to its value. A core
    that lacks a setting is left out. `why` is the reason why cores lack a setting, and `sysfs` the
    path at which sysfs is mounted."""

    governors: Mapping[int, str] = field(default_factory=dict)
    available: tuple[str, ...] = ()  # governors that every core can have
    c_states: Mapping[int, str] = field(default_factory=dict)
    idle_states: Mapping[int, int] = field(default_factory=dict)  # their number
    why: str = "here: a virtual machine, or a kernel without a driver for this CPU"
    sysfs: str = setting_commands.SYSFS

    def format_values_of_cores(self, key: str) -> str | None:
        """Return the value of a setting on all cores: "powersave" if all have the same value, or
        "performance=0-3 powersave=4-7" if they differ. None if no core has the setting."""
        return core_values.format_core_values(self._values_by_core(key))

    def _values_by_core(self, key: str) -> Mapping[int, str]:
        return self.governors if key == GOVERNOR.key else self.c_states

    def idle_states_by_core(self, key: str) -> dict[int, int]:
        """Return {core number: number of its idle states} for those CPU cores that have the setting
        `key`."""
        return {cpu: self.idle_states.get(cpu, 0) for cpu in sorted(self._values_by_core(key))}

    def why_no_core_has(self, key: str) -> str:
        """Return a text that says why no CPU core of the host has the setting `key`."""
        return f"no {_KERNEL_PART_OF_SETTING[key]} {self.why}"

    def require_supported_value(self, key: str, wanted: str) -> None:
        """Raise InputError if the setting `key` of the CPU cores cannot get the value `wanted`,
        because no core has the setting or some core does not offer the value."""
        if not self.idle_states_by_core(key):
            raise InputError(f"the {label_of(key)} cannot be set: {self.why_no_core_has(key)}")
        if key == GOVERNOR.key and wanted not in self.available:
            known = ", ".join(self.available) or (
                "none, because the cores have no governor in common"
            )
            raise InputError(
                f"the CPU cores of this host have no governor {wanted!r}",
                next_step=f"choose one of these governors: {known}",
            )


async def read_core_settings(host: Host) -> CoreSettings:
    """Read the settings of the CPU cores of a host. Raises HostError if the host is out of
    reach."""
    done = await host.run(shell_argv(READ_CORES_SCRIPT), timeout_s=20)
    sysfs, *lines = done.out.splitlines() or [setting_commands.SYSFS]
    governors: dict[int, str] = {}
    disabled: dict[int, dict[int, str]] = {}
    shared: dict[str, None] | None = None
    for words in map(str.split, lines):
        core = parse_whole_number(words[1]) if len(words) > 2 else None
        if core is None:
            continue  # nothing that the script printed
        what, _, first, *rest = words
        state = parse_whole_number(first)
        if what == "state" and state is not None and rest:
            disabled.setdefault(core, {})[state] = rest[0]
        elif what == "governor":
            governors[core] = first
            shared = dict.fromkeys(rest if shared is None else (g for g in shared if g in rest))
    c_states: dict[int, str] = {}
    for cpu, states in disabled.items():
        value = core_values.format_core_c_states([states[number] for number in sorted(states)])
        if value is not None:
            c_states[cpu] = value
    why = CoreSettings().why
    if not (governors and c_states):
        why = _why_core_settings_are_missing(await host.facts(), bool(disabled))
    idle_states = {cpu: len(disabled[cpu]) for cpu in c_states}
    return CoreSettings(governors, tuple(shared or ()), c_states, idle_states, why, sysfs)


def _why_core_settings_are_missing(facts: HostFacts, unreadable: bool) -> str:
    """Return the reason why the CPU cores of a host lack a setting, such as "in this container
    (docker): …". The caller writes it after the words "no cpufreq". `unreadable` says whether the
    cores have C-states that cannot be read."""
    if unreadable:
        return "that can be read here"
    if facts.container:
        return f"in this container ({facts.container}): set it on the machine that runs it"
    if facts.virtualization not in (None, "none"):
        return (
            f"in this virtual machine ({facts.virtualization}): set it on the machine that runs it"
        )
    return CoreSettings().why


CORES_NOT_READ = CoreSettings(why="was read")


@dataclass(frozen=True, slots=True)
class CurrentValues:
    """The values of a host's settings at one moment."""

    telemetry: Telemetry
    cores: CoreSettings = CORES_NOT_READ

    @property
    def energy_j(self) -> dict[str, float]:
        """The GPUs' energy counters in joules by UUID, without GPUs that report none."""
        return self.telemetry.energy_j_by_uuid

    def sample(self, uuid: str) -> GpuSample | None:
        return find_readable_gpu_sample(self.telemetry, uuid)

    def value(self, uuid: str, setting: str) -> SettingValue | None:
        """Return the value of a setting on the GPU `uuid`, or on the host's CPU cores. None if the
        host does not report it, which is always so for a clock lock."""
        if setting in OF_CORES:
            return self.cores.format_values_of_cores(setting)
        return setting_of(setting).current_value(self.telemetry, uuid)

    def info(self, uuid: str) -> GpuInfo | None:
        """Return the properties of the GPU `uuid`, None if the GPU is missing."""
        return next((i for i in self.telemetry.infos if i.uuid == uuid), None)

    def gpu_index(self, uuid: str, default: int) -> int:
        """Return the present index of the GPU `uuid`, or `default` if the GPU is missing."""
        info = self.info(uuid)
        return default if info is None else info.index


async def read_values(host: Host, settings: Collection[str]) -> CurrentValues:
    """Read the current values of the settings with these keys. Raises HostError if the host is out
    of reach."""
    return await current_values_with_core_settings(host, await read_telemetry_once(host), settings)


async def current_values_with_core_settings(
    host: Host, telemetry: Telemetry, settings: Collection[str]
) -> CurrentValues:
    """Return the current values, given `telemetry`, a reading of the host's GPUs. Also read those
    of the CPU cores if some of the `settings` are settings of cores. Raises HostError if that
    fails."""
    if {*OF_CORES} & {*settings}:
        return CurrentValues(telemetry, await read_core_settings(host))
    return CurrentValues(telemetry)


async def read_values_after_change(host: Host, settings: Collection[str]) -> CurrentValues | None:
    """Read the values of the settings with these keys after a change. If the first reading has no
    GPU, for example because the driver was slow, read once more. Return None if the host is out of
    reach."""
    try:
        found = await read_values(host, settings)
        if not found.telemetry.gpus:
            found = await read_values(host, settings)
        return found
    except HostError:
        return None
