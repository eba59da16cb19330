"""Benchmark results in an SQLite file, each with its full conditions. The requests of a result are
in a file beside the database (request_file.py).

No measurement is lost: a result that cannot be written to the database is written to a JSON file
beside it, and `store_unsaved_results` stores that file later."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from workbench.model.bench import (
    SEARCHED_CONDITIONS,
    BenchResult,
    BenchSpec,
    BenchSummary,
    Conditions,
    upgrade_summary,
)
from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_json, to_json
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_data
from workbench.model.untrusted_text import clean_json, clean_text
from workbench.store import request_file
from workbench.store.database import BUSY_S, Database
from workbench.store.result_index import (
    INDEX,
    create_index_sql,
    filter_condition,
    first_indexed_id,
    index_older_results,
    index_rows_sql,
    json_field,
    valid_json_sql,
)

_MAYBE_NOT_FINITE = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}")


@dataclass(frozen=True, slots=True)
class _Sample:
    """Those fields of a stored request that reports use. bench/records.py lists all fields of a
    request."""

    start_s: float | None = None
    end_us: float = 0
    ttft_us: float | None = None
    gaps_us: tuple[float, ...] = ()
    output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class _Tags:
    tags: tuple[str, ...]


class Column(NamedTuple):
    """A column of the results table. `declaration` is its SQL type, and `json` says whether it
    contains JSON. `searched` lists the SQL expressions for the texts in which a search looks.

    The column's name is that of the field of BenchResult or Conditions whose value it stores. A
    column of a new format version gets the next `version` and is added to older files.
    """

    name: str
    declaration: str
    json: bool = False
    searched: tuple[str, ...] = ()
    version: int = 1


_SPEC_SEARCHED = ("profile", "prompts_name", "command", "endpoint", "extra_body")
_COLUMNS = (
    Column("uid", "TEXT NOT NULL UNIQUE"),
    Column("unix_s", "REAL NOT NULL", searched=("strftime('%Y-%m-%d', unix_s, 'unixepoch')",)),
    Column("host", "TEXT NOT NULL", searched=("host",)),
    Column("engine", "TEXT", searched=("engine",)),
    Column("model", "TEXT NOT NULL", searched=("model",)),
    Column(
        "simulated",
        "INTEGER NOT NULL",
        searched=("CASE WHEN simulated THEN 'simulated' ELSE '' END",),
    ),
    # JSON is searched by field, because a text with escapes in it would not be found as typed.
    Column(
        "spec", "TEXT NOT NULL", True, tuple(json_field("spec", name) for name in _SPEC_SEARCHED)
    ),
    Column(
        "conditions",
        "TEXT NOT NULL",
        True,
        tuple(json_field("conditions", name) for name in SEARCHED_CONDITIONS),
    ),
    Column("summary", "TEXT NOT NULL", True),
    Column("note", "TEXT NOT NULL DEFAULT ''", searched=("note",)),
    Column(
        "tags",
        "TEXT NOT NULL DEFAULT '[]'",
        True,
        (f"(SELECT group_concat(value, ' ') FROM json_each({valid_json_sql('tags')}))",),
    ),
    Column("samples", "TEXT"),
)
_READ = tuple(field.name for field in fields(BenchResult))
_FORMAT_WITH_INDEX = 2
_PAGE_ROWS = 500


def _searched_text_sql() -> str:
    """Return the SQL expression for the text in which a search looks."""
    return " || ' ' || ".join(
        f"ifnull({text}, '')" for column in _COLUMNS for text in column.searched
    )


def migration_scripts() -> tuple[str, ...]:
    """Return the SQL script of each format version of the database. The last one also creates the
    index of the results, because the index contains the newest columns."""
    first = ", ".join(
        f"{column.name} {column.declaration}" for column in _COLUMNS if column.version == 1
    )
    scripts = [
        f"CREATE TABLE results (id INTEGER PRIMARY KEY AUTOINCREMENT, {first});"
        " CREATE INDEX results_by_time ON results (unix_s)"
    ]
    for version in range(2, max(_FORMAT_WITH_INDEX, *(column.version for column in _COLUMNS)) + 1):
        added = (column for column in _COLUMNS if column.version == version)
        scripts.append(
            ";".join(f"ALTER TABLE results ADD COLUMN {c.name} {c.declaration}" for c in added)
        )
    scripts[-1] += f";{create_index_sql(_searched_text_sql())}"
    return tuple(scripts)


class Page(NamedTuple):
    """A part of the list of results, newest first, and the ids of damaged results, which are not in
    it."""

    results: tuple[BenchResult, ...]
    damaged: tuple[int, ...]


class ResultsDb:
    """The stored results. Methods raise StoreError, and InputError for an unknown id. Any thread
    may call them.

    The file and its directory (mode 0700) are created at the first write.
    """

    def __init__(self, path: Path, *, busy_s: float = BUSY_S) -> None:
        self.path = path
        self.samples_dir = path.parent / "samples"
        self._database = Database(path, migration_scripts(), busy_s)

    def add(
        self,
        spec: BenchSpec,
        conditions: Conditions,
        summary: BenchSummary,
        samples: Iterable[Mapping[str, Any]] = (),
        *,
        unix_s: float | None = None,
        uid: str | None = None,
        note: str = "",
        tags: Iterable[str] = (),
    ) -> int:
        """Store a result and return its id. `samples` has one mapping per request
        (`RequestRecord.as_json`), and `unix_s` is the time of the result (None: now). If a result
        with this `uid` is stored already, only return its id. If the database cannot be written,
        the result is written to a JSON file, and the raised StoreError names that file."""
        row = {
            "uid": uid or os.urandom(16).hex(),
            "unix_s": time.time() if unix_s is None else unix_s,
            "spec": mask_data(to_json(spec)),
            "conditions": mask_data(to_json(conditions)),
            "summary": to_json(summary),
            "note": note,
            "tags": sorted(set(tags)),
        }
        for column in _COLUMNS:
            if hasattr(conditions, column.name):
                row[column.name] = getattr(conditions, column.name)
        requests = list(samples)
        try:
            result_id = self._insert_result(row, requests, _COLUMNS)
        except (StoreError, OSError) as error:
            raise self._write_unsaved_result(row, requests, error) from error
        with contextlib.suppress(StoreError):  # this result is stored; the others can wait longer
            self.store_unsaved_results()
        return result_id

    def list(
        self,
        limit: int | None = 100,
        search: str | None = None,
        *,
        host: str | None = None,
        tag: str | None = None,
    ) -> tuple[BenchResult, ...]:
        """Return the newest results, newest first, without damaged ones. `limit` is the highest
        number of results, None for all. `search`, `host` and `tag` select results in the same way
        as in `pages`."""
        pages = self.pages(limit, search, host=host, tag=tag)
        return tuple(chain.from_iterable(page.results for page in pages))

    def pages(
        self,
        limit: int | None = None,
        search: str | None = None,
        *,
        host: str | None = None,
        tag: str | None = None,
        before_id: int | None = None,
    ) -> Iterator[Page]:
        """Yield the newest results, newest first, in pages of at most 500. `limit` is the highest
        number of results, None for all. With `before_id`, only results with smaller ids are
        yielded.

        A result matches `search` if all its words (ASCII case ignored) occur in the host, engine,
        model, command, environment, driver, GPUs, settings, workload, preset, run, date (UTC), note
        or tags. The word "simulated" matches simulated results. `host` selects results of that host
        and imported ones, `tag` those with that tag.
        """
        condition, values = filter_condition(search, host, tag)
        left = sys.maxsize if limit is None else limit
        below = sys.maxsize if before_id is None else before_id
        while left > 0:
            size = min(left, _PAGE_ROWS)
            if condition:
                rows = self._find_rows(condition, values, below, size)
            else:
                rows = self._select_rows(
                    _READ, "WHERE id < ? ORDER BY id DESC LIMIT ?", below, size
                )
            yield _page_of_rows(rows)
            if len(rows) < size:
                return
            left, below = left - size, rows[-1][_READ.index("id")]

    def _find_rows(
        self, condition: str, values: Iterable[str], below: int, size: int
    ) -> Sequence[tuple[Any, ...]]:
        """Return the newest `size` rows with ids smaller than `below` that meet the SQL
        `condition`. `values` are the parameters of the condition."""
        rows: list[tuple[Any, ...]] = []
        computed, beyond = index_rows_sql(_searched_text_sql()), below

        def append_matching(table: str, lowest: int) -> None:
            """Append to `rows` the matching rows of `table` with lowest <= id < beyond, newest
            first."""
            chosen = (
                f"SELECT id FROM {table} WHERE id >= ? AND id < ? AND {condition} ORDER BY "
                "id DESC LIMIT ?"
            )
            rest = f"WHERE id IN ({chosen}) ORDER BY id DESC"
            rows.extend(self._select_rows(_READ, rest, lowest, beyond, *values, size - len(rows)))

        first = self._database.read(first_indexed_id)
        if first < beyond:
            append_matching(INDEX, first)
            beyond = first
        while len(rows) < size and beyond > 0 and first > 0:
            try:
                first = self._database.write(
                    lambda db: index_older_results(_searched_text_sql(), db)
                )
            except StoreError:  # the file cannot be written now
                append_matching(f"({computed})", 0)
                break
            if first < beyond:
                append_matching(INDEX, first)
                beyond = first
        return rows

    def id_of_uid(self, uid: str) -> int | None:
        """Return the id of the result with this `uid`, None if there is none."""
        rows = self._select_rows(("id",), "WHERE uid = ?", uid)
        if not rows:
            return None
        return int(rows[0][0])

    def uid(self, result_id: int) -> str:
        """Return the `uid` of a result: a name that is unique over the databases of all users."""
        return str(self._select_row(("uid",), result_id)[0])

    def get(self, result_id: int) -> BenchResult:
        return _result_from_row(self._select_row(_READ, result_id))

    def samples(self, result_id: int) -> tuple[dict[str, Any], ...]:
        """Return the requests of a result, each as a mapping like `RequestRecord.as_json`. () if
        the result has none, or none any more. Raises StoreError if they cannot be read."""
        (name,) = self._select_row(("samples",), result_id)
        if name is None:
            return ()
        path = self.samples_dir / name
        try:
            return tuple(map(_checked_sample, request_file.decode_requests(path.read_bytes())))
        except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
            raise StoreError(
                f"the requests of result {result_id} could not be read from {path}: {error}",
                next_step="the metrics of the result are not affected: `workbench results show` "
                "and the formats "
                "without requests (md, txt) print them",
            ) from error

    def set_note(self, result_id: int, text: str) -> None:
        """Replace the note of a result."""
        self._update(result_id, "note", text)

    def set_tags(self, result_id: int, tags: Iterable[str]) -> None:
        """Replace the tags of a result."""
        self._update(result_id, "tags", _tags_json(tags))

    def change_tags(
        self, result_id: int, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Add and remove tags of a result in one transaction, so that two Workbenches can change
        tags at the same time. Return the new tags."""

        def update_tags(db: sqlite3.Connection) -> tuple[str, ...]:
            row = db.execute("SELECT tags FROM results WHERE id = ?", (result_id,)).fetchone()
            if row is None:
                raise _no_such_result(result_id)
            text = _tags_json({*_stored_tags(result_id, row[0]), *add} - set(remove))
            db.execute("UPDATE results SET tags = ? WHERE id = ?", (text, result_id))
            return tuple(json.loads(text))

        return self._database.write(update_tags)

    def delete(self, result_id: int) -> None:
        """Delete a result and its requests."""
        (name,) = self._select_row(("samples",), result_id)
        self._database.write(
            lambda db: db.execute("DELETE FROM results WHERE id = ?", (result_id,)).rowcount
        )
        if name:
            (self.samples_dir / name).unlink(missing_ok=True)

    def delete_older_samples(self, kept: int) -> int:
        """Delete the requests of all results but the newest `kept` that have requests, and return
        how many were deleted. The results stay."""
        try:
            stored = sum(1 for _ in self.samples_dir.iterdir())
        except OSError:
            return 0
        if stored <= kept:
            return 0
        names = self._database.write(lambda db: _forget_older_samples(db, kept))
        for name in names:
            (self.samples_dir / name).unlink(missing_ok=True)
        return len(names)

    def change_stamp(self) -> object:
        """Return a value that changes with every write to the database. It comes from the status of
        the database's files, which are not opened; a missing file is no error."""
        found = []
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with contextlib.suppress(OSError):
                status = path.stat()
                if status.st_size:
                    found.append((status.st_mtime_ns, status.st_size))
        return tuple(found)

    def find_unsaved_files(self) -> tuple[Path, ...]:
        """Return the JSON files beside the database with results that could not be stored."""
        return tuple(sorted(self.path.parent.glob("unsaved-result-*.json")))

    def store_unsaved_results(self) -> tuple[int, ...]:
        """Store the results of the unsaved files, delete these files, and return the results'
        ids. A file of an older version may lack a column, which then gets its default. Raises
        StoreError for a file that cannot be stored."""
        ids = []
        for path in self.find_unsaved_files():
            try:
                row = {"note": "", "tags": [], **json.loads(path.read_text(encoding="utf-8"))}
                known = [column for column in _COLUMNS if column.version == 1 or column.name in row]
                ids.append(self._insert_result(row, row.pop("requests"), known))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"the result in {path} could not be stored: {error}",
                    next_step="the file with the result was not changed; correct the cause, then "
                    "repeat the command",
                ) from error
            path.unlink(missing_ok=True)
        return tuple(ids)

    def _insert_result(
        self,
        row: Mapping[str, Any],
        requests: Sequence[Mapping[str, Any]],
        columns: Iterable[Column],
    ) -> int:
        """Write a new result: first its requests to a file, then its row to the database. Return
        its id. A column that is not in `columns` gets its default. Raises OSError or StoreError,
        and KeyError if the row lacks a value."""
        stored = {c.name: _encode_column(c, row[c.name]) for c in columns if c.name != "samples"}
        stored["samples"] = self._write_samples_file(row["uid"], requests) if requests else None
        sql = f"INSERT OR IGNORE INTO results ({', '.join(stored)}) VALUES (:{', :'.join(stored)})"

        def insert_row(db: sqlite3.Connection) -> int:
            db.execute(sql, stored)
            return int(
                db.execute("SELECT id FROM results WHERE uid = ?", (row["uid"],)).fetchone()[0]
            )

        return self._database.write(insert_row)

    def _select_rows(
        self, columns: Sequence[str], sql_tail: str, *values: Any
    ) -> Sequence[tuple[Any, ...]]:
        sql = f"SELECT {', '.join(columns)} FROM results {sql_tail}"
        return self._database.read(lambda db: db.execute(sql, values).fetchall())

    def _select_row(self, columns: Sequence[str], result_id: int) -> tuple[Any, ...]:
        rows = self._select_rows(columns, "WHERE id = ?", result_id)
        if not rows:
            raise _no_such_result(result_id)
        return rows[0]

    def _update(self, result_id: int, column: str, value: str) -> None:
        sql = f"UPDATE results SET {column} = ? WHERE id = ?"
        if not self._database.write(lambda db: db.execute(sql, (value, result_id)).rowcount):
            raise _no_such_result(result_id)

    def _write_samples_file(self, uid: str, samples: Iterable[Mapping[str, Any]]) -> str:
        """Write the requests of a result into a file, all or none. Return the file's name in
        `samples_dir`."""
        for directory in (self.path.parent, self.samples_dir):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{uid}.requests"
        temporary = self.samples_dir / f".{name}"
        try:
            temporary.write_bytes(request_file.encode_requests(samples))
            temporary.replace(self.samples_dir / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return name

    def _write_unsaved_result(
        self,
        row: Mapping[str, Any],
        requests: Sequence[Mapping[str, Any]],
        cause: StoreError | OSError,
    ) -> StoreError:
        """Write the result as a JSON file beside the database, or else into the system's directory
        for temporary files. Return the error to raise, which names the file."""
        text = json.dumps({**row, "requests": requests}, indent=1)
        problem, step = f"the requests of the result could not be written: {cause}", None
        if isinstance(cause, StoreError):
            problem, step = cause.message, cause.next_step
        step = step or "free some space on that disk"
        for directory in (self.path.parent, Path(tempfile.gettempdir())):
            path = directory / f"unsaved-result-{row['uid']}.json"
            try:
                with os.fdopen(
                    os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
                ) as file:
                    file.write(text)
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            # `store_unsaved_results` finds only files beside the database
            if directory != self.path.parent:
                step += f"; then: workbench results import {path}"
            return StoreError(f"{problem}. The result is stored in {path} instead", next_step=step)
        return StoreError(
            f"{problem}, and the result is lost, because no other file could be written",
            next_step="free some disk space, then run the benchmark again",
        )


def _page_of_rows(rows: Iterable[tuple[Any, ...]]) -> Page:
    found, damaged = [], []
    for row in rows:
        try:
            found.append(_result_from_row(row))
        except StoreError:  # one damaged result must not hide the others
            damaged.append(int(row[_READ.index("id")]))
    return Page(tuple(found), tuple(damaged))


def _encode_column(column: Column, value: Any) -> Any:
    if not column.json:
        return value
    return json.dumps(value, ensure_ascii=column.name != "tags")


def _tags_json(tags: Iterable[str]) -> str:
    return json.dumps(sorted(set(tags)), ensure_ascii=False)


def _stored_tags(result_id: int, text: str) -> tuple[str, ...]:
    try:
        return from_json(_Tags, {"tags": json.loads(text)}).tags
    except (TypeError, ValueError) as error:  # TypeError: not a text
        raise _damaged_result_error(result_id, error) from error


def _forget_older_samples(db: sqlite3.Connection, kept: int) -> Sequence[str]:
    """Forget the requests of all results but the newest `kept`. Return the names of their files."""
    older = "SELECT id, samples FROM results WHERE samples IS NOT NULL ORDER BY id DESC"
    rows = db.execute(f"{older} LIMIT -1 OFFSET ?", (kept,)).fetchall()
    db.executemany("UPDATE results SET samples = NULL WHERE id = ?", [(row[0],) for row in rows])
    return [name for _, name in rows]


def _checked_sample(data: dict[str, Any]) -> dict[str, Any]:
    from_json(_Sample, data)
    return data


def _no_such_result(result_id: int) -> InputError:
    return InputError(
        f"there is no result {result_id}",
        next_step="list the results with `workbench results list`",
    )


def _result_from_row(row: tuple[Any, ...]) -> BenchResult:
    """Return the result in a row of the results table. Control characters are removed from its
    texts, because older versions of Workbench stored them. Raises StoreError if the row is damaged.
    """
    values = dict(zip(_READ, row, strict=True))
    odd = []
    try:
        for column in _COLUMNS:
            text = values.get(column.name)
            if not isinstance(text, str):
                continue
            if not column.json:
                values[column.name] = clean_text(text)
                continue
            finite = _replace_non_finite_numbers(text)
            if finite != text:
                odd.append(column.name)
            values[column.name] = clean_json(finite, len(finite))
        result: BenchResult = from_json(BenchResult, values)
        result = replace(result, summary=upgrade_summary(result.summary))
    except ValueError as error:
        raise _damaged_result_error(values["id"], error) from error
    if not odd:
        return result
    why = (
        f"result {result.id} is damaged: numbers in its {' and '.join(odd)} are not finite, "
        "and shown as n/a"
    )
    return replace(result, summary=replace(result.summary, refused=(*result.summary.refused, why)))


def _replace_non_finite_numbers(text: str) -> str:
    """Return a JSON document with null in place of NaN and infinite numbers. Raises ValueError for
    invalid JSON."""
    if not _MAYBE_NOT_FINITE.search(text):
        return text
    odd = False

    def parse_finite(digits: str) -> float | None:
        nonlocal odd
        value = float(digits)
        if math.isfinite(value):
            return value
        odd = True
        return None

    data = json.loads(text, parse_constant=parse_finite, parse_float=parse_finite)
    return json.dumps(data, ensure_ascii=False) if odd else text


def _damaged_result_error(result_id: int, error: Exception) -> StoreError:
    return StoreError(
        f"result {result_id} in the database is damaged: {error}",
        next_step="other results are not affected; to get this result back, restore the database "
        "from a backup",
    )
