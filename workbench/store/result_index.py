"""The index of stored results: the texts by which lists filter them, in a table of its own.

A result takes 5 to 10 KB, and a filter on the results themselves would read all of them. Triggers keep the index up to
date. Results that an older version stored are added when a filter first needs them, from new to old, so that the first
start after an update does not wait for them.
"""

from __future__ import annotations

import sqlite3

_ADDED_AT_ONCE = 1000  # in one transaction, so that no other writer waits long
_BEYOND = 2**63 - 1  # above every id
_NAMES = "host, tags, words"
INDEX = "result_index"


def whole(column: str) -> str:
    """Return an SQL expression for a JSON column that gives [] if the column is damaged, because a damaged value would
    end the whole query."""
    return f"CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END"


def json_field(column: str, name: str) -> str:
    return f"json_extract({whole(column)}, '$.{name}')"


def source(words: str) -> str:
    """Return the SQL query that computes the index from the results. `words` is the SQL expression of the searched
    text. An imported result gets no host, because it is listed on every host."""
    host = f"CASE WHEN {json_field('conditions', 'imported')} IS NULL THEN host END"
    return f"SELECT id, {host} AS host, {whole('tags')} AS tags, {words} AS words FROM results"


def creation(words: str) -> str:
    """Return the SQL script that creates an empty index, in place of an index of an older format."""
    computed = source(words)
    return f"""
        DROP TRIGGER IF EXISTS result_added; DROP TRIGGER IF EXISTS result_changed;
        DROP TRIGGER IF EXISTS result_deleted; DROP TABLE IF EXISTS {INDEX};
        CREATE TABLE {INDEX} (id INTEGER PRIMARY KEY, host TEXT, tags TEXT NOT NULL, words TEXT NOT NULL);
        CREATE TRIGGER result_added AFTER INSERT ON results BEGIN
          INSERT INTO {INDEX} (id, {_NAMES}) {computed} WHERE id = new.id; END;
        CREATE TRIGGER result_changed AFTER UPDATE ON results BEGIN
          UPDATE {INDEX} SET ({_NAMES}) = (SELECT {_NAMES} FROM ({computed} WHERE id = new.id)) WHERE id = old.id; END;
        CREATE TRIGGER result_deleted AFTER DELETE ON results BEGIN DELETE FROM {INDEX} WHERE id = old.id; END
    """


def filter_condition(search: str | None, host: str | None, tag: str | None) -> tuple[str, list[str]]:
    """Return the SQL condition of a filter on the index, and its values; "" without a filter."""
    conditions: list[str] = []
    values: list[str] = []
    for word in (search or "").split():
        escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        conditions.append("words LIKE ? ESCAPE '\\'")
        values.append(f"%{escaped}%")
    if host is not None:
        conditions.append("(host = ? OR host IS NULL)")
        values.append(host)
    if tag is not None:
        conditions.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)")
        values.append(tag)
    return " AND ".join(conditions), values


def first_indexed(db: sqlite3.Connection) -> int:
    """Return the lowest id of the results in the index: all newer results are in it too. 0 if all results are in it."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (INDEX,)).fetchone():
        return _BEYOND  # a file of an older version that cannot be written
    (first,) = db.execute(f"SELECT ifnull(min(id), {_BEYOND}) FROM {INDEX}").fetchone()
    older = db.execute("SELECT 1 FROM results WHERE id < ? LIMIT 1", (first,)).fetchone()
    return int(first) if older else 0


def add_older(words: str, db: sqlite3.Connection) -> int:
    """Add the newest results that are not in the index yet. Return the new `first_indexed`."""
    older = f"{source(words)} WHERE id < ? ORDER BY id DESC LIMIT ?"
    db.execute(f"INSERT INTO {INDEX} (id, {_NAMES}) {older}", (first_indexed(db), _ADDED_AT_ONCE))
    return first_indexed(db)
