"""The log of a server that runs as several ranks: the ranks' logs, joined into one. Each line
begins with the label of the rank that wrote it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from heapq import merge as merge_sorted
from typing import NamedTuple

from workbench.hosts.task_cancellation import cancel_all
from workbench.model.server_run import LogBatch

_CLOCK_TIME = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b")
_TIME_WITHIN_CHARACTERS = 80  # characters from the start of a line
_SECONDS_PER_DAY = 86400
_MAX_QUEUED_BATCHES = 100  # batches of all logs together that wait for their reader


class _TimedLine(NamedTuple):
    """A line of a log. Lines are sorted by their time, then by their log and their number there."""

    time_s: float
    log_index: int
    number: int
    text: str


def label_line(label: str, line: str) -> str:
    """Return `line`, a line of a rank's log, with the rank's label in front: "[label] line"."""
    return f"[{label}] {line}"


def merge_logs(logs: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the lines of all logs, in the order of the times of day that they begin with, each
    with its rank's label in front. `logs` has the lines of each log by rank label. A line without a
    time stays behind the line that precedes it in its own log."""

    def list_timed_lines(log_index: int, label: str, lines: Iterable[str]) -> list[_TimedLine]:
        at, rows = 0.0, []
        for number, line in enumerate(lines):
            if found := _CLOCK_TIME.search(line[:_TIME_WITHIN_CHARACTERS]):
                hours, minutes, seconds = (int(part) for part in found.groups())
                now = (
                    at // _SECONDS_PER_DAY * _SECONDS_PER_DAY
                    + hours * 3600
                    + minutes * 60
                    + seconds
                )
                if now < at - _SECONDS_PER_DAY / 2:  # past midnight
                    now += _SECONDS_PER_DAY
                at = max(now, at)
            rows.append(_TimedLine(at, log_index, number, label_line(label, line)))
        return rows

    every = [list_timed_lines(at, *log) for at, log in enumerate(logs.items())]
    return [one.text for one in merge_sorted(*every)]


async def read_merged_logs(
    logs: Mapping[str, Callable[..., AsyncIterator[LogBatch]]], *, follow: bool = False
) -> AsyncIterator[list[str]]:
    """Yield the lines of all logs from their start, in batches, each line with its rank's label in
    front. `logs` has, by rank label, the function that reads the log. Without `follow`, yield one
    batch, in the order of the times in the lines. With `follow`, yield lines in the order in which
    they are read, until all logs have ended. Raises the error of a log that cannot be read."""
    if not follow:
        whole: dict[str, list[str]] = {}
        for label, log in logs.items():
            whole[label] = [line async for batch in log() for line in batch.lines]
        yield merge_logs(whole)
        return
    queue: asyncio.Queue[list[str] | None] = asyncio.Queue(_MAX_QUEUED_BATCHES)

    async def queue_batches(label: str, log: Callable[..., AsyncIterator[LogBatch]]) -> None:
        try:
            async for batch in log(follow=True):
                await queue.put([label_line(label, line) for line in batch.lines])
        finally:
            await queue.put(None)

    pumps = [asyncio.create_task(queue_batches(label, log)) for label, log in logs.items()]
    left = len(pumps)
    try:
        while left:
            lines = await queue.get()
            if lines is None:
                left -= 1
            else:
                yield lines
        for done in pumps:
            done.result()  # raises the error of a log that could not be read
    finally:
        await cancel_all(pumps)
