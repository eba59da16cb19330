"""The claims of other Workbenches on this host, and what they mean for a change or a revert by this
Workbench. All functions are pure.

Each Workbench has a journal of its own and publishes its entries in the host's register
(register.py). A claim of another user only explains a value that this Workbench did not set.
Workbench never sets a value because of a claim.

An entry is a dict from journal.json. Its `before` is the value from before the oldest change that
is not yet reverted, if that value is known. Its `over` lists the values that other Workbenches
claimed when this Workbench set its value, oldest first.

Workbench uses this module itself and sends it to the host, so it uses only the standard library and
Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from workbench.model.named_tuple import NamedTuple
from workbench.model.setting_commands import (
    PENDING,
    SETTINGS,
    UNKNOWN,
    is_clock_lock,
    is_finite_number,
    value_equals,
    value_text,
    value_to_restore,
    was_core_change_interrupted,
)

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

    Entry = Mapping[str, Any]

RESTORE = "restore"  # set `value`
DONE = "done"  # the value is in force already
LEAVE = "leave"  # another Workbench set the value since and knows the same way back
# only the user can decide: another program changed the value, or only another user knows the one
# before
ASK = "ask"
UNWRITTEN = (
    "as it was before; a revert could not be written down, because the disk of the journal is full: "
    "free some space there, then revert again"
)
RESET = (
    "as it was before; someone else, a reload of the driver or a revert that was killed reset it"
)
TOLD = "claim"  # source of a `before` that only another user knows


class SettingClaim(NamedTuple):
    """A claim: one setting that another Workbench, according to the host's register, has changed
    and not reverted."""

    by: str  # the user who owns the claim's file
    gpu_uuid: str
    gpu_index: int
    setting: str
    before: Any
    now: Any
    set_unix_s: float
    state: str = "applied"
    energy_j: float | None = None
    boot_id: str = ""
    changing: bool = False  # the other Workbench is changing this setting at this moment
    pid: Any = None  # process of the other Workbench
    uid: int = -1  # of `by`
    driver_start: str | None = None

    @property
    def gpu_and_setting(self) -> tuple[str, str]:
        return self.gpu_uuid, self.setting

    @property
    def value_and_origin_text(self) -> str:
        return (
            f"{value_text(self.setting, self.now)}, set by {self.by} with Workbench at "
            f"{local_date_and_time_text(self.set_unix_s)}"
        )


class RevertDecision(NamedTuple):
    """How to revert one setting. `do` is RESTORE (set `value`), DONE (the setting has `value`
    already), LEAVE (another Workbench set `value` later, and can revert it) or ASK (leave `value`
    until the user decides). `why` is the reason, as text for the user."""

    do: str
    value: Any
    why: str = ""
    by: str = ""  # the user to whom the setting is left, as LEFT_TO names it


def parse_foreign_claims_and_own_entries(
    found: Sequence[Mapping[str, Any]], uid: int, journal: str
) -> tuple[tuple[SettingClaim, ...], tuple[Mapping[str, Any], ...]]:
    """Return (claims of other Workbenches, published entries of this journal). `found` is the
    content of the host's register, `uid` the owner and `journal` the name of this journal. From
    other users' entries, only the fields of SettingClaim are used, because register.py has checked
    them."""
    claims: list[SettingClaim] = []
    own: tuple[Mapping[str, Any], ...] = ()
    for one in found:
        if (one["uid"], one["journal"]) == (uid, journal):
            own = tuple(
                {k: v for k, v in entry.items() if k != "changing"} for entry in one["entries"]
            )
            continue
        by = "".join(filter(str.isprintable, one["user"]))[:80]
        if one["uid"] == uid:
            by += " (another state directory)"
        claims += [_claim_of_entry(entry, by, one["uid"]) for entry in one["entries"]]
    return tuple(claims), own


def _claim_of_entry(entry: Entry, by: str, uid: int) -> SettingClaim:
    energy_j = entry.get("energy_j")
    return SettingClaim(
        by=by,
        gpu_uuid=entry["gpu_uuid"],
        gpu_index=entry["gpu_index"],
        setting=entry["setting"],
        before=entry["before"],
        now=entry["now"],
        set_unix_s=last_changed_unix_s(entry),
        state=str(entry.get("state", "applied")),
        energy_j=energy_j if is_finite_number(energy_j) else None,
        boot_id=entry["boot_id"],
        driver_start=entry.get("driver_start"),
        changing=bool(entry.get("changing")),
        pid=entry["owner"].get("pid"),
        uid=uid,
    )


def claims_on_setting(claims: Sequence[SettingClaim], key: tuple[str, str]) -> list[SettingClaim]:
    """Return those of `claims` that are about the setting `key`, which is (GPU UUID, key of the
    setting), oldest first."""
    return sorted((c for c in claims if c.gpu_and_setting == key), key=lambda c: c.set_unix_s)


def drop_forged_claims(
    claims: Sequence[SettingClaim],
    keys: Collection[tuple[str, str]],
    can_set_value: Callable[[SettingClaim], bool],
) -> tuple[SettingClaim, ...]:
    """Return `claims` without those whose users cannot set the claimed value, as
    `can_set_value(claim)` tells. Only claims on the settings `keys` are checked, and of these only
    settings whose present value cannot confirm a claim, such as clock locks. If the newest claim of
    a user on a setting is forged, all claims of that user on it are left out."""
    by_time = sorted(claims, key=lambda c: c.set_unix_s)
    doubted = {(c.uid, c.gpu_and_setting): c for c in by_time if SETTINGS[c.setting].easily_forged}
    forged = {
        who
        for who, newest in doubted.items()
        if newest.gpu_and_setting in keys and not can_set_value(newest)
    }
    return tuple(c for c in claims if (c.uid, c.gpu_and_setting) not in forged)


def claim_behind_present_value(
    claims: Sequence[SettingClaim], key: tuple[str, str], live: Any, entry: Entry | None
) -> SettingClaim | None:
    """Return the newest claim on the setting `key` that explains the host's present value `live`,
    because it has the same value. A clock lock cannot be read, so there the newest claim counts.
    None if there is no such claim, or if this Workbench's own `entry` has the same value and is
    newer."""
    setting = key[1]
    matching = [
        c for c in claims_on_setting(claims, key) if _may_be_present_value(setting, c.now, live)
    ]
    by = matching[-1] if matching else None
    if by is None or entry is None or not _is_present_value_of_entry(entry, live):
        return by
    return None if by.set_unix_s <= last_changed_unix_s(entry) else by


def _may_be_present_value(setting: str, value: Any, live: Any) -> bool:
    return is_clock_lock(setting) or value_equals(setting, live, value)


def _is_present_value_of_entry(entry: Entry, live: Any) -> bool:
    return _may_be_present_value(entry["setting"], entry["now"], live)


def foreign_values_to_be_replaced(
    claims: Sequence[SettingClaim], key: tuple[str, str], live: Any, entry: Entry | None
) -> list[Any]:
    """Return the values that other Workbenches have set for the setting `key` and that this
    Workbench is about to replace, oldest first, for the field `over` of its new journal entry.
    `live` is the host's present value, and `entry` the earlier entry of the setting, or None."""
    by = claim_behind_present_value(claims, key, live, entry)
    if by is not None:
        return [c.now for c in claims_on_setting(claims, key) if c.set_unix_s <= by.set_unix_s]
    if entry is None or not _is_present_value_of_entry(entry, live):
        return []
    return _replaced_values(entry)


def _replaced_values(entry: Entry) -> list[Any]:
    """Return the values of other Workbenches that the entry's value has replaced, oldest first."""
    return list(entry.get("over") or ())


def last_changed_unix_s(entry: Entry) -> float:
    """Return the Unix time at which the setting of this journal entry was last changed."""
    return float(entry.get("set_unix_s") or entry["since_unix_s"])


def value_after_revert(entry: Entry, claims: Sequence[SettingClaim]) -> Any:
    """Return the value that a setting gets if this journal entry is reverted. It is the newest of
    the entry's values in `over`, set by other Workbenches, that one of them still claims. If there
    is none, it is the entry's `before`."""
    lasting = [c.now for c in claims_on_setting(claims, (entry["gpu_uuid"], entry["setting"]))]
    for value in reversed(_replaced_values(entry)):
        if any(value_equals(entry["setting"], value, now) for now in lasting):
            return value
    return entry["before"]


def decide_revert(
    entry: Entry, live: Any, claims: Sequence[SettingClaim], target: Any = None
) -> RevertDecision:
    """Return the decision how to revert the setting of `entry`. `live` is the host's value now,
    None if unknown. `target` is the value to restore. If it is None, the value is the one that
    `value_after_revert` returns."""
    setting = entry["setting"]
    value = value_after_revert(entry, claims) if target is None else target
    by = claim_behind_present_value(claims, (entry["gpu_uuid"], setting), live, entry)
    if by is not None:
        return _revert_decision_for_claim(entry, by)
    cut = was_core_change_interrupted(setting, live, entry["now"], entry["before"])
    if (
        live is None
        or cut
        or _is_present_value_of_entry(entry, live)
        or entry.get("state") == PENDING
    ):
        if value_equals(setting, live, value):
            return RevertDecision(DONE, value, _why_no_revert_is_needed(entry, live, claims))
        if (
            target is None
            and entry.get("before_known") == TOLD
            and value_equals(setting, value, entry["before"])
        ):
            origin = entry.get("origin") or "another user"
            return RevertDecision(
                ASK,
                live,
                f"only {origin} reports {value_text(setting, value)} as the previous value",
            )
        return RevertDecision(RESTORE, value)
    if value_equals(setting, live, value) or value_equals(setting, live, entry["before"]):
        return RevertDecision(DONE, live, "the setting has its previous value already")
    return RevertDecision(ASK, live, drift_message(entry, live, claims))


def _why_no_revert_is_needed(entry: Entry, live: Any, claims: Sequence[SettingClaim]) -> str:
    """Return, as text for the user, why a setting needs no revert: another Workbench claims to have
    set its present value, or it has its previous value already."""
    by = claim_behind_present_value(claims, (entry["gpu_uuid"], entry["setting"]), live, None)
    if by is None:
        return "the setting has its previous value already"
    return f"left alone: it is {by.value_and_origin_text}"


def _revert_decision_for_claim(entry: Entry, by: SettingClaim) -> RevertDecision:
    """Return the decision how to revert the setting of `entry`, which another Workbench has changed
    since: LEAVE if the revert of that Workbench restores the same value, otherwise ASK. `by` is the
    claim with which that Workbench announced its change."""
    setting = entry["setting"]
    theirs, before = value_to_restore(by.before), value_to_restore(entry["before"])
    back = "the driver's default" if by.before == UNKNOWN else value_text(setting, theirs)
    if value_equals(setting, theirs, before):
        return RevertDecision(
            LEAVE,
            by.now,
            f"left alone: it is {by.value_and_origin_text}; its revert sets {back}",
            by.by,
        )
    # Only this journal knows the value before ours.
    ours = value_text(setting, before)
    return RevertDecision(
        ASK,
        by.now,
        f"it is {by.value_and_origin_text}; its revert sets {back}, not {ours}, the value before this "
        "Workbench's change",
    )


def was_changed_outside_workbench(entry: Entry, live: Any, claims: Sequence[SettingClaim]) -> bool:
    """Return whether a program other than Workbench has set the host's present value `live` since
    this Workbench set the value of this journal entry. False if `live` is unknown, is the value
    from before the change, or is claimed by another Workbench. False also for a clock lock, and for
    a change that is pending or was interrupted."""
    setting = entry["setting"]
    if live is None or is_clock_lock(setting) or entry.get("state") == PENDING:
        return False
    if any(value_equals(setting, live, entry[name]) for name in ("now", "before")):
        return False
    if was_core_change_interrupted(setting, live, entry["now"], entry["before"]):
        return False
    return claim_behind_present_value(claims, (entry["gpu_uuid"], setting), live, entry) is None


def replaces_foreign_value(
    key: tuple[str, str],
    value: Any,
    live: Any,
    entry: Entry | None,
    claims: Sequence[SettingClaim],
) -> bool:
    """Return whether setting `value` would replace a value of somebody else: one that another
    Workbench claims, or that another program has set since this Workbench did. `key` is (GPU UUID,
    key of the setting), `live` the host's present value, None if unknown, and `entry` the journal
    entry of the setting, or None."""
    by = claim_behind_present_value(claims, key, live, entry)
    if by is not None:
        return not value_equals(key[1], value, by.now)
    if entry is None or not was_changed_outside_workbench(entry, live, claims):
        return False
    return not value_equals(key[1], value, live)


def drift_message(
    entry: Entry, live: Any, claims: Sequence[SettingClaim] = (), disk_full: bool = False
) -> str:
    """Return a message if the host's present value `live` differs from the value of this journal
    entry, otherwise "", also if `live` is unknown. Of a clock lock, which cannot be read, return a
    message only if another Workbench claims to have replaced it. With `disk_full`, the journal's
    disk has no room: if the setting has its previous value, a revert could not be recorded."""
    setting, now = entry["setting"], entry["now"]
    by = claim_behind_present_value(claims, (entry["gpu_uuid"], setting), live, entry)
    ours = f"set to {value_text(setting, now)} by Workbench"
    if is_clock_lock(setting):
        return f"{ours}, now {by.value_and_origin_text}" if by is not None else ""
    if live is None or value_equals(setting, live, now):
        return ""
    is_as_before = value_equals(setting, live, entry["before"])
    if entry.get("state") == PENDING:
        begun = f"a change to {value_text(setting, now)} was begun"
        known = f"{begun}, not applied" if is_as_before else begun
        return f"{known}, now {value_text(setting, live)}"
    whose = "changed by someone else"
    if by is not None:
        whose = f"set by {by.by} with Workbench at {local_date_and_time_text(by.set_unix_s)}"
    elif is_as_before:
        whose = UNWRITTEN if disk_full else RESET
    elif was_core_change_interrupted(setting, live, now, entry["before"]):
        whose = "a change or a revert was interrupted"
    return f"{ours}, now {value_text(setting, live)}: {whose}"


def local_date_and_time_text(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
