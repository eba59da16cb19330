"""Results: several files at once, damaged rows, numbers and words beyond all bounds."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.store import paths

Cli = Callable[..., Any]
FILE = Path(__file__).parents[1] / "fixtures" / "imports" / "vllm-0.32.json"


@pytest.mark.parametrize("document", [False, True])
def test_valid_files_are_imported_even_if_others_fail(
    cli: Cli, tmp_path: Path, document: bool
) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(FILE.read_text()[:200])
    good = str(shutil.copy(FILE, tmp_path / "good.json"))
    ran = cli("results", "import", str(cut), good, *(["--json"] if document else []))
    assert ran.code == 2 and "cut.json" in ran.err
    if document:
        assert [r["id"] for r in ran.document["results"]] == [1] and "cut.json" in ran.document[
            "failed"
        ][0]["error"]
    else:
        assert ran.out.startswith("#1 ")
    assert cli("results", "import", str(cut)).code == 2


def test_a_damaged_result_is_reported_and_the_others_are_listed(cli: Cli, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({**json.loads(FILE.read_text()), "of": name}))
        assert cli("results", "import", str(tmp_path / name)).code == 0
    with sqlite3.connect(paths.results_db()) as raw:
        raw.execute("UPDATE results SET summary = '{' WHERE id = 1")
    raw.close()
    listed = cli("results", "list")
    assert listed.code == 0 and "#2 " in listed.out and "#1 " not in listed.out
    assert "damaged results are left out: #1" in listed.err
    shown = cli("results", "show", "1")
    assert (
        shown.code == 1
        and "is damaged" in shown.err
        and ("next: other results are not affected") in shown.err
    )


@pytest.mark.parametrize(
    "words",
    [
        ("results", "show", "99999999999999999999999"),
        ("compare", "2", "99999999999999999999999"),
        ("results", "search", "\udcff"),
        ("results", "tag", "99999999999999999999999", "+x"),
        ("bench", "--url", "http://127.0.0.1:1", "--repeat=--"),
    ],
)
def test_numbers_beyond_all_bounds_are_input_errors(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert ran.code == 2 and "defect" not in ran.err, ran
