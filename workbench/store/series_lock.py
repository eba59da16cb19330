"""What only one Workbench at a time carries out: an experiment, a sweep. A lock of the kernel says that it is at it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.model.errors import InputError, StoreError


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for `what` ("experiment 3"). The kernel lets go of it when this process ends, however
    it ends. Raises InputError where another holds it, StoreError where there can be no such file."""
    file = _opened(path)
    try:
        if not _locked(file, path, fcntl.LOCK_EX):
            raise InputError(f"{what} is being carried out by another Workbench", next_step="wait, or stop it there")
        yield
    finally:
        os.close(file)


def is_held(path: Path) -> bool:
    """Return whether anybody carries it out, this process included. Those who ask do not disturb each other."""
    file = _opened(path)
    try:
        return not _locked(file, path, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path.parent} cannot be written: {error.strerror}") from None


def _locked(file: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from None
    return True
