"""The log of every action of Workbench on a host, with one JSON object per line.

When the file gets large, its older half is dropped. If the file cannot be written, the entry is
lost silently.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.model.errors import StoreError
from workbench.store import paths
from workbench.store.text_files import write_atomic

MOST_BYTES = 1_000_000


def activity_log_path() -> Path:
    return paths.state_dir() / "activity.jsonl"


def append_entry(entry: Mapping[str, Any]) -> None:
    """Append `entry`, an action of Workbench on a host, to the log file. The caller must have
    masked secrets in the entry. If the file cannot be written, the entry is lost silently."""
    line = (json.dumps(dict(entry)) + "\n").encode()
    with suppress(OSError, StoreError):
        activity_log_path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(activity_log_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > MOST_BYTES:
            lines = activity_log_path().read_text("utf-8", "replace").splitlines(keepends=True)
            write_atomic(activity_log_path(), "".join(lines[len(lines) // 2 :]))


def read_newest_entries(host: str, most: int) -> list[dict[str, Any]]:
    """Return at most `most` of the newest entries of the host named `host`, oldest first. Damaged
    lines are left out."""
    found: list[dict[str, Any]] = []
    with suppress(OSError):
        for line in activity_log_path().read_text("utf-8", "replace").splitlines():
            with suppress(ValueError, TypeError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("host") == host:
                    found.append(entry)
    return found[-most:]
