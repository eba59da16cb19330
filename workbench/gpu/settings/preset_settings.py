"""The GPU settings of a preset, compared with the present ones. Loading a preset applies none of
its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from workbench.model.findings import Finding
from workbench.model.gpu import Telemetry
from workbench.model.setting_commands import is_clock_lock, value_equals
from workbench.model.setting_records import Alteration
from workbench.model.settings import (
    HOST,
    HOST_INDEX,
    MEMORY_CLOCKS,
    SETTINGS,
    GpuSettings,
    Setting,
    SettingValue,
    gpu_or_host_name,
)

if TYPE_CHECKING:
    from workbench.model.preset import Preset

# GPU index or "all", settings, reason
PresetSettings: TypeAlias = Sequence[tuple[str, GpuSettings, str]]
NO_LOCK_TEXT = "no lock by Workbench"


def settings_of_preset(preset: Preset) -> PresetSettings:
    """Return (GPU index or "all", settings, reason) for each entry with GPU settings in a preset. A
    setting of the CPU cores applies to the host, whichever GPU its entry names."""
    return [(str(entry.gpu), entry.settings, entry.reason or "") for entry in preset.gpu_settings]


def memory_lock_warning(wanted: PresetSettings, telemetry: Telemetry | None) -> Finding | None:
    """Return the warning about a preset's memory lock that is known to cost throughput on a GPU of
    this host. None if the preset has no such lock, or if the GPUs are not known."""
    from workbench.engines import memory_locks  # with a table of GPUs

    infos = telemetry.infos if telemetry is not None else ()
    names = [
        info.name
        for selector, settings, _ in wanted
        if MEMORY_CLOCKS.key in settings
        for info in infos
        if selector in ("all", str(info.index))
    ]
    return memory_locks.warn_of_memory_locks(names)


def texts_of_settings_not_applied(
    wanted: PresetSettings, telemetry: Telemetry | None, alterations: Sequence[Alteration]
) -> tuple[str, ...]:
    """Return the preset's settings that are not applied now, for example "GPU0 power limit 400 W
    (now 600 W)". A clock lock is compared with `alterations`, since the driver cannot report it. A
    value that cannot be read is left out, and if `telemetry` is None, the result is ()."""
    if telemetry is None:
        return ()
    found: list[str] = []
    for selector, settings, _ in wanted:
        places = [(s.uuid, s.index) for s in telemetry.gpus if selector in ("all", str(s.index))]
        for setting in (s for s in SETTINGS if s.key in settings):
            for uuid, index in [(HOST, HOST_INDEX)] if setting.of_host else places:
                now = _present_value_or_lock(setting, uuid, telemetry, alterations)
                if now is not None and not value_equals(setting.key, now, settings[setting.key]):
                    where = "" if setting.of_host else f"{gpu_or_host_name(uuid, index)} "
                    found.append(
                        f"{where}{setting.label} {_wanted_and_present_value_text(setting, settings[setting.key], now)}"
                    )
    return tuple(dict.fromkeys(found))


def _present_value_or_lock(
    setting: Setting, uuid: str, telemetry: Telemetry, alterations: Sequence[Alteration]
) -> SettingValue | str | None:
    if not is_clock_lock(setting.key):
        return setting.current_value(telemetry, uuid)
    return next(
        (a.now for a in alterations if (a.gpu_uuid, a.setting) == (uuid, setting.key)), NO_LOCK_TEXT
    )


def _wanted_and_present_value_text(
    setting: Setting, wanted: SettingValue, now: SettingValue | str
) -> str:
    return f"{setting.format(wanted)} (now {now if now == NO_LOCK_TEXT else setting.format(now)})"
