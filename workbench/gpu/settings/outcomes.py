"""Decides the outcome of a command from the host's values after the command, not from its exit
status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.gpu.settings import claims
from workbench.gpu.settings.command_runner import CommandRun
from workbench.gpu.settings.current_values import CurrentValues
from workbench.gpu.settings.journal import JournalEntry
from workbench.model import setting_commands
from workbench.model.setting_commands import WATTS_EQUAL, is_clock_lock, value_equals
from workbench.model.setting_records import InForce, SettingCommand, SettingOutcome
from workbench.model.settings import (
    DEFAULT,
    PERSISTENCE,
    UNKNOWN,
    NumberSetting,
    SettingValue,
    setting_of,
)

NOT_CHECKED_LOCK = "accepted; a clock lock cannot be read back: a load shows whether it is in force"
VOLATILE_SETTING_TEXT = (  # NVIDIA's page on data persistence names power limits; locks are not documented
    "persistence mode is off: a power limit is lost, and a lock may be, when the last program that "
    "uses the GPU ends; "
    "persistence on keeps it"
)
HYPERVISOR_SETTING_TEXT = (
    "this is a virtual GPU (vGPU): its power limit and clocks belong to the hypervisor, so set them "
    "there"
)
FOREIGN_LOCK_TEXT = (
    "the previous lock is unknown, since another program's lock cannot be read back: a "
    "revert sets the default"
)


def outcome_of_change(
    one: SettingCommand,
    before_and_source: tuple[SettingValue | None, str],
    ran: CommandRun | None,
    after: CurrentValues | None,
    now: CurrentValues,
) -> SettingOutcome:
    """Return the outcome of one command of a plan, decided from the values after it.
    `before_and_source` is the previous value and its source. `ran` is the command's result, None if
    it was not run. `now` has the values from before the plan, and `after` those after it, None if
    the host is out of reach."""
    known, how = before_and_source
    found = _value_after(one, after)

    def make_outcome(ok: bool, in_force: InForce, *message_parts: str) -> SettingOutcome:
        return SettingOutcome(
            one, ok, known, one.value, found, in_force, join_sentences(*message_parts), how
        )

    latest = after or now
    if ran is None:
        return make_outcome(
            False, InForce.NOT_CHECKED, "not run, because the command before it failed"
        )
    if ran.failure and not (
        ran.unsure and value_equals(one.setting, found, one.value)
    ):  # not done; else only the answer was lost
        step = vgpu_hypervisor_note(one, now) or f"By hand: {manual_command_text(one, latest)}"
        return make_outcome(False, InForce.NOT_CHECKED, f"{ran.failure.rstrip('. ')}. {step}")
    lost = persistence_off_warning(one, latest)
    if is_clock_lock(one.setting):
        message = NOT_CHECKED_LOCK if one.value != DEFAULT else "reset to the driver's default"
        return make_outcome(
            True,
            InForce.NOT_CHECKED,
            one.note,
            message,
            unknown_previous_lock_note(how),
            lost,
        )
    if found is None:
        return make_outcome(
            True,
            InForce.NOT_CHECKED,
            "accepted, but the driver does not report the value now",
            lost,
        )
    if not value_equals(one.setting, found, one.value):
        return make_outcome(
            False,
            InForce.NO_EFFECT,
            setting_commands.message_of_ineffective_command(one.setting, one.value, found),
            vgpu_hypervisor_note(one, now),
            lost,
        )
    enforced = _text_of_lower_enforced_limit(one, after)
    if enforced is not None:
        lower = f"the driver enforces {enforced}: another limit is lower"
        return make_outcome(True, InForce.CAPPED, lower, lost)
    return make_outcome(True, InForce.YES, lost)


def _value_after(one: SettingCommand, after: CurrentValues | None) -> SettingValue | None:
    return None if after is None else after.value(one.gpu_uuid, one.setting)


def unknown_previous_lock_note(before: object) -> str:
    """Return the note that a revert sets the default, because the previous lock is unknown; "" if
    `before` is not UNKNOWN."""
    return FOREIGN_LOCK_TEXT if before == UNKNOWN else ""


def _text_of_lower_enforced_limit(one: SettingCommand, after: CurrentValues | None) -> str | None:
    """Return the limit that the driver enforces, such as "350 W", if it is lower than the one that
    was set. None if it is not lower or unknown, and for a setting that has no enforced limit."""
    setting = setting_of(one.setting)
    if after is None or not isinstance(setting, NumberSetting):
        return None
    if not isinstance(one.value, float):
        return None
    enforced = getattr(after.sample(one.gpu_uuid), setting.enforced, None)
    if enforced is None or enforced >= one.value - WATTS_EQUAL:
        return None
    return setting.format(enforced)


def outcome_of_revert_command(
    entry: JournalEntry,
    one: SettingCommand,
    ran: CommandRun,
    after: CurrentValues | None,
    was: SettingValue | None = None,
) -> SettingOutcome:
    """Return the outcome of one command that reverts `entry`. `was` is the host's value from before
    the revert, None if it could not be read. `after` has the values after the revert, None if the
    host is out of reach."""
    found = _value_after(one, after)
    before = UNKNOWN if entry.before == UNKNOWN else one.value
    ok, message = setting_commands.was_restored_and_message(one.setting, before, found, ran.failure)
    if not ok:
        sysfs = setting_commands.SYSFS if after is None else after.cores.sysfs
        hand = setting_commands.shell_command_to_set(
            entry.gpu_uuid, entry.setting, entry.before, sysfs
        )
        message = join_sentences(message, f"it stays in the journal. By hand: {hand}")
    if is_clock_lock(one.setting) or found is None:
        in_force = InForce.NOT_CHECKED
    elif ok:
        in_force = InForce.YES
    else:
        in_force = InForce.NOT_CHECKED if ran.failure else InForce.NO_EFFECT
    from_value, known = (entry.now, "journal") if was is None else (was, "read")
    return SettingOutcome(one, ok, from_value, one.value, found, in_force, message, known)


def outcome_of_setting_left_alone(
    one: SettingCommand, entry: JournalEntry, way: claims.RevertDecision
) -> SettingOutcome:
    """Return the outcome of a setting that a revert leaves alone. `way` is the decision to leave
    it, with the reason. The outcome fails if the user must decide."""
    asks = way.do == claims.ASK
    message = way.why
    if asks:
        message = join_sentences(message, "left alone until you decide which value stays")
    if way.by:
        message = join_sentences(
            message, f"the entry stays in the journal until that claim of {way.by} ends"
        )
    known = entry.before_known
    return SettingOutcome(
        one,
        not asks,
        entry.now,
        way.value,
        way.value,
        InForce.NOT_CHECKED,
        message,
        known,
        foreign=asks,
        left_to=way.by,
    )


def planned_outcome(
    one: SettingCommand, before: tuple[SettingValue | None, str], dry_run: bool, warning: str = ""
) -> SettingOutcome:
    """Return the outcome of a command that was not run, in a dry run or because another command of
    its plan is not allowed."""
    refused = one.right
    if not (refused or dry_run):
        refused = "not run: another command of this plan is not allowed"
    message = join_sentences(refused, one.note, unknown_previous_lock_note(before[1]), warning)
    return SettingOutcome(
        one,
        not refused,
        before[0],
        one.value,
        None,
        InForce.NOT_CHECKED,
        message,
        before[1],
    )


def command_surely_changed_nothing(outcome: SettingOutcome, ran: CommandRun | None) -> bool:
    """Return whether a failed command has certainly changed nothing."""
    if outcome.ok:
        return False
    if ran is None:
        return True  # never run
    if ran.unsure:
        return False
    if is_clock_lock(outcome.command.setting):
        return True  # refused by nvidia-smi
    return value_equals(outcome.command.setting, outcome.read_back, outcome.before)


def manual_command_text(one: SettingCommand, now: CurrentValues) -> str:
    """Return the shell command with which the user can set the value of `one` without Workbench."""
    return setting_commands.shell_command_to_set(
        one.gpu_uuid, one.setting, one.value, now.cores.sysfs
    )


def vgpu_hypervisor_note(one: SettingCommand, now: CurrentValues) -> str:
    """Return the text that only the hypervisor can set the value of `one`, if its GPU is a vGPU. ""
    for another GPU, and for persistence mode."""
    info = now.info(one.gpu_uuid)
    if info is None or one.setting == PERSISTENCE.key:
        return ""
    return HYPERVISOR_SETTING_TEXT if info.virtualization == "vgpu" else ""


def join_sentences(*parts: str | None) -> str:
    """Return the parts that are not empty, joined by "; "."""
    return "; ".join(filter(None, parts))


def persistence_off_warning(one: SettingCommand, now: CurrentValues) -> str:
    """Return a warning if the driver forgets the setting when no program uses the GPU, because
    persistence mode is off. "" if it does not, or if the mode is unknown."""
    if not setting_of(one.setting).needs_persistence:
        return ""
    sample = now.sample(one.gpu_uuid)
    if sample is None or sample.persistence is not False:
        return ""
    return VOLATILE_SETTING_TEXT


def drop_repeated_persistence_warnings(outcomes: Sequence[SettingOutcome]) -> list[SettingOutcome]:
    """Return the outcomes with the warning about persistence mode only once for each GPU."""
    found, warned = [], set()
    for one in outcomes:
        if VOLATILE_SETTING_TEXT in one.message:
            if one.command.gpu_uuid in warned:
                others = (part.strip("; ") for part in one.message.split(VOLATILE_SETTING_TEXT))
                one = replace(one, message=join_sentences(*others))
            warned.add(one.command.gpu_uuid)
        found.append(one)
    return found
