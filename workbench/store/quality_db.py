"""Comparisons of answers in a table of the results database, each as JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_bytes, from_json, to_bytes, to_json
from workbench.model.quality import QualityParts, QualityResult
from workbench.model.secrets import mask_data
from workbench.model.untrusted_numbers import replace_non_finite
from workbench.model.untrusted_text import clean_json
from workbench.store.database import BUSY_S, Database
from workbench.store.results_db import migration_scripts

FORMAT = 1  # of the JSON; a new field with a default needs no new format
_PARTS_FORMAT = 2  # since 2, an answer has the tokens of its prompt
_NEWEST = 200
_TABLE = """
    CREATE TABLE IF NOT EXISTS quality (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      unix_s REAL NOT NULL,
      format INTEGER NOT NULL,
      data TEXT NOT NULL
    )
"""
_PARTS_TABLE = """
    CREATE TABLE IF NOT EXISTS quality_parts (
      experiment_id INTEGER PRIMARY KEY,
      format INTEGER NOT NULL,
      data BLOB NOT NULL
    )
"""
_MOST_PARTS = 8  # experiments whose parts are kept, a few MB each
_MOST_PARTS_BYTES = 256 * 1024 * 1024


class QualityDb:
    """The stored comparisons of answers. Methods raise StoreError, and InputError for an unknown
    id."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S) -> None:
        self._database = Database(path, migration_scripts(), busy_s)

    def add(self, result: QualityResult) -> QualityResult:
        """Store a comparison. Return it with its id."""
        sql = "INSERT INTO quality (unix_s, format, data) VALUES (?, ?, ?)"
        values = (result.unix_s, FORMAT, json.dumps(replace_non_finite(mask_data(to_json(result)))))

        def insert_result(db: sqlite3.Connection) -> int | None:
            db.execute(_TABLE)
            return db.execute(sql, values).lastrowid

        return replace(result, id=int(self._database.write(insert_result) or 0))

    def add_new(self, result: QualityResult) -> None:
        """Store an imported comparison of answers. Do nothing if it is among the newest ones,
        because it was measured here, or came with another result of the imported file."""
        bare = replace(result, id=0, imported="")
        if all(replace(one, id=0, imported="") != bare for one in self.newest_comparisons()):
            self.add(result)

    def get(self, quality_id: int) -> QualityResult:
        """Return a stored comparison of answers. Raises InputError if there is none with this id,
        and StoreError if it is damaged."""
        rows = (
            self._select_comparisons("WHERE id = ?", quality_id)
            if quality_id.bit_length() < 64
            else ()
        )
        if not rows:
            raise InputError(
                f"there is no comparison of answers {quality_id}",
                next_step="`workbench quality A B` makes one",
            )
        return _decode_quality_result(*rows[0])

    def newest_comparisons(self, most: int = _NEWEST) -> tuple[QualityResult, ...]:
        """Return the newest comparisons, newest first, at most `most`. Damaged ones are left out.
        `get` raises an error that says what is wrong with one."""
        found = []
        for row in self._select_comparisons("ORDER BY id DESC LIMIT ?", most):
            with contextlib.suppress(StoreError):
                found.append(_decode_quality_result(*row))
        return tuple(found)

    # ---- what an experiment has measured so far

    def store_parts_so_far(self, experiment_id: int, parts: QualityParts) -> None:
        """Store what an experiment has measured of the answers so far, in place of what was stored
        of it before. Only the parts of the eight newest experiments are kept."""
        values = (experiment_id, _PARTS_FORMAT, zlib.compress(to_bytes(parts), 1))

        def insert_parts(db: sqlite3.Connection) -> None:
            db.execute(_PARTS_TABLE)
            db.execute("INSERT OR REPLACE INTO quality_parts VALUES (?, ?, ?)", values)
            newest = "SELECT experiment_id FROM quality_parts ORDER BY experiment_id DESC LIMIT ?"
            db.execute(
                f"DELETE FROM quality_parts WHERE experiment_id NOT IN ({newest})", (_MOST_PARTS,)
            )

        self._database.write(insert_parts)

    def parts_so_far(self, experiment_id: int) -> QualityParts | None:
        """Return what an experiment has measured of the answers so far. None if nothing is stored,
        or if it cannot be read."""

        def select_parts(db: sqlite3.Connection) -> Any:
            sql = "SELECT 1 FROM sqlite_master WHERE name = 'quality_parts'"
            if db.execute(sql).fetchone() is None:
                return None
            sql = "SELECT format, data FROM quality_parts WHERE experiment_id = ?"
            return db.execute(sql, (experiment_id,)).fetchone()

        row = self._database.read(select_parts)
        if row is None or row[0] != _PARTS_FORMAT:
            return None
        try:
            text = zlib.decompressobj().decompress(row[1], _MOST_PARTS_BYTES)
            return from_bytes(QualityParts, text)
        except (zlib.error, ValueError):
            return None

    def delete_parts(self, experiment_id: int) -> None:
        """Delete what an experiment has measured of the answers so far. It is not needed any more
        when the comparison is stored."""

        def delete_rows(db: sqlite3.Connection) -> None:
            db.execute(_PARTS_TABLE)
            db.execute("DELETE FROM quality_parts WHERE experiment_id = ?", (experiment_id,))

        self._database.write(delete_rows)

    def _select_comparisons(self, sql_tail: str, *values: int) -> Sequence[Any]:
        """Return (id, format, JSON text) of the comparisons that `sql_tail` selects, which is the
        end of an SQL query. Return () if the table does not exist yet."""

        def select_rows(db: sqlite3.Connection) -> Sequence[Any]:
            table = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'quality'").fetchone()
            sql = f"SELECT id, format, data FROM quality {sql_tail}"
            return db.execute(sql, values).fetchall() if table else ()

        return self._database.read(select_rows)


def _decode_quality_result(number: int, format_version: int, text: str) -> QualityResult:
    if format_version > FORMAT:
        raise StoreError(
            f"comparison of answers {number} was written by a newer Workbench",
            next_step="update Workbench",
        )
    try:
        data = clean_json(text, len(text), lines=True)
        return from_json(QualityResult, {**data, "id": number})
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"comparison of answers {number} in the database is damaged: {error}"
        ) from error
