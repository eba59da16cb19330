"""Tests of the results database: results are stored whole, found again, and never lost."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.model.bench import (
    BenchSpec,
    BenchSummary,
    Conditions,
    Distribution,
    GpuDuring,
    PcieDuring,
)
from workbench.model.errors import InputError, StoreError
from workbench.model.json_records import to_json
from workbench.store import results_db as results_module
from workbench.store.results_db import ResultsDb

SPEC = BenchSpec("http://127.0.0.1:8000", "tiny", extra_body={"top_k": 3}, salt="ab")
CONDITIONS = Conditions(
    host="box",
    engine="vllm",
    engine_version="0.33.0",
    model="tiny",
    argv=("vllm", "serve", "tiny", "--max-num-seqs", "256"),
    env={"A": "1"},
    flags={"max-num-seqs": 256, "list": [1, 2], "json": {"a": None}},
    gpus=({"name": "RTX", "uuid": "GPU-1"},),
    simulated=True,
)
SUMMARY = BenchSummary(
    requests_ok=2,
    requests_failed=1,
    errors={"http 503": 1},
    prompt_tokens=20,
    output_tokens=10,
    cached_tokens=None,
    duration_s=0.5,
    output_tok_s=20.0,
    request_s=4.0,
    ttft_ms=Distribution(1, 2, 3, 4, 0, 5, 2),
    itl_ms=None,
    tpot_ms=None,
    e2e_ms=None,
    tokens_per_chunk=1.0,
    per_stream_tok_s=None,
    power_w=500.0,
    energy_j=250.0,
    tok_per_joule=0.04,
    gpu=GpuDuring(
        500.0,
        None,
        2400.0,
        None,
        60.0,
        97.0,
        {"sw power cap": 0.5},
        5,
        {"memory_mhz": "not supported"},
        pcie=(PcieDuring(0, 7643.0, 898.0, 15728.0, 4282.0, 15752.0), PcieDuring(1)),
    ),
    absent={"cached_tokens": "not told"},
    notes=("a note",),
)
SAMPLES = ({"index": 0, "gaps_us": [1, 2]}, {"index": 1})


@pytest.fixture
def db(tmp_path: Path) -> ResultsDb:
    return ResultsDb(tmp_path / "data" / "results.sqlite3", busy_s=0.1)


def add(db: ResultsDb, **conditions: Any) -> int:
    return db.add(SPEC, replace(CONDITIONS, **conditions), SUMMARY, SAMPLES, unix_s=1e9)


def test_a_stored_result_is_read_back_the_same(db: ResultsDb) -> None:
    result = db.get(add(db))
    assert (result.spec, result.conditions, result.summary) == (SPEC, CONDITIONS, SUMMARY)
    assert (result.id, result.unix_s, result.note, result.tags) == (1, 1e9, "", ())
    assert db.samples(1) == SAMPLES


def test_a_stored_duration_of_0_s_with_answered_requests_is_not_known(db: ResultsDb) -> None:
    """Earlier versions stored 0 s for an import without a duration."""
    stored = db.get(db.add(SPEC, CONDITIONS, replace(SUMMARY, duration_s=0.0))).summary
    assert stored.duration_s is None and "duration_s" in stored.absent
    none_answered = replace(SUMMARY, duration_s=0.0, requests_ok=0)
    assert db.get(db.add(SPEC, CONDITIONS, none_answered)).summary.duration_s == 0.0


def test_a_result_without_samples(db: ResultsDb) -> None:
    assert db.samples(db.add(SPEC, CONDITIONS, SUMMARY)) == ()
    assert not db.samples_dir.exists()


def test_results_are_listed_newest_first_limited_and_searched(db: ResultsDb) -> None:
    ids = [add(db), add(db, host="other"), add(db, model="big_one")]
    db.set_note(ids[0], "100% baseline")
    db.set_tags(ids[1], ["grün", "a", "grün"])
    assert [r.id for r in db.list()] == [3, 2, 1]
    assert [r.id for r in db.list(limit=2)] == [3, 2]
    assert [r.id for r in db.list(limit=None)] == [3, 2, 1]
    for text, found in {
        "OTHER": [2],
        "big_one": [3],
        "big-one": [],
        "bigXone": [],
        "0% base": [1],
        "%": [1],
        "max-num-seqs box": [3, 1],
        "'; DROP TABLE results; --": [],
        "grün": [2],
        "requests": [],
        "simulated box": [3, 1],
        "": [3, 2, 1],
    }.items():
        assert [r.id for r in db.list(search=text)] == found, text
    assert db.get(2).tags == ("a", "grün") and db.get(1).note == "100% baseline"


def test_extra_body_fields_are_searched(db: ResultsDb) -> None:
    db.add(replace(SPEC, extra_body={"top_p": 0.5}), CONDITIONS, SUMMARY)
    add(db)
    assert [r.id for r in db.list(search="top_p 0.5")] == [1]


def test_delete_removes_the_samples_and_ids_are_not_reused(db: ResultsDb) -> None:
    first, second = add(db), add(db)
    db.delete(second)
    assert [r.id for r in db.list()] == [first] and len(list(db.samples_dir.iterdir())) == 1
    assert add(db) == 3


@pytest.mark.parametrize("call", ["get", "samples", "delete", "set_note", "set_tags"])
def test_an_unknown_id_is_an_input_error(db: ResultsDb, call: str) -> None:
    arguments = {"set_note": ("x",), "set_tags": (["x"],)}.get(call, ())
    with pytest.raises(InputError, match="there is no result 7"):
        getattr(db, call)(7, *arguments)


def test_secrets_are_not_stored(db: ResultsDb) -> None:
    add(
        db,
        env={"HF_TOKEN": "sesame1"},
        argv=("vllm", "--api-key", "sesame2"),
        flags={"api-key": "sesame3"},
    )
    assert b"sesame" not in db.path.read_bytes()
    assert db.get(1).conditions.env == {"HF_TOKEN": "***"}


def test_only_the_user_can_read_the_files(db: ResultsDb) -> None:
    add(db)
    assert stat.S_IMODE(db.path.parent.stat().st_mode) == 0o700


def test_results_of_another_version_stay_readable(db: ResultsDb) -> None:
    """The stored result has an unknown field, and lacks a known one."""
    add(db)
    with sqlite3.connect(db.path) as raw:
        summary = json.loads(raw.execute("SELECT summary FROM results").fetchone()[0])
        del summary["warmup_requests"]
        raw.execute("UPDATE results SET summary = ?", (json.dumps({**summary, "new_figure": 1}),))
    raw.close()
    assert db.get(1).summary == SUMMARY


def add_many(path: Path, count: int) -> None:
    db = ResultsDb(path, busy_s=30)
    for _ in range(count):
        db.add(SPEC, CONDITIONS, SUMMARY)


def test_several_processes_can_write_at_once(tmp_path: Path) -> None:
    """The processes also create the database."""
    path = tmp_path / "new" / "results.sqlite3"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_many, args=(path, 10)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(r.id for r in ResultsDb(path).list()) == list(range(1, 31))


# -- when it cannot be written ---------------------------------------------------------------------


def kept(db: ResultsDb, caught: pytest.ExceptionInfo[StoreError]) -> Path:
    (path,) = db.find_unsaved_files()
    assert str(path) in caught.value.message and caught.value.next_step
    assert json.loads(path.read_text())["summary"]["output_tokens"] == 10
    return path


def test_a_locked_database_gives_a_clear_error_and_loses_no_result(db: ResultsDb) -> None:
    add(db)
    other = sqlite3.connect(db.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreError, match="locked") as caught:
            add(db)
        kept(db, caught)
        assert [r.id for r in db.list()] == [1]  # reading goes on
    finally:
        other.rollback()
        other.close()
    assert db.store_unsaved_results() == (2,)
    assert (
        db.get(2).summary == SUMMARY and db.samples(2) == SAMPLES and db.find_unsaved_files() == ()
    )


def test_unsaved_results_are_stored_with_the_next_result(db: ResultsDb) -> None:
    db.path.parent.mkdir()
    db.path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StoreError, match="not a database") as caught:
        add(db)
    path = kept(db, caught)
    db.path.unlink()
    copy = path.read_text()
    assert add(db) == 1 and [r.id for r in db.list()] == [2, 1] and not path.exists()
    path.write_text(copy)  # a crash between the insert and the removal of the file
    assert db.store_unsaved_results() == (2,) and len(db.list()) == 2


def test_a_damaged_file_of_an_unsaved_result_is_kept(db: ResultsDb) -> None:
    add(db)
    bad = db.path.parent / "unsaved-result-x.json"
    bad.write_text("{")
    assert add(db) == 2
    with pytest.raises(StoreError, match="could not be stored"):
        db.store_unsaved_results()
    assert bad.exists()


def test_a_corrupt_database_gives_a_clear_error(db: ResultsDb) -> None:
    for _ in range(50):
        add(db)
    with db.path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(30000))
    with pytest.raises(StoreError) as caught:
        db.list()
    assert "move" in (caught.value.next_step or "")
    before = db.path.read_bytes()
    with pytest.raises(StoreError) as caught:
        add(db)
    kept(db, caught)
    assert db.path.read_bytes() == before


def test_a_database_of_a_newer_version_is_not_changed(db: ResultsDb) -> None:
    add(db)
    with sqlite3.connect(db.path) as raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreError, match="newer Workbench") as caught:
        add(db)
    kept(db, caught)
    with pytest.raises(StoreError, match="newer Workbench"):
        db.list()


def test_a_full_disk_loses_no_result(db: ResultsDb, monkeypatch: pytest.MonkeyPatch) -> None:
    add(db)
    connect = sqlite3.connect

    def small(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreError, match="full") as caught:
        for _ in range(100):
            add(db, env={"X": "y" * 2000})
    assert "free some space" in (caught.value.next_step or "")
    kept(db, caught)


def test_a_result_is_kept_if_its_samples_cannot_be_written(db: ResultsDb) -> None:
    add(db)
    for path in db.samples_dir.iterdir():
        path.unlink()
    db.samples_dir.rmdir()
    db.samples_dir.write_text("in the way")
    with pytest.raises(
        StoreError, match="the requests of the result could not be written"
    ) as caught:
        add(db)
    path = kept(db, caught)
    assert json.loads(path.read_text())["requests"] == list(SAMPLES)


def test_a_directory_that_cannot_be_created_gives_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(elsewhere))
    (tmp_path / "file").write_text("")
    db = ResultsDb(tmp_path / "file" / "results.sqlite3")
    with pytest.raises(StoreError) as caught:
        db.add(SPEC, CONDITIONS, SUMMARY)
    (path,) = elsewhere.iterdir()
    assert str(path) in caught.value.message


def test_damaged_samples_give_a_clear_error(db: ResultsDb) -> None:
    add(db)
    next(db.samples_dir.iterdir()).write_bytes(b"no gzip")
    with pytest.raises(StoreError, match="requests of result 1 could not be read"):
        db.samples(1)


def test_a_flipped_bit_in_samples_gives_a_clear_error(db: ResultsDb) -> None:
    """Whichever byte of the file is damaged, its requests are not believed."""
    db.add(
        SPEC, CONDITIONS, SUMMARY, [{"index": n, "gaps_us": [n, 7 * n % 13]} for n in range(200)]
    )
    path = next(db.samples_dir.iterdir())
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="requests of result 1 could not be read"):
            db.samples(1)


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "[]",
        "null",
        '"x"',
        '{"start_s": "y"}',
        '{"gaps_us": [null]}',
        '{"gaps_us": 3}',
        '{"output_tokens": {}}',
    ],
)
def test_a_sample_that_is_no_request_gives_a_clear_error(db: ResultsDb, line: str) -> None:
    add(db)
    with gzip.open(next(db.samples_dir.iterdir()), "at") as file:
        file.write(f"{line}\n")
    with pytest.raises(StoreError, match="requests of result 1 could not be read") as caught:
        db.samples(1)
    assert "`workbench results show`" in str(caught.value.next_step)


@pytest.mark.parametrize("text", ["[1]", "null", "{", '{"a": 1}', b"\xff"])
def test_tags_are_not_added_to_a_damaged_row(db: ResultsDb, text: str | bytes) -> None:
    add(db)
    with sqlite3.connect(db.path) as raw:
        raw.execute("UPDATE results SET tags = ?", (text,))
    raw.close()
    with pytest.raises(StoreError, match="result 1 in the database is damaged"):
        db.change_tags(1, ["x"])


def with_a_new_column(
    db: ResultsDb, monkeypatch: pytest.MonkeyPatch, declaration: str = "TEXT"
) -> ResultsDb:
    columns = results_module._COLUMNS
    version = len(results_module.migration_scripts()) + 1
    extra = results_module.Column(
        "cuda_version", declaration, searched=("cuda_version",), version=version
    )
    monkeypatch.setattr(results_module, "_COLUMNS", (*columns, extra))
    return ResultsDb(db.path)


def test_a_new_column_is_one_entry(db: ResultsDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file gets the column when it is next opened; new results get their value from their
    conditions."""
    add(db)
    db = with_a_new_column(db, monkeypatch)
    assert db.get(1).summary == SUMMARY
    add(db)
    with sqlite3.connect(db.path) as raw:
        assert raw.execute("PRAGMA user_version").fetchone()[0] == len(
            results_module.migration_scripts()
        )
        versions = raw.execute("SELECT cuda_version FROM results ORDER BY id").fetchall()
        assert versions == [(None,), (db.get(2).conditions.cuda_version,)]
    raw.close()


def test_an_unsaved_result_of_an_older_version_gets_the_default_of_a_new_column(
    db: ResultsDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.path.mkdir(parents=True)  # so that the result cannot be stored
    with pytest.raises(StoreError):
        add(db)
    db.path.rmdir()
    (path,) = db.find_unsaved_files()
    db = with_a_new_column(db, monkeypatch, "TEXT NOT NULL DEFAULT 'not recorded'")
    assert db.store_unsaved_results() == (1,) and not path.exists()
    assert db.get(1).summary == SUMMARY
    with sqlite3.connect(db.path) as raw:
        assert raw.execute("SELECT cuda_version FROM results").fetchall() == [("not recorded",)]
    raw.close()


def test_an_unsaved_result_without_a_column_of_the_first_version_is_kept(db: ResultsDb) -> None:
    add(db)
    bad = db.path.parent / "unsaved-result-x.json"
    bad.write_text('{"uid": "x", "requests": []}')
    with pytest.raises(StoreError, match="could not be stored"):
        db.store_unsaved_results()
    assert bad.exists() and len(db.list()) == 1


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("summary", "{"),
        ("spec", "[1]"),
        ("conditions", "nothing"),
        ("summary", "{}"),
        ("tags", "x"),
        ("conditions", "3"),
        ("spec", '{"url": "u", "model": "m", "requests": "many"}'),
        ("tags", "[[1]]"),
    ],
)
def test_a_damaged_row_does_not_hide_other_results(db: ResultsDb, column: str, text: str) -> None:
    ids = [db.add(SPEC, CONDITIONS, SUMMARY) for _ in range(3)]
    with sqlite3.connect(db.path) as raw:
        raw.execute(f"UPDATE results SET {column} = ? WHERE id = ?", (text, ids[1]))
    raw.close()
    good = [ids[2], ids[0]]
    for asked in (
        {},
        {"search": CONDITIONS.model},
        {"host": CONDITIONS.host},
        {"search": "no-such-word"},
        {"tag": "no-such"},
    ):
        found = db.list(**asked)
        assert [r.id for r in found] == ([] if "no-such" in str(asked) else good), asked
    assert [page.damaged for page in db.pages()] == [(ids[1],)]
    with pytest.raises(StoreError, match=f"result {ids[1]} in the database is damaged") as caught:
        db.get(ids[1])
    assert "other results are not affected" in str(caught.value.next_step)
    assert db.add(SPEC, CONDITIONS, SUMMARY) == ids[2] + 1


@pytest.mark.parametrize("number", [2**63, 10**30, -(2**63) - 1])
def test_ids_beyond_64_bits_are_input_errors(db: ResultsDb, number: int) -> None:
    for work in (
        db.get,
        db.samples,
        db.delete,
        lambda i: db.set_note(i, "x"),
        lambda i: db.set_tags(i, ["x"]),
        db.change_tags,
    ):
        with pytest.raises(InputError, match="so large a number"):
            work(number)


def test_a_search_for_invalid_characters_is_an_input_error(db: ResultsDb) -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        db.list(search="\udcff")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_absent_and_its_row_is_named(
    db: ResultsDb, number: str
) -> None:
    plain, odd = (db.add(SPEC, replace(CONDITIONS, model="NaN-7B"), SUMMARY) for _ in range(2))
    stored = json.dumps({**to_json(SUMMARY), "output_tok_s": 4711.5}).replace("4711.5", number)
    with sqlite3.connect(db.path) as raw:
        raw.execute("UPDATE results SET summary = ? WHERE id = ?", (stored, odd))
    raw.close()
    found = db.get(odd)
    assert found.summary.output_tok_s is None and found.conditions.model == "NaN-7B"
    why = f"result {odd} is damaged: numbers in its summary are not finite, and shown as n/a"
    assert found.summary.refused == (*SUMMARY.refused, why)
    assert db.get(plain).summary.refused == SUMMARY.refused


def test_only_the_newest_results_keep_their_requests(db: ResultsDb) -> None:
    ids = [add(db) for _ in range(5)]
    assert db.delete_older_samples(5) == 0
    assert db.delete_older_samples(2) == 3
    assert [bool(db.samples(number)) for number in ids] == [False, False, False, True, True]
    assert [db.get(number).summary for number in ids] == [SUMMARY] * 5
    assert len(list(db.samples_dir.iterdir())) == 2
    assert db.delete_older_samples(2) == 0
