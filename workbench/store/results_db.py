"""Benchmark results in one SQLite file, with the full conditions of each; raw samples beside it as gzipped JSON lines.

Nothing measured is lost: what cannot be written to the database is written as a JSON file beside it, and taken in
when the database can next be written.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.model.bench import BenchResult, BenchSpec, BenchSummary, Conditions
from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import from_json, to_json
from workbench.model.secrets import mask_data
from workbench.model.untrusted_text import clean, clean_json

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_BUSY_S = 5.0
_LIST = "workbench results list shows what there is"
_MIGRATIONS = (
    """
    CREATE TABLE results (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      uid TEXT NOT NULL UNIQUE,
      unix_s REAL NOT NULL,
      host TEXT NOT NULL,
      engine TEXT,
      model TEXT NOT NULL,
      simulated INTEGER NOT NULL,
      spec TEXT NOT NULL,
      conditions TEXT NOT NULL,
      summary TEXT NOT NULL,
      note TEXT NOT NULL DEFAULT '',
      tags TEXT NOT NULL DEFAULT '[]',
      samples TEXT
    );
    CREATE INDEX results_by_time ON results (unix_s);
    """,
)
_JSON_COLUMNS = ("spec", "conditions", "summary", "tags")
_COLUMNS = "id, unix_s, spec, conditions, summary, note, tags"
# What a search looks in, as text. JSON columns are taken apart, so that what json.dumps escapes is found as typed.
_IN_CONDITIONS = (
    "engine_version",
    "argv",
    "flags",
    "env",
    "preset_id",
    "run_id",
    "driver_version",
    "gpus",
    "gpu_settings",
    "imported",
    "model_digest",
)
_IN_SPEC = ("profile", "prompts_name", "command", "endpoint", "extra_body")


def _whole(column: str) -> str:
    """The column, or nothing where it is damaged: SQLite would end the whole query at it."""
    return f"CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END"


def _field(column: str, name: str) -> str:
    return f"json_extract({_whole(column)}, '$.{name}')"


_SEARCHED = (
    "("
    + " || ' ' || ".join(
        [
            "host",
            "model",
            "ifnull(engine, '')",
            "note",
            f"ifnull((SELECT group_concat(value, ' ') FROM json_each({_whole('tags')})), '')",
            "CASE WHEN simulated THEN 'simulated' ELSE '' END",
            "strftime('%Y-%m-%d', unix_s, 'unixepoch')",
            *(f"ifnull({_field('conditions', n)}, '')" for n in _IN_CONDITIONS),
            *(f"ifnull({_field('spec', n)}, '')" for n in _IN_SPEC),
        ]
    )
    + ")"
)
_INSERT = (
    "INSERT OR IGNORE INTO results (uid, unix_s, host, engine, model, simulated, spec, conditions, summary, samples,"
    " note, tags) VALUES (:uid, :unix_s, :host, :engine, :model, :simulated, :spec, :conditions, :summary, :samples,"
    " :note, :tags)"
)


class ResultsDb:
    """Each call opens the file, does its work and closes it: any thread, any number of Workbenches.

    The file and its directory (0700) are made when something is first written. Methods raise StoreError, and InputError
    for an id that is not there.
    """

    def __init__(self, path: Path, *, busy_s: float = _BUSY_S) -> None:
        self.path = path
        self.samples_dir = path.parent / "samples"
        self._busy_s = busy_s

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
        """The id of the new result. `samples`: one mapping per request (`RequestRecord.as_json`). With a `uid` that is
        there already nothing is added, and the id is that one's.

        When the database cannot take it, StoreError names the JSON file that holds the result instead.
        """
        uid = uid or uuid.uuid4().hex
        row = {
            "uid": uid,
            "unix_s": time.time() if unix_s is None else unix_s,
            "host": conditions.host,
            "engine": conditions.engine,
            "model": conditions.model,
            "simulated": conditions.simulated,
            "spec": json.dumps(mask_data(to_json(spec))),
            "conditions": json.dumps(mask_data(to_json(conditions))),
            "summary": json.dumps(to_json(summary)),
            "note": note,
            "tags": _tags_json(tags),
        }
        kept = list(samples)
        try:
            row["samples"] = self._write_samples(uid, kept) if kept else None
            result_id = self._do(lambda db: self._insert(db, row), write=True)
        except (StoreError, OSError) as error:
            raise self._keep_unsaved(row, kept, error) from error
        with contextlib.suppress(StoreError):  # it waited until now and can wait on: this result is in
            self.recover()
        return result_id

    def list(
        self, limit: int | None = 100, search: str | None = None, *, host: str | None = None, tag: str | None = None
    ) -> tuple[BenchResult, ...]:
        """What `read` finds, without those that are damaged."""
        return self.read(limit, search, host=host, tag=tag)[0]

    def read(
        self, limit: int | None = 100, search: str | None = None, *, host: str | None = None, tag: str | None = None
    ) -> tuple[tuple[BenchResult, ...], tuple[int, ...]]:
        """Results, newest first, and the ids of those among them that are damaged. `search`: words that must all occur
        (ASCII case ignored) in host, engine, model, command, environment, driver, GPUs and their settings, workload,
        preset, run, date (UTC), note or tags, or be "simulated". `host`: only those of that host and the imported ones;
        `tag`: only those that have it."""
        where: list[str] = []
        values: list[Any] = []
        for word in (search or "").split():
            escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            where.append(f"{_SEARCHED} LIKE ? ESCAPE '\\'")
            values.append(f"%{escaped}%")
        if host is not None:
            where.append(f"(host = ? OR {_field('conditions', 'imported')} IS NOT NULL)")
            values.append(host)
        if tag is not None:
            where.append(f"EXISTS (SELECT 1 FROM json_each({_whole('tags')}) WHERE value = ?)")
            values.append(tag)
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        sql = f"SELECT {_COLUMNS} FROM results {condition} ORDER BY id DESC LIMIT ?"
        rows = self._do(lambda db: db.execute(sql, (*values, -1 if limit is None else limit)).fetchall())
        found, damaged = [], []
        for row in rows:
            try:
                found.append(_result(row))
            except StoreError:  # no reason to hide the others
                damaged.append(row[0])
        return tuple(found), tuple(damaged)

    def with_uid(self, uid: str) -> int | None:
        """The id of the result that was added with this `uid`."""
        row = self._do(lambda db: db.execute("SELECT id FROM results WHERE uid = ?", (uid,)).fetchone())
        return None if row is None else int(row[0])

    def get(self, result_id: int) -> BenchResult:
        sql = f"SELECT {_COLUMNS} FROM results WHERE id = ?"
        row = self._do(lambda db: db.execute(sql, (result_id,)).fetchone())
        if row is None:
            raise _no_such(result_id)
        return _result(row)

    def samples(self, result_id: int) -> tuple[dict[str, Any], ...]:
        """The raw requests of a result, () where none were kept."""
        row = self._do(lambda db: db.execute("SELECT samples FROM results WHERE id = ?", (result_id,)).fetchone())
        if row is None:
            raise _no_such(result_id)
        if row[0] is None:
            return ()
        path = self.samples_dir / row[0]
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return tuple(json.loads(line) for line in file)
        except (OSError, EOFError, ValueError) as error:
            raise StoreError(f"the samples of result {result_id} could not be read from {path}: {error}") from error

    def note(self, result_id: int, text: str) -> None:
        self._update(result_id, "UPDATE results SET note = ? WHERE id = ?", text)

    def tag(self, result_id: int, tags: Iterable[str]) -> None:
        """Replaces the result's tags."""
        self._update(result_id, "UPDATE results SET tags = ? WHERE id = ?", _tags_json(tags))

    def retag(self, result_id: int, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
        """The tags after adding and removing these, in one transaction: two Workbenches lose none of each other's."""

        def work(db: sqlite3.Connection) -> tuple[str, ...]:
            row = db.execute("SELECT tags FROM results WHERE id = ?", (result_id,)).fetchone()
            if row is None:
                raise _no_such(result_id)
            text = _tags_json({*json.loads(row[0]), *add} - set(remove))
            db.execute("UPDATE results SET tags = ? WHERE id = ?", (text, result_id))
            return tuple(json.loads(text))

        return self._do(work, write=True)

    def delete(self, result_id: int) -> None:
        """The result and its samples."""

        def work(db: sqlite3.Connection) -> str | None:
            row = db.execute("SELECT samples FROM results WHERE id = ?", (result_id,)).fetchone()
            if row is None:
                raise _no_such(result_id)
            db.execute("DELETE FROM results WHERE id = ?", (result_id,))
            name: str | None = row[0]
            return name

        name = self._do(work, write=True)
        if name:
            (self.samples_dir / name).unlink(missing_ok=True)

    def stamp(self) -> object:
        """Return what differs after every write, without opening the database."""
        found = []
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with contextlib.suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size) if about.st_size else None)
        return tuple(one for one in found if one is not None)

    def unsaved(self) -> tuple[Path, ...]:
        """Results that wait beside the database because it could not be written."""
        return tuple(sorted(self.path.parent.glob("unsaved-result-*.json")))

    def recover(self) -> tuple[int, ...]:
        """Take in what waits beside the database; ids of the results taken in. A file goes only when it is in."""
        ids = []
        for path in self.unsaved():
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                row, kept = _unsaved_row(data)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{path} could not be read back: {error}", next_step="it is left as it is") from error
            try:
                row["samples"] = self._write_samples(row["uid"], kept) if kept else None
            except OSError as error:
                raise StoreError(f"the samples of {path} could not be written: {error}") from error
            ids.append(self._do(lambda db, row=row: self._insert(db, row), write=True))  # type: ignore[misc]
            path.unlink(missing_ok=True)
        return tuple(ids)

    # -- inside --------------------------------------------------------------------------------------------------

    @staticmethod
    def _insert(db: sqlite3.Connection, row: Mapping[str, Any]) -> int:
        db.execute(_INSERT, row)
        return int(db.execute("SELECT id FROM results WHERE uid = ?", (row["uid"],)).fetchone()[0])

    def _update(self, result_id: int, sql: str, value: str) -> None:
        if not self._do(lambda db: db.execute(sql, (value, result_id)).rowcount, write=True):
            raise _no_such(result_id)

    def _do(self, work: Callable[[sqlite3.Connection], T], *, write: bool = False) -> T:
        """`work` in one transaction on an open database of the right version. Reading makes and locks nothing."""
        import sqlite3

        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            empty = not write and not self.path.exists()
            db = sqlite3.connect(":memory:" if empty else self.path, timeout=self._busy_s, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._problem(error) from error
        try:
            if not write:
                db = self._readable(db)
            self._prepare(db)
            db.execute(f"PRAGMA query_only = {int(not write)}")
            db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                result = work(db)
            except BaseException:
                db.rollback()
                raise
            db.execute("COMMIT")
            return result
        except sqlite3.Error as error:
            raise self._problem(error) from error
        except OverflowError:  # an id beyond 64 bits
            raise InputError("there is no result of that number", next_step=_LIST) from None
        except UnicodeEncodeError:
            raise InputError("the text holds what is no character", next_step="give it in UTF-8") from None
        finally:
            db.close()

    def _readable(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Where the disk is full or read-only, SQLite cannot make the small file with which it shares a database: then
        it is read as one that nobody writes, which holds while nothing is left in a journal beside it."""
        import sqlite3

        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            said = str(error).lower()
            journal = self.path.with_name(f"{self.path.name}-wal")
            left = journal.exists() and journal.stat().st_size
            if "locked" in said or "busy" in said or left or not self.path.exists():
                raise
            db.close()
            return sqlite3.connect(f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(_MIGRATIONS):
            raise StoreError(
                f"{self.path} was written by a newer Workbench (format {version}, this one knows {len(_MIGRATIONS)})",
                next_step="update Workbench; the file was not touched",
            )
        if version == len(_MIGRATIONS):
            return
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]  # another Workbench may have been first
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in script.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")

    def _problem(self, error: Exception) -> StoreError:
        said = str(error)
        low = said.lower()
        if "locked" in low or "busy" in low:
            step = "another program holds it open: close that, then run the command again"
        elif "full" in low or "disk i/o" in low:
            step = "free some space on that disk, or raise the quota or file size limit"
        elif "not a database" in low or "malformed" in low or "corrupt" in low:
            step = f"move {self.path} aside (a new one is made), or restore it from a backup; it was not changed"
        else:
            step = "check that the file and its directory are yours and writable"
        return StoreError(f"the results database {self.path} could not be used: {said}", next_step=step)

    def _write_samples(self, uid: str, samples: Iterable[Mapping[str, Any]]) -> str:
        """File name under `samples_dir`. Whole or not at all."""
        for directory in (self.path.parent, self.samples_dir):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{uid}.jsonl.gz"
        temporary = self.samples_dir / f".{name}"
        try:
            with gzip.open(temporary, "wt", encoding="utf-8", compresslevel=5) as file:
                for sample in samples:
                    file.write(json.dumps(sample, separators=(",", ":")) + "\n")
            temporary.replace(self.samples_dir / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return name

    def _keep_unsaved(
        self, row: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], cause: StoreError | OSError
    ) -> StoreError:
        """Write the result as a file: beside the database, else in the system's directory for temporary files."""
        import tempfile

        data = {**row, **{k: json.loads(row[k]) for k in _JSON_COLUMNS}, "requests": samples}
        text = json.dumps({k: v for k, v in data.items() if k != "samples"}, indent=1)
        said = cause.message if isinstance(cause, StoreError) else f"the samples could not be written: {cause}"
        for directory in (self.path.parent, Path(tempfile.gettempdir())):
            path = directory / f"unsaved-result-{row['uid']}.json"
            try:
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(text)
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            step = (cause.next_step if isinstance(cause, StoreError) else None) or "free some space on that disk"
            if directory != self.path.parent:  # what lies beside the database is taken in by itself
                step += f"; then: workbench results import {path}"
            return StoreError(f"{said}. The result is kept in {path}", next_step=step)
        return StoreError(f"{said}, and no file could be written either", next_step="free disk space and run it again")


def _unsaved_row(data: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]]]:
    """The row and the samples of a file that `_keep_unsaved` wrote; one of an older version has no note and tags."""
    full = {"note": "", "tags": [], **data}
    row = {**full, **{k: json.dumps(full[k], ensure_ascii=k != "tags") for k in _JSON_COLUMNS}}
    return row, row.pop("requests")


def _tags_json(tags: Iterable[str]) -> str:
    return json.dumps(sorted(set(tags)), ensure_ascii=False)


def _no_such(result_id: int) -> InputError:
    return InputError(f"there is no result {result_id}", next_step=_LIST)


def _read(text: str) -> Any:
    """Return stored JSON, cleaned: an older version may have stored a stranger's text as it came."""
    return clean_json(text, len(text))


def _result(row: tuple[Any, ...]) -> BenchResult:
    result_id, unix_s, spec, conditions, summary, note, tags = row
    try:
        return from_json(
            BenchResult,
            {
                "id": result_id,
                "unix_s": unix_s,
                "spec": _read(spec),
                "conditions": _read(conditions),
                "summary": _read(summary),
                "note": clean(note),
                "tags": _read(tags),
            },
        )
    except ValueError as error:
        raise StoreError(
            f"result {result_id} in the database is damaged: {error}",
            next_step="the others are not affected; restore this one from a backup of the database if you need it",
        ) from error
