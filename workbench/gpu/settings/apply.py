"""Changing GPU settings and giving them back: journal first, then the commands, then what the host says.

A plan is applied whole or not at all: when one of its commands fails, those before it are given back. nvidia-smi's exit
status is not trusted: it is 0 where a setting is not supported. What the driver tells afterwards is compared with what
was asked; a clock lock cannot be read back, so it is "not checked" until it is seen under load.

Others change the same GPUs. What is there is looked at before each change and each revert, and explained by what other
Workbenches claim (claims.py): their temporary value is never taken for what was before, and nobody's value is replaced
unseen.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from workbench.gpu.settings import claims, command_runner
from workbench.gpu.settings import journal as journals
from workbench.gpu.settings import outcomes as judged
from workbench.gpu.settings import revert as restore
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.command_runner import Ran
from workbench.gpu.settings.cpu_governor import Governors, governors_on
from workbench.gpu.settings.current_values import CurrentValues, look, look_again
from workbench.gpu.settings.journal import Held, Journal, JournalEntry, Record
from workbench.gpu.settings.outcomes import joined
from workbench.gpu.settings.owners import ALIVE
from workbench.gpu.settings.plan import commands_for, plan, select
from workbench.gpu.settings.revert import DEFAULT, LOCKS, UNKNOWN, equal
from workbench.gpu.settings.rights import Rights, rights_on
from workbench.gpu.telemetry.source import read_once
from workbench.hosts.base import Host
from workbench.model.errors import HostError, SettingsError, WorkbenchError
from workbench.model.gpu import GpuInfo
from workbench.model.settings import (
    HOST,
    Alteration,
    GuardView,
    InForce,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)

__all__ = [
    "Governors",
    "Rights",
    "alterations",
    "apply",
    "forget_gone",
    "governors_on",
    "plan",
    "read_once",
    "records",
    "revert",
    "rights_on",
    "select",
]

KEEP, OURS, ORIGINAL = "keep", "ours", "original"  # of a value that someone else has set
Foreign = str
SET_AGAIN = "set again, as Workbench had it; it stays in the journal"
RETRY_S = (0.1, 0.4)
QUIET_S = 3.0
StartGuard = Callable[[], Awaitable[GuardView | None]]
Watch = Callable[[JournalEntry, JournalEntry | None], Mapping[str, Any]]


async def apply(
    host: Host,
    commands: Sequence[SettingCommand],
    *,
    dry_run: bool = False,
    rights: Rights | None = None,
    guard: StartGuard | None = None,
    watch: Watch | None = None,
) -> SettingsReport:
    """Run the commands of a plan. When one fails, the rest is not run and what was done is given back.

    `guard` is awaited with the journal's lock held, once the previous values are on disk and before the first command;
    when it raises, nothing is changed. `watch` says what it is to do with a new entry, given the one that was there
    for the same setting. `rights`: with the password, where sudo wants one.
    SettingsError, and nothing changed, when the journal cannot be read, locked or written, or the GPUs cannot be read.
    """
    path = await journals.path_on(host)
    if not commands:
        return SettingsReport((), path, dry_run)
    settings, mine = {c.setting for c in commands}, rights or Rights()
    if dry_run or any(c.right for c in commands):
        seen, state = await look(host, settings), await journals.read(host)
        commands = _standing(commands, state, seen)
        stays = {c.gpu_uuid for c in commands if c.setting == "persistence" and c.value}
        told = []
        for one in commands:
            known = _told_before(one, state, seen)
            lost = "" if one.gpu_uuid in stays else judged.volatile(one, seen)
            told.append(judged.planned(one, known, dry_run, joined(_no_way_back(one, known, mine, seen), lost)))
        return SettingsReport(tuple(judged.told_once(told)), path, dry_run)
    async with journals.locked(host) as held:
        seen, was, before = await _announced(held, commands, watch)
        watching = await _guarded(held, was, guard)
        ran = await command_runner.run_all(host, commands, mine)
        after = await look_again(host, settings)
        outcomes = judged.told_once([judged.of_change(c, before[c], ran.get(c), after, seen) for c in commands])
        if all(o.ok for o in outcomes):
            outcomes = [
                replace(o, message=joined(o.message, _no_way_back(o.command, before[o.command], mine, seen)))
                for o in outcomes
            ]
            outcomes[0] = replace(outcomes[0], message=joined(outcomes[0].message, _untold(held.journal)))
            return SettingsReport(tuple(await _settle(held, outcomes)), path, guard=watching)
        outcomes, back = await _roll_back(held, was, outcomes, ran, mine, seen)
        watching = watching if any(e.watch for e in held.journal.entries) else None
        return SettingsReport(tuple(outcomes), path, rolled_back=tuple(back), guard=watching)


async def _announced(
    held: Held, commands: Sequence[SettingCommand], watch: Watch | None
) -> tuple[CurrentValues, Journal, dict[SettingCommand, tuple[Any, str]]]:
    """What is there before, the journal as it was, and the values before, once they are on disk and all others were
    told. Whoever finds another at the same setting takes its announcement back and waits, so that two never change one
    setting at once."""
    host, settings = held.host, {c.setting for c in commands}
    keys = {(c.gpu_uuid, c.setting) for c in commands}
    until = time.monotonic() + journals.WAIT_S
    while True:
        seen = await look(host, settings)
        was = held.journal.without_gone(seen.energy_j)
        before = {c: _before(c, was, seen) for c in commands}
        state = was
        for one in commands:
            entry = _entry(one, before[one], state, seen)
            state = state.put(replace(entry, watch=watch(entry, was.get(*entry.key))) if watch else entry)
        await _save_first(held, state)
        rival = held.rival(keys)
        if rival is None and _of(held.journal.without_gone(seen.energy_j).others, keys) == _of(was.others, keys):
            return seen, was, before
        await _save_first(held, replace(was, others=held.journal.others))
        if rival is not None and time.monotonic() > until:
            raise SettingsError(
                f"{rival.by} is changing {_where(rival)} {rival.setting} with Workbench; nothing was changed",
                host=host.name,
                next_step=f"wait for its process {rival.pid} to end, then try again; root can end it",
            )
        await asyncio.sleep(random.uniform(*RETRY_S))


def _untold(state: Journal) -> str:
    problem = state.register.problem
    return f"{problem}; nor can they see this change" if problem else ""


def _of(others: Iterable[SettingClaim], keys: Collection[tuple[str, str]]) -> list[SettingClaim]:
    return sorted(c for c in others if c.key in keys)


def _where(one: SettingClaim | JournalEntry) -> str:
    return "host" if one.gpu_uuid == HOST else f"GPU{one.gpu_index}"


async def revert(
    host: Host,
    gpu: int | str | None = None,
    *,
    dry_run: bool = False,
    rights: Rights | None = None,
    foreign: Foreign | None = None,
) -> SettingsReport:
    """Give back the recorded values, of one GPU, of the "host", or all; verified. What could not be given back stays in
    the journal, with the command to run by hand. With nothing to revert the report is empty.

    A value that another Workbench has set since is left to it. One that someone else has set stays, and our entry too,
    unless `foreign` says what is to become of it: "keep" theirs, set "ours" again, or give the "original" back.
    """
    path = await journals.path_on(host)
    if dry_run:
        would = await _would_give_back(host, gpu, rights, foreign)
        return SettingsReport(tuple(would), path, dry_run)
    async with journals.locked(host) as held:
        if not held.journal.entries:
            return SettingsReport((), path)
        await _quiet(held)
        seen = await look(host, {e.setting for e in held.journal.entries})
        state = held.journal.without_gone(seen.energy_j)
        ways = _ways(_chosen(state.entries, gpu, seen), state, seen, foreign)
        told: list[SettingOutcome] = []
        others = {r.entry.key for r in state.records() if r.owner == ALIVE}
        rights = rights or await rights_on(host)
        to_set = [replace(entry, before=way.value) for entry, way in ways if way.do == claims.RESTORE]
        given = {entry.key: outcomes for entry, outcomes in await _give_back(host, to_set, rights, seen, seen)}
        for entry, way in ways:
            outcomes = given.get(entry.key) or [judged.of_leaving(_left(entry, way, seen), entry, way)]
            whose = f"made by {entry.who}, process {entry.owner.get('pid')}, which still runs"
            told += [replace(o, message=joined(o.message, whose)) if entry.key in others else o for o in outcomes]
            state = _noted(state, "revert" if way.do == claims.RESTORE else f"revert: {way.do}", outcomes)
            if not all(o.ok for o in outcomes):
                continue
            if foreign == OURS and way.do == claims.RESTORE and equal(entry.setting, way.value, entry.now):
                told[-len(outcomes) :] = [replace(o, message=SET_AGAIN) for o in told[-len(outcomes) :]]
                state = state.put(replace(entry, set_unix_s=seen.telemetry.unix_s))
            else:
                state = state.drop(entry.key)
        return SettingsReport(tuple(await _save_last(held, state, told)), path)


async def _quiet(held: Held) -> None:
    """Wait for others who are changing what is ours; not for long, since a way back must not hang on anybody."""
    keys = {e.key for e in held.journal.entries}
    until = time.monotonic() + QUIET_S
    while held.rival(keys) is not None and time.monotonic() < until:
        await asyncio.sleep(RETRY_S[0])
        held.journal = await journals.read(held.host)


def _ways(
    entries: Sequence[JournalEntry], state: Journal, seen: CurrentValues, foreign: Foreign | None
) -> list[tuple[JournalEntry, claims.WayBack]]:
    """In the order in which they are given back."""
    found = []
    for entry in _in_order(entries):
        way = claims.way_back(asdict(entry), seen.told(entry.gpu_uuid, entry.setting), state.others)
        if way.do in (claims.ASK, claims.LEAVE) and foreign is not None:
            chosen = {OURS: (claims.RESTORE, entry.now), ORIGINAL: (claims.RESTORE, entry.before)}
            do, value = chosen.get(foreign, (claims.LEAVE, way.value))
            way = claims.WayBack(do, value, "" if do == claims.RESTORE else "left as it is")
        found.append((entry, way))
    return found


def _left(entry: JournalEntry, way: claims.WayBack, seen: CurrentValues) -> SettingCommand:
    """For a report: a setting for which nothing is run."""
    index = seen.index(entry.gpu_uuid, entry.gpu_index)
    return SettingCommand(index, entry.gpu_uuid, entry.setting, (), value=way.value)


async def records(
    host: Host, energy_j: Mapping[str, float] | None = None
) -> tuple[tuple[Record, ...], tuple[Mapping[str, Any], ...]]:
    """The journal's entries with what has become of them and their owners, and its log. Changes nothing. SettingsError
    when it cannot be read."""
    state = await journals.read(host)
    return state.records(energy_j), state.log


async def standing(host: Host, commands: Sequence[SettingCommand]) -> list[SettingCommand]:
    """The commands of a plan, with a note where the value that is there is another's."""
    if not commands:
        return []
    return _standing(commands, await journals.read(host), await look(host, {c.setting for c in commands}))


def _standing(commands: Sequence[SettingCommand], state: Journal, seen: CurrentValues) -> list[SettingCommand]:
    state, noted = state.without_gone(seen.energy_j), []
    for one in commands:
        key, live = (one.gpu_uuid, one.setting), seen.told(one.gpu_uuid, one.setting)
        entry = state.get(*key)
        ours = asdict(entry) if entry else None
        by = claims.explains(state.others, key, live, ours)
        said = (claims.drift(ours, live, state.others) if ours else None) or (by and f"now {by.text}") or ""
        noted.append(replace(one, note=joined(one.note, said)))
    return noted


async def forget_gone(host: Host, energy_j: Mapping[str, float]) -> None:
    """Write down that settings are gone with a restart, so that nobody is told again."""
    async with journals.locked(host) as held:
        kept = held.journal.without_gone(energy_j)
        if kept.entries != held.journal.entries:
            await held.save(kept)


async def alterations(host: Host) -> tuple[Alteration, ...]:
    """What Workbench changed on this host and has not given back; settings that a restart took away are not counted."""
    found, _ = await records(host)
    return tuple(alteration(record) for record in found if record.gone is None)


def alteration_of(claim: SettingClaim) -> Alteration:
    """Of another Workbench: `extra["by"]` says whose."""
    extra = {"by": claim.by, "state": claim.state}
    return Alteration(claim.gpu_index, claim.gpu_uuid, claim.setting, claim.before, claim.now, claim.set_unix_s, extra)


def alteration(record: Record) -> Alteration:
    entry = record.entry
    return Alteration(
        entry.gpu_index,
        entry.gpu_uuid,
        entry.setting,
        entry.before,
        entry.now,
        entry.since_unix_s,
        {
            "who": entry.who,
            "owner": entry.owner,
            "owner_state": record.owner,
            "state": entry.state,
            "before_known": entry.before_known,
            "set_unix_s": claims.set_at(asdict(entry)),
            "origin": entry.origin,
        },
    )


def _told_before(one: SettingCommand, state: Journal, seen: CurrentValues) -> tuple[Any, str]:
    if one.setting in LOCKS:
        return state.known_lock(one.gpu_uuid, one.setting)
    return seen.told(one.gpu_uuid, one.setting), "read"


def _before(one: SettingCommand, state: Journal, seen: CurrentValues) -> tuple[Any, str]:
    """The value before, and how it is known. SettingsError when it should be readable and is not: nothing to go back
    to means nothing is changed."""
    if one.gpu_uuid != HOST and (sample := seen.sample(one.gpu_uuid)) is None:
        lost = next((s.message for s in seen.telemetry.gpus if s.uuid == one.gpu_uuid), None)
        raise SettingsError(f"GPU {one.gpu_index} cannot be read ({lost or 'not on this host'}); nothing was changed")
    value, how = _told_before(one, state, seen)
    if value is not None:
        return value, how
    if one.gpu_uuid == HOST:
        raise SettingsError(f"the CPU governor before is unknown ({seen.governors.problem}); nothing was changed")
    why = sample.absent.get(one.setting, "the driver does not tell") if sample else ""
    raise SettingsError(f"GPU {one.gpu_index}: {one.setting} before is unknown ({why}); nothing was changed")


def _no_way_back(one: SettingCommand, before: tuple[Any, str], rights: Rights, seen: CurrentValues) -> str:
    """What to say where these rights allow a change but not its undoing; "" where they do, or allow neither."""
    if one.right is not None or before[0] is None:
        return ""
    value = restore.wanted_back(before[0])
    lacking = [
        c.right
        for c in commands_for(one.gpu_index, one.gpu_uuid, one.setting, value, rights, seen.governors)
        if c.right
    ]
    return f"with these rights it cannot be given back: {lacking[0]}" if lacking else ""


def _entry(one: SettingCommand, before: tuple[Any, str], state: Journal, seen: CurrentValues) -> JournalEntry:
    """A temporary value of another is not what was before: what that one told is."""
    info = next((i for i in seen.telemetry.infos if i.uuid == one.gpu_uuid), None)
    key, live = (one.gpu_uuid, one.setting), seen.told(one.gpu_uuid, one.setting)
    entry = state.get(*key)
    old = asdict(entry) if entry is not None else None
    by = claims.explains(state.others, key, live, old)
    if by is not None:
        before = (by.before, DEFAULT if _is_default(one, by.before, info) else claims.TOLD)
    return JournalEntry(
        gpu_uuid=one.gpu_uuid,
        gpu_index=one.gpu_index,
        gpu_name=info.name if info else "CPUs" if one.gpu_uuid == HOST else "unknown",
        setting=one.setting,
        before=before[0],
        before_known=before[1],
        now=one.value,
        since_unix_s=seen.telemetry.unix_s,
        boot_id=state.boot_id,
        driver=seen.telemetry.driver.driver_version,
        who=journals.who(),
        owner=journals.owner_facts(),
        energy_j=seen.energy_j.get(one.gpu_uuid),
        state="pending",
        set_unix_s=seen.telemetry.unix_s,
        over=tuple(claims.lies_under(state.others, key, live, old)),
        origin=by.by if by is not None else "",
    )


def _is_default(one: SettingCommand, value: Any, info: GpuInfo | None) -> bool:
    """Whether the driver has `value` by itself, so that it is set without asking, whoever told it."""
    default = {"persistence": False, "power_limit_w": info.power_default_w if info else None}
    return value == UNKNOWN or equal(one.setting, default.get(one.setting, DEFAULT), value)


async def _save_first(held: Held, state: Journal) -> None:
    try:
        await held.save(state)
    except HostError as error:
        raise SettingsError(
            f"the previous values could not be written ({error.message}); nothing was changed",
            host=held.host.name,
            next_step=error.next_step or f"make {held.path} writable",
        ) from None


async def _guarded(held: Held, was: Journal, guard: StartGuard | None) -> GuardView | None:
    """Started before the first command, so that no change is ever without it."""
    if guard is None:
        return None
    try:
        return await guard()
    except WorkbenchError as error:
        await held.save(was)
        raise SettingsError(
            f"no guard could be started ({error.message}); nothing was changed",
            host=held.host.name,
            next_step=error.next_step,
        ) from error


async def _settle(held: Held, outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """The journal after everything was done."""
    state = held.journal
    for outcome in outcomes:
        one = outcome.command
        entry = state.get(one.gpu_uuid, one.setting)
        assert entry is not None  # put there before
        over = entry.over and one.setting in LOCKS  # another's lock is told so, as nothing else would tell it
        if (
            not over
            and (entry.before_known != claims.TOLD)
            and (equal(entry.setting, entry.now, entry.before) or (one.value == DEFAULT and entry.before == UNKNOWN))
        ):
            state = state.drop(entry.key)  # as it was, or as near to it as can be known
        else:
            state = state.put(replace(entry, state="applied"))
    return await _save_last(held, _noted(state, "set", outcomes), outcomes)


async def _roll_back(
    held: Held,
    was: Journal,
    outcomes: Sequence[SettingOutcome],
    ran: Mapping[SettingCommand, Ran],
    rights: Rights,
    seen: CurrentValues,
) -> tuple[list[SettingOutcome], list[SettingOutcome]]:
    """Give back what was done before a command failed: the outcomes as they are then, and those of giving back."""
    state = _noted(held.journal, "set", outcomes)
    undo: list[JournalEntry] = []
    for outcome in outcomes:
        one = outcome.command
        entry = state.get(one.gpu_uuid, one.setting)
        assert entry is not None
        if judged.surely_unchanged(outcome, ran.get(one)) or equal(one.setting, outcome.before, one.value):
            state = state.back_to(entry.key, was.get(*entry.key))
        else:
            undo.append(replace(entry, before=outcome.before, before_known=outcome.before_known))
    given: list[SettingOutcome] = []
    back: dict[tuple[str, str], bool] = {}
    for entry, told in await _give_back(held.host, undo, rights, seen):
        back[entry.key] = all(o.ok for o in told)
        state = _noted(state, "roll back", told)
        if back[entry.key]:
            state = state.back_to(entry.key, was.get(*entry.key))
        given += told
    final = [_undone(o, back.get((o.command.gpu_uuid, o.command.setting))) for o in outcomes]
    return await _save_last(held, state, final), given


def _undone(outcome: SettingOutcome, given_back: bool | None) -> SettingOutcome:
    if not outcome.ok or given_back is None:
        return outcome
    text = "given back" if given_back else "it should have been given back, which failed as well"
    message = joined(f"done, but a later command of the plan failed: {text}", outcome.message)
    return replace(outcome, ok=False, in_force=InForce.NOT_CHECKED, message=message)


async def _give_back(
    host: Host, entries: Sequence[JournalEntry], rights: Rights, seen: CurrentValues, live: CurrentValues | None = None
) -> list[tuple[JournalEntry, list[SettingOutcome]]]:
    """Set what each entry had before, whatever becomes of the others, and look at what the host then tells.
    `live`: what it told just before, where that may not be what the entries say."""
    ordered = _in_order(entries)
    pairs = [(entry, _restoring(entry, rights, seen)) for entry in ordered]
    ran = await command_runner.try_all(host, [one for _, commands in pairs for one in commands], rights)
    after = await look_again(host, {e.setting for e in ordered}) if pairs else seen
    was = {e.key: (live.told(*e.key) if live else None) for e in ordered}
    return [
        (e, [judged.of_restoring(e, one, ran[one], after, was[e.key]) for one in commands]) for e, commands in pairs
    ]


async def _would_give_back(
    host: Host, gpu: int | str | None, rights: Rights | None, foreign: Foreign | None
) -> list[SettingOutcome]:
    state = await journals.read(host)
    if not state.entries:
        return []
    seen, mine = await look(host, {e.setting for e in state.entries}), rights or await rights_on(host)
    state, found = state.without_gone(seen.energy_j), []
    for entry, way in _ways(_chosen(state.entries, gpu, seen), state, seen, foreign):
        if way.do != claims.RESTORE:
            found.append(judged.of_leaving(_left(entry, way, seen), entry, way))
            continue
        warning = judged.FOREIGN if entry.before == UNKNOWN else ""
        for one in _restoring(replace(entry, before=way.value), mine, seen):
            live = seen.told(*entry.key)
            known = (entry.now, "journal") if live is None else (live, "read")
            found.append(judged.planned(one, known, True, warning))
    return found


def _in_order(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    return sorted(entries, key=lambda e: (e.gpu_uuid == HOST, e.gpu_index, restore.order(e.setting)))


def _restoring(entry: JournalEntry, rights: Rights, seen: CurrentValues) -> tuple[SettingCommand, ...]:
    value = restore.wanted_back(entry.before)
    index = seen.index(entry.gpu_uuid, entry.gpu_index)
    return commands_for(index, entry.gpu_uuid, entry.setting, value, rights, seen.governors)


def _chosen(entries: Sequence[JournalEntry], gpu: int | str | None, seen: CurrentValues) -> list[JournalEntry]:
    if gpu is None:
        return list(entries)
    if str(gpu) == HOST:
        return [e for e in entries if e.gpu_uuid == HOST]
    here = [i.uuid for i in seen.telemetry.infos if str(gpu) in (str(i.index), i.uuid)]
    gone = [e.gpu_uuid for e in entries if str(gpu) in (str(e.gpu_index), e.gpu_uuid)]
    uuid = (here or gone or [select(str(gpu), seen.telemetry)[0].uuid])[0]
    return [e for e in entries if e.gpu_uuid == uuid]


def _noted(state: Journal, what: str, outcomes: Collection[SettingOutcome]) -> Journal:
    for o in outcomes:
        one = o.command
        state = state.note(
            what, gpu_uuid=one.gpu_uuid, setting=one.setting, before=o.before, now=one.value, ok=o.ok, message=o.message
        )
    return state


async def _save_last(held: Held, state: Journal, outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """After the change the report matters more than the journal, which still holds every previous value."""
    try:
        await held.save(state)
    except HostError as error:
        note = f"the journal could not be brought up to date ({error.message}); it still holds the previous values"
        return [replace(o, message=joined(o.message, note)) for o in outcomes]
    return list(outcomes)
