"""Atomic writing of small text files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from workbench.model.errors import StoreError


def write_atomic(path: Path, text: str) -> None:
    """Write a UTF-8 text file so that readers see the old text or the new one and never a part, even after a crash.
    Raises StoreError.

    Missing directories are created with mode 0700. An existing file keeps its mode, a new one gets 0600. If `path` is a
    symbolic link, the file that it names is replaced.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
    except OSError as error:
        raise StoreError(
            f"{path} could not be written: {error.strerror or error}",
            next_step="check that the directory is writable and the disk is not full",
        ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
