"""What the guard reads and writes on its host, under the state directory's gpu/. Sent to the host: standard library
only, Python 3.8. Workbench's side of the same files is journal.py and guard_orders.py.

    journal.json        previous values, and under each entry's `watch` what the guard is to do with it
    journal.json.lock   a link that names who is writing: boot id, process, start time, who
    guard/lock          held (flock) by the guard that lives
    guard/beats/OWNER   touched by a Workbench as long as it lives: its time changes, and which it is does not matter
    guard/state.json    what the guard does; outlives it
    guard/pid           its process id and start time
    guard/log           what it did
    guard/leave         asks a guard that is not root to make way for one that is
"""

# ruff: noqa: PTH103, PTH105, PTH108, PTH110, PTH115, PTH116, PTH120, PTH123, PTH208, PTH211
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import claims, register, restore

VERSION = 1  # of journal.json, as journal.py has it
LOG_LINES = 200
LOG_BYTES = 200_000
LEASE_S = 600.0  # a lock that has not changed for so long is of someone who is gone


class Broken(Exception):
    """The journal cannot be read; the text says why."""


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """Field 22 of /proc/PID/stat; "" when there is no such process, or only what is left of one."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


class Files:
    def __init__(self, root: str, shared: str | None = None) -> None:
        """`root` is where we are from now on, and all paths begin there: whoever can rename a directory above it cannot
        lead us to another. `shared`: where the host's register is, if anywhere."""
        self.root, self.shared = root, shared
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        os.fchdir(here)
        self.owner = os.fstat(here)
        os.close(here)
        self.journal, self.link, self.home = "journal.json", "journal.json.lock", "guard"
        self.boot_id, self.node = boot_id(), os.uname().nodename
        self.waiting: tuple[str, float] = ("", 0.0)  # whose lock we wait for, since when
        self.held: int | None = None

    @property
    def token(self) -> str:
        """As owners.owner_token: by it a Workbench can tell whether we live."""
        return f"{self.boot_id}:{os.getpid()}:{start_of(os.getpid())}:the guard@{self.node}"

    def prepare(self) -> None:
        """Files are made for the person alone: see guard.main's umask."""
        os.makedirs(self.home + "/beats", exist_ok=True)
        for name in ("lock", "pid", "log"):
            open(f"{self.home}/{name}", "a").close()

    def only_one(self) -> bool:
        """Whether this is the guard from now on, and any process forked from here; False when there is one already."""
        handle = os.open(self.home + "/lock", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self.held = handle
        return True

    def ask_to_leave(self, wanted: bool) -> None:
        """The guard that is there, which is not root."""
        if wanted:
            open(self.home + "/leave", "a").close()
        else:
            with contextlib.suppress(OSError):
                os.unlink(self.home + "/leave")

    def asked_to_leave(self) -> bool:
        return os.path.exists(self.home + "/leave")

    def let_go(self) -> None:
        if self.held is not None:
            fcntl.flock(self.held, fcntl.LOCK_UN)

    # ---- the journal

    def stamp(self) -> list[int]:
        """Another one when the journal is another one."""
        try:
            found = os.stat(self.journal)
        except OSError:
            return []
        return [found.st_mtime_ns, found.st_ino, found.st_size]

    def load(self) -> dict[str, Any]:
        """Broken when it is missing, not whole, or of a newer version."""
        try:
            with open(self.journal, "rb") as file:
                found = json.loads(file.read().decode())
            if not isinstance(found["version"], int) or found["version"] > VERSION:
                raise Broken(f"the journal is of version {found['version']!r}")
            for entry in found["entries"]:
                if why := restore.unfit(entry):
                    raise Broken(f"the journal holds what no Workbench writes ({why})")
            found["log"] = list(found["log"])
        except OSError as error:
            raise Broken(f"the journal cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Broken(f"the journal is damaged ({error!r})") from None
        return dict(found)

    def save(self, journal: Mapping[str, Any]) -> None:
        """Atomic and fsynced. OSError when it cannot be written; the file is then as before."""
        self.replace(self.journal, {**journal, "log": journal["log"][-LOG_LINES:]}, sync=True)
        self.publish(journal["entries"])

    # ---- what others are told, and what they say

    def publish(self, entries: Sequence[Mapping[str, Any]]) -> None:
        if self.shared is not None:
            with contextlib.suppress(OSError):
                register.publish(self.shared, register.name_of(self.root), self.boot_id, entries)

    def others(self) -> tuple[claims.Claim, ...]:
        """What other Workbenches changed; nothing where they cannot be asked."""
        if self.shared is None:
            return ()
        try:
            found = register.read(self.shared, self.boot_id)
        except OSError:
            return ()
        return claims.told(found, os.geteuid(), register.name_of(self.root))[0]

    def replace(self, path: str, data: Any, *, sync: bool = False) -> None:
        directory = os.path.dirname(path) or "."
        new = f"{directory}/.new.guard.{os.getpid()}"
        try:
            with open(new, "w") as file:
                file.write(json.dumps(data, indent=1))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        if sync:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # ---- its lock

    def take(self, silent: tuple[str, ...]) -> bool:
        """Whether the journal is ours now. A lock is broken whose owner is gone, or is one of `silent` ("boot id:
        process:start"): frozen, or on the other side of a lost link."""
        try:
            os.symlink(self.token, self.link)
            return True
        except FileExistsError:
            pass
        try:
            owner = os.readlink(self.link)
        except OSError:
            return False
        if owner != self.waiting[0]:
            self.waiting = (owner, time.monotonic())
        if self.gone(owner) or owner.startswith(tuple(name + ":" for name in silent)):
            self.release(owner)
        return False

    def gone(self, owner: str) -> bool:
        boot, pid, start, who = [*owner.split(":", 3), "", "", "", ""][:4]
        if boot == self.boot_id and pid.isdigit() and who.endswith("@" + self.node):
            return start_of(int(pid)) != start
        return time.monotonic() - self.waiting[1] > LEASE_S

    def release(self, owner: str | None = None) -> None:
        with contextlib.suppress(OSError):
            if os.readlink(self.link) == (owner or self.token):
                os.unlink(self.link)

    # ---- the guard's own

    def beat(self, owner: str) -> int:
        """Another number when that owner has given a sign of life."""
        try:
            return os.stat(self.home + "/beats/" + owner).st_mtime_ns
        except OSError:
            return 0

    def forget_beats(self) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.home + "/beats"):
                os.unlink(self.home + "/beats/" + name)

    def state(self) -> dict[str, Any]:
        """What the guard before left; {} when it cannot be read."""
        try:
            with open(self.home + "/state.json", "rb") as file:
                found = json.loads(file.read().decode())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def tell(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guard
            self.replace(self.home + "/state.json", state)

    def say_pid(self) -> None:
        with open(self.home + "/pid", "w") as file:
            file.write(f"{os.getpid()} {start_of(os.getpid())}\n")

    def log(self, text: str) -> None:
        path = self.home + "/log"
        line = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + " ".join(text.split()) + "\n"
        with contextlib.suppress(OSError):
            if os.path.exists(path) and os.stat(path).st_size > LOG_BYTES:
                os.replace(path, path + ".1")
            with open(path, "a") as file:
                file.write(line)


def owner_id(entry: Mapping[str, Any]) -> str:
    """The name of its owner's heartbeat."""
    owner = entry["owner"]
    return f"{owner.get('boot_id')}.{owner.get('pid')}.{owner.get('start')}"


def owner_token(entry: Mapping[str, Any]) -> str:
    """How the lock names it."""
    return owner_id(entry).replace(".", ":")
