"""The state of the screen that its next start restores, by host: the two results marked A and B for
a comparison, and the contents of forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.model.errors import StoreError
from workbench.model.untrusted_text import as_table
from workbench.store import paths
from workbench.store.text_files import read_stored_file, write_atomic


def _read_states() -> dict[str, Any]:
    try:
        found = json.loads(read_stored_file(_state_file()))
    except (ValueError, RecursionError):
        return {}
    return dict(as_table(found))


def _state_file() -> Path:
    return paths.state_dir() / "left-off.json"


def read_screen_state(host: str) -> dict[str, Any]:
    """Return the stored state of a host's screen. {} if there is none or the file cannot be
    read."""
    return dict(as_table(_read_states().get(host)))


def store_screen_state(host: str, state: Mapping[str, Any]) -> None:
    """Replace the stored state of a host's screen. If the file cannot be written, the state is lost
    silently."""
    try:
        write_atomic(_state_file(), json.dumps({**_read_states(), host: dict(state)}, indent=1))
    except StoreError:
        return
