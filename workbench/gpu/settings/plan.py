"""Makes commands from requested settings, after checking each value against the driver's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.gpu.settings import setting_traps
from workbench.gpu.settings.current_values import CORES_NOT_READ, CoreSettings
from workbench.gpu.settings.rights import Rights
from workbench.model import setting_commands
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import DriverStatus, GpuInfo, GpuState, Telemetry
from workbench.model.setting_records import SettingCommand
from workbench.model.settings import (
    HOST,
    HOST_INDEX,
    SETTINGS,
    ClockRange,
    ClockSetting,
    GpuSettings,
    NumberSetting,
    Setting,
    SettingValue,
    label_of,
)

# the widest distance between two neighbouring SM clocks; memory clocks lie hundreds apart
MAX_CLOCK_STEP_MHZ = 15


def plan_commands(
    wanted: Mapping[str, GpuSettings],
    telemetry: Telemetry,
    rights: Rights,
    cores: CoreSettings = CORES_NOT_READ,
) -> tuple[SettingCommand, ...]:
    """Return one command for each change: the host's settings first, then those of each GPU. On a
    GPU, persistence mode is switched on before the other settings, and off after them.

    `wanted` has the settings by GPU: an index, a UUID, or "all". `cores` are those of the host,
    needed only to set one of their settings. Raises InputError for an unknown GPU, a value outside
    the driver's limits, or a setting that the GPU or host lacks. Raises SettingsError if the driver
    does not answer.
    """
    commands: list[SettingCommand] = []
    for selector, settings in wanted.items():
        changed = [setting for setting in SETTINGS if setting.key in settings]
        for key in (setting.key for setting in changed if setting.of_host):
            cores.require_supported_value(key, settings[key])
            commands += make_setting_commands(HOST_INDEX, HOST, key, settings[key], rights, cores)
        on_gpus = [(setting, settings[setting.key]) for setting in changed if not setting.of_host]
        if not on_gpus and selector == "all":
            continue
        if telemetry.driver.status is not DriverStatus.OK:
            raise SettingsError(telemetry.driver.message or telemetry.driver.status.value)
        for info in select_gpus(selector, telemetry):
            commands += _commands_of_gpu(info, on_gpus, telemetry, rights)
    return _drop_repeated_commands(commands)


def _drop_repeated_commands(commands: Sequence[SettingCommand]) -> tuple[SettingCommand, ...]:
    seen: dict[tuple[str, str], SettingCommand] = {}
    for one in commands:
        before = seen.setdefault((one.gpu_uuid, one.setting), one)
        if before is not one and before.value != one.value:
            raise InputError(
                f"you gave two different values for the {label_of(one.setting)} of {one.gpu_or_host_name}"
            )
    return tuple(seen.values())


def select_gpus(selector: str, telemetry: Telemetry) -> tuple[GpuInfo, ...]:
    """Return the GPUs that `selector` names: "all", an index or a UUID. Raises InputError if the
    host has no such GPU."""
    infos = telemetry.infos
    if selector == "all":
        found = infos
    elif selector.isdecimal() and len(selector) < 10:
        found = tuple(i for i in infos if i.index == int(selector))
    else:
        found = tuple(i for i in infos if i.uuid and i.uuid.lower() == selector.lower())
    if not found:
        here = ", ".join(f"{i.index} ({i.name}, {i.uuid})" for i in infos) or "none"
        raise InputError(
            f"no GPU {selector} on this host; its GPUs: {here}",
            next_step="name one GPU by its index or UUID" if "," in selector else None,
        )
    return found


def make_setting_commands(
    index: int,
    uuid: str,
    setting: str,
    value: SettingValue | None,
    rights: Rights,
    cores: CoreSettings = CORES_NOT_READ,
    note: str = "",
) -> tuple[SettingCommand, ...]:
    """Return the commands that set `value` of `setting` on the GPU with this `index` and `uuid`, or
    on the host's CPU cores. Several commands are needed if different cores get different values.
    `note` is a text for the user that each command gets."""
    commands = []
    on = cores.idle_states_by_core(setting) if uuid == HOST else {}
    for step in setting_commands.commands_to_set_value(
        uuid, setting, value, cores=on, sysfs=cores.sysfs
    ):
        argv = rights.argv_with_prefix(step.argv)
        right = rights.missing_right_for(argv)
        commands.append(
            SettingCommand(index, uuid, setting, argv, right, step.value, step.stdin, note)
        )
    return tuple(commands)


def _commands_of_gpu(
    info: GpuInfo,
    settings: Sequence[tuple[Setting, SettingValue]],
    telemetry: Telemetry,
    rights: Rights,
) -> Iterator[SettingCommand]:
    name = f"GPU {info.index} ({info.name})" if info.name else f"GPU {info.index}"
    sample = next((s for s in telemetry.gpus if s.index == info.index), None)
    why = "no reading"
    if sample is not None:
        why = "" if sample.state is GpuState.LIVE else sample.message or sample.state.value
    if why:
        raise SettingsError(f"{name}: {why}; no setting of this GPU can be changed")
    concerned = ""
    if info.instances:
        concerned = f"MIG is on: this concerns all {len(info.instances)} instances of the GPU"
    notes = {}
    for setting, value in settings:
        note = _check_gpu_value_and_get_note(name, info, setting, value)
        notes[setting.key] = "; ".join(filter(None, (note, concerned)))
    for setting, value in sorted(settings, key=lambda pair: (pair[1] is False) - (pair[1] is True)):
        yield from make_setting_commands(
            info.index, info.uuid, setting.key, value, rights, note=notes[setting.key]
        )


def _check_gpu_value_and_get_note(
    name: str, info: GpuInfo, setting: Setting, value: SettingValue
) -> str:
    """Check that the GPU can have this value. Return a note for the user about the value, "" if
    there is none. Raises InputError if the GPU lacks the setting or cannot have the value."""
    if isinstance(setting, NumberSetting):
        _check_number(name, info, setting, value)
    if not isinstance(setting, ClockSetting):
        return ""
    highest = getattr(info, setting.highest)
    if highest is None and setting.needs_highest:
        why = info.absent.get(setting.highest, "not reported")
        unified = "its memory is the host's; " if info.unified_memory else ""
        raise InputError(
            f"{name} has no {setting.clock_name} clock that can be set: "
            f"{unified}the driver reports no highest clock ({why})",
            next_step=setting_traps.alternative_to_clock_lock(info),
        )
    if not isinstance(value, ClockRange):
        return ""
    taken = check_clocks_and_name_substitutes(
        name, setting.clock_name, value, highest, getattr(info, setting.supported)
    )
    warnings = setting_traps.clock_lock_warnings(setting.key, value, info)
    return "; ".join(filter(None, (taken, warnings)))


def _check_number(name: str, info: GpuInfo, setting: NumberSetting, value: SettingValue) -> None:
    limits = setting.driver_limits(info)
    if limits is None:
        why = info.absent.get(setting.highest, "the driver reports no limits")
        raise InputError(
            f"{name} has no {setting.label} that can be set ({why})",
            next_step=setting_traps.alternative_to_clock_lock(info),
        )
    low, high = limits
    if isinstance(value, float | int) and not low <= value <= high:
        raise InputError(
            f"{name}: {value:.10g} {setting.unit} is outside its limits, {low:g} to {high:g} "
            f"{setting.unit}"
        )


def check_clocks_and_name_substitutes(
    name: str, which: str, clocks: ClockRange, highest: int | None, supported: Sequence[int]
) -> str:
    """Return a text that names the clocks that nvidia-smi will set in place of `clocks`; "" if it
    sets exactly `clocks`. nvidia-smi silently uses the closest supported clock. `name` is the GPU's
    name, `which` is "SM" or "memory".

    Raises InputError for a clock above `highest`, or far from every clock in `supported` (empty:
    unknown, not checked). A minimum below all supported clocks, such as 0, is allowed and means no
    lower bound.
    """
    if not 0 <= clocks.min_mhz <= clocks.max_mhz:
        raise InputError(
            f"{name}: {clocks} is not a range of clocks; give MIN-MAX in MHz, with "
            "MIN not above MAX"
        )
    if highest is not None and clocks.max_mhz > highest:
        raise InputError(
            f"{name}: {clocks.max_mhz} MHz is above its highest {which} clock, {highest} MHz"
        )
    if not supported:
        return ""
    taken: list[str] = []
    for mhz in dict.fromkeys((clocks.min_mhz, clocks.max_mhz)):
        nearest = min(supported, key=lambda s: (abs(s - mhz), s))
        if nearest == mhz:
            continue
        lower_bound = mhz < min(*supported, clocks.max_mhz)
        if abs(nearest - mhz) > MAX_CLOCK_STEP_MHZ and not lower_bound:
            raise InputError(
                f"{name} has no {which} clock of {mhz} MHz; {_nearest_supported_text(mhz, supported)}"
            )
        taken.append(f"{nearest} MHz for {mhz}")
    return f"nvidia-smi takes the closest {which} clock: {', '.join(taken)}" if taken else ""


def _nearest_supported_text(mhz: int, supported: Sequence[int]) -> str:
    below = max((s for s in supported if s < mhz), default=None)
    above = min((s for s in supported if s > mhz), default=None)
    near = " and ".join(f"{s} MHz" for s in (below, above) if s is not None)
    return f"nearest: {near}"
