"""Signatures of files on this machine, which show whether somebody has changed them since an
earlier look. A screen looks every few seconds, and starts programs to read the files only after a
change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workbench.hosts.base import Host

ChangeSignature = tuple[object, ...]


def read_file_signatures(
    host: Host, files: Iterable[str], directories_and_prefixes: Iterable[tuple[str, str]]
) -> ChangeSignature | None:
    """Return the inode, the time of the last change and the size of each of `files`, and of the
    files in each pair (directory, prefix) of `directories_and_prefixes` whose names begin with the
    prefix. Missing files count as such. None if the host is not this machine: there, this costs as
    much as to read the files."""
    if not host.is_local:
        return None
    found: list[object] = [_read_file_signature(Path(path)) for path in files]
    for directory, prefix in directories_and_prefixes:
        try:
            paths = [path for path in Path(directory).iterdir() if path.name.startswith(prefix)]
        except OSError:
            paths = []
        found.append(tuple((path.name, _read_file_signature(path)) for path in sorted(paths)))
    return tuple(found)


def _read_file_signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
