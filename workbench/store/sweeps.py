"""Sweeps, one JSON file each under the data directory: written at every point, so that what a crash leaves is there.
Their results are in the results database like any other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_json, to_json, with_tuples
from workbench.model.sweep import Sweep, SweepPoint, SweepSpec
from workbench.model.untrusted_text import clean_json
from workbench.store.series_lock import held, is_held
from workbench.store.text_files import write_atomic

_CUT_OFF = "Workbench ended while it ran"


class SweepStore:
    """Methods raise StoreError, and InputError for an id that is not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, sweep: Sweep) -> Sweep:
        """The sweep with an id of its own."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            number = max(self._ids(), default=0) + 1
            while True:
                try:
                    os.close(os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                    break
                except FileExistsError:  # another Workbench took it meanwhile
                    number += 1
        except OSError as error:
            step = "make room, or make it yours; nothing was changed or measured"
            raise StoreError(f"{self.directory} cannot be written: {error.strerror}", next_step=step) from None
        numbered = replace(sweep, id=number)
        self.save(numbered)
        return numbered

    def save(self, sweep: Sweep) -> None:
        write_atomic(self._path(sweep.id), json.dumps(to_json(sweep), indent=1))

    def get(self, sweep_id: int) -> Sweep:
        """One that its Workbench left running is "stopped"."""
        sweep = self._read(sweep_id)
        return sweep if sweep.state != "running" or is_held(self._lock(sweep_id)) else _cut_off(sweep)

    def held(self, sweep_id: int) -> AbstractContextManager[None]:
        """Only one Workbench carries a sweep out."""
        return held(self._lock(sweep_id), f"sweep {sweep_id}")

    @contextmanager
    def taken(self, sweep_id: int) -> Iterator[Sweep]:
        """Hold the sweep, as it stands now that nobody else carries it out."""
        sweep = self._read(sweep_id)  # no lock is made for one that is not there
        with self.held(sweep_id):
            sweep = self._read(sweep_id)
            yield _cut_off(sweep) if sweep.state == "running" else sweep

    def _read(self, sweep_id: int) -> Sweep:
        try:
            return _decode(self._path(sweep_id).read_text("utf-8"))
        except FileNotFoundError:
            step = "workbench sweep list shows what there is"
            raise InputError(f"there is no sweep {sweep_id}", next_step=step) from None
        except (OSError, ValueError) as error:
            raise StoreError(f"sweep {sweep_id} in {self._path(sweep_id)} cannot be read: {error}") from None

    def list(self) -> tuple[Sweep, ...]:
        """Newest first; a file that cannot be read is left out, and `get` says what is wrong with it."""
        found = []
        for number in sorted(self._ids(), reverse=True):
            try:
                found.append(self.get(number))
            except (StoreError, InputError):
                continue
        return tuple(found)

    def _ids(self) -> Sequence[int]:
        return [int(path.stem) for path in self.directory.glob("*.json") if path.stem.isdigit()]

    def _lock(self, sweep_id: int) -> Path:
        return self.directory / f"{sweep_id}.lock"

    def _path(self, sweep_id: int) -> Path:
        return self.directory / f"{sweep_id}.json"


def _decode(text: str) -> Sweep:
    sweep = from_json(Sweep, clean_json(text, lines=True))
    if sweep.spec is None:
        return sweep
    return replace(sweep, spec=replace(sweep.spec, bench=with_tuples(sweep.spec.bench)))


def _cut_off(sweep: Sweep) -> Sweep:
    """As it is when the Workbench that carried it out is gone."""
    points = tuple(
        replace(p, state="skipped", error=_CUT_OFF) if p.state in ("planned", "measuring") else p for p in sweep.points
    )
    left = f"; it may have left run {sweep.server} on (workbench stop {sweep.server})" if sweep.server else ""
    return replace(sweep, state="stopped", points=points, left_s=None, error=sweep.error or _CUT_OFF + left)


def empty(
    host: str,
    kind: str,
    name: str,
    unit: str,
    points: tuple[SweepPoint, ...],
    *,
    simulated: bool,
    spec: SweepSpec | None = None,
) -> Sweep:
    """A sweep that is about to begin; `SweepStore.add` gives it its id."""
    return Sweep(0, time.time(), host, kind, name, unit, points, simulated=simulated, spec=spec)
