"""What other Workbenches of this host say that they changed, and what follows for a change of ours. Pure.

Every Workbench has a journal of its own, and tells the others in the host's register (register.py) what stands in it.
A claim of another is information: it explains a value that is not ours. Nothing is ever set because of it alone.

Used by control.py, and sent to the host with the guard: standard library only, Python 3.8.

An entry is one of journal.json's, as a dict. `before` is the value before anybody's change that still lasts, as far as
that is known; `over` are the values that others claimed when ours was set, oldest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.gpu.settings.revert import LOCKS, UNKNOWN, cut_off, equal, is_number, shown

RESTORE = "restore"  # set `value`
DONE = "done"  # the value is there already
LEAVE = "leave"  # another Workbench set it since and knows the same way back
ASK = "ask"  # only a user can say what is to become of it: someone else changed it, or told what was before
TOLD = "claim"  # a `before` that nobody but another user knows of

Entry = Mapping[str, Any]


class SettingClaim(NamedTuple):
    """One setting that another Workbench changed and has not reverted."""

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
    changing: bool = False  # its Workbench is at work on it at this moment
    pid: Any = None  # that Workbench's process
    uid: int = -1  # of `by`

    @property
    def key(self) -> tuple[str, str]:
        return self.gpu_uuid, self.setting

    @property
    def text(self) -> str:
        return f"{shown(self.now)}, set by {self.by} with Workbench at {clock(self.set_unix_s)}"


class WayBack(NamedTuple):
    do: str
    value: Any
    why: str = ""


def told(
    found: Sequence[Mapping[str, Any]], uid: int, journal: str
) -> tuple[tuple[SettingClaim, ...], tuple[Mapping[str, Any], ...]]:
    """What the register holds: the claims of others, and the entries that this journal itself told. Of another nothing
    is taken but what a Claim has; register.py has checked it."""
    claims: list[SettingClaim] = []
    own: tuple[Mapping[str, Any], ...] = ()
    for one in found:
        if (one["uid"], one["journal"]) == (uid, journal):
            own = tuple({k: v for k, v in entry.items() if k != "changing"} for entry in one["entries"])
            continue
        user = "".join(c for c in one["user"] if c.isprintable())[:80]
        by = user if one["uid"] != uid else f"{user} (another state directory)"
        claims += [_claim(entry, by)._replace(uid=one["uid"]) for entry in one["entries"]]
    return tuple(claims), own


def _claim(entry: Entry, by: str) -> SettingClaim:
    energy_j = entry.get("energy_j")
    return SettingClaim(
        by=by,
        gpu_uuid=entry["gpu_uuid"],
        gpu_index=entry["gpu_index"],
        setting=entry["setting"],
        before=entry["before"],
        now=entry["now"],
        set_unix_s=set_at(entry),
        state=str(entry.get("state", "applied")),
        energy_j=energy_j if is_number(energy_j) else None,
        boot_id=entry["boot_id"],
        changing=bool(entry.get("changing")),
        pid=entry["owner"].get("pid"),
    )


def on(claims: Sequence[SettingClaim], uuid: str, setting: str) -> list[SettingClaim]:
    """Of one setting, oldest first."""
    return sorted((c for c in claims if c.key == (uuid, setting)), key=lambda c: c.set_unix_s)


def credible(
    claims: Sequence[SettingClaim], keys: Collection[tuple[str, str]], may_set: Callable[[SettingClaim], bool]
) -> tuple[SettingClaim, ...]:
    """Without the claims of locks (of `keys`) by users who cannot have set them. Nobody can read a lock, so what else
    would tell a true claim from a forged one, which would keep a lock of ours on for good? `may_set` is asked once for
    each user and lock."""
    doubted = {(c.uid, c.key): c for c in sorted(claims, key=lambda c: c.set_unix_s) if c.setting in LOCKS}
    forged = {who for who, newest in doubted.items() if newest.key in keys and not may_set(newest)}
    return tuple(c for c in claims if (c.uid, c.key) not in forged)


def holder(claims: Sequence[SettingClaim], uuid: str, setting: str, live: Any) -> SettingClaim | None:
    """Whose claim explains the value that is there. Nobody can read a lock (`live` None): the newest claim does."""
    mine = [c for c in on(claims, uuid, setting) if setting in LOCKS or equal(setting, live, c.now)]
    return mine[-1] if mine else None


def explains(
    claims: Sequence[SettingClaim], key: tuple[str, str], live: Any, entry: Entry | None
) -> SettingClaim | None:
    """Whose claim explains the value that is there, where it is not `entry`, ours, that does. A power limit that is
    what we set is ours, whoever claims to have set the same since: anybody can claim that, also without the right to
    set one, and the limit would never be reverted."""
    by = holder(claims, *key, live)
    if by is None or entry is None:
        return by
    ours = key[1] in LOCKS or equal(key[1], live, entry["now"])
    return by if not ours or (key[1] != "power_limit_w" and by.set_unix_s > set_at(entry)) else None


def lies_under(claims: Sequence[SettingClaim], key: tuple[str, str], live: Any, entry: Entry | None) -> list[Any]:
    """`over` of a change that is made now; `entry`: ours of before, for the same setting."""
    by = explains(claims, key, live, entry)
    if by is not None:
        return [c.now for c in on(claims, *key) if c.set_unix_s <= by.set_unix_s]
    ours = entry is not None and (key[1] in LOCKS or equal(key[1], live, entry["now"]))
    return list(entry.get("over") or ()) if entry is not None and ours else []


def set_at(entry: Entry) -> float:
    return float(entry.get("set_unix_s") or entry["since_unix_s"])


def under(entry: Entry, claims: Sequence[SettingClaim]) -> Any:
    """What is there once ours is taken away: the newest value that lay under it and is still claimed, else `before`."""
    lasting = [c.now for c in on(claims, entry["gpu_uuid"], entry["setting"])]
    for value in reversed(entry.get("over") or ()):
        if any(equal(entry["setting"], value, now) for now in lasting):
            return value
    return entry["before"]


def way_back(entry: Entry, live: Any, claims: Sequence[SettingClaim], target: Any = None) -> WayBack:
    """How to take a setting of ours away. `live`: what the host tells now, None where it cannot be told; `target`: what
    to go back to, where that is not what lay under it."""
    setting, value = entry["setting"], under(entry, claims) if target is None else target
    by = explains(claims, (entry["gpu_uuid"], setting), live, entry)
    ours = setting in LOCKS or equal(setting, live, entry["now"])
    if by is not None:
        back = "the driver's default" if by.before == UNKNOWN else shown(by.before)
        if not equal(setting, by.before, entry["before"]):  # only here is it known what was before ours
            why = f"it is {by.text}; reverting that gives {back}, and not {shown(entry['before'])} as before ours"
            return WayBack(ASK, by.now, why)
        return WayBack(LEAVE, by.now, f"left alone: it is {by.text}; reverting that gives {back}")
    cut = cut_off(setting, live, entry["now"], entry["before"])
    if live is None or ours or cut or entry.get("state") == "pending":
        if live is not None and equal(setting, live, value):
            return WayBack(DONE, value, "it is as it was before already")
        if target is None and entry.get("before_known") == TOLD and equal(setting, value, entry["before"]):
            why = f"only {entry.get('origin') or 'another user'} told that {shown(value)} was there before"
            return WayBack(ASK, live, why)
        return WayBack(RESTORE, value)
    if equal(setting, live, value) or equal(setting, live, entry["before"]):
        return WayBack(DONE, live, "it is as it was before already")
    return WayBack(ASK, live, drift(entry, live, claims) or "")


def drift(entry: Entry, live: Any, claims: Sequence[SettingClaim] = ()) -> str | None:
    """What to say where the host does not have what the journal says; None where it has, or cannot be asked."""
    setting, now = entry["setting"], entry["now"]
    by = explains(claims, (entry["gpu_uuid"], setting), live, entry)
    if setting in LOCKS:
        return f"set to {shown(now)} by Workbench, now {by.text}" if by is not None else None
    if live is None or equal(setting, live, now) or entry.get("state") == "pending":
        return None
    whose = "changed by someone else"
    if by is not None:
        whose = f"set by {by.by} with Workbench at {clock(by.set_unix_s)}"
    elif equal(setting, live, entry["before"]):
        whose = "as it was before; someone else or a reload of the driver reset it"
    elif cut_off(setting, live, now, entry["before"]):
        whose = "a change or revert that was cut off"
    return f"set to {shown(now)} by Workbench, now {shown(live)}: {whose}"


def clock(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
