"""The reverts that are due: which entry goes back, why, to which value, and how the journal records it. Pure functions.

An entry is one of journal.json's, as a dict. Sent to the host: standard library only, Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workbench.gpu.settings import claims, remote_settings
from workbench.gpu.settings.remote_settings import HOST

SET = (claims.RESTORE, claims.DONE)

Entry = Any


class Due(NamedTuple):
    """An entry to revert and the reason. `trial`: only to the value before its trial."""

    entry: Entry
    why: str
    trial: bool

    @property
    def key(self) -> tuple[str, str]:
        return key_of(self.entry)


class Result(NamedTuple):
    """The result of a revert. `way`: RESTORE, or why nothing was set (claims.py)."""

    due: Due
    ok: bool
    message: str
    way: str = claims.RESTORE


def key_of(entry: Entry) -> tuple[str, str]:
    """Return the GPU and the setting, which identify an entry."""
    return entry["gpu_uuid"], entry["setting"]


def guarded_values(entry: Entry) -> tuple[Any, ...]:
    """Return all values that this entry lets a guard set, or take for Workbench's own."""
    return entry["before"], entry["now"], entry.get("over"), entry["watch"].get("back", {}).get("now")


def restricted(entry: Entry, seen: Entry) -> Entry:
    """Return `seen`, the entry at the guard's start, with the owner and the times of `entry`, the present one."""
    watch = {name: value for name, value in entry["watch"].items() if name != "back"}
    if "back" in entry["watch"] and "back" in seen["watch"]:
        watch["back"] = seen["watch"]["back"]
    return {**seen, "state": entry.get("state"), "owner": entry["owner"], "watch": watch}


def named(entry: Entry) -> str:
    """Return "GPU0 power limit" or "CPU governor"."""
    label = remote_settings.label(entry["setting"])
    return label if entry["gpu_uuid"] == HOST else f"GPU{entry['gpu_index']} {label}"


def summed_up(results: Sequence[Result]) -> str:
    """Return "reverted GPU0 GPU clocks: no heartbeat for 30 s; did not revert GPU0 power limit: set to 400 W, now…"."""
    back = [r.due for r in results if r.ok and r.way in SET]
    whys = dict.fromkeys(due.why for due in back)
    said = [f"reverted {', '.join(named(due.entry) for due in back)}: {'; '.join(whys)}"] if back else []
    said += [f"did not revert {named(r.due.entry)}: {r.message}" for r in results if r.way not in SET]
    return "; ".join(said)


def ends_at(known: object, latest: float) -> float:
    """Return when a trial ends: as an earlier guard wrote it down, but not later than `latest`."""
    return known if isinstance(known, (int, float)) and known <= latest else latest


def target(due: Due) -> Any:
    """Return the value that the revert sets."""
    back = back_of(due)
    return back["now"] if back else due.entry["before"]


def back_of(due: Due) -> Any:
    """Return the fields of the earlier entry, if a trial goes back to that one or that one was kept; else None."""
    back = due.entry["watch"].get("back")
    return back if back and (due.trial or back["state"] == "kept") else None


def noted(journal: Mapping[str, Any], results: Sequence[Result], boot_id: str) -> dict[str, Any]:
    """Return the journal with the results: reverted entries are removed or go back to the earlier one."""
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
                "now": remote_settings.value_to_restore(target(due)) if way in SET else due.entry["now"],
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
