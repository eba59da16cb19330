"""What this user has agreed to run from presets of others: digests, kept from the first start on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from workbench.store import paths
from workbench.store.text_files import write_atomic


def _path() -> Path:
    return paths.state_dir() / "trusted.json"


def trusted() -> frozenset[str]:
    """Return the digests. A file that cannot be read means that nothing is trusted."""
    try:
        found = json.loads(_path().read_text("utf-8"))["trusted"]
        return frozenset(one for one in found if isinstance(one, str))
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()


def trust(digests: Iterable[str]) -> None:
    """Remember these too. Raises StoreError."""
    new = trusted() | set(digests)
    if new != trusted():
        write_atomic(_path(), json.dumps({"trusted": sorted(new)}, indent=1))
