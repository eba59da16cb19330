"""Reading and atomic writing of small text files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from workbench.model.errors import StoreError, error_reason

MAX_BYTES = 4 << 20  # of a file that the user writes; ten thousand hosts take less than one
MAX_KEPT_BYTES = 64 << 20  # of a file that Workbench writes; a thousand presets take 0.7 MB


def read_user_text(path: Path) -> str:
    """Return the text of a regular UTF-8 file, "" if the file does not exist. Raises StoreError for
    a file that is not regular (it could block or have no end), is larger than MAX_BYTES, or cannot
    be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(
                f"{path} cannot be read: not a regular file", next_step=f"correct or remove {path}"
            )
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise StoreError(
                f"{path} has more than {MAX_BYTES >> 20} MiB", next_step=f"correct or remove {path}"
            )
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise StoreError(
            f"{path} cannot be read: {reason}", next_step=f"correct or remove {path}"
        ) from error


def read_stored_file(path: Path) -> bytes:
    """Return the bytes of one of Workbench's own files. Empty if the file cannot be read, is not
    regular (a FIFO would block, a device has no end), or is larger than MAX_KEPT_BYTES."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_KEPT_BYTES:
                return file.read()
    except OSError:
        pass
    return b""


def write_atomic(path: Path, text: str) -> None:
    """Write a UTF-8 text file so that readers see the old text or the new one, never a part of it,
    even after a crash. Missing directories are created with mode 0700. An existing file keeps its
    mode, a new one gets 0600. If `path` is a symbolic link, the file that it names is replaced.
    Raises StoreError if the file cannot be written."""
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if target.exists() and not target.is_file():  # root could replace a device
            raise OSError(errno.EINVAL, "not a regular file")
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
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise StoreError(
            f"{path} could not be written: {error_reason(error)}",
            next_step="check that the directory is writable and the disk is not full",
        ) from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
