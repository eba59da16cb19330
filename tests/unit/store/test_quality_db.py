"""Stored comparisons of answers."""

from __future__ import annotations

import math
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from support import made_results as made

from workbench.model.errors import InputError, StoreError
from workbench.model.quality import QualityParts, ScoredPosition, ScoredText
from workbench.store.quality_db import QualityDb
from workbench.store.results_db import ResultsDb

RESULT = made.quality()


def test_a_comparison_is_stored_and_read_again(tmp_path: Path) -> None:
    db = QualityDb(tmp_path / "results.sqlite3")
    assert db.newest_comparisons() == ()
    first = db.add(RESULT)
    second = db.add(replace(RESULT, verdict="same"))
    assert db.get(first.id) == first
    assert db.newest_comparisons() == (second, first)
    assert ResultsDb(tmp_path / "results.sqlite3").list() == ()


def test_a_number_that_is_not_finite_is_absent(tmp_path: Path) -> None:
    db = QualityDb(tmp_path / "results.sqlite3")
    stored = db.add(replace(RESULT, took_s=math.inf))
    assert db.get(stored.id).took_s is None


def test_an_unknown_or_damaged_comparison_says_so(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite3"
    db = QualityDb(path)
    good, bad = db.add(RESULT), db.add(RESULT)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE quality SET data = '{}' WHERE id = ?", (bad.id,))
    with pytest.raises(StoreError, match=f"comparison of answers {bad.id} in the database"):
        db.get(bad.id)
    assert db.newest_comparisons() == (good,)
    for number in (99, 2**70):
        with pytest.raises(InputError, match="there is no comparison of answers"):
            db.get(number)


def parts(token: int = 7) -> QualityParts:
    position = ScoredPosition(token, -0.5, ((token, -0.5), ("ü", -1.25)))
    text = ScoredText("prose", "prose", (position,) * 3, asked=3)
    return QualityParts(a=(text,), floors=((text,),), runs={"A": "run 1"}, took_s=1.5)


def test_what_an_experiment_has_measured_is_kept_until_it_is_judged(tmp_path: Path) -> None:
    db = QualityDb(tmp_path / "results.sqlite3")
    assert db.parts_so_far(1) is None
    db.store_parts_so_far(1, parts(6))
    db.store_parts_so_far(1, parts(7))
    assert db.parts_so_far(1) == parts(7) and db.parts_so_far(2) is None
    db.delete_parts(1)
    assert db.parts_so_far(1) is None
    for number in range(1, 20):
        db.store_parts_so_far(number, parts())
    assert [number for number in range(1, 20) if db.parts_so_far(number)] == list(range(12, 20))


@pytest.mark.parametrize("data", [b"", b"no zip", zlib.compress(b"{"), zlib.compress(b"[1]")])
def test_damaged_parts_are_measured_again(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "results.sqlite3"
    db = QualityDb(path)
    db.store_parts_so_far(1, parts())
    with sqlite3.connect(path) as file:
        file.execute("UPDATE quality_parts SET data = ?", (data,))
    assert db.parts_so_far(1) is None
