"""The GPU settings of a preset, compared with the settings in force. Loading a preset applies none of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.model.gpu import Telemetry
from workbench.model.settings import Alteration, ClockRange, GpuSettings

if TYPE_CHECKING:
    from workbench.model.preset import Preset

SAME_W = 0.5  # drivers round a limit
LOCKS = {"gpu_clocks": "SM clock lock", "memory_clocks": "memory clock lock"}

PresetSettings = Sequence[tuple[str, GpuSettings, str]]  # GPU index or "all", settings, the preset's reason


def settings_of_preset(preset: Preset) -> PresetSettings:
    """Return the settings of a preset by GPU. A governor is the host's, whichever GPU its entry names."""
    return [
        (
            str(entry.gpu),
            GpuSettings(
                persistence=entry.persistence,
                power_limit_w=entry.power_limit_w,
                gpu_clocks=ClockRange(*entry.lock_gpu_clocks_mhz) if entry.lock_gpu_clocks_mhz else None,
                memory_clocks=ClockRange(*entry.lock_memory_clocks_mhz) if entry.lock_memory_clocks_mhz else None,
                governor=entry.governor,
            ),
            entry.reason or "",
        )
        for entry in preset.gpu_settings
    ]


def not_applied(
    wanted: PresetSettings, telemetry: Telemetry | None, alterations: Sequence[Alteration]
) -> tuple[str, ...]:
    """What is not as the preset has it: "GPU0 power limit 400 W (now 600 W)". What cannot be read is left out, but for
    locks: only the journal knows them."""
    if telemetry is None:
        return ()
    found: list[str] = []
    for selector, settings, _ in wanted:
        told = telemetry.host.cpu_governor
        if settings.governor is not None and told is not None and told != settings.governor:
            found.append(f"CPU governor {settings.governor} (now {told})")
        for sample in telemetry.gpus:
            if selector in ("all", str(sample.index)):
                limit, mode = sample.power_limit_w, sample.persistence
                ours = {a.setting: str(a.now) for a in alterations if a.gpu_index == sample.index}
                found += [f"GPU{sample.index} {text}" for text in _of_gpu(settings, limit, mode, ours)]
    return tuple(dict.fromkeys(found))


def _of_gpu(
    wanted: GpuSettings, limit_w: float | None, persistence: bool | None, ours: dict[str, Any]
) -> Iterable[str]:
    if wanted.power_limit_w is not None and limit_w is not None and abs(limit_w - wanted.power_limit_w) > SAME_W:
        yield f"power limit {wanted.power_limit_w:g} W (now {limit_w:g} W)"
    if wanted.persistence is not None and persistence is not None and persistence != wanted.persistence:
        yield f"persistence mode {_word(wanted.persistence)} (now {_word(persistence)})"
    for setting, name in LOCKS.items():
        asked = getattr(wanted, setting)
        if asked is not None and ours.get(setting) != str(asked):
            yield f"{name} {asked.min_mhz}-{asked.max_mhz} MHz (now {_lock(ours.get(setting))})"


def _word(on: bool) -> str:
    return "on" if on else "off"


def _lock(now: str | None) -> str:
    return "none of Workbench's" if now is None or "," not in now else now.replace(",", "-") + " MHz"
