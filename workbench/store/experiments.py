"""Experiments, in a table of their own in the results database: the whole of one as JSON, written after every run, so
that what a crash leaves is there. Their results are in the results database like any other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.model.errors import InputError, StoreError
from workbench.model.experiment import Experiment
from workbench.model.json_records import from_json, to_json, with_tuples
from workbench.model.secrets import mask_data
from workbench.model.untrusted_text import clean_json
from workbench.store.results_db import ResultsDb
from workbench.store.series_lock import held, is_held

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1  # of the JSON; a field that is new and may be absent needs no new one
_TABLE = """
    CREATE TABLE IF NOT EXISTS experiments (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      unix_s REAL NOT NULL,
      host TEXT NOT NULL,
      format INTEGER NOT NULL,
      data TEXT NOT NULL
    )
"""
_STOPPED = "Workbench ended while it ran"


class ExperimentsDb(ResultsDb):
    """Methods raise StoreError, and InputError for an id that is not there. What is kept of an experiment has no
    `comparison`: that follows from the results."""

    def open_experiment(self, experiment: Experiment) -> Experiment:
        """The experiment with an id of its own."""

        def work(db: sqlite3.Connection) -> int:
            sql = "INSERT INTO experiments (unix_s, host, format, data) VALUES (?, ?, ?, ?)"
            number = db.execute(sql, (experiment.unix_s, experiment.host, FORMAT, _encode(experiment))).lastrowid
            return int(number or 0)

        return replace(experiment, id=self._in_table(work))

    def save_experiment(self, experiment: Experiment) -> None:
        def work(db: sqlite3.Connection) -> int:
            sql = "UPDATE experiments SET data = ?, format = ? WHERE id = ?"
            return db.execute(sql, (_encode(experiment), FORMAT, experiment.id)).rowcount

        if not self._in_table(work):
            raise _no_such(experiment.id)

    def experiment(self, experiment_id: int) -> Experiment:
        """One that its Workbench left running is "stopped"."""
        sql = "SELECT id, format, data FROM experiments WHERE id = ?"
        known = experiment_id.bit_length() < 64  # more than SQLite has numbers for
        rows = self._read_table(sql, experiment_id) if known else ()
        if not rows:
            raise _no_such(experiment_id)
        return self._as_it_is(_decode(*rows[0]))

    def experiments(self) -> tuple[Experiment, ...]:
        """Newest first; one that cannot be read is left out, and `experiment` says what is wrong with it."""
        sql = "SELECT id, format, data FROM experiments ORDER BY id DESC"
        found = []
        for row in self._read_table(sql):
            with contextlib.suppress(StoreError):
                found.append(self._as_it_is(_decode(*row)))
        return tuple(found)

    def held(self, experiment_id: int) -> contextlib.AbstractContextManager[None]:
        """Only one Workbench carries an experiment out."""
        return held(self._lock(experiment_id), f"experiment {experiment_id}")

    def _lock(self, experiment_id: int) -> Path:
        return self.path.parent / "experiments" / f"{experiment_id}.lock"

    def _as_it_is(self, experiment: Experiment) -> Experiment:
        if experiment.state != "running" or is_held(self._lock(experiment.id)):
            return experiment
        return replace(experiment, state="stopped", phase="", left_s=None, error=experiment.error or _STOPPED)

    def _in_table(self, work: Any) -> Any:
        def with_table(db: sqlite3.Connection) -> Any:
            db.execute(_TABLE)
            return work(db)

        return self._do(with_table, write=True)

    def _read_table(self, sql: str, *values: int) -> Sequence[Any]:
        """Return the rows; none before the first experiment, which makes the table."""

        def work(db: sqlite3.Connection) -> Sequence[Any]:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone()
            return db.execute(sql, values).fetchall() if made else ()

        return self._do(work)


def _encode(experiment: Experiment) -> str:
    """Return the JSON text without secrets, and without the comparison, which follows from the results."""
    return json.dumps(mask_data(to_json(replace(experiment, comparison=None))))


def _decode(number: int, form: int, text: str) -> Experiment:
    if form > FORMAT:
        raise StoreError(f"experiment {number} was written by a newer Workbench", next_step="update Workbench")
    try:
        data = clean_json(text, len(text), lines=True)
        experiment = from_json(Experiment, {**data, "id": number})
        return replace(experiment, spec=replace(experiment.spec, bench=with_tuples(experiment.spec.bench)))
    except (ValueError, TypeError) as error:
        raise StoreError(f"experiment {number} in the database is damaged: {error}") from error


def _no_such(experiment_id: int) -> InputError:
    return InputError(f"there is no experiment {experiment_id}", next_step="workbench experiment list shows them")
