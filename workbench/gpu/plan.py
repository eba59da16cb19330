"""From wanted GPU settings to commands, checked against the driver's own limits before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.gpu.rights import Rights
from workbench.model.errors import InputError, SettingsError
from workbench.model.gpu import DriverStatus, GpuInfo, GpuState, Telemetry
from workbench.model.settings import ClockRange, GpuSettings, SettingCommand

DEFAULT = "default"


def plan(wanted: Mapping[str, GpuSettings], telemetry: Telemetry, rights: Rights) -> tuple[SettingCommand, ...]:
    """One command for each change, in the order in which they hold: persistence on first, off last.

    `wanted` is by GPU: an index, a UUID, or "all". InputError for a GPU that is not there, a value outside the
    driver's limits, or a setting that the GPU does not have; SettingsError when the driver cannot be asked.
    """
    if telemetry.driver.status is not DriverStatus.OK:
        raise SettingsError(telemetry.driver.message or telemetry.driver.status.value)
    commands: list[SettingCommand] = []
    for selector, settings in wanted.items():
        for info in select(selector, telemetry):
            _check(info, settings, telemetry)
            commands += [command(info.index, info.uuid, name, value, rights) for name, value in _changes(settings)]
    seen: set[tuple[str, str]] = set()
    for one in commands:
        if (one.gpu_uuid, one.setting) in seen:
            raise InputError(f"GPU {one.gpu_index}: {one.setting} is asked for twice")
        seen.add((one.gpu_uuid, one.setting))
    return tuple(commands)


def select(selector: str, telemetry: Telemetry) -> tuple[GpuInfo, ...]:
    """The GPUs that "all", an index or a UUID names."""
    infos = telemetry.infos
    if selector == "all":
        found = infos
    elif selector.isdigit():
        found = tuple(i for i in infos if i.index == int(selector))
    else:
        found = tuple(i for i in infos if i.uuid and i.uuid.lower() == selector.lower())
    if not found:
        here = ", ".join(f"{i.index} ({i.name}, {i.uuid})" for i in infos) or "none"
        raise InputError(f"no GPU {selector} on this host; it has {here}")
    return found


def command(index: int, uuid: str, setting: str, value: Any, rights: Rights) -> SettingCommand:
    """The nvidia-smi call for one change; by UUID, since indices move."""
    argv = rights.argv(uuid, *change_of(setting, value))
    return SettingCommand(index, uuid, setting, argv, rights.needed_for(argv), value)


def change_of(setting: str, value: Any) -> tuple[str, ...]:
    if setting == "persistence":
        return ("-pm", "1" if value else "0")
    if setting == "power_limit_w":
        return ("-pl", f"{value:.2f}".rstrip("0").rstrip("."))
    which = {"gpu_clocks": "gpu", "memory_clocks": "memory"}[setting]
    if value == DEFAULT:
        return (f"--reset-{which}-clocks",)
    return (f"--lock-{which}-clocks={value}",)


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


def _check(info: GpuInfo, settings: GpuSettings, telemetry: Telemetry) -> None:
    name = f"GPU {info.index} ({info.name})"
    sample = next((s for s in telemetry.gpus if s.index == info.index), None)
    if sample is None or sample.state is not GpuState.LIVE:
        why = sample.message or sample.state.value if sample else "gives no reading"
        raise InputError(f"{name}: {why}; nothing can be set on it")
    if settings.power_limit_w is not None:
        _check_power(name, info, settings.power_limit_w)
    if settings.gpu_clocks is not None:
        _both(name, "graphics", settings.reset_gpu_clocks)
        _check_clocks(name, "SM", settings.gpu_clocks, info.sm_max_mhz)
    if settings.memory_clocks is not None or settings.reset_memory_clocks:
        if info.memory_max_mhz is None:
            why = info.absent.get("memory_max_mhz", "not given")
            unified = "its memory is the host's; " if info.unified_memory else ""
            raise InputError(f"{name} has no memory clock that can be set ({unified}highest memory clock: {why})")
        if settings.memory_clocks is not None:
            _both(name, "memory", settings.reset_memory_clocks)
            _check_clocks(name, "memory", settings.memory_clocks, info.memory_max_mhz)


def _both(name: str, which: str, reset: bool) -> None:
    if reset:
        raise InputError(f"{name}: {which} clocks cannot be locked and reset at once")


def _check_power(name: str, info: GpuInfo, watts: float) -> None:
    if info.power_min_w is None or info.power_max_w is None:
        why = info.absent.get("power_max_w", "the driver gives no limits")
        raise InputError(f"{name} has no power limit that can be set ({why})")
    if not info.power_min_w <= watts <= info.power_max_w:
        raise InputError(
            f"{name}: {watts:g} W is outside what it allows, {info.power_min_w:g} to {info.power_max_w:g} W"
        )


def _check_clocks(name: str, which: str, clocks: ClockRange, highest: int | None) -> None:
    if clocks.min_mhz < 0 or clocks.min_mhz > clocks.max_mhz:
        raise InputError(f"{name}: {clocks} is no range of clocks: MIN,MAX in MHz, MIN not above MAX")
    if highest is not None and clocks.max_mhz > highest:
        raise InputError(f"{name}: {clocks.max_mhz} MHz is above its highest {which} clock, {highest} MHz")
