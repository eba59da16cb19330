"""The value that a GPU setting had before a probe or a sweep changes it, and the way back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.gpu.settings import journal
from workbench.gpu.settings.journal import JournalEntry
from workbench.gpu.settings.revert import LOCKS, UNKNOWN
from workbench.model.errors import SettingsError
from workbench.model.settings import ClockRange, GpuSettings, gpu_settings_from

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.gpu import Telemetry
    from workbench.session.gpu_control import GpuControl


@dataclass(frozen=True, slots=True)
class Previous:
    """`settings` bring the GPU back. `entry`: the journal's record if Workbench had altered the setting. `unknown`:
    someone else may have set a lock, which no driver reports."""

    settings: GpuSettings
    entry: JournalEntry | None = None
    unknown: bool = False

    @classmethod
    def stored(cls, data: Mapping[str, Any]) -> Previous:
        """Return it from what `asdict` made of it."""
        entry = JournalEntry(**data["entry"]) if data["entry"] else None
        return cls(gpu_settings_from(data["settings"]), entry, bool(data["unknown"]))


async def previous_of(host: Host, telemetry: Telemetry, setting: str, gpus: Sequence[int]) -> dict[int, Previous]:
    """Return the present value of `setting` on each GPU. Raises SettingsError if it is not known."""
    state = await journal.read(host)
    records = state.records()
    found = {}
    for gpu in gpus:
        info = telemetry.info(gpu)
        ours = next((r.entry for r in records if info and not r.gone and r.entry.key == (info.uuid, setting)), None)
        if setting == "power_limit_w":
            settings = GpuSettings(power_limit_w=_power_limit_w(host, telemetry, gpu))
        elif ours is not None and "," in str(ours.now):
            low, _, high = str(ours.now).partition(",")
            settings = _settings(setting, ClockRange(int(low), int(high)))
        else:
            settings = _settings(f"reset_{setting}", True)
        known = state.known_lock(info.uuid, setting)[0] if info and setting in LOCKS else None
        found[gpu] = Previous(settings, ours, known == UNKNOWN)
    return found


def _power_limit_w(host: Host, telemetry: Telemetry, gpu: int) -> float:
    sample = next((s for s in telemetry.gpus if s.index == gpu), None)
    if sample is not None and sample.power_limit_w is not None:
        return sample.power_limit_w
    why = sample.absent.get("power_limit_w", "not given") if sample else "no reading"
    raise SettingsError(f"GPU{gpu}: the power limit before is not known ({why}); nothing was changed", host=host.name)


def _settings(setting: str, value: Any) -> GpuSettings:
    return GpuSettings(**{setting: value})


async def restore(host: Host, control: GpuControl, gpu: int, previous: Previous, password: str | None) -> str:
    """Set a GPU back. Return why that failed, or "". A setting that Workbench had altered before gets its journal entry
    of then: its owner, and whether its guard waits for a heartbeat."""
    report = await control.apply_each({str(gpu): previous.settings}, password=password)
    failed = next((o.message or "refused" for o in report.outcomes if not o.ok), "")
    if not failed and previous.entry is not None:
        async with journal.locked(host) as held:
            await held.save(held.journal.back_to(previous.entry.key, previous.entry))
    return failed
