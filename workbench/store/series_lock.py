"""Lock files that let only one Workbench at a time run a series, which is an experiment or a
sweep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.model.errors import InputError, StoreError, error_reason

INTERRUPTED = "Workbench ended while it ran"  # the error of a series whose Workbench ended


@contextmanager
def hold_lock(path: Path, series_name: str) -> Iterator[None]:
    """Hold the lock of a series while the context manager is open. `path` is the lock file, and
    `series_name` names the series in messages, such as "experiment 3". The kernel releases the lock
    when this process ends. Raises InputError if another process holds the lock, and StoreError if
    the file cannot be created."""
    file = _open_file(path)
    try:
        if not _try_to_lock(file, path, fcntl.LOCK_EX):
            raise InputError(
                f"another Workbench is running {series_name}",
                next_step=f"wait until {series_name} has ended, or cancel it in that Workbench",
            )
        yield
    finally:
        os.close(file)


def is_lock_held(path: Path) -> bool:
    """Return whether any process, including this one, holds the lock of a series. `path` is its
    lock file. Concurrent calls do not affect each other."""
    file = _open_file(path)
    try:
        return not _try_to_lock(file, path, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _open_file(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"the lock directory {path.parent} cannot be written: {error_reason(error)}"
        ) from None


def _try_to_lock(file: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"the lock file {path} cannot be locked: {error_reason(error)}") from None
    return True
