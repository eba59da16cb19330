"""The value that a GPU setting has before a probe or a sweep changes it, and its restoration
afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.gpu.settings import journal
from workbench.gpu.settings.journal import JournalEntry, parse_entry
from workbench.model.errors import SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import is_clock_lock
from workbench.model.settings import (
    DEFAULT,
    UNKNOWN,
    ClockRange,
    GpuSettings,
    Setting,
    SettingValue,
    setting_of,
)

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.gpu import Telemetry
    from workbench.session.gpu.control import GpuControl


@dataclass(frozen=True, slots=True)
class PreviousValues:
    """The value of one setting of one GPU before a change. `settings` restores that value, and
    `entry` is the journal's entry if Workbench had altered the setting before, else None. `unknown`
    is True if another program may have set a clock lock, which no driver reports."""

    settings: GpuSettings
    entry: JournalEntry | None = None
    unknown: bool = False

    @classmethod
    def from_stored(cls, data: Mapping[str, Any]) -> PreviousValues:
        """Return a value before a change that was stored as the JSON object `data`, possibly by an
        earlier version of Workbench."""
        entry = parse_entry(data["entry"]) if data["entry"] else None
        return cls(GpuSettings.from_json(data["settings"]), entry, bool(data["unknown"]))


async def read_previous_values(
    host: Host, telemetry: Telemetry, setting: str, gpus: Sequence[int]
) -> dict[int, PreviousValues]:
    """Return the present value of `setting` for each of the GPUs, by GPU index. A clock lock, which
    no driver reports, is the one in the journal, or else no lock. Raises SettingsError if the
    driver does not report the value of another setting."""
    state = await journal.read_journal(host)
    records = state.records()
    found = {}
    for gpu in gpus:
        info = telemetry.info(gpu)
        ours: JournalEntry | None = None
        unknown = False
        if info is not None:
            key = (info.uuid, setting)
            for record in records:
                if not record.why_lost and record.entry.gpu_and_setting == key:
                    ours = record.entry
                    break
            if is_clock_lock(setting):
                unknown = state.last_known_lock_and_source(*key)[0] == UNKNOWN
        value = _clock_lock_of_entry(ours)
        if not is_clock_lock(setting):
            value = _current_value(host, telemetry, setting_of(setting), gpu)
        found[gpu] = PreviousValues(GpuSettings({setting: value}), ours, unknown)
    return found


def _clock_lock_of_entry(ours: JournalEntry | None) -> SettingValue:
    """Return the clock lock of a journal's entry; DEFAULT, for no lock, if there is none."""
    lock = None if ours is None else ours.now
    return lock if isinstance(lock, ClockRange) else DEFAULT


def _current_value(host: Host, telemetry: Telemetry, setting: Setting, gpu: int) -> SettingValue:
    sample = next((s for s in telemetry.gpus if s.index == gpu), None)
    value = setting.current_value(telemetry, sample.uuid) if sample is not None else None
    if value is not None:
        return value
    why = sample.absent.get(setting.reading or "", "not given") if sample else "no reading"
    raise SettingsError(
        f"GPU{gpu}: the driver does not report the present {setting.label} ({why}), so it could "
        "not be restored;"
        " nothing was changed",
        host=host.name,
    )


async def restore_and_return_problem(
    host: Host, control: GpuControl, gpu: int, previous: PreviousValues, password: str | None
) -> str:
    """Set one GPU to its previous value. Return the reason if that failed, else "". If the journal
    had an entry for the setting before, that entry is written again with its owner and the guard's
    instructions."""
    report = await control.apply_settings_by_gpu({str(gpu): previous.settings}, password=password)
    for outcome in report.outcomes:
        if not outcome.ok:
            return outcome.message or "rejected by the driver"
    if previous.entry is not None:
        async with journal.locked_journal(host) as held:
            await held.save(
                held.journal.with_restored_entry(previous.entry.gpu_and_setting, previous.entry)
            )
    return ""
