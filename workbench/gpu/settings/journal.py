"""What Workbench changed on a host's GPUs, kept on that host: previous values are on disk before anything changes.

`<state dir>/gpu/journal.json` holds `entries`, one per GPU and setting that is not as it was (the first value known is
kept, however often it is changed again), and `log`, what was done. One writer at a time: a symbolic link beside it
names the owner, since a link is made with its content in one step, over any kind of host.

The entries are told to the host's register as well (register.py), where other users' Workbenches see them. It is also
the second copy: a journal that is missing or damaged is made anew from what stands there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from workbench.gpu.settings import claims, revert
from workbench.gpu.settings.claims import SettingClaim
from workbench.gpu.settings.owners import described, lock_is_dead, owner_facts, owner_token, state_of, who
from workbench.gpu.settings.revert import DEFAULT, UNKNOWN
from workbench.gpu.settings.shared_register import Register, register_on
from workbench.hosts.base import Host
from workbench.hosts.shell_scripts import sh
from workbench.model.errors import HostError, SettingsError

VERSION = 1
LOG_LINES = 200
MOST_BYTES = 4 << 20  # of the file: a larger one is not of Workbench's making
LEASE_S = 600  # a lock of another machine's Workbench that is older is broken: no plan takes that long
WAIT_S = 5.0

__all__ = ["DEFAULT", "UNKNOWN", "Held", "Journal", "JournalEntry", "Record", "owner_facts", "owner_token", "who"]

_ours: Counter[str] = Counter()  # locks that this process holds or waits for, by their path

# $1: journal, $2: how many bytes of it. Boot id first; exit code 3 when there is no journal, 4 when it is no file.
READ = r"""
cat /proc/sys/kernel/random/boot_id || echo
[ -e "$1" ] || exit 3
[ -f "$1" ] || exit 4
head -c "$2" <"$1"
"""
# Prints "held OWNER", the link's age in seconds, and how long the host has been up; then "gone" for an owner that was a
# process of this host, as a guard is, and is no more, or is not of the link's owner.
_NAME_OWNER = r"""
made=$(stat -c %Y "$1") && uid=$(stat -c %u "$1") || exit 0
echo "held $owner"
echo $(($(date +%s) - made))
read -r up _ </proc/uptime && echo "${up%.*}"
IFS= read -r boot </proc/sys/kernel/random/boot_id
case $owner in "$boot":*"@$(uname -n)") ;; *) exit 0 ;; esac
IFS=:
set -f
set -- $owner
unset IFS
pid=$2 start=$3
case $pid in *[!0-9]*) echo gone; exit 0 ;; esac
{ read -r stat <"/proc/$pid/stat"; } 2>/dev/null || stat=
set -- ${stat##*) }
[ "${20}" = "$start" ] || { echo gone; exit 0; }
{ while read -r name uids; do [ "$name" != Uid: ] || break; done <"/proc/$pid/status"; } 2>/dev/null
for one in $uids; do [ "$one" != "$uid" ] || exit 0; done
echo gone
"""
# $1: link, $2: owner. Prints "ok", or who has it. What stands there and is no link was not made by a Workbench: it is
# put aside.
ACQUIRE = (
    r"""
umask 077
mkdir -p -- "$(dirname -- "$1")" || exit 1
ln -s "$2" "$1" 2>/dev/null && { echo ok; exit 0; }
if [ -e "$1" ] && [ ! -L "$1" ]; then mv -f -- "$1" "$1.bad.$$"; fi
owner=$(readlink "$1") || { ln -s "$2" "$1" && echo ok; exit $?; }
"""
    + _NAME_OWNER
)
# $1: link. Prints who has it, or nothing.
HOLDER = (
    r"""
owner=$(readlink "$1") || exit 0
"""
    + _NAME_OWNER
)
# $1: link, $2: owner. Only that owner's link is removed.
RELEASE = r"""
[ "$(readlink "$1")" = "$2" ] && rm -f -- "$1"
exit 0
"""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One setting of one GPU that is not as it was. Values as in SettingCommand.value; `before` may be "unknown"."""

    gpu_uuid: str
    gpu_index: int
    gpu_name: str
    setting: str
    before: Any
    # "read" from the driver, "journal" (we had set it), "default" (we had reset it), "unknown", or "claim": the present
    # value was another's, `origin`, who told what was before it
    before_known: str
    now: Any
    since_unix_s: float
    boot_id: str
    driver: str | None
    who: str
    owner: Mapping[str, Any]  # machine, boot id, pid and start time of the Workbench that changed it
    energy_j: float | None = None  # the driver's counter then: less now means that the driver was reloaded
    # "pending": written, not known whether it took hold; "kept": left on deliberately, nobody is asked about it again
    state: str = "applied"
    watch: Mapping[str, Any] = field(default_factory=dict)  # what the guard is to do with it: see guard.py
    set_unix_s: float | None = None  # when it was changed last
    over: Sequence[Any] = ()  # the values of others that lay under it then, oldest first
    origin: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.gpu_uuid, self.setting


@dataclass(frozen=True, slots=True)
class Record:
    """An entry, its owner's state ("this", "alive", "dead", "elsewhere") and why it is no longer in force, if so."""

    entry: JournalEntry
    owner: str
    gone: str | None = None


@dataclass(frozen=True, slots=True)
class Journal:
    """`boot_id` is the host's now, not the file's. `others`: what other Workbenches claim. `recovered`: what was wrong
    with the file, where the entries are those that the register knew."""

    boot_id: str = ""
    entries: tuple[JournalEntry, ...] = ()
    log: tuple[Mapping[str, Any], ...] = ()
    others: tuple[SettingClaim, ...] = ()
    register: Register = field(default_factory=Register)
    recovered: str | None = None

    def get(self, uuid: str, setting: str) -> JournalEntry | None:
        return next((e for e in self.entries if e.key == (uuid, setting)), None)

    def put(self, entry: JournalEntry) -> Journal:
        """`entry` in place of the one for the same setting, whose first known `before` is kept."""
        old = self.get(entry.gpu_uuid, entry.setting)
        if old is not None:
            kept = {name: getattr(old, name) for name in ("before", "before_known", "since_unix_s", "origin")}
            entry = replace(entry, **kept)
        return replace(self, entries=(*(e for e in self.entries if e.key != entry.key), entry))

    def drop(self, key: tuple[str, str]) -> Journal:
        return replace(self, entries=tuple(e for e in self.entries if e.key != key))

    def note(self, what: str, **facts: Any) -> Journal:
        line = {"unix_s": round(time.time(), 3), "boot_id": self.boot_id, "who": who(), "what": what, **facts}
        return replace(self, log=(*self.log, line)[-LOG_LINES:])

    def without_gone(self, energy_j: Mapping[str, float]) -> Journal:
        """Settings of an earlier boot or driver load are gone: into the log with them. `energy_j` by GPU UUID."""
        kept = self
        for entry in self.entries:
            why = self.gone(entry, energy_j.get(entry.gpu_uuid))
            if why:
                kept = kept.drop(entry.key).note(f"gone: {why}", gpu_uuid=entry.gpu_uuid, setting=entry.setting)
        return replace(kept, others=tuple(c for c in self.others if not self._over(c, energy_j.get(c.gpu_uuid))))

    def _over(self, one: SettingClaim, energy_j: float | None) -> bool:
        return revert.gone({"boot_id": one.boot_id, "energy_j": one.energy_j}, self.boot_id, energy_j) is not None

    def gone(self, entry: JournalEntry, energy_j: float | None = None) -> str | None:
        return revert.gone({"boot_id": entry.boot_id, "energy_j": entry.energy_j}, self.boot_id, energy_j)

    def records(self, energy_j: Mapping[str, float] | None = None) -> tuple[Record, ...]:
        """The entries with what has become of them; `energy_j` by GPU UUID, where it is known."""
        now = energy_j or {}
        return tuple(Record(e, state_of(e.owner), self.gone(e, now.get(e.gpu_uuid))) for e in self.entries)

    def back_to(self, key: tuple[str, str], entry: JournalEntry | None) -> Journal:
        """The setting as it was journalled before: `entry`, or not at all."""
        left = self.drop(key)
        return left if entry is None else replace(left, entries=(*left.entries, entry))

    def known_lock(self, uuid: str, setting: str) -> tuple[Any, str]:
        """What a clock lock is now, which no driver tells: what another claims, or what we did last since the host
        started, or unknown."""
        entry = self.get(uuid, setting)
        claim = claims.explains(self.others, (uuid, setting), None, asdict(entry) if entry else None)
        if claim is not None:
            return claim.now, "claim"
        if entry is not None and entry.boot_id == self.boot_id:
            return (UNKNOWN, UNKNOWN) if entry.state == "pending" else (entry.now, "journal")
        for line in reversed(self.log):
            if (line.get("gpu_uuid"), line.get("setting")) == (uuid, setting):
                if line.get("boot_id") == self.boot_id and line.get("ok") and line.get("now") == DEFAULT:
                    return DEFAULT, DEFAULT
                break
        return UNKNOWN, UNKNOWN


@dataclass(slots=True)
class Held:
    """The journal while its lock is ours."""

    host: Host
    path: str
    journal: Journal = field(default_factory=Journal)

    async def save(self, journal: Journal) -> None:
        """Atomic and fsynced, and told to the other Workbenches. FileError when it cannot be written; the file is then
        as before."""
        entries = [asdict(e) for e in journal.entries]
        data = {"version": VERSION, "entries": entries, "log": list(journal.log)}
        await self.host.write_file(self.path, json.dumps(data, indent=1).encode())
        register = await register_on(self.host, root_of(self.path), entries)
        self.journal = replace(journal, register=register, others=register.others)

    def rival(self, keys: Collection[tuple[str, str]]) -> SettingClaim | None:
        """Another Workbench that is changing one of these settings right now."""
        return next((c for c in self.journal.others if c.changing and c.key in keys), None)


async def path_on(host: Host) -> str:
    return f"{await host.state_dir()}/gpu/journal.json"


def root_of(path: str) -> str:
    return path.rpartition("/")[0]


async def read(host: Host) -> Journal:
    """With what others claim. SettingsError when the file is truncated or not ours, and the register does not know
    better; also when it is of a newer version."""
    path = await path_on(host)
    done, register = await asyncio.gather(
        host.run(sh(READ, path, str(MOST_BYTES + 1))), register_on(host, root_of(path))
    )
    boot_id, _, text = done.out.partition("\n")
    boot_id = boot_id.strip()
    if done.returncode not in (0, 3, 4):
        why = f"the journal of GPU settings cannot be read: {done.err.strip()}; nothing was changed"
        raise SettingsError(why, host=host.name)
    known = Journal(boot_id, others=register.others, register=register)
    if done.returncode == 3:
        return _recovered(known, "it was missing") or known
    try:
        if done.returncode == 4:
            raise _broken("is not a regular file", path, host.name)
        if len(text) > MOST_BYTES:
            raise _broken(f"is larger than {MOST_BYTES >> 20} MiB", path, host.name)
        found = parse(text, boot_id, path, host.name)
    except Damaged as error:
        recovered = _recovered(known, error.why)
        if recovered is None:
            raise
        return recovered
    return replace(found, others=register.others, register=register)


def _recovered(known: Journal, why: str) -> Journal | None:
    """With the entries that this journal told the register; None where it told none."""
    own = known.register.own
    if not own:
        return None
    try:
        found = replace(known, entries=tuple(JournalEntry(**entry) for entry in own), recovered=why)
    except TypeError:  # a newer Workbench's
        return None
    return found.note(f"recovered from the host's register: {why}")


class Damaged(SettingsError):
    """`why`: what is wrong with the file."""

    why = ""


def _broken(why: str, path: str, host: str | None, kind: type[SettingsError] = Damaged) -> SettingsError:
    error = kind(
        f"the journal of GPU settings {path} {why}; nothing was changed",
        host=host,
        next_step=f"look at it for the previous values; `mv {path} {path}.bad` lets Workbench start anew",
    )
    if isinstance(error, Damaged):
        error.why = f"it {why}"
    return error


def parse(text: str, boot_id: str, path: str = "journal", host: str | None = None) -> Journal:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(f"is not whole ({error})", path, host) from None
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise _broken("is not a journal", path, host)
    if version > VERSION:
        why = f"is of version {version}, made by a newer Workbench (this one reads {VERSION})"
        raise _broken(why, path, host, SettingsError)
    try:
        entries = tuple(JournalEntry(**entry) for entry in data["entries"])
        log = tuple(dict(line) for line in data["log"])
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(f"is damaged ({error})", path, host) from None
    if wrong := [why for why in map(revert.unfit, data["entries"]) if why]:
        raise _broken(f"holds what no Workbench writes ({wrong[0]})", path, host)
    return Journal(boot_id, entries, log)


@asynccontextmanager
async def locked(host: Host) -> AsyncIterator[Held]:
    """The journal, read, with its lock held. SettingsError when another Workbench holds it or the file is damaged."""
    path = await path_on(host)
    link, owner = f"{path}.lock", owner_token()
    _ours[link] += 1
    try:
        await _acquire(host, link, owner)
        try:
            held = Held(host, path, await read(host))
            if held.journal.recovered:
                await host.run(["mv", "-f", "--", path, f"{path}.damaged"])  # there may be none
                with suppress(HostError):
                    await held.save(replace(held.journal, recovered=None))
            yield held
        finally:
            with suppress(HostError):  # the way there is lost: the lock stays, and is known again by its owner
                await host.run(sh(RELEASE, link, owner))
    finally:
        _ours[link] -= 1


async def is_being_changed(host: Host) -> bool:
    """Return whether a guard or a Workbench holds the journal's lock: values and entries do not agree meanwhile."""
    link = f"{await path_on(host)}.lock"
    done = await host.run(sh(HOLDER, link))
    lines = done.out.split("\n")
    return bool(lines[0]) and not _is_dead(lines)


def _is_dead(lines: Sequence[str]) -> bool:
    """Return whether the owner that ACQUIRE or HOLDER named is no more."""
    age_s, up_s = (int(w) if w.lstrip("-").isdigit() else None for w in [*lines[1:], "", ""][:2])
    return "gone" in lines[1:] or lock_is_dead(lines[0].removeprefix("held "), age_s or 0, LEASE_S, up_s)


async def _acquire(host: Host, link: str, owner: str) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        done = await host.run(sh(ACQUIRE, link, owner))
        lines = done.out.split("\n")
        if done.returncode != 0:
            raise SettingsError(
                f"the journal of GPU settings cannot be locked: {done.err.strip()}; nothing was changed", host=host.name
            )
        held = lines[0].removeprefix("held ")
        if lines[0] == "ok" or (held == owner and _ours[link] == 1):  # left by a change of ours that was cut off
            return
        if lines[0] and _is_dead(lines):
            await host.run(sh(RELEASE, link, held))
        elif time.monotonic() > until:
            raise SettingsError(
                f"another Workbench ({described(held)}) is changing GPU settings here; nothing was changed",
                host=host.name,
                next_step=f"wait for it; if it is gone for good, remove {link}",
            )
        else:
            await asyncio.sleep(0.2)
