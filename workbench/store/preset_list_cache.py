"""A cache of the list of presets, so that a command does not parse a thousand files to list them.

An entry is valid while its preset file has the same stamp: modification time, change time, size and
inode. A cache file that is missing, damaged or of another version counts as empty, and the next
listing writes it again.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.model.errors import StoreError
from workbench.model.json_records import field_values_with_tuples
from workbench.store.text_files import read_stored_file, write_atomic

Stamp = tuple[int, ...]
_FORMAT = f"presets of workbench {__version__}, format 1"


def read_list_cache(path: Path) -> dict[str, tuple[Stamp, dict[str, Any]]]:
    """Return {path of the preset file: (stamp, fields of the list entry)} from the cache file
    `path`. A stamp changes whenever the preset file changes. Return {} if the cache file cannot be
    used."""
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        head, _, body = read_stored_file(path).partition(b"\n")
        if head == _cache_first_line(body):
            entries = json.loads(body)
            return {
                name: (tuple(stamp), field_values_with_tuples(fields))
                for name, (stamp, fields) in entries.items()
            }
    return {}


def write_list_cache(path: Path, entries: Mapping[str, tuple[Stamp, Mapping[str, Any]]]) -> None:
    """Write the list entries, with the stamps of their preset files, to the cache file `path`. If
    the file cannot be written, do nothing."""
    body = json.dumps(entries)
    with contextlib.suppress(StoreError):
        write_atomic(path, f"{_cache_first_line(body.encode()).decode()}\n{body}")


def _cache_first_line(body: bytes) -> bytes:
    return f"{_FORMAT}, {zlib.crc32(body):08x}".encode()
