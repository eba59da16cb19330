"""Notes about the benchmarks that run, one file each, so that a later Workbench can keep what was
measured if the process of this one is killed.

<state_dir>/benchmarks/
    NAME.json    which server is measured, with which load, how its series is resumed, and where the
                 load client leaves its result if nobody reads it
    NAME.lock    locked while the Workbench that measures lives
    NAME.result  what a load client on this machine had measured when its Workbench was killed, or
                 the outcome of a load that has ended and is not stored yet
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from workbench.model.errors import StoreError, WorkbenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.untrusted_text import clean_json
from workbench.store import paths
from workbench.store.series_lock import hold_lock, is_lock_held
from workbench.store.text_files import read_stored_file, write_atomic


@dataclass(frozen=True, slots=True)
class BenchmarkNote:
    """A note about a benchmark. `alive` says whether the Workbench that measures still runs."""

    name: str
    about: Mapping[str, Any]
    alive: bool

    @property
    def began_unix_s(self) -> float:
        """When the benchmark began; 0 if the note does not say it."""
        began = self.about.get("began_unix_s")
        return began if isinstance(began, float) else 0.0

    @property
    def result(self) -> Path:
        return path_of_left_result(self.name)


def new_note_name() -> str:
    return secrets.token_hex(8)


def path_of_left_result(name: str) -> Path:
    """Return where the load client of a benchmark leaves its result if its Workbench was killed."""
    return _notes_directory() / f"{name}.result"


@contextmanager
def store_running_benchmark_note(
    name: str, fields: Mapping[str, Any]
) -> Iterator[Callable[..., None]]:
    """Keep a note about a benchmark while the block runs. Yield a function that changes fields of
    the note. If the note cannot be written, the block runs without one."""

    def write(**changes: Any) -> None:
        with suppress(StoreError):
            write_atomic(_note_path(name), json.dumps({**fields, **changes}))

    try:
        with hold_lock(_lock_path(name), "this benchmark"):
            write()
            yield write
    finally:
        remove_benchmark_note(name)


def store_final_message(name: str, message: Mapping[str, Any]) -> None:
    """Add to a note the final message of its load client. If it cannot be written, the note stays
    without it."""
    with suppress(StoreError):
        write_atomic(path_of_left_result(name), json.dumps(message))


def find_benchmark_notes(host: str) -> tuple[BenchmarkNote, ...]:
    """Return the notes about benchmarks of a host, also of those that run now, the oldest first."""
    notes = []
    for path in sorted(_notes_directory().glob("*.json")):
        with suppress(WorkbenchError, ValueError, OSError, RecursionError):
            about = clean_json(read_stored_file(path))
            if isinstance(about, dict) and about.get("host") == host:
                notes.append(BenchmarkNote(path.stem, about, is_lock_held(_lock_path(path.stem))))
    return tuple(sorted(notes, key=lambda note: note.began_unix_s))


@contextmanager
def claim_benchmark_note(note: BenchmarkNote) -> Iterator[None]:
    """Keep other Workbenches from a note while the block runs, and then remove the note. Raises
    InputError if another Workbench has it."""
    with hold_lock(_lock_path(note.name), "this benchmark"):
        yield
    remove_benchmark_note(note.name)


def remove_benchmark_note(name: str) -> None:
    for path in (_note_path(name), path_of_left_result(name), _lock_path(name)):
        with suppress(OSError):
            path.unlink()


def _notes_directory() -> Path:
    return paths.state_dir() / "benchmarks"


def _note_path(name: str) -> Path:
    return _notes_directory() / f"{name}.json"


def _lock_path(name: str) -> Path:
    return _notes_directory() / f"{name}.lock"
