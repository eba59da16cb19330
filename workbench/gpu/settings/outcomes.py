"""What became of a setting, judged by what the host tells afterwards and not by an exit status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.gpu.settings import claims, revert
from workbench.gpu.settings.command_runner import Ran
from workbench.gpu.settings.current_values import CurrentValues
from workbench.gpu.settings.journal import JournalEntry
from workbench.gpu.settings.revert import DEFAULT, LOCKS, UNKNOWN, WATTS_EQUAL, equal
from workbench.model.settings import InForce, SettingCommand, SettingOutcome

NOT_CHECKED_LOCK = "accepted; a clock lock cannot be read back: whether it holds shows under load"
VOLATILE = (  # NVIDIA's page on data persistence names power limits; of locks nobody says
    "persistence mode is off: a power limit is lost, and a lock may be, when the last program that uses the GPU ends; "
    "persistence on keeps it"
)
FOREIGN = "what was before is unknown: a lock by someone else cannot be read back, so giving back means the default"


def of_change(
    one: SettingCommand, before: tuple[Any, str], ran: Ran | None, after: CurrentValues | None, seen: CurrentValues
) -> SettingOutcome:
    """`before`: the value and how it is known; `ran` None: it was not run; `after` None: the host cannot be asked."""
    known, how = before
    told = None if after is None else after.told(one.gpu_uuid, one.setting)

    def outcome(ok: bool, in_force: InForce, *said: str) -> SettingOutcome:
        return SettingOutcome(one, ok, known, one.value, told, in_force, joined(*said), how)

    if ran is None:
        return outcome(False, InForce.NOT_CHECKED, "not run: the one before failed")
    if ran.failure and not (ran.unsure and equal(one.setting, told, one.value)):  # done, its answer was lost
        hand = f"By hand: {by_hand(one, after or seen)}"
        return outcome(False, InForce.NOT_CHECKED, f"{ran.failure.rstrip('. ')}. {hand}")
    lost = volatile(one, after or seen)
    if one.setting in LOCKS:
        message = NOT_CHECKED_LOCK if one.value != DEFAULT else "reset to the driver's default"
        return outcome(True, InForce.NOT_CHECKED, one.note, message, FOREIGN if how == UNKNOWN else "", lost)
    if told is None:
        return outcome(True, InForce.NOT_CHECKED, "accepted, but the driver does not tell the value now", lost)
    if not equal(one.setting, told, one.value):
        return outcome(False, InForce.NO_EFFECT, revert.no_effect(one.setting, one.value, told), lost)
    sample = after.sample(one.gpu_uuid) if after else None
    enforced = sample.power_limit_enforced_w if sample is not None and one.setting == "power_limit_w" else None
    if enforced is not None and enforced < one.value - WATTS_EQUAL:
        return outcome(True, InForce.CAPPED, f"the driver enforces {enforced:g} W: another limit is lower", lost)
    return outcome(True, InForce.YES, lost)


def of_restoring(
    entry: JournalEntry, one: SettingCommand, ran: Ran, after: CurrentValues | None, was: Any = None
) -> SettingOutcome:
    """Of one command that gives back what `entry` had before. `was`: what the host told until then, where it did."""
    told = None if after is None else after.told(one.gpu_uuid, one.setting)
    before = UNKNOWN if entry.before == UNKNOWN else one.value
    ok, message = revert.restored(one.setting, before, told, ran.failure)
    if not ok:
        sysfs = revert.SYSFS if after is None else after.governors.sysfs
        hand = revert.by_hand(entry.gpu_uuid, entry.setting, entry.before, sysfs)
        message = joined(message, f"it stays in the journal. By hand: {hand}")
    if one.setting in LOCKS:
        in_force = InForce.NOT_CHECKED
    elif ok:
        in_force = InForce.YES
    else:
        in_force = InForce.NOT_CHECKED if ran.failure else InForce.NO_EFFECT
    from_value, known = (entry.now, "journal") if was is None else (was, "read")
    return SettingOutcome(one, ok, from_value, one.value, told, in_force, message, known)


def of_leaving(one: SettingCommand, entry: JournalEntry, way: claims.WayBack) -> SettingOutcome:
    """Of a setting of ours for which nothing is run."""
    asks = way.do == claims.ASK
    message = joined(way.why, "left alone until someone chooses") if asks else way.why
    known = entry.before_known
    return SettingOutcome(
        one, not asks, entry.now, way.value, way.value, InForce.NOT_CHECKED, message, known, foreign=asks
    )


def planned(one: SettingCommand, before: tuple[Any, str], dry_run: bool, warning: str = "") -> SettingOutcome:
    """Of a command that is only shown, or kept back since another of its plan is not allowed."""
    refused = one.right or ("" if dry_run else "not run: another command of this plan is not allowed")
    message = joined(refused, one.note, FOREIGN if before[1] == UNKNOWN else "", warning)
    return SettingOutcome(
        one, dry_run and one.right is None, before[0], one.value, None, InForce.NOT_CHECKED, message, before[1]
    )


def surely_unchanged(outcome: SettingOutcome, ran: Ran | None) -> bool:
    if outcome.ok or (ran is not None and ran.unsure):
        return False
    if outcome.command.setting in LOCKS or ran is None:
        return True  # refused by nvidia-smi, or never run
    return outcome.read_back is not None and equal(outcome.command.setting, outcome.read_back, outcome.before)


def by_hand(one: SettingCommand, seen: CurrentValues) -> str:
    return revert.by_hand(one.gpu_uuid, one.setting, one.value, seen.governors.sysfs)


def joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def volatile(one: SettingCommand, seen: CurrentValues) -> str:
    """What to say where a setting lasts only as long as somebody uses the GPU; "" elsewhere."""
    if one.setting in ("persistence", "governor"):
        return ""
    sample = seen.sample(one.gpu_uuid)
    if sample is None or sample.persistence is not False:
        return ""
    return VOLATILE


def told_once(outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """The outcomes, of which one of each GPU tells of persistence mode."""
    found, told = [], set()
    for one in outcomes:
        if VOLATILE in one.message and one.command.gpu_uuid in told:
            one = replace(one, message=joined(*(part.strip("; ") for part in one.message.split(VOLATILE))))
        told |= {one.command.gpu_uuid} if VOLATILE in one.message else set()
        found.append(one)
    return found
