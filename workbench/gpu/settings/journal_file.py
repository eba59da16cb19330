"""The journal of GPU settings on its host: the file, the lock beside it, and its entries in the
host's register. Only this module touches them on a host that has python3.

    journal.json        previous values, and under each entry's `watch` the guard's instructions
    journal.json.lock   a link that names the writer of the journal: boot id, process, start time, user

Other programs of the same user can replace these files. So no link is followed, and only regular
files of limited size are read. A lock counts only if its process runs and belongs to the user who
made the lock.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

# ruff: noqa: PTH118, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence

from workbench.gpu.process_facts import (
    boot_id,
    process_of_lock_owner,
    start_ticks_of_process,
    uids_of_process,
)
from workbench.gpu.settings import claims, register
from workbench.model import setting_commands
from workbench.model.setting_commands import JOURNAL_VERSION

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

LOG_LINES = 200
MOST_BYTES = 4 << 20  # of the journal and of the guard's state: Workbench writes no larger one
LEASE_S = 600.0  # an older lock counts as abandoned: no plan takes that long
REMOVED_WITHIN_S = 1.0  # another program removes a lock within microseconds, unless it is stopped
_NEW = ".new.journal."  # the name of a file that is being written, before the process id
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class UnreadableJournal(Exception):
    """Raised if the journal cannot be read. The text of the exception is the reason."""


def open_directory(path: str) -> int:
    """Open a directory without following a link anywhere on its path, and return the file
    descriptor. Raises OSError if a part of the path is a link or is no directory."""
    here, name = os.open("/", OPEN_DIRECTORY), "/"
    try:
        for name in (*path.strip("/").split("/"), "."):
            below = os.open(
                name, OPEN_DIRECTORY if name == "." else OPEN_DIRECTORY | os.O_PATH, dir_fd=here
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


def open_regular_file(name: str, flags: int, at: int) -> int:
    """Open the regular file `name` in the open directory `at`, with the `flags` of os.open, and
    return the file descriptor. Raises OSError if the name is a link, a FIFO or a device."""
    handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=at)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(
            errno.EINVAL, "the file is a link, a FIFO or a device, but must be a regular file", name
        )
    return handle


def read_regular_file(name: str, at: int) -> bytes:
    """Return the contents of the regular file `name` in the open directory `at`. Raises OSError if
    the file has more than MOST_BYTES."""
    with open(open_regular_file(name, os.O_RDONLY, at), "rb") as file:
        found = file.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES:
            raise OSError(
                errno.EFBIG,
                f"the file is larger than {MOST_BYTES >> 20} MiB, more than Workbench writes",
                name,
            )
    return found


class JournalFile:
    """The journal in one directory. Every path starts at that directory, which stays open, so that
    nobody can redirect the program by renaming or replacing it."""

    def __init__(self, root: str, shared: str | None = None, owner: str = "") -> None:
        """Open the directory `root`, which is gpu/ in Workbench's state directory. `shared` is the
        directory of the host's register of changed settings, None if the host has none. `owner`
        names the writer of the journal in its lock."""
        self.root, self.shared, self.owner = root, shared, owner
        above, name = os.path.split(root)
        self.at = open_directory(
            os.path.join(os.path.realpath(above), name)
        )  # the home directory may be behind links, the journal not
        self.journal, self.link = "journal.json", "journal.json.lock"
        self.boot_id, self.node = boot_id(), os.uname().nodename
        # the owner of the lock that this process waits for, and since when
        self.waiting: tuple[str, float] = ("", 0.0)

    @property
    def lock_text(self) -> str:
        """The text of the journal's lock while this writer has it:
        "BOOT_ID:PID:START_TIME:USER@HOST". From the process id and the start time, others can tell
        whether the writer still runs."""
        return self.owner

    def read_mtime_inode_and_size(self) -> list[int]:
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
            found = json.loads(read_regular_file(self.journal, self.at).decode())
            if not isinstance(found["version"], int) or found["version"] > JOURNAL_VERSION:
                raise UnreadableJournal(
                    f"the journal has format version {found['version']!r}, which this program "
                    "cannot read"
                )
            for entry in found["entries"]:
                if why := setting_commands.describe_invalid_part_of_entry(entry):
                    raise UnreadableJournal(
                        f"the journal contains a value that Workbench cannot have written ({why})"
                    )
            found["log"] = list(found["log"])
        except OSError as error:
            raise UnreadableJournal(f"the journal cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnreadableJournal(f"the journal is damaged ({error!r})") from None
        return dict(found)

    def write(self, journal: Mapping[str, Any]) -> None:
        """Write the journal's file atomically, with fsync. If it cannot be written, the old one
        stays and OSError is raised."""
        data = {**journal, "log": journal["log"][-LOG_LINES:]}
        self.remove_files_of_killed_writers()
        self.replace(self.journal, json.dumps(data, indent=1), self.at)
        os.fsync(self.at)

    def remove_files_of_killed_writers(self) -> None:
        """Remove unfinished files of processes that were killed while they wrote the journal. Call
        this only while the journal is locked."""
        for name in os.listdir(self.at):
            pid = name[len(_NEW) :]
            if name.startswith(_NEW) and pid.isdecimal() and not start_ticks_of_process(int(pid)):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.at)

    def save(self, journal: Mapping[str, Any]) -> None:
        """Write the journal's file, and publish its entries in the host's register. If the file
        cannot be written, the old one stays and OSError is raised."""
        self.write(journal)
        self.publish_in_register(journal["entries"])

    def replace(self, name: str, text: str, at: int) -> None:
        """Replace the file `name` in the open directory `at` atomically by one with `text`. In the
        journal's own directory, the file is written with fsync. Raises OSError if it cannot be
        written, and the old file stays."""
        new = f"{_NEW}{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=at)
            with open(
                open_regular_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at), "w"
            ) as file:
                file.write(text)
                file.flush()
                if at == self.at:
                    os.fsync(file.fileno())
            os.replace(new, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=at)
            raise

    # ---- the host's register

    def publish_in_register(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Publish the journal's entries in the host's register, where the Workbenches of other
        users read them. Do nothing if the host has no register or if it cannot be written."""
        if self.shared is not None:
            with contextlib.suppress(OSError):
                where = register.find_or_create_register_directory(
                    self.shared
                )  # created again if Workbench had created it
                register.publish_entries(
                    where, register.register_file_name(self.root), self.boot_id, entries
                )

    def read_foreign_claims(self) -> tuple[claims.SettingClaim, ...]:
        """Return the settings that other Workbenches have changed, as they claim in the host's
        register. () if the register cannot be read."""
        return self.read_foreign_claims_and_own_entries()[0]

    def is_unpublished(self) -> bool:
        """Return whether the host has a register, but no entry of this journal is in it. True also
        if the register cannot be read."""
        return self.shared is not None and not self.read_foreign_claims_and_own_entries()[1]

    def read_foreign_claims_and_own_entries(
        self,
    ) -> tuple[tuple[claims.SettingClaim, ...], tuple[Mapping[str, Any], ...]]:
        """Read the host's register. Return (settings that other Workbenches claim to have changed,
        published entries of this journal). Both are () if the register cannot be read."""
        if self.shared is None:
            return (), ()
        try:
            found = register.read_register(self.shared, self.boot_id)
        except OSError:
            return (), ()
        return claims.parse_foreign_claims_and_own_entries(
            found, os.geteuid(), register.register_file_name(self.root)
        )

    # ---- the lock

    def try_to_lock(self, silent_owners: tuple[str, ...]) -> bool:
        """Try once to lock the journal by creating a link, and return whether that worked. If not,
        remove a lock that no longer counts, so that the next try can succeed: one of an owner in
        `silent_owners` ("BOOT_ID:PID:START_TIME") or of a process that has ended, one that this
        process has waited for longer than LEASE_S seconds, or a file that is no link."""
        try:
            os.symlink(self.lock_text, self.link, dir_fd=self.at)
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
        waited_s = time.monotonic() - self.waiting[1]
        no_heartbeat = owner.startswith(tuple(name + ":" for name in silent_owners))
        if no_heartbeat or waited_s > LEASE_S or self.owner_has_ended(owner, found.st_uid):
            self.release_lock(owner)
        return False

    def try_to_lock_twice(self, silent_owners: tuple[str, ...]) -> bool:
        """Try to lock the journal, and return whether that worked. If the first try has only
        removed a lock that no longer counts, the second one can succeed."""
        return self.try_to_lock(silent_owners) or self.try_to_lock(silent_owners)

    def owner_has_ended(self, owner: str, uid: int) -> bool:
        """Return whether the owner of a lock is a process of this host that has ended, or that does
        not run as the user who made the lock. `owner` is the lock's text,
        "BOOT_ID:PID:START_TIME:USER@HOST", and `uid` the owner of the link."""
        process = process_of_lock_owner(owner)
        if process is None:
            return False
        pid, start = process
        return start_ticks_of_process(pid) != start or uid not in uids_of_process(pid)

    def lock_owner(self) -> str:
        """Return the owner of the lock; "" if the journal is not locked."""
        try:
            return os.readlink(self.link, dir_fd=self.at)
        except OSError:
            return ""

    def release_lock(self, owner: str | None = None) -> None:
        """Remove the lock of `owner`, by default of this writer. Do nothing if there is none, or if
        it is another's."""
        with self._exclusive_lock_removal(), contextlib.suppress(OSError):
            if self.lock_owner() == (owner or self.lock_text):
                os.unlink(self.link, dir_fd=self.at)

    @contextlib.contextmanager
    def _exclusive_lock_removal(self) -> Iterator[None]:
        """Let one program at a time remove a lock. If two did so at once, the slower one could
        remove the lock that a third has made since. A program that is stopped here delays others
        by REMOVED_WITHIN_S."""
        until = time.monotonic() + REMOVED_WITHIN_S
        with contextlib.suppress(OSError):  # of a file system on which directories have no flock
            while not self._try_to_flock_directory() and time.monotonic() < until:
                time.sleep(0.005)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self.at, fcntl.LOCK_UN)

    def _try_to_flock_directory(self) -> bool:
        try:
            fcntl.flock(self.at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
