"""The log of every action of Workbench on a host, with one JSON object per line.

When the file gets large, the older half of each host's entries is dropped. If the file cannot be
written, the entry is lost silently.
"""

from __future__ import annotations

import json
import os
from collections import Counter
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


def append_activity_entry(entry: Mapping[str, Any]) -> None:
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
            write_atomic(activity_log_path(), _drop_older_half(_read_lines()))


def _read_lines() -> list[str]:
    return activity_log_path().read_text("utf-8", "replace").splitlines(keepends=True)


def _drop_older_half(lines: list[str]) -> str:
    """Return the newer half of the entries of each host, so that a busy host does not displace
    those of another. A damaged line is dropped."""
    hosts = [_host_of_entry(line) for line in lines]
    left_to_drop = {host: count // 2 for host, count in Counter(hosts).items()}
    kept = []
    for line, host in zip(lines, hosts, strict=True):
        if host is None:
            continue
        if left_to_drop[host] > 0:
            left_to_drop[host] -= 1
            continue
        kept.append(line)
    return "".join(kept)


def _host_of_entry(line: str) -> str | None:
    """Return the host of an entry of the log; None for a damaged line."""
    entry = _parse_entry(line)
    return None if entry is None else str(entry.get("host"))


def _parse_entry(line: str) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
    return None


def read_newest_entries(host: str, most: int) -> list[dict[str, Any]]:
    """Return at most `most` of the newest entries of the host named `host`, oldest first. Damaged
    lines are left out."""
    try:
        entries = map(_parse_entry, _read_lines())
    except OSError:
        return []
    found = [entry for entry in entries if entry is not None and entry.get("host") == host]
    return found[-most:]
