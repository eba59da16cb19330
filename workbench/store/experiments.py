"""A/B experiments in a table of the results database, each as JSON. An experiment is written after
every run, so that a crash loses nothing; the results of its runs are stored like any other result.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.model.errors import InputError, StoreError
from workbench.model.experiment import Experiment
from workbench.model.json_records import field_values_with_tuples, from_json, to_json
from workbench.model.secrets import mask_data
from workbench.model.series_state import SeriesState
from workbench.model.untrusted_text import clean_json
from workbench.store.database import BUSY_S, Database
from workbench.store.results_db import migration_scripts
from workbench.store.series_lock import INTERRUPTED, hold_lock, is_lock_held

FORMAT = 1  # of the JSON; a new field with a default needs no new format
_TABLE = """
    CREATE TABLE IF NOT EXISTS experiments (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      unix_s REAL NOT NULL,
      host TEXT NOT NULL,
      format INTEGER NOT NULL,
      data TEXT NOT NULL
    )
"""


class ExperimentsDb:
    """The stored experiments. Methods raise StoreError, and InputError for an unknown id. The field
    `comparison` is not stored, because it can be computed from the results."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S) -> None:
        self.path = path
        self._database = Database(path, migration_scripts(), busy_s)

    def add(self, experiment: Experiment) -> Experiment:
        """Store a new experiment. Return it with its id."""
        sql = "INSERT INTO experiments (unix_s, host, format, data) VALUES (?, ?, ?, ?)"
        values = (experiment.unix_s, experiment.host, FORMAT, _encode_experiment(experiment))
        return replace(
            experiment, id=int(self._write(lambda db: db.execute(sql, values).lastrowid) or 0)
        )

    def save(self, experiment: Experiment) -> None:
        sql = "UPDATE experiments SET data = ?, format = ? WHERE id = ?"
        values = (_encode_experiment(experiment), FORMAT, experiment.id)
        if not self._write(lambda db: db.execute(sql, values).rowcount):
            raise _no_such_experiment(experiment.id)

    def get(self, experiment_id: int) -> Experiment:
        """Return the experiment with this id. If its Workbench ended while running it, the returned
        experiment has the state "stopped". Raises StoreError if it is damaged."""
        rows: Sequence[Any] = ()
        if experiment_id.bit_length() < 64:  # a larger number is no id
            rows = self._select_experiments("WHERE id = ?", experiment_id)
        if not rows:
            raise _no_such_experiment(experiment_id)
        return self._mark_stopped_if_interrupted(_decode_experiment(*rows[0]))

    def list(self) -> tuple[Experiment, ...]:
        """Return the experiments, newest first. Damaged experiments are left out. `get` raises an
        error that says what is wrong with one."""
        found = []
        for row in self._select_experiments("ORDER BY id DESC"):
            with contextlib.suppress(StoreError):
                found.append(self._mark_stopped_if_interrupted(_decode_experiment(*row)))
        return tuple(found)

    def hold_lock(self, experiment_id: int) -> AbstractContextManager[None]:
        """Return the lock of an experiment as a context manager, so that only one Workbench runs
        it. Entering raises InputError if another Workbench holds the lock."""
        return hold_lock(self._lock_path(experiment_id), f"experiment {experiment_id}")

    def _lock_path(self, experiment_id: int) -> Path:
        return self.path.parent / "experiments" / f"{experiment_id}.lock"

    def _mark_stopped_if_interrupted(self, experiment: Experiment) -> Experiment:
        if experiment.state != SeriesState.RUNNING or is_lock_held(self._lock_path(experiment.id)):
            return experiment
        return replace(
            experiment,
            state=SeriesState.STOPPED,
            phase="",
            left_s=None,
            error=experiment.error or INTERRUPTED,
        )

    def _write(self, work: Callable[[sqlite3.Connection], int | None]) -> int | None:
        def create_table_and_write(db: sqlite3.Connection) -> int | None:
            db.execute(_TABLE)
            return work(db)

        return self._database.write(create_table_and_write)

    def _select_experiments(self, sql_tail: str, *values: int) -> Sequence[Any]:
        """Return (id, format, JSON text) of the stored experiments that `sql_tail` selects, which
        is the end of an SQL query. `values` are its parameters. Return () if the table does not
        exist yet."""

        def select_rows(db: sqlite3.Connection) -> Sequence[Any]:
            table = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone()
            sql = f"SELECT id, format, data FROM experiments {sql_tail}"
            return db.execute(sql, values).fetchall() if table else ()

        return self._database.read(select_rows)


def _encode_experiment(experiment: Experiment) -> str:
    return json.dumps(mask_data(to_json(replace(experiment, comparison=None))))


def _decode_experiment(number: int, format_version: int, text: str) -> Experiment:
    if format_version > FORMAT:
        raise StoreError(
            f"experiment {number} was written by a newer Workbench", next_step="update Workbench"
        )
    try:
        data = clean_json(text, len(text), lines=True)
        experiment = from_json(Experiment, {**data, "id": number})
        return replace(
            experiment,
            spec=replace(experiment.spec, bench=field_values_with_tuples(experiment.spec.bench)),
        )
    except (ValueError, TypeError) as error:
        raise StoreError(f"experiment {number} in the database is damaged: {error}") from error


def _no_such_experiment(experiment_id: int) -> InputError:
    return InputError(
        f"there is no experiment {experiment_id}",
        next_step="list the experiments with `workbench experiment list`",
    )
