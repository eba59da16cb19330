"""Where a screen was left, host by host: the marks A and B and what stood in its forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.model.errors import StoreError
from workbench.store import paths
from workbench.store.text_files import write_atomic


def _all() -> dict[str, Any]:
    try:
        found = json.loads(_path().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path() -> Any:
    return paths.state_dir() / "left-off.json"


def read(host: str) -> dict[str, Any]:
    """What was kept of this host; empty where nothing was, or it cannot be read."""
    found = _all().get(host)
    return found if isinstance(found, dict) else {}


def keep(host: str, what: Mapping[str, Any]) -> None:
    """In place of what was kept of this host. Without a place to write nothing is kept."""
    try:
        write_atomic(_path(), json.dumps({**_all(), host: dict(what)}, indent=1))
    except StoreError:
        return
