"""The reverts that are due: which value each revert restores, for which reason, and how the journal
records it.

The functions run no commands and open no files. An entry is a dict from journal.json. Workbench
sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from workbench.gpu.settings import claims
from workbench.model import setting_commands
from workbench.model.named_tuple import NamedTuple
from workbench.model.setting_commands import HOST

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

    Entry = Any

DECISIONS_THAT_SET_VALUE = (claims.RESTORE, claims.DONE)


class DueRevert(NamedTuple):
    """A setting that the guard must revert now: its journal entry, and the reason. If `trial` is
    true, the setting goes back to its value from before the trial or from before a change that was
    cut off, otherwise to its value from before Workbench's first change."""

    entry: Entry
    why: str
    trial: bool

    @property
    def gpu_and_setting(self) -> tuple[str, str]:
        return gpu_and_setting_of(self.entry)


class RevertResult(NamedTuple):
    """The result of one revert. `way` is RESTORE if the guard tried to set the value, DONE if the
    setting had the value already, LEAVE if the guard left the setting alone, or ASK if the user
    must decide about it. `ok` is False if the value could not be set."""

    due: DueRevert
    ok: bool
    message: str
    way: str = claims.RESTORE
    by: str = ""  # the user to whom the setting is left


def gpu_and_setting_of(entry: Entry) -> tuple[str, str]:
    """Return (UUID of the GPU, key of the setting), which together identify a journal entry."""
    return entry["gpu_uuid"], entry["setting"]


def values_guard_may_set(entry: Entry) -> tuple[Any, ...]:
    """Return those values in a journal entry that decide what a guard sets: (previous value, set
    value, values that other Workbenches had set, value to restore after a trial). If they have
    changed since a guard that runs as root started, a new guard must take its place."""
    return (
        entry["before"],
        entry["now"],
        entry.get("over"),
        entry["watch"].get("back", {}).get("now"),
    )


def restrict_entry_to_seen_values(entry: Entry, seen_entry: Entry) -> Entry:
    """Return `seen_entry`, a journal entry as it was when the guard started, with the owner, the
    state and the instructions of `entry`, the same entry as it is now. The values that a guard may
    set stay those of `seen_entry`."""
    watch = {name: value for name, value in entry["watch"].items() if name != "back"}
    if "back" in entry["watch"] and "back" in seen_entry["watch"]:
        watch["back"] = seen_entry["watch"]["back"]
    return {**seen_entry, "state": entry.get("state"), "owner": entry["owner"], "watch": watch}


def setting_text(entry: Entry) -> str:
    """Return the setting of a journal entry in words, with its GPU if it has one: "GPU0 power
    limit" or "CPU governor"."""
    label = setting_commands.setting_label(entry["setting"])
    return label if entry["gpu_uuid"] == HOST else f"GPU{entry['gpu_index']} {label}"


def results_text(results: Sequence[RevertResult]) -> str:
    """Return what was reverted and what was left alone as one line for the user, such as "reverted
    GPU0 GPU clocks: no heartbeat for 30 s; did not revert GPU0 power limit: set to 400 W, now…".
    Failed attempts are left out."""
    back = [r.due for r in results if r.ok and r.way in DECISIONS_THAT_SET_VALUE]
    said = []
    if back:
        whys = dict.fromkeys(due.why for due in back)
        names = ", ".join(setting_text(due.entry) for due in back)
        said.append(f"reverted {names}: {'; '.join(whys)}")
    said += [
        f"did not revert {setting_text(r.due.entry)}: {r.message}"
        for r in results
        if r.way not in DECISIONS_THAT_SET_VALUE
    ]
    return "; ".join(said)


def trial_end_monotonic_s(stored_end_s: object, latest_end_s: float) -> float:
    """Return when a trial ends, in seconds of time.monotonic(): at `stored_end_s`, which an earlier
    guard has stored, but at the latest at `latest_end_s`. If `stored_end_s` is not a number, return
    `latest_end_s`."""
    if isinstance(stored_end_s, (int, float)) and stored_end_s <= latest_end_s:
        return stored_end_s
    return latest_end_s


def value_restored_by_revert(due: DueRevert) -> Any:
    """Return the value that the revert sets. It is the value of an earlier entry that takes effect
    again, if `earlier_entry_fields_to_restore` returns its fields, otherwise the value from before
    Workbench's first change."""
    back = earlier_entry_fields_to_restore(due)
    return back["now"] if back else due.entry["before"]


def earlier_entry_fields_to_restore(due: DueRevert) -> Mapping[str, Any] | None:
    """Return the fields, {name: value}, of the earlier entry that takes effect again in the
    journal: the entry from before a trial or before a change that was cut off, or one that the user
    chose to keep. None if the revert restores the value from before Workbench's first change."""
    if due.trial and due.entry.get("state") == setting_commands.PENDING:
        earlier: Mapping[str, Any] | None = due.entry.get("earlier")
        return earlier
    back: Mapping[str, Any] | None = due.entry["watch"].get("back")
    return back if back and (due.trial or back["state"] == "kept") else None


def _revert_outcome_words(ok: bool, way: str) -> str:
    if way not in DECISIONS_THAT_SET_VALUE:
        return "left alone"
    return "reverted" if ok else "could not revert"


def journal_after_reverts(
    journal: Mapping[str, Any], results: Sequence[RevertResult], boot_id: str
) -> dict[str, Any]:
    """Return the journal as it is after the reverts in `results`. Each reverted entry is removed,
    or replaced by the earlier entry that takes effect again (see
    `earlier_entry_fields_to_restore`). The journal's log gets a line for each result, with
    `boot_id`, the id of the host's present boot."""
    entries, log = list(journal["entries"]), list(journal["log"])
    for due, ok, message, way, by in results:
        key, back, now = due.gpu_and_setting, None, due.entry["now"]
        if way in DECISIONS_THAT_SET_VALUE:
            back = earlier_entry_fields_to_restore(due)
            now = setting_commands.value_to_restore(value_restored_by_revert(due))
        log.append(
            {
                "unix_s": round(time.time(), 3),
                "boot_id": boot_id,
                "who": "guard",
                "ok": ok,
                "message": message,
                "what": f"guard {_revert_outcome_words(ok, way)}: {due.why}",
                "gpu_uuid": key[0],
                "setting": key[1],
                "now": now,
            }
        )
        if not ok:
            continue
        kept = []
        for entry in entries:
            if gpu_and_setting_of(entry) != key:
                kept.append(entry)
            elif back:
                kept.append({**entry, "earlier": None, **back})
            elif way == claims.LEAVE:  # until that user's claim is gone
                kept.append({**entry, "watch": {}, "state": setting_commands.LEFT_TO + by})
            elif way == claims.ASK:  # until the user has decided; the guard no longer watches it
                kept.append({**entry, "watch": {}})
        entries = kept
    return {**journal, "entries": entries, "log": log}
