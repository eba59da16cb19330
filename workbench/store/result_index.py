"""The index of stored results: a table with the texts by which lists filter results.

A result takes 5 to 10 KB, and a filter without the index would read all of them. Triggers update
the index. Results that an older version of Workbench stored are added, newest first, when a filter
first needs them, so that the first start after an update does not take long.
"""

from __future__ import annotations

import sqlite3

_ADDED_AT_ONCE = 1000  # in one transaction, so that no other writer waits long
_BEYOND = 2**63 - 1  # above every id
_NAMES = "host, tags, words"
INDEX = "result_index"


def valid_json_sql(column: str) -> str:
    """Return an SQL expression for a JSON column. It gives [] in place of damaged JSON, which would
    make the whole query fail."""
    return f"CASE WHEN json_valid({column}) THEN {column} ELSE '[]' END"


def json_field(column: str, name: str) -> str:
    return f"json_extract({valid_json_sql(column)}, '$.{name}')"


def index_rows_sql(searched_text_sql: str) -> str:
    """Return the SQL query that computes the rows of the result index from the results table.
    `searched_text_sql` is the SQL expression for the text in which a search looks. An imported
    result gets no host, because it is listed on every host."""
    host = f"CASE WHEN {json_field('conditions', 'imported')} IS NULL THEN host END"
    tags = valid_json_sql("tags")
    return f"SELECT id, {host} AS host, {tags} AS tags, {searched_text_sql} AS words FROM results"


def create_index_sql(searched_text_sql: str) -> str:
    """Return the SQL script that creates an empty result index and deletes an index of an older
    format. `searched_text_sql` is the SQL expression for the text in which a search looks."""
    computed = index_rows_sql(searched_text_sql)
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


def filter_condition(
    search: str | None, host: str | None, tag: str | None
) -> tuple[str, list[str]]:
    """Return (SQL condition on the index table, its parameters) for the filters that are not None.
    Without a filter, return ("", []). A result matches `search` if it has all of its words."""
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


def first_indexed_id(db: sqlite3.Connection) -> int:
    """Return the lowest result id in the index of results. All results with higher ids are indexed
    too. Return 0 if all results are indexed, and a number above all ids if the file has no index.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (INDEX,)).fetchone():
        return _BEYOND  # a file of an older version that cannot be written
    (first,) = db.execute(f"SELECT ifnull(min(id), {_BEYOND}) FROM {INDEX}").fetchone()
    older = db.execute("SELECT 1 FROM results WHERE id < ? LIMIT 1", (first,)).fetchone()
    return int(first) if older else 0


def index_older_results(searched_text_sql: str, db: sqlite3.Connection) -> int:
    """Add to the index the newest results that it lacks. Return the lowest result id in the index,
    or 0 if all results are now indexed. `searched_text_sql` is the SQL expression for the text in
    which a search looks."""
    older = f"{index_rows_sql(searched_text_sql)} WHERE id < ? ORDER BY id DESC LIMIT ?"
    db.execute(
        f"INSERT INTO {INDEX} (id, {_NAMES}) {older}", (first_indexed_id(db), _ADDED_AT_ONCE)
    )
    return first_indexed_id(db)
