"""The settings that Workbench changed, compared with the host's present values.

An Alteration describes one changed setting for the screen and the results. It is made from an entry
of the journal, or from the claim of another user in the host's register."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.gpu.settings import claims
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.current_values import read_values
from workbench.gpu.settings.journal import JournalEntry, Record
from workbench.gpu.settings.unconfirmed_changes import entry_before_change
from workbench.hosts.base import Host
from workbench.model.gpu import Telemetry
from workbench.model.setting_commands import HOST, is_clock_lock, value_equals
from workbench.model.setting_records import Alteration, Drift
from workbench.model.settings import gpu_or_host_name, label_of, setting_of

# -- from the journal ------------------------------------------------------------------------------


async def read_journal_records_and_log(
    host: Host, energy_j: Mapping[str, float] | None = None
) -> tuple[tuple[Record, ...], tuple[Mapping[str, Any], ...]]:
    """Read the journal of changed settings. Return (entries, each with the state of the process
    that made it; lines of the journal's log). `energy_j` has the GPUs' energy counters in joules by
    UUID, which show a reload of the driver. Raises SettingsError if the journal cannot be read."""
    state = await journals.read_journal(host)
    return state.records(energy_j), state.log


async def read_alterations(host: Host) -> tuple[Alteration, ...]:
    """Return the settings that Workbench changed on this host, without those that a restart has
    reset."""
    found, _ = await read_journal_records_and_log(host)
    return tuple(alteration_of_record(record) for record in found if record.why_lost is None)


async def drop_entries_of_lost_settings(host: Host, gone: Sequence[Record]) -> None:
    """Remove from the journal the entries in `gone`, whose settings a restart of the host or the
    driver has reset. An entry that has changed since stays. Raises SettingsError if the journal
    cannot be read or locked, and HostError if it cannot be written."""
    async with journals.locked_journal(host) as held:
        kept = held.journal
        for record in gone:
            kept = kept.without_entry_of_lost_setting(record)
        if kept.entries != held.journal.entries:
            await held.save(kept)


async def drop_entries_settled_by_others(host: Host) -> None:
    """Remove from the journal the entries that a revert has left to another user and that are
    settled: that user claims the setting no longer, and it has its previous value."""
    async with journals.locked_journal(host) as held:
        left = [
            entry
            for entry in held.journal.entries
            if is_left_to_former_claimant(entry, held.journal.others)
        ]
        now = await read_values(host, {entry.setting for entry in left})
        state = held.journal
        for entry in left:
            if value_equals(entry.setting, now.value(*entry.gpu_and_setting), entry.before):
                what = f"settled: as it was before, {entry.state}"
                state = state.without_entry(entry.gpu_and_setting).with_log_line(
                    what, gpu_uuid=entry.gpu_uuid, setting=entry.setting
                )
        if state is not held.journal:
            await held.save(state)


def is_left_to_former_claimant(entry: JournalEntry, other_claims: Sequence[SettingClaim]) -> bool:
    """Return whether a revert has left the setting of `entry` to a user who claims it no longer.
    False if the setting is not left to anybody."""
    if not entry.user_setting_is_left_to:
        return False
    return (entry.user_setting_is_left_to, entry.gpu_and_setting) not in [
        (claim.by, claim.gpu_and_setting) for claim in other_claims
    ]


def alteration_of_record(record: Record) -> Alteration:
    """Return an Alteration for the screen, which describes the setting that an entry of this user's
    journal records as changed."""
    entry = record.entry
    earlier = entry_before_change(entry)
    return Alteration(
        entry.gpu_index,
        entry.gpu_uuid,
        entry.setting,
        entry.before,
        entry.now,
        entry.since_unix_s,
        state=entry.state,
        set_unix_s=claims.last_changed_unix_s(entry.field_values),
        before_known=entry.before_known,
        owner_state=record.owner,
        who=entry.who,
        origin=entry.origin,
        earlier_now=earlier.now if earlier is not None else None,
    )


def alteration_of_claim(claim: SettingClaim) -> Alteration:
    """Return an Alteration for the screen, which describes a setting that another Workbench claims
    to have changed."""
    key = claim.gpu_index, claim.gpu_uuid, claim.setting
    return Alteration(
        *key, claim.before, claim.now, claim.set_unix_s, by=claim.by, state=claim.state
    )


def alterations_of_known_gpus(
    others: Iterable[Alteration], telemetry: Telemetry | None
) -> tuple[Alteration, ...]:
    """Return those of `others`, the changes that other Workbenches claim, that are about the host
    or about one of its GPUs. A user can claim a GPU that the host does not have. If `telemetry` is
    None, return all."""
    if telemetry is None:
        return tuple(others)
    known = {HOST, *(info.uuid for info in telemetry.infos)}
    return tuple(one for one in others if one.gpu_uuid in known)


# -- beside the host's values ----------------------------------------------------------------------


def find_drifts(
    alterations: Sequence[Alteration],
    others: Sequence[Alteration],
    telemetry: Telemetry,
    disk_full: bool = False,
) -> tuple[Drift, ...]:
    """Return a Drift for each setting in `alterations` that no longer has the value that this
    user's Workbench set. A setting that cannot be read gives none, but a clock lock gives one if
    another Workbench has replaced it. The text of a Drift names the cause: one of `others`, the
    changes by other Workbenches, or with `disk_full` a revert that the journal's full disk could
    not record."""
    others_claims = list(map(_claim_of_alteration, others))
    found = []
    for one in alterations:
        live = setting_of(one.setting).current_value(telemetry, one.gpu_uuid)
        if text := claims.drift_message(_entry_of_alteration(one), live, others_claims, disk_full):
            found.append(Drift(one.gpu_index, one.gpu_uuid, one.setting, live, text))
    return tuple(found)


def select_locks_in_force(
    alterations: Sequence[Alteration], others: Sequence[Alteration]
) -> tuple[Alteration, ...]:
    """Return the clock locks that apply now, whichever user set them. The driver cannot report a
    lock, so the newest known change of each lock is returned."""
    return select_alterations_in_force(_select_locks(alterations), _select_locks(others))


def _select_locks(alterations: Sequence[Alteration]) -> list[Alteration]:
    return [one for one in alterations if is_clock_lock(one.setting)]


def select_alterations_in_force(
    alterations: Sequence[Alteration],
    others: Sequence[Alteration],
    telemetry: Telemetry | None = None,
) -> tuple[Alteration, ...]:
    """Return the changes that apply now, whichever user made them.

    Of a clock lock, which cannot be read, and of a setting whose value `telemetry` has, return one
    change at most. It has the present value if a program other than Workbench has set that. It is
    left out if the setting has its previous value again. Of a setting without a reading, return the
    changes of all users.
    """
    by_claim = {_claim_of_alteration(one): one for one in others}
    ours = {(one.gpu_uuid, one.setting): one for one in alterations}
    found: list[Alteration] = []
    for key in sorted({*ours, *(claim.gpu_and_setting for claim in by_claim)}):
        uuid, setting = key
        own = ours.get(key)
        live = None if telemetry is None else setting_of(setting).current_value(telemetry, uuid)
        entry = _entry_of_alteration(own) if own is not None else None
        by = claims.claim_behind_present_value(list(by_claim), key, live, entry)
        if by is not None:
            found.append(by_claim[by])
        elif live is None and not is_clock_lock(setting):
            unread = [one for claim, one in by_claim.items() if claim.gpu_and_setting == key]
            found += [own, *unread] if own is not None else unread
        elif own is not None and not value_equals(setting, live, own.before):
            replaced = live is not None and not value_equals(setting, live, own.now)
            found.append(replace(own, now=live) if replaced else own)
    return tuple(found)


def lock_drift_message(one: Alteration, others: Sequence[Alteration]) -> str:
    """Return a message if another Workbench has replaced the clock lock `one` by its own, otherwise
    ""."""
    if not is_clock_lock(one.setting):
        return ""
    return claims.drift_message(
        _entry_of_alteration(one), None, list(map(_claim_of_alteration, others))
    )


def warnings_without_guard(
    alterations: Sequence[Alteration], others: Sequence[Alteration], telemetry: Telemetry
) -> tuple[str, ...]:
    """Return the warnings to show before the user keeps settings without a guard. They name
    settings whose value has changed already, and settings that may be lost because persistence mode
    is off. () if there are none."""
    found = [
        f"{gpu_or_host_name(d.gpu_uuid, d.gpu_index)} {label_of(d.setting)}: {d.text}"
        for d in find_drifts(alterations, others, telemetry)
    ]
    for sample in telemetry.gpus:
        mine = [setting_of(a.setting) for a in alterations if a.gpu_uuid == sample.uuid]
        lost = ", ".join(setting.label for setting in mine if setting.needs_persistence)
        if lost and sample.has_readings and sample.persistence is False:
            found.append(
                f"GPU{sample.index}: persistence mode is off, so {lost} may be lost when the last "
                "program that uses "
                "the GPU ends, possibly the guard; `workbench gpu set --persistence on` prevents it"
            )
    return tuple(found)


def _entry_of_alteration(one: Alteration) -> dict[str, Any]:
    return {
        "gpu_uuid": one.gpu_uuid,
        "setting": one.setting,
        "before": one.before,
        "now": one.now,
        "since_unix_s": one.since_unix_s,
        "set_unix_s": one.set_unix_s,
        "state": one.state,
    }


def _claim_of_alteration(one: Alteration) -> SettingClaim:
    return SettingClaim(
        one.by, one.gpu_uuid, one.gpu_index, one.setting, one.before, one.now, one.since_unix_s
    )
