"""The files that the guard reads and writes on its host, in gpu/ of Workbench's state directory.

    journal.json        previous values, and under each entry's `watch` the guard's instructions
    journal.json.lock   a link that names the writer of the journal: boot id, process, start time, user
    guard/lock          locked (flock) by the running guard
    guard/beats/OWNER   touched again and again by a running Workbench, as its heartbeat
    guard/state.json    the guard's state; remains after its end
    guard/round         when the guard completed its last round, in seconds since the host's boot
    guard/pid           the guard's process id and start time
    guard/log           a line for each thing that the guard did
    guard/leave         process id of a new guard, which asks the running guard to end

Other programs of the same user can replace these files. So the guard follows no link, and reads
only regular files of limited size. A lock counts only if its process runs and belongs to the user
who made the lock.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8. On
Workbench's side, settings/journal.py and guard/client.py read and write these files.
"""

# ruff: noqa: PTH118, PTH123, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence

from workbench.gpu.process_facts import boot_id, start_of, uids_of
from workbench.gpu.settings import claims, register
from workbench.model import setting_commands
from workbench.model.setting_commands import JOURNAL_VERSION

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

# Of the guard, in its state. Raise it if the guard's rules or its instructions change: a guard of an
# earlier version is asked to make way.
GUARD_VERSION = 2
LOG_LINES = 200
LOG_BYTES = 200_000
MOST_BYTES = 4 << 20  # of the journal and of the state: Workbench writes no larger one
TAKE_OVER_S = 1.0  # for another guard to take over: it tries every 20 ms
LEASE_S = 600.0  # an older lock counts as abandoned
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class UnreadableJournal(Exception):
    """Raised if the journal cannot be read. The text of the exception is the reason."""


def open_directory(path: str) -> int:
    """Open a directory without following a link anywhere on its path, and return the file
    descriptor. Raises OSError if a part of the path is a link or is no directory."""
    here, name = os.open("/", _DIRECTORY), "/"
    try:
        for name in (*path.strip("/").split("/"), "."):
            below = os.open(
                name, _DIRECTORY if name == "." else _DIRECTORY | os.O_PATH, dir_fd=here
            )
            os.close(here)
            here = below
    except OSError as error:
        os.close(here)
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(error.errno, error.strerror, path) from None
        why = f"{name!r} is not a directory, or is a link, which Workbench does not follow"
        raise OSError(error.errno, why, path) from None
    return here


def open_regular(name: str, flags: int, at: int) -> int:
    """Open the regular file `name` in the open directory `at`, with the `flags` of os.open, and
    return the file descriptor. Raises OSError if the name is a link, a FIFO or a device."""
    handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=at)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(
            errno.EINVAL, "the file is a link, a FIFO or a device, but must be a regular file", name
        )
    return handle


def read_regular(name: str, at: int) -> bytes:
    """Return the contents of the regular file `name` in the open directory `at`. Raises OSError if
    the file has more than MOST_BYTES."""
    with open(open_regular(name, os.O_RDONLY, at), "rb") as file:
        found = b"" if os.fstat(file.fileno()).st_size > MOST_BYTES else file.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES or os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise OSError(
                errno.EFBIG,
                f"the file is larger than {MOST_BYTES >> 20} MiB, more than Workbench writes",
                name,
            )
    return found


class Files:
    """The guard's files. Every path starts at a directory that stays open, so that nobody can
    redirect the guard by renaming or replacing a directory."""

    def __init__(self, root: str, shared: str | None = None) -> None:
        """Open the directory in which the guard has its files: `root`, which is gpu/ in Workbench's
        state directory. `shared` is the directory of the host's register of changed settings, None
        if the host has none. Raises PermissionError if other users can write to `root`."""
        self.root, self.shared = root, shared
        above, name = os.path.split(root)
        self.at = open_directory(
            os.path.join(os.path.realpath(above), name)
        )  # the home directory may be behind links, the journal not
        found = os.fstat(self.at)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            whose = f"uid {found.st_uid} owns it and its mode is {stat.S_IMODE(found.st_mode):o}"
            os.close(self.at)
            raise PermissionError(
                errno.EPERM,
                f"only uid {os.geteuid()} may own and change this directory, but {whose}",
                root,
            )
        self.journal, self.link = "journal.json", "journal.json.lock"
        self.home = self.beats = -1
        self.boot_id, self.node = boot_id(), os.uname().nodename
        # the owner of the lock that the guard waits for, and since when
        self.waiting: tuple[str, float] = ("", 0.0)
        self.held: int | None = None

    @property
    def token(self) -> str:
        """The guard's name in the journal's lock, "BOOT_ID:PID:START_TIME:the guard@HOST". From the
        process id and the start time, a Workbench can tell whether this guard still runs."""
        return f"{self.boot_id}:{os.getpid()}:{start_of(os.getpid())}:the guard@{self.node}"

    def prepare(self) -> None:
        """Create the guard's directory, its `beats/`, and its lock and log files, if they are
        missing. The caller has set umask 077."""
        self.home = self.below("guard", self.at)
        self.beats = self.below("beats", self.home)
        for name in ("lock", "log"):
            os.close(self.open_file(name, os.O_RDWR))

    def below(self, name: str, at: int) -> int:
        """Open the directory `name` inside the open directory `at`, and return its file descriptor.
        A missing directory is created. A file or link of that name is first renamed to "NAME.bad".
        """
        self.clear(name, at, stat.S_IFDIR)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
        return os.open(name, _DIRECTORY, dir_fd=at)

    def open_file(self, name: str, flags: int) -> int:
        """Open the file `name` in the guard's directory with the `flags` of os.open, and return its
        file descriptor. A missing file is created. A link or a FIFO of that name is first renamed
        to "NAME.bad"."""
        self.clear(name, self.home, stat.S_IFREG)
        return open_regular(name, flags | os.O_CREAT, self.home)

    def clear(self, name: str, at: int, kind: int) -> None:
        """Rename the file, link or directory `name` in the open directory `at` to "NAME.bad",
        unless it is of the type `kind`, a constant such as stat.S_IFREG."""
        with contextlib.suppress(OSError):
            if stat.S_IFMT(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode) != kind:
                os.rename(name, f"{name}.bad", src_dir_fd=at, dst_dir_fd=at)

    def take_guard_lock(self) -> bool:
        """Lock the file that lets only one guard run on the host, and return whether that worked.
        It fails if another guard has the lock. Processes that this one forks keep the lock."""
        if self.held is not None:
            return True
        handle = self.open_file("lock", os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self.held = handle
        return True

    def ask_to_leave(self, wanted: bool) -> None:
        """If `wanted` is true, create the file that asks the running guard to end, so that this
        process can take its place. Otherwise remove that file."""
        if wanted:
            with open(self.open_file("leave", os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(str(os.getpid()))
        else:
            with contextlib.suppress(OSError):
                os.unlink("leave", dir_fd=self.home)

    def asked_to_leave(self) -> int | None:
        """Return the id of the process that asks to take this guard's place. Return 0 if the
        request names no process, and None if there is no request."""
        try:
            os.stat("leave", dir_fd=self.home, follow_symlinks=False)
            return int(read_regular("leave", self.home))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return 0

    def release_guard_lock(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None

    def make_way(self, asking: int) -> bool:
        """Release the guard's lock for the process `asking`, and return whether that process took
        the lock. If it did not, this process takes the lock again and stays the guard."""
        until = time.monotonic() + TAKE_OVER_S
        while time.monotonic() < until:
            self.release_guard_lock()
            time.sleep(TAKE_OVER_S / 20)
            if not self.take_guard_lock() and self.holder() == asking:
                return True
        return False

    def holder(self) -> int | None:
        """Return the id of the process that has the guard's lock, as /proc/locks says, or None if
        no process has it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            inode = os.stat("lock", dir_fd=self.home, follow_symlinks=False).st_ino
            with open("/proc/locks") as file:
                for words in map(str.split, file):
                    if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                        return int(words[4])
        return None

    # ---- the journal

    def stamp(self) -> list[int]:
        """Return [modification time in ns, inode, size] of the journal's file, by which every
        change of the file can be noticed. [] if the file is missing."""
        try:
            found = os.stat(self.journal, dir_fd=self.at, follow_symlinks=False)
        except OSError:
            return []
        return [found.st_mtime_ns, found.st_ino, found.st_size]

    def load(self) -> dict[str, Any]:
        """Return the contents of the journal. Raises UnreadableJournal if the file is missing or
        damaged, or if a newer version of Workbench wrote it."""
        try:
            found = json.loads(read_regular(self.journal, self.at).decode())
            if not isinstance(found["version"], int) or found["version"] > JOURNAL_VERSION:
                raise UnreadableJournal(
                    f"the journal has format version {found['version']!r}, which this guard cannot "
                    "read"
                )
            for entry in found["entries"]:
                if why := setting_commands.unfit(entry):
                    raise UnreadableJournal(
                        f"the journal contains a value that Workbench cannot have written ({why})"
                    )
            found["log"] = list(found["log"])
        except OSError as error:
            raise UnreadableJournal(f"the journal cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnreadableJournal(f"the journal is damaged ({error!r})") from None
        return dict(found)

    def save(self, journal: Mapping[str, Any]) -> None:
        """Write the journal's file atomically, with fsync, and publish its entries in the host's
        register. If the file cannot be written, the old one stays and OSError is raised."""
        data = {**journal, "log": journal["log"][-LOG_LINES:]}
        self.replace(self.journal, json.dumps(data, indent=1), self.at)
        os.fsync(self.at)
        self.publish(journal["entries"])

    # ---- the host's register

    def publish(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Publish the journal's entries in the host's register, where the Workbenches of other
        users read them. Do nothing if the host has no register or if it cannot be written."""
        if self.shared is not None:
            with contextlib.suppress(OSError):
                where = register.place(self.shared)  # created again if Workbench had created it
                register.publish(where, register.name_of(self.root), self.boot_id, entries)

    def others(self) -> tuple[claims.SettingClaim, ...]:
        """Return the settings that other Workbenches have changed, as they claim in the host's
        register. () if the register cannot be read."""
        return self.read_register()[0]

    def is_unpublished(self) -> bool:
        """Return whether the journal's entries must be published again, because the host has a
        register but no entry of this journal is in it."""
        return self.shared is not None and not self.read_register()[1]

    def read_register(
        self,
    ) -> tuple[tuple[claims.SettingClaim, ...], tuple[Mapping[str, Any], ...]]:
        """Read the host's register. Return (settings that other Workbenches claim to have changed,
        published entries of this journal). Both are () if the register cannot be read."""
        if self.shared is None:
            return (), ()
        try:
            found = register.read(self.shared, self.boot_id)
        except OSError:
            return (), ()
        return claims.from_register(found, os.geteuid(), register.name_of(self.root))

    def replace(self, name: str, text: str, at: int) -> None:
        new = f".new.guard.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=at)
            with open(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at), "w") as file:
                file.write(text)
                file.flush()
                if at == self.at:
                    os.fsync(file.fileno())
            os.replace(new, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=at)
            raise

    # ---- its lock

    def take(self, silent: tuple[str, ...]) -> bool:
        """Try once to lock the journal by creating a link, and return whether that worked. `silent`
        names owners without a heartbeat, as "BOOT_ID:PID:START_TIME". If the lock belongs to one of
        them or to a process that has ended, or is no link, remove it, so that the next try can
        succeed."""
        try:
            os.symlink(self.token, self.link, dir_fd=self.at)
            return True
        except FileExistsError:
            pass
        try:
            found = os.stat(self.link, dir_fd=self.at, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                os.rename(self.link, f"{self.link}.bad", src_dir_fd=self.at, dst_dir_fd=self.at)
                return False
            owner = os.readlink(self.link, dir_fd=self.at)
        except OSError:
            return False
        if owner != self.waiting[0]:
            self.waiting = (owner, time.monotonic())
        if self.lock_is_void(owner, found.st_uid) or owner.startswith(
            tuple(name + ":" for name in silent)
        ):
            self.release(owner)
        return False

    def lock_is_void(self, owner: str, uid: int) -> bool:
        """Return whether a lock on the journal no longer counts: the guard has waited for it longer
        than LEASE_S seconds, its process has ended, or its process does not run as the user who
        made the lock. `owner` is the lock's text, "BOOT_ID:PID:START_TIME:USER@HOST", and `uid` the
        owner of the link."""
        boot, pid, start, who = [*owner.split(":", 3), "", "", "", ""][:4]
        ours = boot == self.boot_id and pid.isdecimal() and who.endswith("@" + self.node)
        if ours and (start_of(int(pid)) != start or uid not in uids_of(int(pid))):
            return True
        return time.monotonic() - self.waiting[1] > LEASE_S

    def release(self, owner: str | None = None) -> None:
        with contextlib.suppress(OSError):
            if os.readlink(self.link, dir_fd=self.at) == (owner or self.token):
                os.unlink(self.link, dir_fd=self.at)

    # ---- the guard's own

    def beat(self, owner: str) -> int:
        """Return a number that changes with each heartbeat of `owner`, the name of a heartbeat
        file. 0 if there is no such file."""
        try:
            return os.stat(owner, dir_fd=self.beats, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def forget_beats(self) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.beats):
                os.unlink(name, dir_fd=self.beats)

    def state(self) -> dict[str, Any]:
        """Return the state that the last guard wrote to state.json; {} if it cannot be read."""
        try:
            found = json.loads(read_regular("state.json", self.home).decode())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) and setting_commands.plain(found) else {}

    def write_state(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guard
            self.replace("state.json", json.dumps(state, indent=1), self.home)

    def write_round(self) -> None:
        """Write down that the guard has completed a round. Without this file nobody could tell a
        guard that works from one that fails in every round."""
        with contextlib.suppress(OSError), open(self.open_file("round", os.O_WRONLY), "r+") as file:
            file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME):012.1f}\n")

    def write_pid(self) -> None:
        with contextlib.suppress(OSError):
            self.replace("pid", f"{os.getpid()} {start_of(os.getpid())}\n", self.home)

    def log(self, text: str) -> None:
        line = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + " ".join(text.split()) + "\n"
        with (
            contextlib.suppress(OSError),
            open(self.open_file("log", os.O_WRONLY | os.O_APPEND), "a") as file,
        ):
            if os.fstat(file.fileno()).st_size > LOG_BYTES:
                os.replace("log", "log.1", src_dir_fd=self.home, dst_dir_fd=self.home)
            file.write(line)


def owner_id(entry: Mapping[str, Any]) -> str:
    """Return the name of the heartbeat file of the Workbench that made this journal entry:
    "BOOT_ID.PID.START_TIME"."""
    owner = entry["owner"]
    return f"{owner.get('boot_id')}.{owner.get('pid')}.{owner.get('start')}"


def owner_token(entry: Mapping[str, Any]) -> str:
    """Return "BOOT_ID:PID:START_TIME" of the Workbench that made this journal entry. If that
    Workbench locks the journal, the text in its lock begins so, and its user and machine follow."""
    return owner_id(entry).replace(".", ":")
