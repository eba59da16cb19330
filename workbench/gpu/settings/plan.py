"""From wanted settings to commands, checked against the driver's own limits before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workbench.gpu.settings import revert, supported_clocks, warnings
from workbench.gpu.settings.cpu_governor import Governors
from workbench.gpu.settings.revert import DEFAULT, change_of
from workbench.gpu.settings.rights import Rights
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import DriverStatus, GpuInfo, GpuState, Telemetry
from workbench.model.settings import HOST, HOST_INDEX, GpuSettings, SettingCommand

__all__ = ["change_of", "commands_for", "plan", "select"]


def plan(
    wanted: Mapping[str, GpuSettings], telemetry: Telemetry, rights: Rights, governors: Governors | None = None
) -> tuple[SettingCommand, ...]:
    """One command for each change, in the order in which they hold: persistence on first, off last, the host's own
    before them all.

    `wanted` is by GPU: an index, a UUID, or "all". `governors` of the host, where one is wanted. InputError for a GPU
    that is not there, a value outside the driver's limits, or a setting that the GPU or host does not have;
    SettingsError when the driver cannot be asked.
    """
    commands: list[SettingCommand] = []
    for selector, settings in wanted.items():
        if settings.governor is not None:
            commands += _governor(settings.governor, governors, rights)
        on_gpus = replace(settings, governor=None)
        if on_gpus.empty and selector == "all":
            continue
        if telemetry.driver.status is not DriverStatus.OK:
            raise SettingsError(telemetry.driver.message or telemetry.driver.status.value)
        for info in select(selector, telemetry):
            commands += _of_gpu(info, on_gpus, telemetry, rights)
    return _once(commands)


def _once(commands: list[SettingCommand]) -> tuple[SettingCommand, ...]:
    """The same asked for again is the same; InputError when it is something else."""
    seen: dict[tuple[str, str], SettingCommand] = {}
    for one in commands:
        before = seen.setdefault((one.gpu_uuid, one.setting), one)
        if before is not one and before.value != one.value:
            whose = "the host" if one.gpu_uuid == HOST else f"GPU {one.gpu_index}"
            raise InputError(f"{whose}: {one.setting} is asked for twice")
    return tuple(seen.values())


def select(selector: str, telemetry: Telemetry) -> tuple[GpuInfo, ...]:
    """The GPUs that "all", an index or a UUID names."""
    infos = telemetry.infos
    if selector == "all":
        found = infos
    elif selector.isdecimal() and len(selector) < 10:
        found = tuple(i for i in infos if i.index == int(selector))
    else:
        found = tuple(i for i in infos if i.uuid and i.uuid.lower() == selector.lower())
    if not found:
        here = ", ".join(f"{i.index} ({i.name}, {i.uuid})" for i in infos) or "none"
        raise InputError(f"no GPU {selector} on this host; it has {here}")
    return found


def commands_for(
    index: int, uuid: str, setting: str, value: Any, rights: Rights, governors: Governors | None = None
) -> tuple[SettingCommand, ...]:
    """The commands that set one value: one, but for governors that differ between cores."""
    on = governors or Governors()
    made = revert.steps(uuid, setting, value, cores=sorted(on.by_core), sysfs=on.sysfs)
    argvs = [rights.argv(step.argv) for step in made]
    return tuple(
        SettingCommand(index, uuid, setting, argv, rights.needed_for(argv), step.value, step.stdin)
        for argv, step in zip(argvs, made, strict=True)
    )


def _governor(wanted: str, governors: Governors | None, rights: Rights) -> tuple[SettingCommand, ...]:
    on = governors or Governors(problem="the host's CPUs were not looked at")
    on.check(wanted)
    return commands_for(HOST_INDEX, HOST, "governor", wanted, rights, on)


def _of_gpu(info: GpuInfo, settings: GpuSettings, telemetry: Telemetry, rights: Rights) -> Iterator[SettingCommand]:
    notes = _check(info, settings, telemetry)
    for name, value in _changes(settings):
        for one in commands_for(info.index, info.uuid, name, value, rights):
            yield replace(one, note=notes.get(name, ""))


def _changes(settings: GpuSettings) -> Iterator[tuple[str, Any]]:
    if settings.persistence:
        yield "persistence", True
    if settings.power_limit_w is not None:
        yield "power_limit_w", float(settings.power_limit_w)
    for name, lock, reset in (
        ("gpu_clocks", settings.gpu_clocks, settings.reset_gpu_clocks),
        ("memory_clocks", settings.memory_clocks, settings.reset_memory_clocks),
    ):
        if lock is not None or reset:
            yield name, DEFAULT if lock is None else str(lock)
    if settings.persistence is False:
        yield "persistence", False


def _check(info: GpuInfo, settings: GpuSettings, telemetry: Telemetry) -> dict[str, str]:
    """InputError for what cannot be; else what is to be said of each setting."""
    name = f"GPU {info.index} ({info.name})" if info.name else f"GPU {info.index}"
    sample = next((s for s in telemetry.gpus if s.index == info.index), None)
    if sample is None or sample.state is not GpuState.LIVE:
        why = sample.message or sample.state.value if sample else "gives no reading"
        raise SettingsError(f"{name}: {why}; nothing can be set on it")
    notes: dict[str, str] = {}
    if settings.power_limit_w is not None:
        _check_power(name, info, settings.power_limit_w)
    if settings.gpu_clocks is not None:
        _both(name, "graphics", settings.reset_gpu_clocks)
        taken = supported_clocks.check(name, "SM", settings.gpu_clocks, info.sm_max_mhz, info.supported_sm_mhz)
        notes["gpu_clocks"] = _note(taken, warnings.of_lock("gpu_clocks", settings.gpu_clocks, info))
    if settings.memory_clocks is not None or settings.reset_memory_clocks:
        if info.memory_max_mhz is None:
            why = info.absent.get("memory_max_mhz", "not given")
            unified = "its memory is the host's; " if info.unified_memory else ""
            raise InputError(
                f"{name} has no memory clock that can be set ({unified}highest memory clock: {why})",
                next_step=warnings.instead(info),
            )
        if settings.memory_clocks is not None:
            _both(name, "memory", settings.reset_memory_clocks)
            taken = supported_clocks.check(
                name, "memory", settings.memory_clocks, info.memory_max_mhz, info.supported_memory_mhz
            )
            notes["memory_clocks"] = _note(taken, warnings.of_lock("memory_clocks", settings.memory_clocks, info))
    return notes


def _note(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _both(name: str, which: str, reset: bool) -> None:
    if reset:
        raise InputError(f"{name}: {which} clocks cannot be locked and reset at once")


def _check_power(name: str, info: GpuInfo, watts: float) -> None:
    if info.power_min_w is None or info.power_max_w is None:
        why = info.absent.get("power_max_w", "the driver gives no limits")
        raise InputError(f"{name} has no power limit that can be set ({why})", next_step=warnings.instead(info))
    if not info.power_min_w <= watts <= info.power_max_w:
        raise InputError(
            f"{name}: {watts:.10g} W is outside what it allows, {info.power_min_w:g} to {info.power_max_w:g} W"
        )
