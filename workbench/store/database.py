"""The SQLite file of results and experiments, which several Workbenches may use at the same
time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from workbench.model.errors import InputError, StoreError

T = TypeVar("T")

BUSY_S = 5.0  # how long a call waits for another program that writes
_NEXT_STEPS = (  # words in SQLite's error, next step
    (
        ("locked", "busy"),
        "another program is using the database: end that program, then run the command again",
    ),
    (("full", "disk i/o"), "free some space on that disk, or raise the quota or file size limit"),
    (
        ("not a database", "malformed", "corrupt"),
        "restore {path} from a backup, or move it away to begin with an empty database; it was not "
        "changed",
    ),
    (("",), "check that you may write the file and its directory"),
)


def _sql_statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script. Semicolons inside a CREATE TRIGGER statement do not
    end it."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


class Database:
    """An SQLite file. Each call opens the file and closes it afterwards, so that any thread may
    call. `migrations` has one SQL script per format version; a file of an older version is updated
    with the later scripts. Methods raise StoreError, and InputError for a number or text that
    SQLite cannot store."""

    def __init__(self, path: Path, migrations: Sequence[str], busy_s: float = BUSY_S) -> None:
        self.path = path
        self._migrations, self._busy_s = migrations, busy_s

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a read transaction and return its value. A missing file counts as an empty
        database. Reading does not wait for writers."""
        return self._run_transaction(work, write=False)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a write transaction and return its value. A missing file and its directory
        (mode 0700) are created first."""
        return self._run_transaction(work, write=True)

    def _run_transaction(self, work: Callable[[sqlite3.Connection], T], *, write: bool) -> T:
        try:
            db = self._open(write)
        except (OSError, sqlite3.Error) as error:
            raise self._store_error_of(error) from error
        try:
            if not write:
                db = self._readable_connection(db)
            self._migrate(db, write)
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
            raise self._store_error_of(error) from error
        except OverflowError:  # an id beyond 64 bits
            step = "workbench results list shows the stored results"
            raise InputError(
                "no stored result or experiment has so large a number", next_step=step
            ) from None
        except UnicodeEncodeError:
            raise InputError(
                "the text cannot be stored, because it is not valid Unicode",
                next_step="give the text in UTF-8",
            ) from None
        finally:
            db.close()

    def _open(self, write: bool) -> sqlite3.Connection:
        place: Path | str = self.path
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        else:
            try:
                self.path.stat()
            except FileNotFoundError:
                place = ":memory:"
        return sqlite3.connect(place, timeout=self._busy_s, isolation_level=None)

    def _readable_connection(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """Return a connection that can read even if the disk is full or read-only: `db` itself, or
        else a new connection.

        On such a disk, SQLite cannot create its shared-memory file. If the write-ahead log is
        empty, no process is writing, so the database is opened with immutable=1, for which SQLite
        needs no shared-memory file.
        """
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            message = str(error).lower()
            journal = self.path.with_name(f"{self.path.name}-wal")
            unfinished = journal.exists() and journal.stat().st_size
            if "locked" in message or "busy" in message or unfinished or not self.path.exists():
                raise
            db.close()
            return sqlite3.connect(
                f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None
            )
        return db

    def _migrate(self, db: sqlite3.Connection, write: bool) -> None:
        """Update the file to the newest format. If this fails and the file is only to be read
        (`write` is False), continue with the older format."""
        newest = len(self._migrations)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > newest:
            raise StoreError(
                f"{self.path} was written by a newer Workbench (format {version}, this version "
                f"reads up to {newest})",
                next_step="update Workbench; the database was not changed",
            )
        if version == newest:
            return
        try:
            self._migrate_to(newest, db)
        except sqlite3.OperationalError:
            if write or not version:
                raise
            if db.in_transaction:
                db.rollback()

    def _migrate_to(self, newest: int, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        # another Workbench may have been first
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for number, script in enumerate(self._migrations[version:newest], start=version + 1):
            for statement in _sql_statements(script):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")

    def _store_error_of(self, error: Exception) -> StoreError:
        message = str(error)
        step = next(
            step for words, step in _NEXT_STEPS if any(word in message.lower() for word in words)
        )
        text = f"the results database {self.path} could not be used: {message}"
        return StoreError(text, next_step=step.format(path=self.path))
