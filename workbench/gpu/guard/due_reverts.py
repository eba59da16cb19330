"""The reverts that are due: for each journal entry the value to restore, the reason, and the record in the journal.

All functions are pure. An entry is a dict from journal.json. Sent to the host: standard library only, Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workbench.gpu.settings import claims
from workbench.model import setting_commands
from workbench.model.setting_commands import HOST

SET = (claims.RESTORE, claims.DONE)

Entry = Any


class Due(NamedTuple):
    """A journal entry to revert now, and the reason. If `trial` is true, the setting goes back to its value before the
    trial, otherwise to its value before Workbench changed it."""

    entry: Entry
    why: str
    trial: bool

    @property
    def key(self) -> tuple[str, str]:
        return key_of(self.entry)


class Result(NamedTuple):
    """The result of one revert. `way` says what the guard did (constants of claims.py): RESTORE if it set the value;
    DONE, LEAVE or ASK if it set nothing."""

    due: Due
    ok: bool
    message: str
    way: str = claims.RESTORE


def key_of(entry: Entry) -> tuple[str, str]:
    """Return the UUID of the GPU and the setting, which together identify an entry."""
    return entry["gpu_uuid"], entry["setting"]


def guarded_values(entry: Entry) -> tuple[Any, ...]:
    """Return every value that this entry allows a guard to set or to recognize as Workbench's own. A guard that runs as
    root leaves the entry alone if these values change after the guard's start."""
    return entry["before"], entry["now"], entry.get("over"), entry["watch"].get("back", {}).get("now")


def restricted(entry: Entry, seen: Entry) -> Entry:
    """Return the entry as a guard that runs as root may revert it: the values of `seen`, the entry at the guard's
    start, and the owner, state and times of `entry`, the present one."""
    watch = {name: value for name, value in entry["watch"].items() if name != "back"}
    if "back" in entry["watch"] and "back" in seen["watch"]:
        watch["back"] = seen["watch"]["back"]
    return {**seen, "state": entry.get("state"), "owner": entry["owner"], "watch": watch}


def named(entry: Entry) -> str:
    """Return an entry's GPU and setting in words: "GPU0 power limit", or "CPU governor" for the host's setting."""
    label = setting_commands.label(entry["setting"])
    return label if entry["gpu_uuid"] == HOST else f"GPU{entry['gpu_index']} {label}"


def summed_up(results: Sequence[Result]) -> str:
    """Return the results in one line: "reverted GPU0 GPU clocks: no heartbeat for 30 s; did not revert GPU0 power
    limit: set to 400 W, now…"."""
    back = [r.due for r in results if r.ok and r.way in SET]
    whys = dict.fromkeys(due.why for due in back)
    said = [f"reverted {', '.join(named(due.entry) for due in back)}: {'; '.join(whys)}"] if back else []
    said += [f"did not revert {named(r.due.entry)}: {r.message}" for r in results if r.way not in SET]
    return "; ".join(said)


def ends_at(known: object, latest: float) -> float:
    """Return the time (time.monotonic()) at which a trial ends: `known`, the end that an earlier guard has stored, or
    `latest` if that is sooner or if `known` is not a valid time."""
    return known if isinstance(known, (int, float)) and known <= latest else latest


def target(due: Due) -> Any:
    """Return the value that the revert sets: the value of the earlier entry if that entry comes back into force
    (`back_of`), otherwise the value before Workbench's first change."""
    back = back_of(due)
    return back["now"] if back else due.entry["before"]


def back_of(due: Due) -> Any:
    """Return the fields of the earlier entry that takes effect again after the revert: the entry from before a trial,
    or one that was kept deliberately. None if the setting gets the value from before Workbench's first change."""
    back = due.entry["watch"].get("back")
    return back if back and (due.trial or back["state"] == "kept") else None


def noted(journal: Mapping[str, Any], results: Sequence[Result], boot_id: str) -> dict[str, Any]:
    """Return the journal after the reverts. A reverted entry is removed or replaced by the earlier one, and the log has
    a line for each result."""
    entries, log = list(journal["entries"]), list(journal["log"])
    for due, ok, message, way in results:
        key, back = due.key, back_of(due) if way in SET else None
        log.append(
            {
                "unix_s": round(time.time(), 3),
                "boot_id": boot_id,
                "who": "guard",
                "ok": ok,
                "message": message,
                "what": f"guard {'reverted' if way in SET else 'left alone'}: " + due.why,
                "gpu_uuid": key[0],
                "setting": key[1],
                "now": setting_commands.value_to_restore(target(due)) if way in SET else due.entry["now"],
            }
        )
        if not ok:
            continue
        kept = []
        for entry in entries:
            if (entry["gpu_uuid"], entry["setting"]) != key:
                kept.append(entry)
            elif back:
                kept.append({**entry, **back})
            elif way == claims.ASK:  # the entry stays for the user to decide; the guard no longer watches it
                kept.append({**entry, "watch": {}})
        entries = kept
    return {**journal, "entries": entries, "log": log}
