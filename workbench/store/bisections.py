"""Bisections, one JSON file each. One is written after each step, so that a killed one goes on."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from workbench.model.bisection import Bisection
from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_json, to_json
from workbench.model.series_state import SeriesState
from workbench.model.untrusted_text import clean_json
from workbench.store.numbered_files import next_record_number
from workbench.store.series_lock import INTERRUPTED, hold_lock, is_lock_held
from workbench.store.text_files import write_atomic


class BisectionStore:
    """The files in `directory`. Methods raise StoreError, and InputError for an unknown id."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, found: Bisection) -> Bisection:
        """Store a new bisection. Return it with its id."""
        with hold_lock(self.directory / "new.lock", "a new bisection"):
            numbered = replace(found, id=next_record_number(self.directory))
            self.save(numbered)
        return numbered

    def save(self, found: Bisection) -> None:
        write_atomic(self._path(found.id), json.dumps(to_json(found), indent=1))

    def get(self, number: int) -> Bisection:
        """Return a bisection. It is "stopped" if the Workbench that ran it has ended. Raises
        InputError if there is none with this number, and StoreError if it cannot be read."""
        path = self._path(number)
        try:
            found = from_json(Bisection, clean_json(path.read_text("utf-8")))
        except FileNotFoundError:
            raise InputError(
                f"there is no bisection {number}",
                next_step="`workbench bisect PRESET VERSION…` begins one",
            ) from None
        except (OSError, ValueError) as error:
            raise StoreError(f"bisection {number} in {path} cannot be read: {error}") from None
        if found.state != SeriesState.RUNNING or is_lock_held(self._lock_path(number)):
            return found
        return replace(found, state=SeriesState.STOPPED, error=found.error or INTERRUPTED)

    def hold_lock(self, number: int) -> AbstractContextManager[None]:
        return hold_lock(self._lock_path(number), f"bisection {number}")

    def _lock_path(self, number: int) -> Path:
        return self.directory / f"{number}.lock"

    def _path(self, number: int) -> Path:
        return self.directory / f"{number}.json"
