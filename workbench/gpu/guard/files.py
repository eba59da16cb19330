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
only regular files of limited size.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
settings/journal_file.py has the journal and its lock, and client.py reads the guard's own files.
"""

# ruff: noqa: PTH123, PTH208
# (pathlib is slow to import, and this runs on every host)

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Mapping

from workbench.gpu.process_facts import start_ticks_of_process
from workbench.gpu.settings.journal_file import (
    OPEN_DIRECTORY,
    JournalFile,
    open_regular_file,
    read_regular_file,
)
from workbench.model import setting_commands

TYPE_CHECKING = False  # typing is not imported on a host: it takes half a MiB
if TYPE_CHECKING:
    from typing import Any

# Of the guard, in its state. Raise it if the guard's rules or its instructions change: a guard of
# an earlier version is asked to make way.
GUARD_VERSION = 3
LOG_BYTES = 200_000
TAKE_OVER_S = 1.0  # for another guard to take over: it tries every 20 ms


class GuardFiles(JournalFile):
    """The guard's files, and the journal. Every path starts at a directory that stays open, so that
    nobody can redirect the guard by renaming or replacing it."""

    def __init__(self, root: str, shared: str | None = None) -> None:
        """Open the directory in which the guard has its files: `root`, which is gpu/ in Workbench's
        state directory. `shared` is the directory of the host's register of changed settings, None
        if the host has none. Raises PermissionError if other users can write to `root`."""
        super().__init__(root, shared)
        found = os.fstat(self.at)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            whose = f"uid {found.st_uid} owns it and its mode is {stat.S_IMODE(found.st_mode):o}"
            os.close(self.at)
            raise PermissionError(
                errno.EPERM,
                f"only uid {os.geteuid()} may own and change this directory, but {whose}",
                root,
            )
        self.home = self.beats = -1
        self.held: int | None = None

    @property
    def lock_text(self) -> str:
        """The guard's name in the journal's lock, "BOOT_ID:PID:START_TIME:the guard@HOST". From the
        process id and the start time, a Workbench can tell whether this guard still runs."""
        return f"{self.boot_id}:{os.getpid()}:{start_ticks_of_process(os.getpid())}:the guard@{self.node}"

    def create_guard_files(self) -> None:
        """Create the guard's directory, its `beats/`, and its lock and log files, if they are
        missing. The caller has set umask 077."""
        self.home = self.open_subdirectory("guard", self.at)
        self.beats = self.open_subdirectory("beats", self.home)
        for name in ("lock", "log"):
            os.close(self.open_file(name, os.O_RDWR))

    def open_subdirectory(self, name: str, at: int) -> int:
        """Open the directory `name` inside the open directory `at`, and return its file descriptor.
        A missing directory is created. A file or link of that name is first renamed to "NAME.bad".
        """
        self.rename_if_wrong_type(name, at, stat.S_IFDIR)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=at)
        return os.open(name, OPEN_DIRECTORY, dir_fd=at)

    def open_file(self, name: str, flags: int) -> int:
        """Open the file `name` in the guard's directory with the `flags` of os.open, and return its
        file descriptor. A missing file is created. A link or a FIFO of that name is first renamed
        to "NAME.bad"."""
        self.rename_if_wrong_type(name, self.home, stat.S_IFREG)
        return open_regular_file(name, flags | os.O_CREAT, self.home)

    def rename_if_wrong_type(self, name: str, at: int, kind: int) -> None:
        """Rename what is called `name` in the open directory `at` to "NAME.bad", if it is not of
        the type `kind`, a constant such as stat.S_IFREG. Do nothing if there is nothing of that
        name."""
        with contextlib.suppress(OSError):
            if stat.S_IFMT(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode) != kind:
                os.rename(name, f"{name}.bad", src_dir_fd=at, dst_dir_fd=at)

    def try_to_acquire_guard_lock(self) -> bool:
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

    def request_guard_end(self) -> None:
        """Create the file that asks the running guard to end, so that this process can take its
        place."""
        with open(self.open_file("leave", os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write(str(os.getpid()))

    def withdraw_guard_end_request(self) -> None:
        """Remove the file that asks the running guard to end."""
        with contextlib.suppress(OSError):
            os.unlink("leave", dir_fd=self.home)

    def pid_that_requests_end(self) -> int | None:
        """Return the id of the process that asks to take this guard's place. Return 0 if the
        request names no process or cannot be read, and None if there is no request."""
        try:
            os.stat("leave", dir_fd=self.home, follow_symlinks=False)
            return int(read_regular_file("leave", self.home))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return 0

    def release_guard_lock(self) -> None:
        if self.held is not None:
            os.close(self.held)
            self.held = None

    def try_to_hand_lock_over(self, requesting_pid: int) -> bool:
        """Release the guard's lock for the process `requesting_pid`, and return whether that
        process took the lock within TAKE_OVER_S seconds. If it did not, this process has the lock
        again, unless yet another process took it."""
        until = time.monotonic() + TAKE_OVER_S
        while time.monotonic() < until:
            self.release_guard_lock()
            time.sleep(TAKE_OVER_S / 20)
            if not self.try_to_acquire_guard_lock() and self.lock_holder_pid() == requesting_pid:
                return True
        return False

    def lock_holder_pid(self) -> int | None:
        """Return the id of the process that has the guard's lock, from /proc/locks. None if no
        process has it, or if the file cannot be read."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            inode = os.stat("lock", dir_fd=self.home, follow_symlinks=False).st_ino
            with open("/proc/locks") as file:
                for words in map(str.split, file):
                    if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                        return int(words[4])
        return None

    def heartbeat_mtime_ns(self, owner: str) -> int:
        """Return the modification time in ns of the heartbeat file `owner`, which changes with each
        heartbeat. 0 if there is no such file."""
        try:
            return os.stat(owner, dir_fd=self.beats, follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def delete_heartbeat_files(self) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.beats):
                os.unlink(name, dir_fd=self.beats)

    def read_state(self) -> dict[str, Any]:
        """Return the state that the last guard wrote to state.json; {} if it cannot be read."""
        try:
            found = json.loads(read_regular_file("state.json", self.home).decode())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict) or not setting_commands.has_only_bounded_numbers(found):
            return {}
        return found

    def write_state(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guard
            self.replace("state.json", json.dumps(state, indent=1), self.home)

    def record_completed_guard_round(self) -> None:
        """Write down that the guard has completed a round. Without this file nobody could tell a
        guard that works from one that fails in every round."""
        with contextlib.suppress(OSError), open(self.open_file("round", os.O_WRONLY), "r+") as file:
            file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME):012.1f}\n")

    def write_pid(self) -> None:
        with contextlib.suppress(OSError):
            self.replace("pid", f"{os.getpid()} {start_ticks_of_process(os.getpid())}\n", self.home)

    def append_to_log(self, text: str) -> None:
        line = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + " ".join(text.split()) + "\n"
        with contextlib.suppress(OSError):
            log = self.open_file("log", os.O_WRONLY | os.O_APPEND)
            with open(log, "a") as file:
                if os.fstat(file.fileno()).st_size > LOG_BYTES:
                    os.replace("log", "log.1", src_dir_fd=self.home, dst_dir_fd=self.home)
                file.write(line)


def heartbeat_file_name(entry: Mapping[str, Any]) -> str:
    """Return the name of the heartbeat file of the Workbench that made this journal entry:
    "BOOT_ID.PID.START_TIME"."""
    owner = entry["owner"]
    return f"{owner.get('boot_id')}.{owner.get('pid')}.{owner.get('start')}"


def owner_token(entry: Mapping[str, Any]) -> str:
    """Return "BOOT_ID:PID:START_TIME" of the Workbench that made this journal entry. If that
    Workbench locks the journal, the text in its lock begins so, and its user and machine follow."""
    return heartbeat_file_name(entry).replace(".", ":")
