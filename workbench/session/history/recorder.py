"""Recordings: the values and events of a session, or the stored history of a host's screens,
written to one file for replay or sharing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from workbench.model.errors import InputError, StoreError, error_reason
from workbench.model.timeline import FINE_S
from workbench.store import history_files, recording

if TYPE_CHECKING:
    from workbench.hosts.base import Host
    from workbench.model.timeline import Event, Key
    from workbench.session.session import Session


class Recorder:
    """Writes all values and events of a session's timeline to a new file, from the construction of
    the recorder until `close`. Raises InputError if the file exists, and StoreError if it cannot be
    written."""

    def __init__(self, session: Session, path: Path) -> None:
        self._session, self._path = session, path
        self._cells = recording.CellWriter(1)
        self._began_s = int(time.time())
        self._file = _create_file(path)
        self.problem: StoreError | None = None
        self.seconds = 0  # lines with values
        self.begun = asyncio.Event()  # the first reading has come
        header = recording.Header(session.host.name, session.state.simulated, 1, time.time())
        self._write_lines_and_count([header.line()])
        session.timeline.on_values.append(self._write_values)
        session.timeline.on_event.append(self._write_event)
        session.telemetry.on_gpus_changed.append(self._write_gpu_properties)

    def close(self) -> None:
        """Write the last seconds of the session and close the file. Raises StoreError if the
        recording is not complete."""
        self.seconds += self._write_lines_and_count(self._cells.finish_open_cells())
        self._file.close()
        if self.problem is not None:
            raise self.problem

    def _write_values(self, seconds: range, values: Mapping[Key, float | None]) -> None:
        self.begun.set()
        lines = self._cells.add_reading(seconds, values)
        self.seconds += self._write_lines_and_count(lines)

    def _write_event(self, event: Event) -> None:
        # the timeline also hears of earlier runs when it meets them
        if event.unix_s >= self._began_s:
            self._write_lines_and_count([recording.format_event(event)])

    def _write_gpu_properties(self) -> None:
        telemetry = self._session.state.telemetry
        if telemetry is not None:
            self._write_lines_and_count([recording.format_gpu_infos(time.time(), telemetry.infos)])

    def _write_lines_and_count(self, lines: Iterable[str]) -> int:
        """Write lines, and return how many were written. An error is kept in `problem`; after it,
        nothing is written any more."""
        count = 0
        if self._file.closed or self.problem is not None:
            return 0
        try:
            for line in lines:
                self._file.write(line)
                count += 1
            self._file.flush()
        except OSError as error:
            self.problem = _make_write_error(self._path, error)
        return count


def export_history_and_count_lines(host: Host, path: Path, last_s: float) -> int:
    """Write the last `last_s` seconds of the host's stored history to a new file, and return the
    number of lines with values. Raises InputError if there is no history of this time or the file
    exists, and StoreError if it cannot be written."""
    now = time.time()
    simulated = host.simulated is not None
    kept = history_files.load_history(
        history_files.history_directory(host.name, simulated=simulated), host.name, now
    )
    step_s = 1 if last_s <= FINE_S else 10
    cells = list(recording.format_history([kept.history], int(now - last_s), int(now), step_s))
    if not cells:
        text = f"no history of {host.name} is kept for the last {last_s:,.0f} s"
        raise InputError(
            text,
            next_step="the history is kept only while a screen is open: run `workbench`, or "
            "record without --last",
        )
    events = [recording.format_event(e) for e in kept.history.events if e.unix_s >= now - last_s]
    lines = [recording.Header(host.name, simulated, step_s, now - last_s).line()]
    lines += [
        recording.format_gpu_infos(now - last_s, kept.infos),
        *sorted([*cells, *events], key=recording.parse_line_time),
    ]
    try:
        with _create_file(path) as file:
            file.writelines(lines)
    except OSError as error:
        raise _make_write_error(path, error) from None
    return len(cells)


def _create_file(path: Path) -> TextIO:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "w", encoding="utf-8")
    except FileExistsError:
        raise InputError(
            f"{path} exists", next_step="give another file name, or move the existing file away"
        ) from None
    except OSError as error:
        raise _make_write_error(path, error) from None


def _make_write_error(path: Path, error: OSError) -> StoreError:
    text = f"the recording could not be written to {path}: {error_reason(error)}"
    return StoreError(
        text, next_step="check that the directory is writable and the disk is not full"
    )
