"""Digests (hashes) of the programs and settings in presets of other people, which this user has
allowed to run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from workbench.store import paths
from workbench.store.text_files import read_stored_file, write_atomic


def _path() -> Path:
    return paths.state_dir() / "trusted.json"


def trusted_digests() -> frozenset[str]:
    """Return the digests (hashes) of the preset programs and settings that the user trusts. Empty
    if there are none or the file cannot be read."""
    try:
        found = json.loads(read_stored_file(_path()))["trusted"]
        return frozenset(one for one in found if isinstance(one, str))
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def trust_digests(digests: Iterable[str]) -> None:
    """Add digests (hashes) of preset programs and settings to those that the user trusts. Raises
    StoreError if the file cannot be written."""
    new = trusted_digests() | set(digests)
    if new != trusted_digests():
        write_atomic(_path(), json.dumps({"trusted": sorted(new)}, indent=1))
