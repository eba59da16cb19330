"""Changing GPU settings and giving them back: journal first, then nvidia-smi, then what the driver says.

nvidia-smi's exit status is not trusted: it is 0 where a setting is not supported. What the driver tells afterwards is
compared with what was asked; a clock lock cannot be read back, so it is "not checked" until it is seen under load.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.gpu import journal as journals
from workbench.gpu.journal import DEFAULT, UNKNOWN, Entry, Held, Journal
from workbench.gpu.plan import command as command_for
from workbench.gpu.plan import plan, select
from workbench.gpu.rights import Rights, rights_on
from workbench.gpu.source import read_once
from workbench.hosts.base import CommandNotFound, CommandTimeout, Completed, Host
from workbench.model.errors import HostError, SettingsError
from workbench.model.gpu import GpuSample, GpuState, Telemetry
from workbench.model.settings import Alteration, InForce, SettingCommand, SettingOutcome, SettingsReport

__all__ = ["Rights", "alterations", "apply", "plan", "revert", "rights_on", "select"]

COMMAND_S = 60.0  # with persistence off each call initialises the GPU first: seconds
WATTS_EQUAL = 0.5
LOCKS = ("gpu_clocks", "memory_clocks")
FAILED = re.compile(
    r"treating as warning|not supported|insufficient permissions|does not have permission|terminating early|"
    r"unable to|failed|invalid|is not a valid|gpu is lost|unknown error|no devices were found|password is required|"
    r"not allowed to",
    re.IGNORECASE,
)
NOT_CHECKED_LOCK = "accepted; a clock lock cannot be read back: whether it holds shows under load"
VOLATILE = "persistence mode is off: the setting is lost when the last program that uses the GPU ends"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command went: `failure` None when nvidia-smi says that it did it; `unsure` when it may have done it."""

    failure: str | None = None
    unsure: bool = False


async def apply(host: Host, commands: Sequence[SettingCommand], *, dry_run: bool = False) -> SettingsReport:
    """Run the commands of a plan, all or up to the first that fails; the journal keeps what was before.

    SettingsError, and nothing changed, when the journal cannot be read, locked or written, or the GPUs cannot be read.
    """
    path = await journals.path_on(host)
    if not commands:
        return SettingsReport((), path, dry_run)
    refused = [c for c in commands if c.right]
    if dry_run or refused:
        reading = await read_once(host)
        state = await journals.read(host)
        return SettingsReport(tuple(_planned(c, state, reading, dry_run) for c in commands), path, dry_run)
    async with journals.locked(host) as held:
        reading = await read_once(host)
        state = held.journal.without_gone(_energy(reading))
        before = {c: _before(c, state, reading) for c in commands}
        for one in commands:
            known, how = before[one]
            state = state.put(_entry(one, known, how, state, reading))
        await _save_first(held, state)
        ran = await _run_all(host, commands)
        after = await _read_after(host)
        outcomes = [_outcome(c, before[c][0], ran.get(c), after, reading) for c in commands]
        return SettingsReport(tuple(await _settle(held, outcomes, ran)), path)


async def revert(host: Host, gpu: int | str | None = None) -> SettingsReport:
    """Give back the recorded values, of one GPU or all; verified. What could not be given back stays in the journal,
    with the command to run by hand. With nothing to revert the report is empty."""
    path = await journals.path_on(host)
    async with journals.locked(host) as held:
        if not held.journal.entries:
            return SettingsReport((), path)
        reading = await read_once(host)
        state = held.journal.without_gone(_energy(reading))
        rights = await rights_on(host)
        outcomes: list[SettingOutcome] = []
        ran: dict[SettingCommand, Ran] = {}
        pairs = [(entry, _restoring(entry, reading, rights)) for entry in _chosen(state.entries, gpu, reading)]
        for _, one in pairs:
            ran[one] = Ran(failure=one.right) if one.right else await _run(host, one)
        after = await _read_after(host) if pairs else reading
        for entry, one in pairs:
            outcome = _restored(entry, one, ran[one], after)
            outcomes.append(outcome)
            state = state.note(
                "revert", gpu_uuid=entry.gpu_uuid, setting=entry.setting, now=one.value, ok=outcome.ok,
                message=outcome.message,
            )  # fmt: skip
            if outcome.ok:
                state = state.drop(entry.key)
        return SettingsReport(tuple(await _save_last(held, state, outcomes)), path)


async def alterations(host: Host) -> tuple[Alteration, ...]:
    """What Workbench changed on this host and has not given back; settings that a restart took away are not counted."""
    state = await journals.read(host)
    return tuple(
        Alteration(
            entry.gpu_index, entry.gpu_uuid, entry.setting, entry.before, entry.now, entry.since_unix_s,
            {"who": entry.who, "owner": entry.owner, "state": entry.state, "before_known": entry.before_known},
        )
        for entry in state.entries
        if state.gone(entry) is None
    )  # fmt: skip


def _energy(reading: Telemetry) -> dict[str, float]:
    return {s.uuid: s.energy_j for s in reading.gpus if s.energy_j is not None}


def _sample(reading: Telemetry, uuid: str) -> GpuSample | None:
    return next((s for s in reading.gpus if s.uuid == uuid and s.state is GpuState.LIVE), None)


def _told(one: SettingCommand, reading: Telemetry) -> Any:
    """What the driver says of a setting now; None where it does not."""
    sample = _sample(reading, one.gpu_uuid)
    return None if sample is None or one.setting in LOCKS else getattr(sample, one.setting)


def _before(one: SettingCommand, state: Journal, reading: Telemetry) -> tuple[Any, str]:
    """The value before, and how it is known. SettingsError when it should be readable and is not: nothing to go back
    to means nothing is changed."""
    sample = _sample(reading, one.gpu_uuid)
    if sample is None:
        lost = next((s.message for s in reading.gpus if s.uuid == one.gpu_uuid), None)
        raise SettingsError(f"GPU {one.gpu_index} cannot be read ({lost or 'not on this host'}); nothing was changed")
    if one.setting in LOCKS:
        return state.known_lock(one.gpu_uuid, one.setting)
    value = getattr(sample, one.setting)
    if value is None:
        why = sample.absent.get(one.setting, "the driver does not tell")
        raise SettingsError(f"GPU {one.gpu_index}: {one.setting} before is unknown ({why}); nothing was changed")
    return value, "read"


def _entry(one: SettingCommand, before: Any, how: str, state: Journal, reading: Telemetry) -> Entry:
    info = next((i for i in reading.infos if i.uuid == one.gpu_uuid), None)
    return Entry(
        gpu_uuid=one.gpu_uuid,
        gpu_index=one.gpu_index,
        gpu_name=info.name if info else "unknown",
        setting=one.setting,
        before=before,
        before_known=how,
        now=one.value,
        since_unix_s=reading.unix_s,
        boot_id=state.boot_id,
        driver=reading.driver.driver_version,
        who=journals.who(),
        owner=journals.owner_facts(),
        energy_j=_energy(reading).get(one.gpu_uuid),
        state="pending",
    )


def _planned(one: SettingCommand, state: Journal, reading: Telemetry, dry_run: bool) -> SettingOutcome:
    before = state.known_lock(one.gpu_uuid, one.setting)[0] if one.setting in LOCKS else _told(one, reading)
    message = one.right or ("" if dry_run else "not run: another command of this plan is not allowed")
    return SettingOutcome(one, dry_run and one.right is None, before, one.value, None, InForce.NOT_CHECKED, message)


async def _save_first(held: Held, state: Journal) -> None:
    try:
        await held.save(state)
    except HostError as error:
        raise SettingsError(
            f"the previous values could not be written ({error.message}); nothing was changed",
            host=held.host.name,
            next_step=error.next_step or f"make {held.path} writable",
        ) from None


async def _run_all(host: Host, commands: Sequence[SettingCommand]) -> dict[SettingCommand, Ran]:
    """Up to the first failure; commands that were not run are not in the answer."""
    ran: dict[SettingCommand, Ran] = {}
    for one in commands:
        ran[one] = await _run(host, one)
        if ran[one].failure:
            break
    return ran


async def _run(host: Host, one: SettingCommand) -> Ran:
    try:
        done = await host.run(one.argv, timeout_s=COMMAND_S)
    except CommandTimeout:
        return Ran(f"nvidia-smi did not end within {COMMAND_S:.0f} s", unsure=True)
    except CommandNotFound as error:
        return Ran(error.message)
    except HostError as error:
        return Ran(error.message, unsure=True)
    said = " ".join((done.out + " " + done.err).split())
    return Ran(_failure(done, said))


def _failure(done: Completed, said: str) -> str | None:
    if done.returncode != 0:
        return said or f"nvidia-smi ended with {done.returncode}"
    return said if FAILED.search(said) else None


async def _read_after(host: Host) -> Telemetry | None:
    try:
        return await read_once(host)
    except HostError:
        return None


def _outcome(
    one: SettingCommand, before: Any, ran: Ran | None, after: Telemetry | None, reading: Telemetry
) -> SettingOutcome:
    told = None if after is None else _told(one, after)
    if ran is None:
        return SettingOutcome(
            one, False, before, one.value, told, InForce.NOT_CHECKED, "not run: the one before failed"
        )
    if ran.failure and not (ran.unsure and told is not None and _equal(told, one.value)):  # done, its answer was lost
        hint = f"{ran.failure}. By hand: {by_hand(one)}"
        return SettingOutcome(one, False, before, one.value, told, InForce.NOT_CHECKED, hint)
    volatile = VOLATILE if one.setting != "persistence" and _told_persistence(one, after or reading) is False else ""
    if one.setting in LOCKS:
        message = NOT_CHECKED_LOCK if one.value != DEFAULT else "reset to the driver's default"
        return SettingOutcome(one, True, before, one.value, None, InForce.NOT_CHECKED, _join(message, volatile))
    if told is None:
        message = "accepted, but the driver does not tell the value now"
        return SettingOutcome(one, True, before, one.value, None, InForce.NOT_CHECKED, _join(message, volatile))
    if not _equal(told, one.value):
        return SettingOutcome(one, False, before, one.value, told, InForce.NO_EFFECT, _no_effect(one, told))
    sample = _sample(after, one.gpu_uuid) if after else None
    if one.setting == "power_limit_w" and sample is not None and sample.power_limit_enforced_w is not None:
        enforced = sample.power_limit_enforced_w
        if enforced < one.value - WATTS_EQUAL:
            message = f"the driver enforces {enforced:g} W: another limit is lower"
            return SettingOutcome(one, True, before, one.value, told, InForce.CAPPED, _join(message, volatile))
    return SettingOutcome(one, True, before, one.value, told, InForce.YES, volatile)


def _told_persistence(one: SettingCommand, reading: Telemetry) -> bool | None:
    sample = _sample(reading, one.gpu_uuid)
    return None if sample is None else sample.persistence


def _no_effect(one: SettingCommand, told: Any) -> str:
    text = f"nvidia-smi reported success, but the driver says {_shown(told)}, not {_shown(one.value)}"
    if one.setting == "persistence":
        text += " (in a container it reads off unless the nvidia-persistenced socket is mounted)"
    return text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g} W" if isinstance(value, int | float) else str(value)


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _equal(told: Any, value: Any) -> bool:
    if isinstance(told, bool) or isinstance(value, bool) or not isinstance(told, int | float):
        return bool(told == value)
    return abs(told - float(value)) <= WATTS_EQUAL


def by_hand(one: SettingCommand) -> str:
    """The command as a person would type it."""
    argv = one.argv[2:] if one.argv[:2] == ("sudo", "-n") else one.argv
    return shlex.join(("sudo", *argv))


async def _settle(
    held: Held, outcomes: list[SettingOutcome], ran: Mapping[SettingCommand, Ran]
) -> list[SettingOutcome]:
    """The journal after the fact: what was done is altered, what surely was not done is not."""
    state = held.journal
    for outcome in outcomes:
        one = outcome.command
        entry = state.get(one.gpu_uuid, one.setting)
        if entry is None:
            continue
        if _surely_unchanged(outcome, ran.get(one)):
            state = state.drop(entry.key) if _equal(entry.before, outcome.before) else state.put(
                replace(entry, now=outcome.before, state="applied")
            )  # fmt: skip
        elif outcome.ok and (_equal(entry.now, entry.before) or (one.value == DEFAULT and entry.before == UNKNOWN)):
            state = state.drop(entry.key)  # as it was, or as near to it as can be known
        else:
            state = state.put(replace(entry, state="applied" if outcome.ok else "pending"))
        state = state.note(
            "set", gpu_uuid=one.gpu_uuid, setting=one.setting, before=outcome.before, now=one.value, ok=outcome.ok,
            message=outcome.message,
        )  # fmt: skip
    return await _save_last(held, state, outcomes)


def _surely_unchanged(outcome: SettingOutcome, ran: Ran | None) -> bool:
    if outcome.ok or (ran is not None and ran.unsure):
        return False
    if outcome.command.setting in LOCKS or ran is None:
        return True  # refused by nvidia-smi, or never run
    return outcome.read_back is not None and _equal(outcome.read_back, outcome.before)


async def _save_last(held: Held, state: Journal, outcomes: list[SettingOutcome]) -> list[SettingOutcome]:
    """After the change the report matters more than the journal, which still holds every previous value."""
    try:
        await held.save(state)
    except HostError as error:
        note = f"the journal could not be brought up to date ({error.message}); it still holds the previous values"
        return [replace(o, message=_join(o.message, note)) for o in outcomes]
    return outcomes


def _chosen(entries: Sequence[Entry], gpu: int | str | None, reading: Telemetry) -> list[Entry]:
    """Locks are given back first and persistence last, so that each is still held up while it matters."""
    uuid = None
    if gpu is not None:
        here = [i.uuid for i in reading.infos if str(gpu) in (str(i.index), i.uuid)]
        gone = [e.gpu_uuid for e in entries if str(gpu) in (str(e.gpu_index), e.gpu_uuid)]
        uuid = (here or gone or [select(str(gpu), reading)[0].uuid])[0]
    order = (*LOCKS, "power_limit_w", "persistence")
    mine = [e for e in entries if uuid in (None, e.gpu_uuid)]
    return sorted(mine, key=lambda e: (e.gpu_index, order.index(e.setting) if e.setting in order else 0))


def _restoring(entry: Entry, reading: Telemetry, rights: Rights) -> SettingCommand:
    value = DEFAULT if entry.before == UNKNOWN else entry.before
    index = next((i.index for i in reading.infos if i.uuid == entry.gpu_uuid), entry.gpu_index)
    return command_for(index, entry.gpu_uuid, entry.setting, value, rights)


def _restored(entry: Entry, one: SettingCommand, ran: Ran, after: Telemetry | None) -> SettingOutcome:
    told = None if after is None else _told(one, after)
    kept = f"it stays in the journal. By hand: {by_hand(one)}"
    if ran.failure and not (told is not None and _equal(told, one.value)):
        message = _join(ran.failure, kept)
        return SettingOutcome(one, False, entry.now, one.value, told, InForce.NOT_CHECKED, message)
    if one.setting in LOCKS:
        message = "locked again as before" if one.value != DEFAULT else "reset to the driver's default"
        if entry.before == UNKNOWN:
            message += ": what was before is not known, since another's lock cannot be read"
        return SettingOutcome(one, True, entry.now, one.value, None, InForce.NOT_CHECKED, message)
    if told is None or not _equal(told, one.value):
        message = _join(_no_effect(one, "nothing" if told is None else told), kept)
        return SettingOutcome(one, False, entry.now, one.value, told, InForce.NO_EFFECT, message)
    return SettingOutcome(one, True, entry.now, one.value, told, InForce.YES, "as it was before")
