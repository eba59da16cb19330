"""Reading and writing small text files without surprises."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from workbench.model.errors import StoreError


def write_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text so that a reader or a crash sees the old file or the new one, never half of it.

    Parents are made 0700, the file is 0600 (or keeps its mode). Raises StoreError. A symbolic link is followed, so that
    dotfiles kept elsewhere stay linked.
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
            f"could not write {path}: {error.strerror or error}",
            next_step="check that the directory is writable and the disk is not full",
        ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
