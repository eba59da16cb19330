"""Tests with a database of the first version, a lock of another process, and a disk that is really
full."""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
import sqlite3
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from support import made_results as made

from workbench.bench.compare import compare
from workbench.model.errors import StoreError
from workbench.report.content import Report
from workbench.report.registry import OUTPUT_FORMATS
from workbench.store.results_db import ResultsDb

FIRST_VERSION = Path(__file__).parents[2] / "fixtures" / "results" / "first-version.sql"
SPAWN = multiprocessing.get_context("spawn")


def add(db: ResultsDb, **rest: Any) -> int:
    one = made.result()
    return db.add(one.spec, one.conditions, one.summary, made.samples(), unix_s=1e9, **rest)


@pytest.fixture
def first(tmp_path: Path) -> ResultsDb:
    """Return a database that the first released version wrote (as an SQL dump)."""
    raw = sqlite3.connect(tmp_path / "results.sqlite3")
    raw.executescript(FIRST_VERSION.read_text())
    raw.close()
    return ResultsDb(tmp_path / "results.sqlite3", busy_s=0.1)


def test_a_database_of_the_first_version_is_read_and_extended(first: ResultsDb) -> None:
    one = first.get(1)
    assert (one.conditions.host, one.summary.output_tokens, one.note) == ("box", 10, "before")
    assert one.summary.ttft_ms is not None and one.summary.ttft_ms.p90 == 3.0
    assert (
        one.conditions.model_digest is None
        and one.conditions.imported is None
        and one.summary.engine is None
    )
    assert one.tags == ("a", "größer")
    for words in ("größer", "before box", "max-num-seqs", "RTX simulated", "2026-09-21"):
        assert [r.id for r in first.list(search=words)] == [1], words
    assert [r.id for r in first.list(tag="größer")] == [1] and first.list(tag="größ") == ()
    assert first.change_tags(1, ["new"], ["a"]) == ("größer", "new")
    assert add(first) == 2 and [r.id for r in first.list()] == [2, 1]
    for form in OUTPUT_FORMATS.values():
        assert form.render(Report.from_result(one))
    assert not compare(one, first.get(2)).like_for_like


def test_an_unsaved_result_of_the_first_version_is_stored(first: ResultsDb) -> None:
    one = first.get(1)
    from workbench.model.json_records import to_json

    data = {name: to_json(getattr(one, name)) for name in ("spec", "conditions", "summary")}
    waiting = {
        "uid": "u",
        "unix_s": 3.0,
        "host": "box",
        "engine": "vllm",
        "model": "m",
        "simulated": True,
        **data,
    }
    path = first.path.parent / "unsaved-result-u.json"
    path.write_text(json.dumps({**waiting, "requests": [{"index": 0}]}))
    (number,) = first.store_unsaved_results()
    assert first.get(number).summary == one.summary and first.samples(number) == ({"index": 0},)
    assert first.get(number).tags == () and not path.exists()


def hold(path: Path, held: Event, let_go: Event) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    held.set()
    let_go.wait(60)
    other.execute("ROLLBACK")
    other.close()


def test_a_database_locked_by_another_process_loses_no_result(tmp_path: Path) -> None:
    db = ResultsDb(tmp_path / "results.sqlite3", busy_s=0.1)
    first = add(db, note="n", tags=["t"])
    held, let_go = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(db.path, held, let_go))
    process.start()
    try:
        assert held.wait(30)
        for change in (
            lambda: db.set_note(first, "x"),
            lambda: db.set_tags(first, ["x"]),
            lambda: db.change_tags(first, ["x"]),
        ):
            with pytest.raises(StoreError, match="locked") as caught:
                change()
            assert "another program is using the database" in (caught.value.next_step or "")
        with pytest.raises(StoreError, match="The result is stored in"):
            add(db, note="kept too", tags=["grün"])
        assert (db.get(first).note, db.get(first).tags) == ("n", ("t",))  # reading goes on
    finally:
        let_go.set()
        process.join(30)
    assert process.exitcode == 0
    (number,) = db.store_unsaved_results()
    assert (db.get(number).note, db.get(number).tags) == ("kept too", ("grün",))
    assert db.samples(number) == made.samples()


def fill(path: Path, limit: int, elsewhere: str, answers: Any) -> None:
    """Put the errors of add, note and tag into `answers` when no file may grow beyond `limit`
    bytes."""
    import tempfile

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    tempfile.tempdir = elsewhere
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    db = ResultsDb(path, busy_s=0.1)
    said: list[tuple[str, str | None]] = []
    for attempt in (
        lambda: add(db),
        lambda: db.set_note(1, "n" * 200_000),
        lambda: db.change_tags(1, ["t" * 200_000]),
    ):
        for _ in range(50):
            try:
                attempt()
            except StoreError as error:
                said.append((error.message, error.next_step))
                break
        else:
            said.append(("nothing", None))
    answers.put(said)


def test_a_full_disk_loses_no_result(tmp_path: Path) -> None:
    """The kernel rejects the write with EFBIG, as it does with ENOSPC on a full disk and EDQUOT
    beyond a quota."""
    path, elsewhere = tmp_path / "data" / "results.sqlite3", tmp_path / "tmp"
    elsewhere.mkdir()
    db = ResultsDb(path)
    add(db)
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=fill, args=(path, 100_000, str(elsewhere), answers))
    process.start()
    said = answers.get(timeout=60)
    process.join(30)
    (first, step), *changes = said
    (waiting,) = db.find_unsaved_files()
    assert (
        f"The result is stored in {waiting}" in first
        and step is not None
        and ("free some space") in step
    )
    for message, next_step in changes:
        assert (
            "could not be used" in message
            and next_step is not None
            and ("free some space") in next_step
        )
    assert json.loads(waiting.read_text())["requests"] == list(made.samples())
    before = len(db.list(limit=None))
    (number,) = db.store_unsaved_results()
    assert (
        len(db.list(limit=None)) == before + 1
        and db.samples(number) == made.samples()
        and db.get(1).note == ""
    )


def look(path: Path, answers: Any) -> None:
    """Put the results of reading into `answers` when no byte can be written."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    db = ResultsDb(path, busy_s=0.1)
    try:
        db.set_note(1, "x")
    except StoreError as error:
        answers.put((error.message, [r.id for r in db.list()], len(db.samples(1))))


def test_reading_works_if_nothing_can_be_written(tmp_path: Path) -> None:
    add(ResultsDb(tmp_path / "results.sqlite3"))
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=look, args=(tmp_path / "results.sqlite3", answers))
    process.start()
    message, numbers, samples = answers.get(timeout=30)
    process.join(30)
    assert "could not be used" in message and (numbers, samples) == ([1], 40)
