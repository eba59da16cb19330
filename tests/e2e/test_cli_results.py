"""results: search, note, tag, report, import, by the command line."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_results as made

from workbench.engines.answer_settings import collect_answer_settings
from workbench.model.quality import QualityResult
from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.quality_db import QualityDb
from workbench.store.results_db import ResultsDb
from workbench.store.sweeps import SweepStore

Cli = Callable[..., Any]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "imports"


@pytest.fixture
def db(clean_environment: None) -> ResultsDb:
    """Store two results, one of them simulated."""
    db = ResultsDb(paths.results_db())
    for one in (made.result(), made.result(model="org/other", simulated=True)):
        db.add(one.spec, one.conditions, one.summary, made.samples(), unix_s=one.unix_s)
    return db


def ids(ran: Any) -> list[int]:
    return [r["id"] for r in ran.document["results"]]


def test_the_list_shows_the_newest_and_pages_through_the_rest(cli: Cli, db: ResultsDb) -> None:
    made.multiply(db.path, 600)
    listed = cli("results", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == [
        f"#{n}" for n in range(602, 552, -1)
    ]
    assert "the newest 50 are shown; --all shows all, --before 553 the older ones" in listed.err
    older = cli("results", "list", "--before", "553", "--limit", "2", "--json")
    assert ids(older) == [552, 551] and older.document["more"] is True
    everything = cli("results", "list", "--all", "--json")
    assert ids(everything) == list(range(602, 0, -1)) and everything.document["more"] is False
    assert len(cli("results", "list", "--all").out.splitlines()) == 602
    last = cli("results", "list", "--before", "3")
    assert len(last.out.splitlines()) == 2 and not last.err
    assert ids(cli("results", "search", "copy60", "--json")) == [602, *range(62, 61, -1)]
    both = cli("results", "list", "--all", "--limit", "3")
    assert both.code == 2 and "cannot be combined" in both.err


def test_search_note_and_tags(cli: Cli, db: ResultsDb) -> None:
    assert cli("results", "note", "1", "before", "the", "driver update").code == 0
    assert cli("results", "tag", "1", "+keep", "grün", "--json").document == {
        "id": 1,
        "note": "before the driver update",
        "tags": ["grün", "keep"],
    }
    assert cli("results", "tag", "1", "-keep", "+x").out == (
        "#1  tags: grün x  note: before the driver update\n"
    )
    assert cli("results", "tag", "1").out.startswith("#1  tags: grün x")
    for words, found in {
        ("driver", "UPDATE"): [1],
        ("org/other",): [2],
        ("simulated",): [2],
        ("grün",): [1],
        ("max-num-seqs",): [2, 1],
        ("580.1", "RTX"): [2, 1],
        ("nothing",): [],
    }.items():
        assert ids(cli("results", "search", *words, "--json")) == found, words
        assert ids(cli("results", "list", "--search", " ".join(words), "--json")) == found, words
    assert ids(cli("results", "list", "--tag", "x", "--json")) == [1]
    assert ids(cli("results", "list", "--limit", "1", "--json")) == [2]
    listed = cli("results", "list").out.splitlines()
    assert "SIMULATED" in listed[0] and "+grün  +x  before the driver update" in listed[1]
    assert cli("results", "search", "nothing").out == "no results with 'nothing'\n"
    assert cli("results", "note", "1", "").out == "#1  tags: grün x  note: none\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("note", "9", "x"), "there is no result 9"),
        (("tag", "9", "x"), "there is no result 9"),
        (("show", "9"), "there is no result 9"),
        (("report", "9"), "there is no result 9"),
        (("report", "--experiment", "9"), "there is no experiment 9"),
        (("report", "--sweep", "9"), "there is no sweep 9"),
        (("report",), "a report needs either results, one experiment or one sweep"),
        (
            ("report", "1", "--sweep", "1"),
            "a report needs either results, one experiment or one sweep",
        ),
        (("report", "1", "-o", "x.pdf"), "no report format has the suffix of x.pdf"),
        (("report", "1", "--requests"), "--requests applies to CSV only"),
        (("tag", "1", "two words"), "'two words' is not a valid tag"),
        (("tag", "1", "--", "-"), "'' is not a valid tag"),
        (("list", "--limit", "0"), "--limit 0 is not a valid number of results"),
        (("import", "nowhere.json"), "nowhere.json could not be read: No such file or directory"),
        (("search",), "the following arguments are required: WORD"),
    ],
)
def test_invalid_arguments_of_results_are_rejected(
    cli: Cli, db: ResultsDb, argv: tuple[str, ...], said: str
) -> None:
    ran = cli("results", *argv, "--json") if argv[0] != "tag" else cli("--json", "results", *argv)
    assert ran.code == 2 and said in ran.document["error"] and ran.document["next_step"]


def test_show_prints_metrics_conditions_and_workload(cli: Cli, db: ResultsDb) -> None:
    text = cli("results", "show", "2").out
    for said in (
        "org/other on box",
        "SIMULATED",
        "steady window",
        "in force: yes",
        "without idle power",
        "1.02 tok/J",
        "The engine's own counters",
        "3f1c99d0a1b2c3d4 (4 files, 1.2 GB)",
        "vllm serve org/other --api-key '***'",
    ):
        assert said in text, said
    document = cli("results", "show", "2", "--json").document
    assert (
        document["engine"]["running_max"] == 4
        and document["conditions"]["model_digest"] == "3f1c99d0a1b2c3d4"
    )
    assert "sesame" not in text + json.dumps(document)


def test_reports_on_results(cli: Cli, db: ResultsDb, tmp_path: Path) -> None:
    page = tmp_path / "pull request.html"
    assert cli("results", "report", "1", "2", "-o", str(page)).out == f"{page}\n"
    text = page.read_text()
    assert (
        text.startswith("<!doctype html>")
        and "B #2 against A #1" in text
        and "simulated and the other is real" in text
    )
    again = cli("results", "report", "1", "-o", str(page))
    assert again.code == 2 and "File exists" in again.err and page.read_text() == text
    assert cli("results", "report", "1").out.startswith("# org/tiny on box\n")
    data = json.loads(cli("results", "report", "1", "2", "--format", "json").out)
    assert [len(r["samples"]) for r in data["results"]] == [40, 40] and data["comparison"]["a"] == 1
    assert (
        len(cli("results", "report", "1", "2", "--format", "csv", "--requests").out.splitlines())
        == 81
    )
    assert cli("results", "report", "1", "--format", "csv", "--json").document["format"] == "csv"
    assert cli("results", "export", "1", "--format", "html").out.count("<svg") == 3


def test_reports_on_an_experiment_and_a_sweep(cli: Cli, db: ResultsDb) -> None:
    numbers = [db.add(one.spec, one.conditions, one.summary) for one in [made.result()] * 6]
    trial = made.experiment()
    runs = tuple(replace(run, result_id=n) for run, n in zip(trial.runs, numbers, strict=True))
    kept = ExperimentsDb(paths.results_db()).add(replace(trial, runs=runs))
    text = cli("results", "report", "--experiment", str(kept.id)).out
    assert (
        "# A/B experiment: org/tiny" in text
        and "## Raw pairs" in text
        and ("<summary>Result #3</summary>") in text
    )
    db.delete(numbers[-1])  # a result that is gone takes nothing else along
    assert "## Raw pairs" in cli("results", "report", "--experiment", str(kept.id)).out
    sweep = SweepStore(paths.data_dir() / "sweeps").add(made.sweep())
    assert (
        "Knee at c=8" in cli("results", "report", "--sweep", str(sweep.id), "--format", "html").out
    )


def test_imported_results_are_listed_and_compared_with_own_results(cli: Cli, db: ResultsDb) -> None:
    files = sorted(map(str, FIXTURES.glob("*.json")))
    found = cli(
        "results", "import", *files, "--engine", "vllm", "--on", "box", "--tag", "peers", "--json"
    ).document
    assert [(r["conditions"]["imported"], r["new"]) for r in found["results"]] == [
        ("AIPerf 0.13.0", True),
        ("llama-benchy 0.4.0", True),
        ("llama-benchy 0.4.0", True),
        ("vllm bench serve", True),
        ("vllm bench serve", True),
    ]
    assert all(
        r["tags"] == ["peers"] and r["conditions"]["engine"] == "vllm" for r in found["results"]
    )
    again = cli("results", "import", *files)
    assert again.code == 0 and again.out.splitlines()[-1] == (
        "5 of 5 were imported before and are not stored again"
    )
    assert ids(cli("results", "list", "--tag", "peers", "--json")) == [7, 6, 5, 4, 3]
    assert ids(cli("results", "search", "aiperf", "--json")) == [3]
    compared = cli("compare", "1", "6")
    assert (
        "Not like for like" in compared.out
        and ("  B #6 was measured by vllm bench serve") in compared.out
    )
    assert "Measured by vllm bench serve, not by Workbench" in cli("results", "show", "6").out


def test_an_import_that_fails_adds_nothing(cli: Cli, db: ResultsDb, tmp_path: Path) -> None:
    good = (FIXTURES / "vllm-0.32.json").read_text()
    (tmp_path / "two.json").write_text(
        good + "\n" + good.replace('"completed": 8', '"completed": "eight"')
    )
    ran = cli("results", "import", str(tmp_path / "two.json"), "--json")
    assert (
        ran.code == 2
        and ("document 2.completed: the field must be a number") in ran.document["error"]
    )
    assert ids(cli("results", "list", "--json")) == [2, 1]


def test_the_error_of_a_failed_note_quotes_the_note(
    cli: Cli, db: ResultsDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "workbench.store.results_db.ResultsDb.__init__.__kwdefaults__", {"busy_s": 0.1}
    )
    other = sqlite3.connect(paths.results_db(), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        ran = cli("results", "note", "1", "it's typed", "once", "--json")
        tagged = cli("results", "tag", "1", "-old", "new")
    finally:
        other.close()
    assert ran.code == 1 and "locked" in ran.document["error"]
    assert ran.document["command"] == """workbench results note 1 'it'"'"'s typed once'"""
    assert tagged.code == 1 and "command: workbench results tag 1 -old new" in tagged.err


@pytest.fixture
def compared(db: ResultsDb) -> QualityResult:
    """Store a comparison of answers of which the simulated result is B, and one of nobody."""
    of_b = db.get(2).conditions
    found = replace(made.quality(), conditions_b=collect_answer_settings(of_b))
    store = QualityDb(db.path)
    store.add(replace(made.quality(), verdict="broken"))
    return store.add(found)


def test_the_comparison_of_answers_of_a_result_is_shown_and_listed(
    cli: Cli, compared: QualityResult
) -> None:
    shown = cli("results", "show", "2")
    assert "B against llama-8b: its answers differ: KLD >= 0.035 ± 0.003" in shown.out
    assert "0.03500 (0.03200 to 0.03800)" in shown.out and "code-c-ring (code)" in shown.out
    assert "Answers against" not in cli("results", "show", "1").out
    (whole,) = cli("results", "show", "2", "--json").document["quality_comparisons"]
    assert (whole["side"], whole["id"], whole["texts"][0]["kl"]) == ("B", compared.id, 0.04)
    newest, older = cli("results", "list").out.splitlines()
    assert "answers: differs" in newest and "answers:" not in older
    listed = cli("results", "list", "--json").document["results"]
    assert listed[0]["quality_comparisons"] == [
        {"id": 2, "side": "B", "verdict": "differs", "summary": compared.summary}
    ]
    assert "quality_comparisons" not in listed[1]
    for form in ("md", "html", "csv", "txt"):
        assert "its answers differ: KLD" in cli("results", "report", "2", "--format", form).out


@pytest.mark.parametrize("words", [("export", "2"), ("report", "1", "2", "--format", "json")])
def test_an_export_brings_its_comparison_of_answers_with_it(
    cli: Cli,
    compared: QualityResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    file = tmp_path / "export.json"
    file.write_text(cli("results", *words).out)
    before = QualityDb(paths.results_db()).newest_comparisons()
    cli("results", "import", str(file))
    assert QualityDb(paths.results_db()).newest_comparisons() == before, (
        "what was measured here is not doubled"
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    assert not QualityDb(paths.results_db()).newest_comparisons()
    imported = ids(cli("results", "import", str(file), "--json"))
    cli("results", "import", str(file))
    (kept,) = QualityDb(paths.results_db()).newest_comparisons()
    assert kept == replace(compared, id=1, imported=kept.imported)
    assert kept.imported.startswith("Workbench")
    shown = cli("results", "show", str(imported[-1])).out
    assert "its answers differ: KLD >= 0.035 ± 0.003" in shown and "SIMULATED" in shown
    assert "imported" in shown


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("verdict", "excellent", "the field must be one of same, differs"),
        ("measures", "many", "not a comparison of answers"),
        ("positions", 1e300, "an impossible number"),
    ],
)
def test_a_forged_comparison_of_answers_is_refused(
    cli: Cli, compared: QualityResult, tmp_path: Path, field: str, value: Any, said: str
) -> None:
    document = json.loads(cli("results", "export", "2").out)
    document["quality_comparisons"][0][field] = value
    file = tmp_path / "forged.json"
    file.write_text(json.dumps(document))
    ran = cli("results", "import", str(file))
    assert ran.code == 2 and said in ran.err and "quality_comparisons" in ran.err
    assert ids(cli("results", "list", "--json")) == [2, 1]
