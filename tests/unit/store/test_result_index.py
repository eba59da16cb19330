"""Tests of lists of many results: the index agrees with the results, and a list reads only what it
shows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import made_results as made

from workbench.store import result_index
from workbench.store.database import Database
from workbench.store.results_db import ResultsDb

FIRST_VERSION = Path(__file__).parents[2] / "fixtures" / "results" / "first-version.sql"


def stored(path: Path, **conditions: Any) -> ResultsDb:
    db = ResultsDb(path / "results.sqlite3", busy_s=0.1)
    one = made.result(**conditions)
    db.add(one.spec, one.conditions, one.summary, unix_s=1e9)
    return db


def steps(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """Return the number of steps of SQLite's virtual machine that `work` takes, in units of 100."""
    counted = 0
    opened = Database._open

    def count() -> None:
        nonlocal counted
        counted += 1

    def open_counting(self: Database, write: bool) -> sqlite3.Connection:
        db = opened(self, write)
        db.set_progress_handler(count, 100)
        return db

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_open", open_counting)
        work()
    return counted


def test_a_list_takes_no_more_steps_with_more_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = stored(tmp_path)
    asked: list[dict[str, Any]] = [{}, {"search": "vllm"}, {"host": "box"}]
    made.multiply(db.path, 300)
    few = [steps(monkeypatch, partial(db.list, 50, **how)) for how in asked]
    made.multiply(db.path, 3000)
    many = [steps(monkeypatch, partial(db.list, 50, **how)) for how in asked]
    assert all(after <= before + 5 for before, after in zip(few, many, strict=True)), (few, many)
    for how in ({"search": "no-such-word"}, {"tag": "none"}, {"host": "elsewhere"}):
        taken = 100 * steps(monkeypatch, partial(db.list, 50, **how))
        assert taken < 60 * 3300, how  # 60 steps for each line of the index


def older_version(db: ResultsDb, indexed_from: int) -> None:
    """Remove results below an id from the index, as if an older version had stored them."""
    with sqlite3.connect(db.path) as raw:
        raw.execute("DELETE FROM result_index WHERE id < ?", (indexed_from,))
    raw.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_index_finds_what_the_results_contain(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever was changed and however much is indexed, a filter finds what the results themselves
    say."""
    db = ResultsDb(tmp_path_factory.mktemp("db") / "results.sqlite3")
    hosts, tags = ("box", "other"), ("a", "grün", "a_b")
    for _ in range(data.draw(st.integers(1, 8))):
        one = made.result(
            host=data.draw(st.sampled_from(hosts)),
            imported=data.draw(st.sampled_from((None, "tool"))),
        )
        number = db.add(
            one.spec,
            one.conditions,
            one.summary,
            note=data.draw(st.sampled_from(("", "one", "100%"))),
        )
        db.set_tags(number, data.draw(st.sets(st.sampled_from(tags))))
    everything = db.list(None)
    gone = data.draw(st.sampled_from(everything)).id
    db.delete(gone)
    kept = [r for r in everything if r.id != gone]
    older_version(db, data.draw(st.integers(0, 10)))
    for _ in range(4):
        host, tag = (
            data.draw(st.sampled_from((None, *hosts))),
            data.draw(st.sampled_from((None, *tags))),
        )
        word = data.draw(st.sampled_from((None, "one", "0%", "nothing", "GRÜN", "grün")))
        limit = data.draw(st.integers(1, 9))
        right = [
            r.id
            for r in kept
            if (host is None or r.conditions.host == host or r.conditions.imported)
            and (tag is None or tag in r.tags)
            and (word is None or word in r.note or any(word in t for t in r.tags))
        ]
        assert [r.id for r in db.list(limit, word, host=host, tag=tag)] == right[:limit]


def test_results_of_an_older_version_are_indexed_when_a_filter_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_index, "_ADDED_AT_ONCE", 10)
    db = stored(tmp_path)
    made.multiply(db.path, 100)
    older_version(db, 1000)
    indexed = "SELECT count(*) FROM result_index"

    def count() -> int:
        return int(db._database.read(lambda raw: raw.execute(indexed).fetchone()[0]))

    assert [r.note for r in db.list(3)] == ["copy100", "copy99", "copy98"] and count() == 0
    assert [r.note for r in db.list(3, "box")] == ["copy100", "copy99", "copy98"] and count() == 10
    assert [r.note for r in db.list(3, "copy42")] == ["copy42"] and count() == 101
    db.set_note(1, "changed")
    assert [r.id for r in db.list(3, "changed")] == [1]


def test_a_database_of_the_first_version_is_filtered_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.sqlite3"
    raw = sqlite3.connect(path)
    raw.executescript(FIRST_VERSION.read_text())
    raw.close()

    def read_only(self: Database, write: bool) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(Database, "_open", read_only)
    db = ResultsDb(path)
    assert [r.id for r in db.list(search="größer")] == [1] == [r.id for r in db.list(tag="größer")]
    assert db.list(search="no-such-word") == () and [r.id for r in db.list()] == [1]


def test_pages_can_begin_below_a_result(tmp_path: Path) -> None:
    db = stored(tmp_path)
    made.multiply(db.path, 1100)
    older_version(db, 900)
    pages = list(db.pages(search="copy", before_id=1001))
    assert [len(page.results) for page in pages] == [500, 499]
    assert [r.id for page in pages for r in page.results] == list(range(1000, 1, -1))
    one = replace(made.result().conditions, imported="another tool")
    number = db.add(made.result().spec, one, made.result().summary)
    assert [r.id for r in db.list(1, host="not the host")] == [number]
