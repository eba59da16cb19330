"""The journal of GPU settings, a file on the host. The previous values are on disk before anything
changes.

`<state dir>/gpu/journal.json` has `entries`, one per GPU and changed setting, and `log`, the
changes so far. The first known previous value stays, however often the setting changes again. There
is one writer at a time: a symbolic link beside the file names the owner, because any kind of host
can create a link with its text in one atomic step.

The entries are also published in the host's register (register.py) for other users' Workbenches.
The register is the second copy as well: a missing or damaged journal is restored from it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field, fields, replace
from typing import Any

from workbench.gpu.settings import claims
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.journal_client import JournalAnswer, request_journal_operation
from workbench.gpu.settings.owners import (
    current_user_at_machine,
    has_lock_owner_ended,
    identity_of_this_process,
    owner_process_state,
    owner_text,
    owner_token,
)
from workbench.gpu.settings.register_client import Register, parse_register
from workbench.hosts.base import FileError, Host, HostUnreachable
from workbench.model import setting_commands
from workbench.model.errors import HostError, SettingsError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.setting_commands import JOURNAL_VERSION, PENDING
from workbench.model.setting_records import Recovery
from workbench.model.settings import (
    DEFAULT,
    UNKNOWN,
    SettingValue,
    format_setting_value,
    gpu_or_host_name,
    label_of,
    parse_stored_value,
    value_to_store,
)
from workbench.model.untrusted_numbers import number_for_field, path_and_reason_of_impossible_number
from workbench.model.untrusted_text import clean_text

LOG_LINES = 200
WAIT_S = 5.0
KEPT_STATE = "kept"  # state of an entry whose setting the user chose to keep

__all__ = [
    "Journal",
    "JournalEntry",
    "LockedJournal",
    "Record",
    "current_user_at_machine",
    "identity_of_this_process",
    "owner_token",
]

_ours: Counter[str] = Counter()  # locks that this process owns or waits for, by path


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One changed setting of one GPU. `before` is the previous value, UNKNOWN for a lock that
    another program had set."""

    gpu_uuid: str
    gpu_index: int
    gpu_name: str
    setting: str  # key
    before: SettingValue | None
    # source of `before`: "read" from the driver, "journal" (Workbench had set it), "default"
    # (Workbench had reset it), "unknown", or "claim" (another user's Workbench, `origin`, had set a
    # value and knows the one before)
    before_known: str
    now: SettingValue | None
    since_unix_s: float
    boot_id: str
    driver: str | None
    who: str
    # machine, boot id, pid and start time of the Workbench that changed the setting
    owner: Mapping[str, Any]
    # the driver's counter then; a lower one now means that the driver was reloaded
    energy_j: float | None = None
    # "pending": written, but the command may not have run; "kept": left on deliberately, no
    # question about it again
    state: str = "applied"
    watch: Mapping[str, Any] = field(default_factory=dict)  # orders for the guard: see guard.py
    set_unix_s: float | None = None  # time of the last change
    over: Sequence[SettingValue] = ()  # the values of others that lay under it then, oldest first
    origin: str = ""
    driver_start: str | None = None  # which load of the driver's module; None if not known
    # while "pending": the fields of the entry that this one replaces, None if it replaces none
    earlier: Mapping[str, Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of a later version

    @property
    def gpu_and_setting(self) -> tuple[str, str]:
        return self.gpu_uuid, self.setting

    @property
    def user_setting_is_left_to(self) -> str:
        """The user to whom a revert has left the setting; "" if it is not left to anybody."""
        return setting_commands.user_setting_is_left_to({"state": self.state})

    @property
    def gpu_or_host_name(self) -> str:
        return gpu_or_host_name(self.gpu_uuid, self.gpu_index)

    @property
    def is_watched(self) -> bool:
        """Whether the guard has instructions for the setting, and may revert it."""
        return bool(self.watch) and self.state != KEPT_STATE

    @property
    def change_text(self) -> str:
        """The changed setting in words, with its GPU and its new value: "GPU0 power limit 400
        W"."""
        return f"{self.gpu_or_host_name} {label_of(self.setting)} {format_setting_value(self.setting, self.now)}"

    @property
    def field_values(self) -> dict[str, Any]:
        """The fields of this journal entry as {name: value}, with values as Python objects, for
        example a ClockRange."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def as_json(self) -> dict[str, Any]:
        """Return the fields of this journal entry as {name: value}, with values that JSON can
        contain. The journal's file and the host's register store them so."""
        fields_of_entry = {**self.more, **self.field_values}
        del fields_of_entry["more"]
        values = {"before": value_to_store(self.before), "now": value_to_store(self.now)}
        return {**fields_of_entry, **values, "over": [value_to_store(value) for value in self.over]}


def parse_entry(data: Mapping[str, Any]) -> JournalEntry:
    """Return the journal entry with the fields in `data`, a dict that `as_json` returned, possibly
    in another version of Workbench. Fields that this version does not know become `more`. Raises
    TypeError or KeyError if a field is missing."""
    more = dict(data)
    known = {name: more.pop(name) for name in _FIELDS & data.keys()}
    setting = data["setting"]
    for name in ("before", "now"):
        known[name] = parse_stored_value(setting, data[name])
    known["over"] = tuple(parse_stored_value(setting, value) for value in data.get("over") or ())
    return JournalEntry(**known, more=more)


_FIELDS = frozenset(f.name for f in fields(JournalEntry)) - {"more"}


@dataclass(frozen=True, slots=True)
class Record:
    """A journal entry with the state of the process that made it: "this" process, another process
    that is "alive" or "dead", or "elsewhere" for a process of another machine, whose state is
    unknown. `why_lost` says why the setting no longer applies, for example because the host
    restarted. None if it may apply."""

    entry: JournalEntry
    owner: str
    why_lost: str | None = None


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal's contents. `boot_id` is the id of the host's present boot. `others` has the
    settings that other Workbenches claim to have changed. If the file was missing or damaged and
    the entries come from the host's register instead, `recovered` says so."""

    boot_id: str = ""
    entries: tuple[JournalEntry, ...] = ()
    log: tuple[Mapping[str, Any], ...] = ()
    others: tuple[SettingClaim, ...] = ()
    register: Register = field(default_factory=Register)
    recovered: Recovery | None = None
    driver_start: str | None = None  # which load of the driver's module; None if not known
    disk_full: bool = False  # so that a change of the journal cannot be written
    more: Mapping[str, Any] = field(default_factory=dict)  # parts of a later version

    def find_entry(self, uuid: str, setting: str) -> JournalEntry | None:
        return next((e for e in self.entries if e.gpu_and_setting == (uuid, setting)), None)

    def entry_field_values(self, uuid: str, setting: str) -> dict[str, Any] | None:
        """Return the fields of the entry for a setting, None if the setting has no entry."""
        entry = self.find_entry(uuid, setting)
        return None if entry is None else entry.field_values

    @property
    def gpus_and_settings(self) -> set[tuple[str, str]]:
        """(GPU UUID, key) of each setting that has an entry."""
        return {entry.gpu_and_setting for entry in self.entries}

    @property
    def settings(self) -> set[str]:
        """The keys of the settings that have an entry."""
        return {entry.setting for entry in self.entries}

    def with_entry(self, entry: JournalEntry) -> Journal:
        """Return the journal with `entry` in place of the earlier entry for the same setting. The
        new entry keeps the previous value (`before`) of the earlier one."""
        old = self.find_entry(entry.gpu_uuid, entry.setting)
        if old is not None:
            kept = {
                name: getattr(old, name)
                for name in ("before", "before_known", "since_unix_s", "origin")
            }
            entry = replace(entry, **kept)
        return replace(self, entries=(*self.without_entry(entry.gpu_and_setting).entries, entry))

    def without_entry(self, key: tuple[str, str]) -> Journal:
        return replace(self, entries=tuple(e for e in self.entries if e.gpu_and_setting != key))

    def with_log_line(self, what: str, **facts: Any) -> Journal:
        """Return the journal with one more line in its log: the event `what`, and the further
        fields `facts`. The oldest lines beyond LOG_LINES are dropped."""
        values = {name: value_to_store(value) for name, value in facts.items()}
        line = {
            "unix_s": round(time.time(), 3),
            "boot_id": self.boot_id,
            "who": current_user_at_machine(),
            "what": what,
            **values,
        }
        return replace(self, log=(*self.log, line)[-LOG_LINES:])

    def without_entries_of_lost_settings(self, energy_j: Mapping[str, float]) -> Journal:
        """Return the journal without the entries whose settings a restart of the host or the driver
        has reset, and without the claims of others on such settings. The log names the entries.
        `energy_j` has the present energy counters of the GPUs in joules by UUID. If nothing better
        is known, a counter below the one in the entry shows a restart of the driver."""
        kept = self
        for record in self.records(energy_j):
            if record.why_lost is not None:
                kept = kept.without_entry_of_lost_setting(record)
        others = [
            c for c in self.others if not self.why_setting_is_lost(c, energy_j.get(c.gpu_uuid))
        ]
        return replace(kept, others=tuple(others))

    def without_entry_of_lost_setting(self, lost: Record) -> Journal:
        """Return the journal without the entry of `lost`, whose setting a restart has reset. The
        log names the entry. An entry that has changed since stays."""
        entry = lost.entry
        if self.find_entry(*entry.gpu_and_setting) != entry:
            return self
        what = f"gone: {lost.why_lost}"
        return self.without_entry(entry.gpu_and_setting).with_log_line(
            what, gpu_uuid=entry.gpu_uuid, setting=entry.setting
        )

    def why_setting_is_lost(
        self, entry: JournalEntry | SettingClaim, energy_j: float | None = None
    ) -> str | None:
        """Return why the setting of `entry` no longer applies, for example because the host
        restarted. None if it may still apply. `energy_j` is the present value of the GPU's energy
        counter in joules, which starts again when the driver is reloaded."""
        then = {name: getattr(entry, name) for name in ("boot_id", "energy_j", "driver_start")}
        return setting_commands.why_setting_has_no_effect(
            then, self.boot_id, energy_j, self.driver_start
        )

    def records(self, energy_j: Mapping[str, float] | None = None) -> tuple[Record, ...]:
        """Return a record of each entry: the entry, the state of the process that made it, and why
        its setting no longer applies. `energy_j` has the present energy counters of the GPUs in
        joules by UUID, None if unknown. A counter below the one in the entry shows that the driver
        was reloaded."""
        now = energy_j or {}
        return tuple(
            Record(
                e, owner_process_state(e.owner), self.why_setting_is_lost(e, now.get(e.gpu_uuid))
            )
            for e in self.entries
        )

    def with_restored_entry(self, key: tuple[str, str], entry: JournalEntry | None) -> Journal:
        """Return the journal with the entry of the setting `key` replaced by the earlier `entry`,
        or removed if `entry` is None."""
        left = self.without_entry(key)
        return left if entry is None else replace(left, entries=(*left.entries, entry))

    def with_changes_between(self, old: Journal, new: Journal) -> Journal:
        """Return this journal with the changes that lead from the journal `old` to `new`. An entry
        that only `old` has is removed, unless it differs in this journal."""
        merged = self
        for key in dict.fromkeys(e.gpu_and_setting for e in (*old.entries, *new.entries)):
            was, now = old.find_entry(*key), new.find_entry(*key)
            if now is None:
                if merged.find_entry(*key) == was:
                    merged = merged.without_entry(key)
            elif now != was:
                merged = merged.with_entry(now)
        lines = tuple(line for line in new.log if line not in old.log)
        return replace(merged, log=(*merged.log, *lines)[-LOG_LINES:])

    def last_known_lock_and_source(self, uuid: str, setting: str) -> tuple[SettingValue, str]:
        """Return (the clock lock that the GPU `uuid` probably has now, how this is known). The
        driver cannot report a lock. It is the one that another Workbench claims to have set
        ("claim"), or that this Workbench set since the boot ("journal"), or DEFAULT if this
        Workbench reset it ("default"), otherwise UNKNOWN ("unknown")."""
        entry = self.find_entry(uuid, setting)
        own = self.entry_field_values(uuid, setting)
        claim = claims.claim_behind_present_value(self.others, (uuid, setting), None, own)
        if claim is not None:
            return claim.now, "claim"
        if entry is not None and entry.now is not None and entry.boot_id == self.boot_id:
            return (UNKNOWN, UNKNOWN) if entry.state == PENDING else (entry.now, "journal")
        for line in reversed(self.log):
            if (line.get("gpu_uuid"), line.get("setting")) == (uuid, setting):
                outcome = (line.get("boot_id"), line.get("ok"), line.get("now"))
                if outcome == (self.boot_id, True, DEFAULT):
                    return DEFAULT, DEFAULT
                break
        return UNKNOWN, UNKNOWN


@dataclass(slots=True)
class LockedJournal:
    """The journal of changed settings while this process has locked it, so that no other process
    writes it."""

    host: Host
    path: str
    journal: Journal = field(default_factory=Journal)
    is_locked: bool = True
    was_lost: bool = False  # another program has locked the journal meanwhile
    recovery: Recovery | None = None  # the journal's file was missing or damaged before this lock

    async def save(self, journal: Journal, *, unlock: bool = False) -> None:
        """Write the journal's file atomically, with fsync, and publish its entries in the host's
        register. With `unlock`, then unlock the journal. Raises FileError if the file cannot be
        written, and the old file stays. Raises LostLock if the journal's lock is gone or belongs to
        another Workbench, and nothing is written."""
        data = {
            **journal.more,
            "version": JOURNAL_VERSION,
            "entries": [e.as_json() for e in journal.entries],
            "log": list(journal.log),
        }
        recovered = self.journal.recovered
        answer = await request_journal_operation(
            self.host,
            directory_of_journal(self.path),
            "save",
            journal=data,
            owner=owner_token(),
            aside=recovered is not None,  # the file may be missing
            unlocks=unlock,
        )
        if "lost" in answer:
            self.is_locked, self.was_lost = False, True
            raise _lost_journal_lock_error(self.host, answer)
        if "error" in answer:
            raise _write_error(self.host, self.path, answer)
        self.is_locked = not unlock
        if recovered is not None:
            self.recovery = replace(recovered, is_written=True)
        register = parse_register(answer.get("register"))
        self.journal = replace(journal, register=register, others=register.others, recovered=None)

    async def save_and_unlock(self, journal: Journal) -> None:
        """Save the journal after a change, and unlock it. If this Workbench has lost the lock, lock
        the journal again, and add this change to what another Workbench has written meanwhile.
        Raises SettingsError if it cannot be locked again, and FileError if it cannot be written."""
        try:
            await self.save(journal, unlock=True)
        except LostLock:
            answer = await _acquire_journal_lock(self.host, self.path)
            self.is_locked = True
            fresh = _journal_from_answer(answer, self.path, self.host.name)
            await self.save(fresh.with_changes_between(self.journal, journal), unlock=True)

    async def reload_journal(self) -> None:
        """Read the journal again, and with it the claims of other Workbenches."""
        self.journal = await read_journal(self.host)

    def find_rival_claim(self, keys: Collection[tuple[str, str]]) -> SettingClaim | None:
        """Return the claim of another Workbench that is changing one of the settings `keys` at this
        moment, None if none is."""
        return next(
            (c for c in self.journal.others if c.changing and c.gpu_and_setting in keys), None
        )


async def journal_path_on(host: Host) -> str:
    return f"{await host.state_dir()}/gpu/journal.json"


def directory_of_journal(path: str) -> str:
    return path.rpartition("/")[0]


async def read_journal(host: Host, *, with_log: bool = True) -> Journal:
    """Read the journal and the claims of other Workbenches. A missing or damaged journal is
    recovered from the register. Without `with_log`, the log is not sent, which is most of the file,
    and the journal that is returned has none.

    Raises SettingsError if the file is damaged and the register has no copy, or if a newer version
    wrote the file.
    """
    path = await journal_path_on(host)
    answer = await request_journal_operation(host, directory_of_journal(path), "read", log=with_log)
    return _journal_from_answer(answer, path, host.name)


def _journal_from_answer(answer: JournalAnswer, path: str, host: str) -> Journal:
    """Return the journal from the answer of the program on the host to "read" or "lock". A missing
    or damaged journal is recovered from the register. Raises SettingsError if it is damaged and the
    register has no copy, or if it cannot be used."""
    if "error" in answer:
        raise _unusable_journal_error("read", path, host, answer)
    register = parse_register(answer.get("register"))
    boot_id, started, text = answer.get("boot_id"), answer.get("driver_start"), answer.get("text")
    known = Journal(
        clean_text(str(boot_id)),
        others=register.others,
        register=register,
        driver_start=clean_text(str(started)) if started is not None else None,
        disk_full=answer.get("full") is True,
    )
    damage = answer.get("damage")
    if text is None and damage is None:
        return (
            _recover_journal_from_register(known, f"the journal of GPU settings {path} was missing")
            or known
        )
    try:
        if damage is not None:
            raise _damaged_journal_error(clean_text(str(damage)), path, host)
        found = parse_journal(str(text), known.boot_id, path, host)
    except DamagedJournal as error:
        why = f"the journal of GPU settings {path} was damaged ({error.why})"
        recovered = _recover_journal_from_register(known, why, f"{path}.damaged")
        if recovered is None:
            raise
        return recovered
    return replace(known, entries=found.entries, log=found.log, more=found.more)


class LostLock(HostError):
    """Raised if another Workbench has locked the journal that this one had locked."""


def _lost_journal_lock_error(host: Host, answer: JournalAnswer) -> LostLock:
    by = clean_text(str(answer["lost"] or ""))
    who_has_it = f"another Workbench ({owner_text(by)}) has locked it" if by else "it is gone"
    return LostLock(
        f"this Workbench has lost its lock of the journal: {who_has_it}",
        host=host.name,
        next_step="`workbench gpu status` shows the present settings; then repeat the command",
    )


def _write_error(host: Host, path: str, answer: JournalAnswer) -> FileError:
    full = answer.get("errno") in (errno.ENOSPC, errno.EDQUOT)
    return FileError(
        f"cannot write {path}: {clean_text(str(answer['error']))}",
        host=host.name,
        next_step="free some space on that disk" if full else None,
    )


def _recover_journal_from_register(known: Journal, why: str, damaged: str = "") -> Journal | None:
    """Return the empty journal `known` with the entries that this Workbench published in the host's
    register, None if there are none. The log gets a line with `why`, the fault of the journal's
    file. `damaged` is the path to which a damaged file will be moved, "" if the file is missing.
    Raises SettingsError if a newer version of Workbench published the entries."""
    register = known.register
    if register.own_version > JOURNAL_VERSION:
        raise _newer_version_error(
            f"{why}, and its copy in the host's register", register.own_version
        )
    if not register.own:
        return None
    entries = tuple(map(parse_entry, register.own))
    kept = tuple(
        f"{e.change_text}, before {format_setting_value(e.setting, e.before)}" for e in entries
    )
    found = replace(known, entries=entries, recovered=Recovery(why, kept, damaged))
    return found.with_log_line(f"recovered from the host's register: {why}")


def _unusable_journal_error(
    what: str, path: str, host: str, answer: JournalAnswer
) -> SettingsError:
    """Return the error for a journal that cannot be `what` ("read", "locked")."""
    why = clean_text(str(answer["error"]))
    full = answer.get("errno") in (errno.ENOSPC, errno.EDQUOT)
    look = f"`ls -ld {directory_of_journal(path)} {path}` on that host shows what is there, and whose it is"
    return SettingsError(
        f"the journal of GPU settings {path} cannot be {what}: {why}; nothing was changed",
        host=host,
        next_step="free some space on that disk" if full else look,
    )


class DamagedJournal(SettingsError):
    """Raised if the journal's file is damaged. `why` describes the damage."""

    why = ""


def _newer_version_error(what: str, version: int, host: str | None = None) -> SettingsError:
    """Return the error for `what`, a journal or its copy, in the format `version` of a newer
    Workbench."""
    return SettingsError(
        f"{what} was written by a newer Workbench (format {version}; this one reads formats up to "
        f"{JOURNAL_VERSION}); nothing was changed",
        host=host,
        next_step="use the newer Workbench on this host, or update this one; leave the journal "
        "where it is, because it has the previous values",
    )


def _damaged_journal_error(why: str, path: str, host: str | None) -> DamagedJournal:
    error = DamagedJournal(
        f"the journal of GPU settings {path} cannot be used: {why}; nothing was changed",
        host=host,
        next_step=f"the file may contain previous values; run `mv {path} {path}.bad` to start a "
        "new journal",
    )
    error.why = why
    return error


def parse_journal(
    text: str, boot_id: str, path: str = "journal", host: str | None = None
) -> Journal:
    """Parse the text of the journal's file. `boot_id` is the id of the host's present boot, and
    error messages name `path` and `host`. Raises DamagedJournal if the text is not a valid journal,
    and SettingsError if a newer version of Workbench wrote it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged_journal_error(f"the journal is incomplete ({error})", path, host) from None
    version = data.get("version") if isinstance(data, dict) else None
    if type(version) is not int:  # no bool
        raise _damaged_journal_error("this file is not a journal of GPU settings", path, host)
    if version > JOURNAL_VERSION:
        raise _newer_version_error(f"the journal of GPU settings {path}", version, host)
    try:
        for entry in data["entries"]:
            JournalEntry(**{k: v for k, v in entry.items() if k in _FIELDS})  # TypeError: one lacks
        invalid_parts = map(setting_commands.describe_invalid_part_of_entry, data["entries"])
        if invalid_part := next(filter(None, invalid_parts), None):
            raise _damaged_journal_error(
                f"the journal contains a value that Workbench cannot have written ({invalid_part})",
                path,
                host,
            )
        entries = tuple(map(parse_entry, data["entries"]))
        log = tuple(line for line in data["log"] if _is_log_line(line))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged_journal_error(f"the journal is damaged ({error})", path, host) from None
    more = {name: part for name, part in data.items() if name not in _PARTS}
    return Journal(boot_id, entries, log, more=more)


def _is_log_line(line: Any) -> bool:
    """Return whether `line` can be a line of the journal's log. It may lack fields, but those that
    it has must be of the right type."""
    if not isinstance(line, dict) or path_and_reason_of_impossible_number(line):
        return False
    texts = ("boot_id", "who", "what", "gpu_uuid", "setting", "message")
    if number_for_field("unix_s", line.get("unix_s", 0.0)) is None:
        return False
    if not isinstance(line.get("ok", True), bool):
        return False
    return all(isinstance(line.get(name, ""), str) for name in texts)


_PARTS = ("version", "entries", "log")


@asynccontextmanager
async def locked_journal(host: Host) -> AsyncIterator[LockedJournal]:
    """Lock the journal, read it, yield it, and unlock it at the end of the block. Raises
    SettingsError if another Workbench owns the lock or if the file is damaged."""
    path = await journal_path_on(host)
    _ours[path] += 1
    try:
        answer = await _acquire_journal_lock(host, path)
        held = LockedJournal(host, path)
        try:
            held.journal = _journal_from_answer(answer, path, host.name)
            held.recovery = held.journal.recovered
            if held.recovery:
                with suppress(HostError):
                    await held.save(held.journal)
            yield held
        finally:
            # the link is lost: the lock stays, and its owner recognizes it
            with suppress(HostError):
                if held.is_locked:
                    await request_journal_operation(
                        host, directory_of_journal(path), "unlock", owner=owner_token()
                    )
    finally:
        _ours[path] -= 1


async def is_journal_locked(host: Host) -> bool:
    """Return whether a guard or a Workbench has locked the journal. Until the lock ends, the host's
    values can differ from the entries."""
    found = await request_journal_operation(
        host, directory_of_journal(await journal_path_on(host)), "holder"
    )
    return bool(found.get("by")) and not found.get("void")


async def _request_journal_lock(
    host: Host, path: str, owner: str, dead: Sequence[str]
) -> JournalAnswer:
    """Ask the host once for the journal's lock, and return the answer: whether `owner` has it now,
    and the journal or who holds it. The locks of the owners `dead` do not count. Raises
    SettingsError if the host gives no answer, and HostUnreachable if the link is lost."""
    root = directory_of_journal(path)
    try:
        return await request_journal_operation(host, root, "lock", owner=owner, dead=dead)
    except HostUnreachable:
        raise
    except HostError as error:
        # the program may have been killed after it had locked the journal
        with suppress(HostError):
            if _ours[path] == 1:
                await request_journal_operation(host, root, "unlock", owner=owner)
        raise SettingsError(
            f"the journal of GPU settings cannot be locked: {error.message}; nothing was changed",
            host=host.name,
            next_step=error.next_step,
        ) from None


async def _acquire_journal_lock(host: Host, path: str) -> JournalAnswer:
    """Lock the journal, and return what the host says about it then. The lock of a process that has
    ended does not count. Raises SettingsError if the journal is unusable, or if another Workbench
    holds the lock for longer than WAIT_S seconds."""
    until = time.monotonic() + WAIT_S
    owner, dead = owner_token(), list[str]()
    while True:
        answer = await _request_journal_lock(host, path, owner, dead)
        if answer.get("held"):
            return answer
        if "error" in answer:
            raise _unusable_journal_error("locked", path, host.name, answer)
        held = clean_text(str(answer.get("by") or ""))
        # left by an interrupted change of this process, or by a process of this machine
        left_by_this_process = held == owner and _ours[path] == 1
        void = left_by_this_process or has_lock_owner_ended(held)
        if void and not dead:
            dead = [held.rpartition(":")[0]]
        elif time.monotonic() > until:
            raise SettingsError(
                f"another Workbench ({owner_text(held)}) is changing GPU settings on this host; "
                "nothing was changed",
                host=host.name,
                next_step="wait until that Workbench ends; if it has ended already, remove its "
                f"lock {path}.lock",
            )
        else:
            dead = []
            await asyncio.sleep(0.2)
