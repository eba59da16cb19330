"""A cache of the flag lists that engines on hosts printed, so that each engine is started only once
to print its list.

A list is valid for one program on one host while the program's version and modification time stay
the same. A file that cannot be read is treated as missing, and the engine is started again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.store.paths import cache_dir
from workbench.store.text_files import read_stored_file

CACHE_FORMAT = 1  # of the files: another number means that a new version of Workbench asks again


def read_cached_flags(key: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the cached flag list for `key`, which has host, engine, program, version and
    modification time. None if the cache has no such list."""
    with suppress(ValueError, RecursionError):
        kept = json.loads(read_stored_file(_cache_file(key)))
        if (
            isinstance(kept, dict)
            and kept.get("key") == list(key)
            and isinstance(kept.get("catalog"), dict)
        ):
            return dict(kept["catalog"])
    return None


def write_cached_flags(key: tuple[str, ...], catalog: dict[str, Any]) -> None:
    """Store the flag list `catalog` under `key`, which has host, engine, program, version and
    modification time. If the file cannot be written, nothing is stored."""
    file = _cache_file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"key": list(key), "catalog": catalog}), "utf-8")
        new.replace(file)


def _cache_file(key: tuple[str, ...]) -> Path:
    name = hashlib.sha256(json.dumps([CACHE_FORMAT, *key]).encode()).hexdigest()[:24]
    return cache_dir() / "flags" / f"{name}.json"
