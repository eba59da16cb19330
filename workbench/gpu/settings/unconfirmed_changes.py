"""Changes of GPU settings that were cut off: the journal announces the change, and the connection
was lost or Workbench ended before it could write down the result.

The host's present value decides. It has the new value if the command ran, and the earlier one if it
did not. A clock lock cannot be read, so its entry stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from workbench.gpu.settings import claims
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings.command_runner import COMMAND_TIMEOUT_S
from workbench.gpu.settings.current_values import CurrentValues, read_values
from workbench.gpu.settings.journal import Journal, JournalEntry, Record
from workbench.gpu.settings.owners import DEAD, THIS, owner_process_state
from workbench.hosts.base import Host
from workbench.model.setting_commands import APPLIED, PENDING, is_clock_lock, value_equals

SETTLED_AFTER_S = COMMAND_TIMEOUT_S  # a command that was sent before the cut can run for so long


class SettledChange(NamedTuple):
    """What became of a change that was cut off. `applied` is False if the setting has its earlier
    value."""

    entry: JournalEntry
    applied: bool

    @property
    def text(self) -> str:
        """The sentence for the user: which change it was, and whether it was applied."""
        if self.applied:
            return f"{self.entry.change_text} was applied, although the answer was lost"
        lost = cut_off_state_text(self.entry)
        return f"{self.entry.change_text} was not applied: {lost} before the command"


def cut_off_state_text(entry: JournalEntry) -> str:
    ours = owner_process_state(entry.owner) == THIS
    return "the link was lost" if ours else "the Workbench that began the change ended"


def select_cut_off_changes(records: Sequence[Record]) -> list[Record]:
    """Return those records whose change was cut off: the entry is pending, and the process that
    made it is this one or has ended. Clock locks, which cannot be read, and settings that a restart
    has reset are left out."""
    return [
        record
        for record in records
        if record.entry.state == PENDING
        and record.owner in (THIS, DEAD)
        and record.why_lost is None
        and not is_clock_lock(record.entry.setting)
    ]


async def settle_cut_off_changes(
    host: Host, *, never_sent: bool = False
) -> tuple[SettledChange, ...]:
    """Read what became of the changes that were cut off, and write it to the journal. Return the
    changes that are settled. A change of the last SETTLED_AFTER_S seconds is left for a later call,
    unless this process made it and has `never_sent` its commands. Call this only while this process
    makes no change. Raises HostError if the host is out of reach."""
    async with journals.locked_journal(host) as held:
        records = select_cut_off_changes(held.journal.records())
        if not records:
            return ()
        now = await read_values(host, {record.entry.setting for record in records})
        settled: list[SettledChange] = []
        state = held.journal
        for record in records:
            sure = never_sent and record.owner == THIS
            age_s = now.telemetry.unix_s - claims.last_changed_unix_s(record.entry.field_values)
            if sure or age_s >= SETTLED_AFTER_S:
                state = _settle_cut_off_change(state, record.entry, now, settled)
        if state is not held.journal:
            await held.save(state)
        return tuple(settled)


def _settle_cut_off_change(
    state: Journal, entry: JournalEntry, now: CurrentValues, settled: list[SettledChange]
) -> Journal:
    """Return the journal with the outcome of the change of `entry`, and add the outcome to
    `settled`. If the host has neither the earlier nor the new value, return the journal unchanged.
    """
    live = now.value(*entry.gpu_and_setting)
    earlier = entry.earlier or {}
    if value_equals(entry.setting, live, earlier.get("now", entry.before)):
        outcome = SettledChange(entry, applied=False)
        kept = entry_before_change(entry)
        state = state.with_restored_entry(entry.gpu_and_setting, kept)
    elif value_equals(entry.setting, live, entry.now):
        outcome = SettledChange(entry, applied=True)
        state = state.with_restored_entry(
            entry.gpu_and_setting, replace(entry, state=APPLIED, earlier=None)
        )
    else:
        return state
    settled.append(outcome)
    keys: dict[str, Any] = {"gpu_uuid": entry.gpu_uuid, "setting": entry.setting}
    what = "cut off: " + ("applied" if outcome.applied else "not applied")
    return state.with_log_line(what, **keys, now=live, ok=True, message=outcome.text)


def entry_before_change(entry: JournalEntry) -> JournalEntry | None:
    """Return the journal entry that `entry` replaced when its change began. None if the setting was
    not altered before, or if its change is not pending."""
    if entry.earlier is None:
        return None
    return replace(journals.parse_entry({**entry.as_json(), **entry.earlier}), earlier=None)
