"""The revert of GPU settings: the journal's previous values are set again, and the host's values
are read afterwards.

Other users change the same GPUs. Therefore Workbench first reads the present value of each setting
and looks for its origin in the claims of other Workbenches (claims.py), so that a revert never
replaces another user's value.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from workbench.gpu.settings import claims, command_runner, outcomes
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings.current_values import (
    CurrentValues,
    read_values,
    read_values_after_change,
)
from workbench.gpu.settings.journal import Journal, JournalEntry, LockedJournal
from workbench.gpu.settings.outcomes import join_sentences
from workbench.gpu.settings.owners import ALIVE
from workbench.gpu.settings.plan import make_setting_commands, select_gpus
from workbench.gpu.settings.rights import Rights, can_claimant_set_value, read_rights
from workbench.hosts.base import Host
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError
from workbench.model.setting_commands import SETTINGS, value_equals, value_text
from workbench.model.setting_records import SettingCommand, SettingOutcome, SettingsReport
from workbench.model.settings import HOST

# "keep", "ours" or "original": the choice about a value that another program has set
ForeignChoice: TypeAlias = str
SET_AGAIN_TEXT = "Workbench's value is set again; the setting stays in the journal"
_REFUSED_BY_SUDO_TEXT = "sudo does not let {} set it"
_CANNOT_WRITE_TEXT = "{} cannot write the state of the simulated GPUs"
RETRY_INTERVAL_S = 0.1
RIVALS_TIMEOUT_S = 3.0


async def revert_settings(
    host: Host,
    gpu: int | str | None = None,
    *,
    dry_run: bool = False,
    rights: Rights | None = None,
    foreign: ForeignChoice | None = None,
    settings: Collection[str] | None = None,
) -> SettingsReport:
    """Revert the journal's settings of one GPU, of the "host", or of all if `gpu` is None, and
    return the report. With `settings`, a collection of keys, revert only these. The report is empty
    if the journal has no entries. A setting that could not be reverted stays in the journal, and
    its outcome has the command to run by hand. With `dry_run`, revert nothing, and report what a
    revert would do.

    A value that another Workbench has set since is left alone. A value that another program has set
    is left alone too, unless `foreign` chooses: "keep" that value, set "ours" again, or restore the
    "original" one.
    """
    path = await journals.journal_path_on(host)
    if dry_run:
        return SettingsReport(
            tuple(await _planned_outcomes(host, gpu, rights, foreign, settings)), path, dry_run
        )
    async with journals.locked_journal(host) as held:
        if not held.journal.entries:
            return SettingsReport((), path, recovery=held.recovery)
        await _wait_for_rival_changes(held)
        state, now, rights, doubts, ways = await _decide_reverts(
            host, held.journal, gpu, settings, rights, foreign
        )
        of_others = {r.entry.gpu_and_setting for r in state.records() if r.owner == ALIVE}
        to_set = [
            replace(entry, before=way.value) for entry, way in ways if way.do == claims.RESTORE
        ]
        done = await restore_entries(host, to_set, rights, now, now)
        reverted = {entry.gpu_and_setting: found for entry, found in done}
        report: list[SettingOutcome] = []
        for entry, way in ways:
            found = reverted.get(entry.gpu_and_setting) or [
                outcomes.outcome_of_setting_left_alone(
                    _placeholder_command_for_report(entry, way, now), entry, way
                )
            ]
            restores = way.do == claims.RESTORE
            set_again = (
                foreign == "ours" and restores and value_equals(entry.setting, way.value, entry.now)
            )
            done_well = all(o.ok for o in found)
            if set_again and done_well:
                found = [replace(o, message=SET_AGAIN_TEXT) for o in found]
            what = "revert" if restores else f"revert: {way.do}"
            if set_again:
                what = "set again"
            state = journal_with_logged_outcomes(state, what, found)
            if done_well:
                if set_again:
                    ours = "applied" if entry.user_setting_is_left_to else entry.state
                    set_unix_s = now.telemetry.unix_s
                    state = state.with_entry(replace(entry, state=ours, set_unix_s=set_unix_s))
                elif way.by:
                    left = setting_commands.LEFT_TO + way.by
                    state = state.with_entry(replace(entry, state=left, watch={}))
                else:
                    state = state.without_entry(entry.gpu_and_setting)
            notes = [doubts.get(entry.gpu_and_setting)]
            if entry.gpu_and_setting in of_others:
                pid = entry.owner.get("pid")
                notes.append(f"made by {entry.who}, process {pid}, which still runs")
            report += _add_notes_to_messages(found, *notes)
        done_last = tuple(await save_journal_noting_failure(held, state, report))
        return SettingsReport(done_last, path, recovery=held.recovery)


class _DecidedReverts(NamedTuple):
    """What a revert does. `state` is the journal without lost settings and forged claims, `now` has
    the present values, and `rights` are those with which commands are run. `doubts` has a text
    about each forged claim by (GPU UUID, key), and `ways` each entry to revert with the decision,
    in the order of the revert."""

    state: Journal
    now: CurrentValues
    rights: Rights
    doubts: dict[tuple[str, str], str]
    ways: list[tuple[JournalEntry, claims.RevertDecision]]


async def _decide_reverts(
    host: Host,
    journal: Journal,
    gpu: int | str | None,
    settings: Collection[str] | None,
    rights: Rights | None,
    foreign: ForeignChoice | None,
) -> _DecidedReverts:
    now = await read_values(host, journal.settings)
    rights = rights or await read_rights(host)
    state, doubts = await drop_forged_claims_and_explain(
        host, journal.without_entries_of_lost_settings(now.energy_j), rights
    )
    entries = _entries_to_revert(state.entries, gpu, now, settings)
    ways = _revert_decisions(entries, state, now, foreign)
    return _DecidedReverts(state, now, rights, doubts, ways)


async def drop_forged_claims_and_explain(
    host: Host, state: Journal, rights: Rights
) -> tuple[Journal, dict[tuple[str, str], str]]:
    """Return (the journal without claims whose users cannot have set the value, {(GPU UUID, key):
    text about such a claim on that setting})."""
    keys = state.gpus_and_settings
    may = {
        c: await can_claimant_set_value(host, rights, c)
        for c in state.others
        if c.gpu_and_setting in keys and SETTINGS[c.setting].easily_forged
    }
    kept = claims.drop_forged_claims(state.others, keys, may.__getitem__)
    simulated = (await host.facts()).simulated is not None
    refusal = _CANNOT_WRITE_TEXT if simulated else _REFUSED_BY_SUDO_TEXT
    doubts = {
        c.gpu_and_setting: f"{c.by} claims {value_text(c.setting, c.now)}, but {refusal.format(c.by)}"
        for c in state.others
        if c not in kept
    }
    return replace(state, others=kept), doubts


async def _wait_for_rival_changes(held: LockedJournal) -> None:
    """Wait until no other Workbench is changing a setting that is in this journal too, but at most
    RIVALS_TIMEOUT_S seconds."""
    keys = held.journal.gpus_and_settings
    until = time.monotonic() + RIVALS_TIMEOUT_S
    while held.find_rival_claim(keys) is not None and time.monotonic() < until:
        await asyncio.sleep(RETRY_INTERVAL_S)
        await held.reload_journal()


def _revert_decisions(
    entries: Sequence[JournalEntry],
    state: Journal,
    now: CurrentValues,
    foreign: ForeignChoice | None,
) -> list[tuple[JournalEntry, claims.RevertDecision]]:
    """Return (entry, decision how to revert it) for each of `entries`, in the order in which they
    must be reverted. `foreign` is the user's choice for values that another program has set, None
    if the user has not chosen."""
    found = []
    for entry in _sort_entries_for_revert(entries):
        way = claims.decide_revert(
            entry.field_values, now.value(entry.gpu_uuid, entry.setting), state.others
        )
        if way.do in (claims.ASK, claims.LEAVE) and foreign is not None:
            if foreign == "keep":
                way = claims.RevertDecision(claims.LEAVE, way.value, "left as it is")
            else:
                way = claims.RevertDecision(
                    claims.RESTORE, entry.now if foreign == "ours" else entry.before
                )
        found.append((entry, way))
    return found


def _placeholder_command_for_report(
    entry: JournalEntry, way: claims.RevertDecision, now: CurrentValues
) -> SettingCommand:
    """Return a command without argv, which stands in the report for a setting that the revert
    leaves alone."""
    index = now.gpu_index(entry.gpu_uuid, entry.gpu_index)
    return SettingCommand(index, entry.gpu_uuid, entry.setting, (), value=way.value)


async def _planned_outcomes(
    host: Host,
    gpu: int | str | None,
    rights: Rights | None,
    foreign: ForeignChoice | None,
    settings: Collection[str] | None,
) -> list[SettingOutcome]:
    state = await journals.read_journal(host)
    if not state.entries:
        return []
    _, now, rights, doubts, ways = await _decide_reverts(
        host, state, gpu, settings, rights, foreign
    )
    found = []
    for entry, way in ways:
        if way.do != claims.RESTORE:
            found.append(
                outcomes.outcome_of_setting_left_alone(
                    _placeholder_command_for_report(entry, way, now), entry, way
                )
            )
            continue
        warning = join_sentences(
            outcomes.unknown_previous_lock_note(entry.before), doubts.get(entry.gpu_and_setting)
        )
        for one in _revert_commands(replace(entry, before=way.value), rights, now):
            live = now.value(*entry.gpu_and_setting)
            known = (entry.now, "journal") if live is None else (live, "read")
            found.append(outcomes.planned_outcome(one, known, True, warning))
    return found


async def restore_entries(
    host: Host,
    entries: Sequence[JournalEntry],
    rights: Rights,
    now: CurrentValues,
    live: CurrentValues | None = None,
) -> list[tuple[JournalEntry, list[SettingOutcome]]]:
    """Set the previous value of each entry, read the values back, and return (entry, outcomes of
    its commands) for each. A failure does not stop the other reverts. `now` has the host's values
    from before the revert. `live` has the same values if the outcomes shall show them as the old
    ones; if it is None, they show the values in the journal."""
    ordered = _sort_entries_for_revert(entries)
    pairs = [(entry, _revert_commands(entry, rights, now)) for entry in ordered]
    ran = await command_runner.run_commands_despite_failures(
        host, [one for _, commands in pairs for one in commands], rights
    )
    after = await read_values_after_change(host, {e.setting for e in ordered}) if pairs else now
    found = []
    for entry, commands in pairs:
        was = live.value(*entry.gpu_and_setting) if live else None
        restored = [
            outcomes.outcome_of_revert_command(entry, one, ran[one], after, was) for one in commands
        ]
        found.append((entry, restored))
    return found


def _sort_entries_for_revert(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    return sorted(
        entries,
        key=lambda e: (
            e.gpu_uuid == HOST,
            e.gpu_index,
            setting_commands.revert_position(e.setting),
        ),
    )


def _revert_commands(
    entry: JournalEntry, rights: Rights, now: CurrentValues
) -> tuple[SettingCommand, ...]:
    value = setting_commands.value_to_restore(entry.before)
    index = now.gpu_index(entry.gpu_uuid, entry.gpu_index)
    return make_setting_commands(index, entry.gpu_uuid, entry.setting, value, rights, now.cores)


def _entries_to_revert(
    entries: Sequence[JournalEntry],
    gpu: int | str | None,
    now: CurrentValues,
    settings: Collection[str] | None,
) -> list[JournalEntry]:
    if settings is not None:
        entries = [entry for entry in entries if entry.setting in settings]
    if gpu is None:
        return list(entries)
    uuid = HOST
    if str(gpu) != HOST:
        here = [i.uuid for i in now.telemetry.infos if str(gpu) in (str(i.index), i.uuid)]
        gone = [e.gpu_uuid for e in entries if str(gpu) in (str(e.gpu_index), e.gpu_uuid)]
        uuid = (here or gone or [select_gpus(str(gpu), now.telemetry)[0].uuid])[0]
    return [e for e in entries if e.gpu_uuid == uuid]


# -- writing the result ----------------------------------------------------------------------------


def journal_with_logged_outcomes(
    state: Journal, what: str, done: Collection[SettingOutcome]
) -> Journal:
    """Return the journal with one more line in its log for each outcome in `done`. `what` names the
    event, such as "revert"."""
    for o in done:
        one = o.command
        state = state.with_log_line(
            what,
            gpu_uuid=one.gpu_uuid,
            setting=one.setting,
            before=o.before,
            now=one.value,
            ok=o.ok,
            message=o.message,
        )
    return state


async def save_journal_noting_failure(
    held: LockedJournal, state: Journal, done: Sequence[SettingOutcome]
) -> list[SettingOutcome]:
    """Save the journal after a change, and return the outcomes. If it cannot be saved, the outcomes
    say so. No error is raised, because the old journal still has every previous value."""
    try:
        await held.save_and_unlock(state)
    except (HostError, SettingsError) as error:
        note = (
            f"the journal could not be updated ({error.message}); it still has the previous values"
        )
        return _add_notes_to_messages(done, note)
    return list(done)


def _add_notes_to_messages(
    done: Sequence[SettingOutcome], *notes: str | None
) -> list[SettingOutcome]:
    return [replace(o, message=join_sentences(o.message, *notes)) for o in done]
