"""The parts of a preset that belong to the process of a run: the limit of open files and the
warm-up."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.errors import HostError
from workbench.server.file_limit import FileLimit, format_file_limit, read_process_file_limit

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.preset import Preset
    from workbench.model.server_run import ServerStatus

WARM_UP_PART = "warm-up"
FILES_PART = "open files"
_WARM_UP_NOTE_FILE = "warm_up.json"  # in the run directory: {unix_s, requests, failed}


async def unapplied_process_parts(
    host: Host, preset: Preset, status: ServerStatus, run_dir: str
) -> tuple[str, ...]:
    """Return as texts which parts of `preset` are not in force for the running server of a run: the
    limit of open files, and the warm-up. () if both are, or the preset has neither."""
    found = []
    if (files := preset.engine.open_files) is not None and status.pid is not None:
        problem = file_limit_problem(files, await read_process_file_limit(host, status.pid))
        found += [f"{FILES_PART} {files:,} ({problem})"] if problem else []
    if preset.warm_up is not None and not await _was_warmed_up(host, run_dir):
        found.append(f"{WARM_UP_PART} of {count_of(preset.warm_up.requests, 'request')} (not sent)")
    return tuple(found)


def file_limit_problem(wanted: int, limit: FileLimit | None) -> str:
    """Return why a process with this limit cannot have `wanted` files open; "" if it can. None as
    the limit means that it cannot be read, which is a reason too."""
    if limit is None:
        return "the limit of the process cannot be read"
    if limit.soft >= wanted:
        return ""
    return f"the process has {format_file_limit(limit.soft)}, and its hard limit is {format_file_limit(limit.hard)}"


async def record_warm_up(host: Host, run_dir: str, requests: int, failed: int) -> None:
    """Write into the run directory that the server was warmed up, with the numbers of all and of
    failed requests."""
    note = {"unix_s": time.time(), "requests": requests, "failed": failed}
    await host.write_file(f"{run_dir}/{_WARM_UP_NOTE_FILE}", json.dumps(note).encode())


async def _was_warmed_up(host: Host, run_dir: str) -> bool:
    try:
        note = json.loads(await host.read_file(f"{run_dir}/{_WARM_UP_NOTE_FILE}", limit=4096))
        return bool(note["requests"] > note["failed"])
    except (HostError, ValueError, TypeError, KeyError):
        return False
