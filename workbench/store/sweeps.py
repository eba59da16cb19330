"""Sweeps (one benchmark for each of several values of a setting), and with them searches for the
highest load and tunes, stored as one JSON file each in the data directory. A sweep is written after
every value, so that a crash loses nothing. The results of its benchmarks are stored like any other
result."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from workbench.model.errors import InputError, StoreError, error_reason
from workbench.model.json_records import field_values_with_tuples, from_json, to_json
from workbench.model.series_state import SeriesState
from workbench.model.sweep import PointState, Sweep, SweepKind, SweepPoint, SweepSpec
from workbench.model.untrusted_text import clean_json
from workbench.store.numbered_files import next_record_number, record_numbers_in
from workbench.store.series_lock import INTERRUPTED, hold_lock, is_lock_held
from workbench.store.text_files import write_atomic


class SweepStore:
    """The stored sweeps. Methods raise StoreError, and InputError for an unknown id."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, sweep: Sweep) -> Sweep:
        """Store a new sweep, and return it with its id. Raises StoreError if it cannot be
        written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = next_record_number(self.directory)
            while True:
                try:
                    os.close(
                        os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                    )
                    break
                except FileExistsError:  # another Workbench has just used this id
                    number += 1
        except OSError as error:
            step = (
                "free some space there, or make the directory writable; nothing was changed "
                "or measured"
            )
            raise StoreError(
                f"the directory of sweeps {self.directory} cannot be written: {error_reason(error)}",
                next_step=step,
            ) from None
        numbered = replace(sweep, id=number)
        self.save(numbered)
        return numbered

    def save(self, sweep: Sweep) -> None:
        write_atomic(self._path(sweep.id), json.dumps(to_json(sweep), indent=1))

    def get(self, sweep_id: int) -> Sweep:
        """Return the sweep with this id. If its Workbench ended while running it, its state is
        "stopped" in the returned sweep."""
        sweep = self._read(sweep_id)
        if sweep.state == SeriesState.RUNNING and not is_lock_held(self._lock_path(sweep_id)):
            return _mark_interrupted(sweep)
        return sweep

    def hold_lock(self, sweep_id: int) -> AbstractContextManager[None]:
        """Return the lock of a sweep as a context manager, so that only one Workbench runs it.
        Entering raises InputError if another Workbench holds the lock."""
        return hold_lock(self._lock_path(sweep_id), f"sweep {sweep_id}")

    @contextmanager
    def lock_and_read(self, sweep_id: int) -> Iterator[Sweep]:
        """Hold the lock of a sweep while the context manager is open, and yield the sweep as it is
        stored then. A sweep whose Workbench ended while running it has the state "stopped". Raises
        InputError if another Workbench holds the lock."""
        self._read(sweep_id)  # an unknown id must not create a lock file
        with self.hold_lock(sweep_id):
            sweep = self._read(sweep_id)
            yield _mark_interrupted(sweep) if sweep.state == SeriesState.RUNNING else sweep

    def list(self) -> tuple[Sweep, ...]:
        """Return the sweeps, newest first. Unreadable sweeps are left out. `get` raises an error
        that says what is wrong with one."""
        found = []
        for number in sorted(record_numbers_in(self.directory), reverse=True):
            with contextlib.suppress(StoreError, InputError):
                found.append(self.get(number))
        return tuple(found)

    def _read(self, sweep_id: int) -> Sweep:
        path = self._path(sweep_id)
        try:
            sweep = from_json(Sweep, clean_json(path.read_text("utf-8"), lines=True))
        except FileNotFoundError:
            text = f"there is no sweep {sweep_id}, and no search or tune with that id"
            step = "`workbench sweep list`, `capacity list` and `tune list` show what is stored"
            raise InputError(text, next_step=step) from None
        except (OSError, ValueError) as error:
            raise StoreError(f"sweep {sweep_id} in {path} cannot be read: {error}") from None
        if sweep.spec is None:
            return sweep
        return replace(
            sweep, spec=replace(sweep.spec, bench=field_values_with_tuples(sweep.spec.bench))
        )

    def _lock_path(self, sweep_id: int) -> Path:
        return self.directory / f"{sweep_id}.lock"

    def _path(self, sweep_id: int) -> Path:
        return self.directory / f"{sweep_id}.json"


def _mark_interrupted(sweep: Sweep) -> Sweep:
    """Return a sweep whose Workbench ended while running it. Its state is now "stopped", and its
    remaining points are marked as skipped."""
    points = []
    for point in sweep.points:
        if point.state in (PointState.PLANNED, PointState.MEASURING):
            point = replace(point, state=PointState.SKIPPED, error=INTERRUPTED)
        points.append(point)
    error = sweep.error or INTERRUPTED
    if own := sweep.starting or sweep.server:
        error += f"; run {own} may still be on (workbench stop {own})"
    return replace(sweep, state=SeriesState.STOPPED, points=tuple(points), left_s=None, error=error)


def new_sweep(
    host: str,
    kind: SweepKind,
    name: str,
    unit: str,
    points: tuple[SweepPoint, ...],
    *,
    simulated: bool,
    spec: SweepSpec | None = None,
) -> Sweep:
    """Return a new sweep without measured values. Its id is set by `SweepStore.add`."""
    now_s = time.time()
    made = Sweep(0, now_s, host, kind.name, name, unit, points, simulated=simulated, spec=spec)
    return replace(made, kind_facts=kind)
