"""The guard's rest between two rounds. It ends early when somebody changes the journal, which the
kernel reports (inotify), and when another part of the guard asks for a round.

Workbench sends this module to the host, so it uses only the standard library and Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time

MOVED_TO, CLOSE_WRITE = 0x80, 0x8  # sys/inotify.h: a file was renamed to a name, or written
MIN_SLEEP_S = 0.02  # between two rounds, however often somebody writes the journal
MOST_EVENT_BYTES = 8192


class InterruptibleSleep:
    """A rest that ends early on a change in one directory, and on a call of `wake`. `hears_changes`
    is False if the kernel does not report changes, for example in a container without inotify."""

    def __init__(self, directory: int) -> None:
        """Watch the open directory `directory`."""
        self.directory = directory
        self.wakes, self.woken = os.pipe()
        os.set_blocking(self.wakes, False)
        os.set_blocking(self.woken, False)
        self.poll = select.poll()
        self.poll.register(self.wakes, select.POLLIN)
        self.changes = open_directory_watch(directory)
        self.hears_changes = self.changes >= 0
        if self.hears_changes:
            self.poll.register(self.changes, select.POLLIN)

    def wake(self) -> None:
        """End the present rest. If there is none, the next one ends at once. A signal handler may
        call this."""
        with contextlib.suppress(OSError):  # the pipe is full, so the rest ends anyway
            os.write(self.woken, b"\0")

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until something ends the rest early."""
        ready = self.poll.poll(1000 * seconds)
        if not ready:
            return
        time.sleep(MIN_SLEEP_S)
        for handle, _ in ready:
            with contextlib.suppress(OSError):
                os.read(handle, MOST_EVENT_BYTES)
        if self.hears_changes and not os.fstat(self.directory).st_nlink:
            self.hears_changes = False  # the directory was removed, and its watch with it


def open_directory_watch(directory: int) -> int:
    """Return a file descriptor that becomes readable when a file in the open directory `directory`
    is written or replaced. Return -1 if the kernel does not report that."""
    try:
        libc = ctypes.CDLL(None)
        handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        path = f"/proc/self/fd/{directory}".encode()
        if handle < 0:
            return -1
        if libc.inotify_add_watch(handle, path, MOVED_TO | CLOSE_WRITE) >= 0:
            return int(handle)
        os.close(handle)
    except (OSError, AttributeError):
        pass
    return -1
