"""Digests of the programs and settings in other people's presets that this user has trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from workbench.store import paths
from workbench.store.text_files import write_atomic


def _path() -> Path:
    return paths.state_dir() / "trusted.json"


def trusted() -> frozenset[str]:
    """Return the trusted digests. Empty if there are none or the file cannot be read."""
    try:
        found = json.loads(_path().read_text("utf-8"))["trusted"]
        return frozenset(one for one in found if isinstance(one, str))
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


def trust(digests: Iterable[str]) -> None:
    """Add digests to the trusted ones. Raises StoreError if the file cannot be written."""
    new = trusted() | set(digests)
    if new != trusted():
        write_atomic(_path(), json.dumps({"trusted": sorted(new)}, indent=1))
