"""The change of GPU settings: write the journal, start the guard, run the commands, then read the
values back.

A plan is applied whole or not at all. If one of its commands fails, or if the change is
interrupted, the commands before it are rolled back. If Workbench is killed, the guard does so,
because the entries in the journal are still pending then. nvidia-smi's exit status is not trusted,
because it is 0 for a setting that is not supported; the values are read back and compared. A clock
lock cannot be read back, so it is "not checked" until a load has shown the clocks.

Other users change the same GPUs. Therefore Workbench reads the present values before each change,
and looks in the claims of other Workbenches (claims.py) for values that another user has set. Such
a value is temporary and never counts as the previous value.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from workbench.gpu.settings import claims, command_runner
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings import outcomes as judged
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.command_runner import CommandRun
from workbench.gpu.settings.current_values import (
    CurrentValues,
    read_values,
    read_values_after_change,
)
from workbench.gpu.settings.journal import Journal, JournalEntry, LockedJournal
from workbench.gpu.settings.outcomes import join_sentences
from workbench.gpu.settings.plan import make_setting_commands
from workbench.gpu.settings.revert import (
    journal_with_logged_outcomes,
    restore_entries,
    save_journal_noting_failure,
)
from workbench.gpu.settings.rights import RIGHTS_OF_ROOT, Rights
from workbench.gpu.settings.standstill import StandstillWatch
from workbench.hosts.base import Host, HostUnreachable
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError, WorkbenchError
from workbench.model.gpu import GpuInfo
from workbench.model.interrupted import Interrupted
from workbench.model.setting_commands import is_clock_lock, value_equals
from workbench.model.setting_records import (
    GuardView,
    InForce,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)
from workbench.model.settings import (
    DEFAULT,
    HOST,
    PERSISTENCE,
    UNKNOWN,
    SettingValue,
    gpu_or_host_name,
    label_of,
    setting_of,
)

RETRY_DELAYS_S = (0.1, 0.4)
StartGuard: TypeAlias = Callable[[Journal], Awaitable[GuardView | None]]
Watch: TypeAlias = Callable[[JournalEntry, JournalEntry | None], Mapping[str, Any]]
# a value and its source: JournalEntry.before_known
KnownValue: TypeAlias = tuple[SettingValue | None, str]


async def apply_commands(
    host: Host,
    commands: Sequence[SettingCommand],
    *,
    dry_run: bool = False,
    rights: Rights = RIGHTS_OF_ROOT,
    guard: StartGuard | None = None,
    watch: Watch | None = None,
    seen: Collection[tuple[str, str]] | None = None,
) -> SettingsReport:
    """Run the commands of a plan and return the report. If a command fails, the commands after it
    are not run, and those before it are rolled back. With `dry_run`, or if the user may not run one
    of the commands, none is run, and the report says what each would do.

    `rights` has the password if sudo asks for one. `guard` starts the guard; it is awaited under
    the journal's lock and gets the journal, once the previous values are on disk and before the
    first command. If it raises, nothing is changed. `watch` returns the guard's instructions for a
    new entry, given the entry and the earlier entry of the same setting. `seen` has (GPU UUID, key)
    of the settings whose value of somebody else may be replaced, because the user has seen it; None
    for all.

    Raises SettingsError, with nothing changed, if the journal cannot be read, locked or written, if
    the GPUs cannot be read, or if somebody else has set a value that is not among those `seen`. If
    the caller is cancelled, the command that runs goes on to its end, the commands before it are
    rolled back, and Interrupted is raised. A second cancellation leaves that to the guard.
    """
    path = await journals.journal_path_on(host)
    if not commands:
        return SettingsReport((), path, dry_run)
    if dry_run or any(c.right for c in commands):
        planned = await _planned_outcomes(host, commands, rights, dry_run)
        return SettingsReport(
            tuple(judged.drop_repeated_persistence_warnings(planned)), path, dry_run
        )
    stop = asyncio.Event()
    change = asyncio.create_task(
        _carry_out_commands(host, path, commands, rights, guard, watch, seen, stop)
    )
    try:
        return await asyncio.shield(change)
    except asyncio.CancelledError:
        stop.set()
        raise Interrupted(await _describe_interrupted_change(change)) from None


async def _describe_interrupted_change(change: asyncio.Task[SettingsReport]) -> str:
    """Wait for the end of a change that was told to stop. Return, as text for the user, which
    settings it has left changed."""
    try:
        report = await change
    except WorkbenchError as error:
        return error.message
    if report.ok:
        return (
            "the GPU settings were all applied already; `workbench gpu revert` restores the "
            "previous values"
        )
    wrong = [
        f"{o.command.gpu_or_host_name} {label_of(o.command.setting)}"
        for o in report.rolled_back
        if not o.ok
    ]
    if wrong:
        return f"{', '.join(wrong)} could not be reverted; `workbench gpu revert` tries again"
    if report.rolled_back:
        return "the GPU settings that it had changed are reverted"
    return "no GPU setting was changed"


async def _carry_out_commands(
    host: Host,
    path: str,
    commands: Sequence[SettingCommand],
    rights: Rights,
    guard: StartGuard | None,
    watch: Watch | None,
    seen: Collection[tuple[str, str]] | None,
    stop: asyncio.Event,
) -> SettingsReport:
    async with StandstillWatch() as standstill, journals.locked_journal(host) as held:
        now, was, before = await _write_and_publish_entries(held, commands, watch, seen)
        watching = await _start_guard(held, was, guard)
        ran = await command_runner.run_commands_until_failure(
            host, commands, rights, stop, standstill
        )
        after = await read_values_after_change(host, _setting_keys_of(commands))
        outcomes = judged.drop_repeated_persistence_warnings(
            [judged.outcome_of_change(c, before[c], ran.get(c), after, now) for c in commands]
        )
        rolled_back: list[SettingOutcome] = []
        if all(o.ok for o in outcomes):
            outcomes = _add_notes_to_messages(
                outcomes, before, rights, now, _unpublished_change_note(held.journal)
            )
            outcomes = await _mark_entries_applied(held, was, outcomes)
        else:
            outcomes, rolled_back = await _roll_back_commands(held, was, outcomes, ran, rights, now)
        if not any(e.watch for e in held.journal.entries):
            watching = None  # a guard that has nothing to watch ends at once
        return SettingsReport(
            tuple(outcomes),
            path,
            rolled_back=tuple(rolled_back),
            guard=watching,
            recovery=held.recovery,
        )


def _setting_keys_of(commands: Sequence[SettingCommand]) -> set[str]:
    return {command.setting for command in commands}


def _add_notes_to_messages(
    outcomes: Sequence[SettingOutcome],
    before: Mapping[SettingCommand, KnownValue],
    rights: Rights,
    now: CurrentValues,
    first_note: str,
) -> list[SettingOutcome]:
    """Return the outcomes of commands that succeeded, with notes in their messages: about a missing
    right to revert, and about a value that was set before. The first outcome gets `first_note`
    too."""
    noted: list[SettingOutcome] = []
    for outcome in outcomes:
        one = outcome.command
        notes = [outcome.message, _missing_revert_right_warning(one, before[one], rights, now)]
        if not noted:
            notes.append(first_note)
        if value_equals(one.setting, outcome.before, one.value):
            notes.append("it had this value already")
        noted.append(replace(outcome, message=join_sentences(*notes)))
    return noted


async def _planned_outcomes(
    host: Host, commands: Sequence[SettingCommand], rights: Rights, dry_run: bool
) -> list[SettingOutcome]:
    now = await read_values(host, _setting_keys_of(commands))
    state = await journals.read_journal(host)
    stays_loaded = {c.gpu_uuid for c in commands if c.setting == PERSISTENCE.key and c.value}
    found = []
    for one in note_foreign_values_in_commands(commands, state, now):
        known = _present_value_and_source(one, state, now)
        warning = _missing_revert_right_warning(one, known, rights, now)
        if one.gpu_uuid not in stays_loaded:
            warning = join_sentences(warning, judged.persistence_off_warning(one, now))
        found.append(judged.planned_outcome(one, known, dry_run, warning))
    return found


# -- before the commands ---------------------------------------------------------------------------


async def _write_and_publish_entries(
    held: LockedJournal,
    commands: Sequence[SettingCommand],
    watch: Watch | None,
    seen: Collection[tuple[str, str]] | None,
) -> tuple[CurrentValues, Journal, dict[SettingCommand, KnownValue]]:
    """Write new journal entries for the commands to disk and publish them. Return (present values,
    journal from before, previous value of each command's setting).

    If another Workbench has announced a change of one of these settings, restore the journal and
    try again, so that two Workbenches never change one setting at once. Raises SettingsError if
    that takes longer than WAIT_S seconds, or if a value of somebody else is not among those `seen`.
    """
    host, settings = held.host, _setting_keys_of(commands)
    keys = {(c.gpu_uuid, c.setting) for c in commands}
    until = time.monotonic() + journals.WAIT_S
    while True:
        now = await read_values(host, settings)
        was = held.journal.without_entries_of_lost_settings(now.energy_j)
        if seen is not None:
            _require_foreign_values_seen(
                note_foreign_values_in_commands(commands, was, now), seen, host.name
            )
        before = {c: _previous_value_and_source(c, was, now) for c in commands}
        state = was
        for one in commands:
            old = was.find_entry(one.gpu_uuid, one.setting)
            live = now.value(one.gpu_uuid, one.setting)
            if old is not None and claims.was_changed_outside_workbench(
                old.field_values, live, was.others
            ):
                # A revert restores the value of the other program, not the one before it.
                state, old = state.without_entry(old.gpu_and_setting), None
            entry = replace(
                _new_journal_entry(one, before[one], state, now),
                earlier=_entry_fields_to_restore(one, was),
            )
            if watch:
                entry = replace(entry, watch=watch(entry, old))
            state = state.with_entry(entry)
        await _save_journal_before_commands(held, state)
        rival = held.find_rival_claim(keys)
        if rival is None and _claims_on_keys(
            held.journal.without_entries_of_lost_settings(now.energy_j).others, keys
        ) == _claims_on_keys(was.others, keys):
            return now, was, before
        await _save_journal_before_commands(held, replace(was, others=held.journal.others))
        if time.monotonic() > until:
            raise _simultaneous_change_error(rival, host.name)
        await asyncio.sleep(random.uniform(*RETRY_DELAYS_S))


def _simultaneous_change_error(rival: SettingClaim | None, host: str) -> SettingsError:
    """Return the error for a setting that other users keep changing. `rival` is the claim of the
    Workbench that changes it at this moment, None if no Workbench does."""
    if rival is None:
        return SettingsError(
            "what other users have changed here is not the same at two looks, again and again; "
            "nothing was changed",
            host=host,
            next_step="`workbench gpu status` shows their changes; try again later",
        )
    where = gpu_or_host_name(rival.gpu_uuid, rival.gpu_index)
    return SettingsError(
        f"{rival.by} is changing {where} {label_of(rival.setting)} in another Workbench; "
        "nothing was changed",
        host=host,
        next_step=f"try again when process {rival.pid} has ended; only that user or root "
        "can end this process",
    )


def _require_foreign_values_seen(
    commands: Sequence[SettingCommand], seen: Collection[tuple[str, str]], host: str
) -> None:
    """Raise SettingsError if one of `commands` would replace a value of somebody else that the user
    has not seen. `seen` has (GPU UUID, key) of the settings whose value the user has seen."""
    unseen = [c for c in commands if c.foreign and (c.gpu_uuid, c.setting) not in seen]
    if not unseen:
        return
    texts = [f"{c.gpu_or_host_name} {label_of(c.setting)}: {c.note}" for c in unseen]
    raise SettingsError(
        f"somebody else has set a value just now ({'; '.join(texts)}); nothing was changed",
        host=host,
        next_step="run the command again: it shows that value, and what it would replace",
    )


def _claims_on_keys(
    others: Iterable[SettingClaim], keys: Collection[tuple[str, str]]
) -> list[SettingClaim]:
    return sorted((c for c in others if c.gpu_and_setting in keys), key=repr)


def _present_value_and_source(
    one: SettingCommand, state: Journal, now: CurrentValues
) -> KnownValue:
    """Return (present value of the setting that the command changes, where it comes from). For a
    clock lock, which the driver cannot report, the second is "claim", "journal", "default" or
    "unknown". For any other setting it is "read", and the value is None if the driver does not
    report it."""
    if is_clock_lock(one.setting):
        return state.last_known_lock_and_source(one.gpu_uuid, one.setting)
    return now.value(one.gpu_uuid, one.setting), "read"


def _previous_value_and_source(
    one: SettingCommand, state: Journal, now: CurrentValues
) -> KnownValue:
    """Return (value that a revert will restore, where it comes from). Raises SettingsError if the
    driver does not report a value that it should report, because Workbench changes only settings
    that it can revert."""
    value, how = _present_value_and_source(one, state, now)
    if one.gpu_uuid == HOST:
        if value is None:
            why = now.cores.why_no_core_has(one.setting)
            raise SettingsError(
                f"the present {label_of(one.setting)} is unknown ({why}); nothing was changed"
            )
        return value, how
    sample = now.sample(one.gpu_uuid)
    if sample is None:
        lost = next((s.message for s in now.telemetry.gpus if s.uuid == one.gpu_uuid), None)
        raise SettingsError(
            f"GPU {one.gpu_index} cannot be read ({lost or 'not on this host'}); "
            "nothing was changed"
        )
    if value is not None:
        return value, how
    setting = setting_of(one.setting)
    why = sample.absent.get(setting.reading or "", "the driver does not report it")
    raise SettingsError(
        f"GPU {one.gpu_index}: the present {setting.label} is unknown ({why}); nothing was changed",
        next_step=judged.vgpu_hypervisor_note(one, now) or None,
    )


def _new_journal_entry(
    one: SettingCommand, before: KnownValue, state: Journal, now: CurrentValues
) -> JournalEntry:
    """Return the new journal entry for a command. `before` is (present value, where it comes from).
    If another Workbench claims to have set the present value, the entry gets the value from before
    that Workbench's change instead."""
    info = now.info(one.gpu_uuid)
    key, live = (one.gpu_uuid, one.setting), now.value(one.gpu_uuid, one.setting)
    old = state.entry_field_values(*key)
    by = claims.claim_behind_present_value(state.others, key, live, old)
    origin = ""
    if by is not None:
        origin = by.by
        before = (
            by.before,
            str(DEFAULT) if _is_default_value(one, by.before, info) else claims.TOLD,
        )
    gpu_name, driver_start = "unknown", state.driver_start
    if one.gpu_uuid == HOST:
        gpu_name, driver_start = "CPUs", None
    elif info is not None:
        gpu_name = info.name
    return JournalEntry(
        gpu_uuid=one.gpu_uuid,
        gpu_index=one.gpu_index,
        gpu_name=gpu_name,
        setting=one.setting,
        before=before[0],
        before_known=str(before[1]),
        now=one.value,
        since_unix_s=now.telemetry.unix_s,
        boot_id=state.boot_id,
        driver_start=driver_start,
        driver=now.telemetry.driver.driver_version,
        who=journals.current_user_at_machine(),
        owner=journals.identity_of_this_process(),
        energy_j=now.energy_j.get(one.gpu_uuid),
        state=setting_commands.PENDING,
        set_unix_s=now.telemetry.unix_s,
        over=tuple(claims.foreign_values_to_be_replaced(state.others, key, live, old)),
        origin=origin,
    )


def _entry_fields_to_restore(one: SettingCommand, was: Journal) -> Mapping[str, Any] | None:
    """Return the fields of the present journal entry of the command's setting that the new entry
    will replace, {name: value}. They restore the present entry if the change is cut off. None if
    the setting has no entry."""
    entry = was.find_entry(one.gpu_uuid, one.setting)
    if entry is None:
        return None
    if entry.state == setting_commands.PENDING:
        return entry.earlier
    kept = entry.as_json()
    return {name: kept[name] for name in ("now", "state", "watch", "owner", "who", "set_unix_s")}


def _is_default_value(one: SettingCommand, value: SettingValue, info: GpuInfo | None) -> bool:
    """Return whether `value` of the command's setting is the driver's default, or UNKNOWN, for
    which a revert sets the default."""
    return value == UNKNOWN or value_equals(
        one.setting, setting_of(one.setting).driver_default(info), value
    )


async def _save_journal_before_commands(held: LockedJournal, state: Journal) -> None:
    try:
        await held.save(state)
    except HostError as error:
        raise SettingsError(
            f"the previous values could not be saved to disk ({error.message}); nothing was "
            "changed",
            host=held.host.name,
            next_step=error.next_step or f"make {held.path} writable",
        ) from None


async def _start_guard(
    held: LockedJournal, was: Journal, guard: StartGuard | None
) -> GuardView | None:
    """Start the guard before the first command, so that no change is ever without a guard. If it
    cannot be started, save the journal as it was before (`was`), and raise SettingsError. A lost
    link raises HostUnreachable."""
    if guard is None:
        return None
    try:
        return await guard(held.journal)
    except HostUnreachable:
        raise  # the entries stay, and the host's values decide when the link is back
    except WorkbenchError as error:
        await held.save(was)
        raise SettingsError(
            f"no guard could be started ({error.message}); nothing was changed",
            host=held.host.name,
            next_step=error.next_step,
        ) from error


# -- notes -----------------------------------------------------------------------------------------


def note_foreign_values_in_commands(
    commands: Sequence[SettingCommand], state: Journal, now: CurrentValues
) -> list[SettingCommand]:
    """Return the commands of a plan. If another user or program has set the present value, the
    command gets a note that says so, and `foreign` if it would replace that value."""
    state, noted_commands = state.without_entries_of_lost_settings(now.energy_j), []
    for one in commands:
        key, live = (one.gpu_uuid, one.setting), now.value(one.gpu_uuid, one.setting)
        ours = state.entry_field_values(*key)
        by = claims.claim_behind_present_value(state.others, key, live, ours)
        note = claims.drift_message(ours, live, state.others) if ours else ""
        if by and not note:
            note = f"now {by.value_and_origin_text}"
        foreign = claims.replaces_foreign_value(key, one.value, live, ours, state.others)
        noted_commands.append(replace(one, note=join_sentences(one.note, note), foreign=foreign))
    return noted_commands


def _unpublished_change_note(state: Journal) -> str:
    if state.register.problem:
        return f"{state.register.problem}; other users cannot see this change either"
    why = state.register.unpublished
    return f"users other than this one cannot see this change: {why}" if why else ""


def _missing_revert_right_warning(
    one: SettingCommand, before: KnownValue, rights: Rights, now: CurrentValues
) -> str:
    """Return a warning if the user's `rights` suffice for a change but not for its revert,
    otherwise ""."""
    if one.right is not None or before[0] is None:
        return ""
    value = setting_commands.value_to_restore(before[0])
    commands = make_setting_commands(
        one.gpu_index, one.gpu_uuid, one.setting, value, rights, now.cores
    )
    lacking = next(filter(None, (c.right for c in commands)), None)
    return f"these rights allow the change but not its revert: {lacking}" if lacking else ""


# -- after the commands ----------------------------------------------------------------------------


async def _mark_entries_applied(
    held: LockedJournal, was: Journal, outcomes: Sequence[SettingOutcome]
) -> list[SettingOutcome]:
    """Mark the new entries of the journal as applied, remove those whose setting has its previous
    value again, and save the journal. Return the outcomes. If the journal cannot be saved, their
    messages say so."""
    state = held.journal
    for outcome in outcomes:
        one = outcome.command
        entry = state.find_entry(one.gpu_uuid, one.setting)
        assert entry is not None  # _write_and_publish_entries put it there
        if _entry_sets_previous_value(entry):
            state = state.without_entry(entry.gpu_and_setting)
        else:
            state = state.with_entry(replace(entry, state="applied", earlier=None))
    done = await save_journal_noting_failure(
        held, journal_with_logged_outcomes(state, "set", outcomes), outcomes
    )
    if held.was_lost:
        return await _withdraw_changes_reverted_meanwhile(held.host, was, done)
    return done


def _entry_sets_previous_value(entry: JournalEntry) -> bool:
    """Return whether the new value of a changed setting equals the previous one, so that there is
    nothing to revert."""
    if entry.before_known == claims.TOLD:
        return False
    if is_clock_lock(entry.setting) and entry.over:
        return False  # another user's lock: only the entry shows that it was replaced
    if (entry.now, entry.before) == (DEFAULT, UNKNOWN):
        return True
    return value_equals(entry.setting, entry.now, entry.before)


async def _withdraw_changes_reverted_meanwhile(
    host: Host, was: Journal, outcomes: Sequence[SettingOutcome]
) -> list[SettingOutcome]:
    """Read again the settings that were set, after this Workbench has lost the journal's lock, and
    return the outcomes. If a setting has its previous value again, its outcome fails and says so,
    and its journal entry from before the plan (`was`) is restored. If the host is out of reach,
    return the outcomes as they are."""
    commands = [outcome.command for outcome in outcomes]
    values = await read_values_after_change(host, _setting_keys_of(commands))
    if values is None:
        return list(outcomes)
    reverted = {
        o.command
        for o in outcomes
        if _has_returned_to_value(values, o.command, o.before, other=o.command.value)
    }
    if not reverted:
        return list(outcomes)
    async with journals.locked_journal(host) as held:
        state = held.journal
        for one in reverted:
            key = (one.gpu_uuid, one.setting)
            state = state.with_restored_entry(key, was.find_entry(*key))
        await held.save(state)
    told = (
        "it was set and read back, and then reverted by another program, such as the guard, which "
        "had seen no heartbeat of this Workbench"
    )
    return [
        replace(o, ok=False, in_force=InForce.NO_EFFECT, message=told)
        if o.command in reverted
        else o
        for o in outcomes
    ]


def _has_returned_to_value(
    values: CurrentValues,
    one: SettingCommand,
    value: SettingValue | None,
    *,
    other: SettingValue | None,
) -> bool:
    """Return whether the setting of a command has `value` now, and not `other`. False if the
    present value or `value` is unknown (None)."""
    live = values.value(one.gpu_uuid, one.setting)
    return value_equals(one.setting, live, value) and not value_equals(one.setting, live, other)


class RollbackOutcomes(NamedTuple):
    """The outcomes after a rollback: `final` of all commands of the plan, `undone` of the
    reverts."""

    final: list[SettingOutcome]
    undone: list[SettingOutcome]


async def _roll_back_commands(
    held: LockedJournal,
    was: Journal,
    outcomes: Sequence[SettingOutcome],
    ran: Mapping[SettingCommand, CommandRun],
    rights: Rights,
    now: CurrentValues,
) -> RollbackOutcomes:
    """After a command of a plan has failed, revert the commands that were run, save the journal,
    and return the outcomes. `was` is the journal from before the plan, `ran` has the results of the
    commands that were run, and `now` the values from before the plan."""
    state = journal_with_logged_outcomes(held.journal, "set", outcomes)
    undo: list[JournalEntry] = []
    for outcome in outcomes:
        one = outcome.command
        entry = state.find_entry(one.gpu_uuid, one.setting)
        assert entry is not None
        if judged.command_surely_changed_nothing(outcome, ran.get(one)) or value_equals(
            one.setting, outcome.before, one.value
        ):
            state = state.with_restored_entry(
                entry.gpu_and_setting, was.find_entry(*entry.gpu_and_setting)
            )
        else:
            undo.append(replace(entry, before=outcome.before, before_known=outcome.before_known))
    undone: list[SettingOutcome] = []
    back: dict[tuple[str, str], bool] = {}
    for entry, found in await restore_entries(held.host, undo, rights, now):
        back[entry.gpu_and_setting] = all(o.ok for o in found)
        state = journal_with_logged_outcomes(state, "roll back", found)
        if back[entry.gpu_and_setting]:
            state = state.with_restored_entry(
                entry.gpu_and_setting, was.find_entry(*entry.gpu_and_setting)
            )
        undone += found
    final = [
        _outcome_after_rollback(o, back.get((o.command.gpu_uuid, o.command.setting)))
        for o in outcomes
    ]
    return RollbackOutcomes(await save_journal_noting_failure(held, state, final), undone)


def _outcome_after_rollback(outcome: SettingOutcome, ok: bool | None) -> SettingOutcome:
    if not outcome.ok or ok is None:
        return outcome
    text = "it was rolled back" if ok else "its rollback failed as well"
    message = join_sentences(
        f"done, but a later command of the plan failed: {text}", outcome.message
    )
    return replace(outcome, ok=False, in_force=InForce.NOT_CHECKED, message=message)
