"""Reads the log of a watched run from its host, and derives from the log why the run has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workbench.hosts.base import FileError, Host
from workbench.model.findings import Level
from workbench.model.secrets import mask_text
from workbench.model.server_run import LogBatch
from workbench.model.untrusted_numbers import parse_whole_number
from workbench.server import old_runs
from workbench.server.log_lines import HEAD_BYTES, READ_BYTES
from workbench.server.watched_run import WatchedRun

EmitBatch = Callable[[LogBatch], None]


async def read_log_and_count_bytes(host: Host, run: WatchedRun, emit: EmitBatch) -> int:
    """Read new bytes of the run's log, pass the new lines to `emit`, and return the number of bytes
    read; 0 if there are none, or if the log was removed. If more than two reads are unread, skip to
    the end of the log: its first and its last lines matter most."""
    async with run.reading_log:
        return await _read_new_bytes_and_count(host, run, emit)


async def _read_new_bytes_and_count(host: Host, run: WatchedRun, emit: EmitBatch) -> int:
    at = run.follower.offset
    try:
        data = await host.read_file(run.log_path, offset=at, limit=READ_BYTES)
        if len(data) == READ_BYTES and at >= HEAD_BYTES:
            done = await host.run(["stat", "-c", "%s", "--", run.log_path], check=True)
            behind = (parse_whole_number(done.out.strip()) or 0) - at
            if behind > 2 * READ_BYTES:
                at += behind - READ_BYTES
                data = await host.read_file(run.log_path, offset=at, limit=READ_BYTES)
    except FileError:
        return 0  # the log was removed: the run continues without one
    if data and (batch := run.add_log_bytes(data, at)):
        emit(batch)
    return len(data)


async def read_missed_log(host: Host, run: WatchedRun, emit: EmitBatch) -> None:
    """Read the run's log to its present end, and pass the complete lines to `emit`. Return at the
    first read that reaches the end, even if the server keeps writing."""
    while await read_log_and_count_bytes(host, run, emit) == READ_BYTES:
        pass


async def read_log_to_end(host: Host, run: WatchedRun, emit: EmitBatch) -> None:
    """Read the run's log to its present end, and pass the lines to `emit`, with a last line that
    has no line end."""
    await read_missed_log(host, run, emit)
    if last := run.finish_log():
        emit(last)


async def explain_ended_run(host: Host, run: WatchedRun, emit: EmitBatch) -> None:
    """Read the rest of the log of a run that has ended, and set `run.explained` to (reason of its
    end, None if unknown; findings about the causes). Findings of the log that are no errors did not
    end the server, and are left out. Raises HostError if the host cannot be queried."""
    from workbench.server import exit_analysis
    from workbench.server.explained_log import explain_lines_in_memory

    await read_log_to_end(host, run, emit)
    # the reader of `workbench explain-log`, so that both say the same about one log
    ring = run.follower.ring
    explained = await asyncio.to_thread(explain_lines_in_memory, ring, run.record.engine)
    findings = await asyncio.to_thread(lambda: explained.findings)
    ending = await exit_analysis.analyse_exit(
        host, run, explained.first_cause_or_error_line(findings)
    )
    reason = mask_text(ending.reason, run.secrets) if ending.reason else None
    of_log = (finding for finding in findings if finding.level is Level.ERROR)
    disk = await old_runs.check_disk_space(host, run.run_dir)
    run.explained = (reason, (*ending.findings, *of_log, *disk))
