"""results report --proof, results verify and the import of a proof."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated_runs import SimulatedRuns

from workbench.model.answer_text import ProbeOutcome, SetFeatures, TextReport
from workbench.model.bench import BenchResult
from workbench.model.errors import InputError
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec
from workbench.model.json_records import to_json
from workbench.model.series_state import SeriesState
from workbench.report import proof_document
from workbench.report.content import Report
from workbench.session.results import proofs
from workbench.session.series.experiment_run import ExperimentConduct
from workbench.store import paths
from workbench.store.experiments import ExperimentsDb
from workbench.store.results_db import ResultsDb

Cli = Callable[..., Any]
SECRET = "sk-0123456789abcdefghijkl"
EVIL = '<script>alert("x")</script>\x1b[31m'
READ = TextReport(load=SetFeatures(answers=8, looked_at=8, excerpts=("a sentence of words",)))


def of_stored(made: BenchResult, text: TextReport | None) -> dict[str, Any]:
    """Return fields of a result whose text was looked at, and whose server had a secret."""
    argv = ("vllm", "serve", EVIL, "--api-key", SECRET)
    return {
        "summary": replace(made.summary, text=text),
        "conditions": replace(made.conditions, argv=argv, env={"HF_TOKEN": SECRET}),
    }


class StoredRuns(SimulatedRuns):
    """Simulated runs whose results are in the results database, with text that was looked at."""

    text: TextReport | None = READ

    def result(self, run: ExperimentRun, factor: float, seed: int) -> BenchResult:
        made = super().result(run, factor, seed)
        made = replace(made, **of_stored(made, self.text))
        number = ResultsDb(paths.results_db()).add(made.spec, made.conditions, made.summary, [])
        made = replace(made, id=number)
        self.results[-1] = made
        return made


def store_experiment(
    effect: float = 0.05, text: TextReport | None = READ, pairs: int = 1
) -> Experiment:
    """Carry out and store an experiment in which B is faster by `effect`."""
    db = ExperimentsDb(paths.results_db())
    spec = ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, pairs=pairs, order_seed=4)
    new = db.add(Experiment(0, 1.0, "local", spec, restarts=True, simulated=True))
    runs = StoredRuns(effect, 1)
    runs.text = text

    async def save(experiment: Experiment) -> None:
        db.save(experiment)

    return asyncio.run(ExperimentConduct(new, runs, save=save).carry_out_experiment())


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The texts of one proof, by format."""
    spec = ExperimentSpec(Arm(), Arm(sets=("knob=B",)), {}, pairs=4, order_seed=4)
    runs = SimulatedRuns(0.05, 1)

    async def save(experiment: Experiment) -> None:
        pass

    new = Experiment(1, 1.0, "local", spec, restarts=True, simulated=True)
    experiment = asyncio.run(ExperimentConduct(new, runs, save=save).carry_out_experiment())
    results = tuple(replace(one, **of_stored(one, READ)) for one in runs.results)
    document = proofs.make_proof(Report(results=results, experiment=experiment))
    return {"json": proof_document.json_text(document), "html": proofs.render_proof_page(document)}


@pytest.fixture
def proof(written: dict[str, str], tmp_path: Path) -> Path:
    """A JSON proof of an experiment."""
    path = tmp_path / "proof.json"
    path.write_text(written["json"])
    return path


@pytest.fixture
def page(written: dict[str, str], tmp_path: Path) -> Path:
    """The same proof as an HTML page."""
    path = tmp_path / "proof.html"
    path.write_text(written["html"])
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a file with a proof that somebody has edited, whose checksum is right again."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(proof_document.json_text(document))
    return path


def test_a_proof_holds_and_names_its_verdict(cli: Cli, proof: Path, page: Path) -> None:
    for path in (proof, page):
        ran = cli("results", "verify", str(path))
        assert ran.code == 0 and "the proof holds" in ran.out, ran
        assert "B is faster by" in ran.out and "4 raw pairs" in ran.out and "SIMULATED" in ran.out
    said = cli("results", "verify", str(page), "--json").document
    assert said["holds"] and said["simulated"] and said["differences"] == []
    assert "each line of the page" in said["checked"]


def test_a_proof_has_plan_pairs_texts_and_versions_but_no_secret(proof: Path, page: Path) -> None:
    document = json.loads(proof.read_text())
    assert document["experiment"]["spec"]["b"]["sets"] == ["knob=B"]
    assert len(document["experiment"]["comparison"]["metrics"][0]["pairs"]) == 4
    assert document["results"][0]["conditions"]["engine_version"] == "0.33.0"
    assert len(document["results"]) == 8, "the discarded run proves nothing"
    assert {len(one["answers_sha256"]) for one in document["texts"].values()} == {64}
    for text in (proof.read_text(), page.read_text()):
        assert SECRET not in text and SECRET not in html.unescape(text)
    assert "<script" not in page.read_text() and "SIMULATED" in page.read_text()


def test_a_changed_byte_of_any_figure_is_found(page: Path) -> None:
    """Each digit that the page shows in a table is changed alone, and the same in its data."""
    text = page.read_text()
    tables = [found.span() for found in re.finditer(r"<td[^>]*>[^<]*</td>", text)]
    digits = [at for low, high in tables for at in range(low, high) if text[at].isdigit()]
    data_from = text.index("workbench-proof")
    digits += [at for at in range(data_from, len(text)) if text[at].isdigit()]
    for at in digits[:: max(1, len(digits) // 8)]:
        other = str((int(text[at]) + 1) % 10)
        changed = text[:at] + other + text[at + 1 :]
        if number_at(changed, at) == number_at(text, at):
            continue  # the last of 17 digits may not be one of the number
        page.write_text(changed)
        try:
            differences = proofs.verify_proof(page).differences
        except InputError:
            continue
        assert differences, (at, text[at - 40 : at + 40])


def number_at(text: str, at: int) -> float | str:
    """Return the number around a digit; a word with digits, such as a hash, as it is."""
    begin = re.search(r"[\w.+-]*$", text[:at])
    end = re.match(r"[\w.+-]*", text[at:])
    assert begin and end
    word = begin.group() + end.group()
    try:
        return float(word)
    except ValueError:
        return word


def figure(document: dict[str, Any]) -> None:
    document["experiment"]["comparison"]["metrics"][0]["interval_pct"] /= 2


def pair(document: dict[str, Any]) -> None:
    document["experiment"]["comparison"]["metrics"][0]["pairs"][1][0] -= 50


def measured(document: dict[str, Any]) -> None:
    document["results"][0]["summary"]["output_tok_s"] *= 1.1


def sentence(document: dict[str, Any]) -> None:
    document["experiment"]["verdict"] = "B is faster by 50.0 % ± 0.1 (output tok/s, 4 pairs)"


def arms(document: dict[str, Any]) -> None:
    for run in document["experiment"]["runs"]:
        run["arm"] = "B" if run["arm"] == "A" else "A"


def real(document: dict[str, Any]) -> None:
    document["simulated"] = False


def text_of_another(document: dict[str, Any]) -> None:
    document["results"][0]["summary"]["text"]["load"]["excerpts"] = ["another answer"]


def one_result_for_two(document: dict[str, Any]) -> None:
    runs = [run for run in document["experiment"]["runs"] if run["state"] == "done"]
    runs[-1]["result_id"] = runs[0]["result_id"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (figure, "experiment.comparison.metrics[1].interval_pct"),
        (pair, "experiment.comparison.metrics[1].pairs[2][1]"),
        (measured, "output_tok_s"),
        (sentence, "experiment.verdict"),
        (arms, "order of pair 1"),
        (real, "simulated"),
        (text_of_another, "answers_sha256"),
        (one_result_for_two, "the result of another run too"),
    ],
)
def test_a_forged_proof_with_a_right_checksum_is_found_by_its_arithmetic(
    cli: Cli, proof: Path, change: Callable[[dict[str, Any]], object], place: str
) -> None:
    ran = cli("results", "verify", str(changed(proof, change)))
    assert ran.code == 1 and "DOES NOT HOLD" in ran.out and place in ran.out, ran
    assert "checksum" not in ran.out, ran


def test_a_page_that_shows_something_else_than_its_data_is_found(cli: Cli, page: Path) -> None:
    shown, data = proof_document.split_page_and_data(page.read_text())
    assert data is not None
    forged = re.sub(r"B is faster by [\d.]+", "B is faster by 99.9", shown)
    page.write_text(proof_document.proof_page_with_data(json.loads(data), forged))
    ran = cli("results", "verify", str(page))
    assert ran.code == 1 and "page, line" in ran.out and "99.9" in ran.out, ran
    assert "checksum" not in ran.out, ran


def test_a_proof_is_imported_once_and_only_if_it_is_intact(
    cli: Cli, proof: Path, page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "of another person"))
    assert "<!doctype" in page.read_text()[:9].lower()
    first = cli("results", "import", str(page), "--json").document
    assert [one["new"] for one in first["results"]] == [True] * 8
    assert all(one["conditions"]["imported"] for one in first["results"])
    assert not any(
        one["new"] for one in cli("results", "import", str(page), "--json").document["results"]
    )
    document = json.loads(proof.read_text())
    document["results"][0]["summary"]["output_tok_s"] = 1e6
    proof.write_text(json.dumps(document))
    ran = cli("results", "import", str(proof))
    assert ran.code == 2 and "changed after it was written" in ran.err, ran
    assert len(cli("results", "list", "--json").document["results"]) == 8


def test_a_stored_experiment_and_two_groups_have_a_proof(cli: Cli, tmp_path: Path) -> None:
    store_experiment()
    for name, words in {"one.html": ("--experiment", "1"), "two.json": ("2", "3")}.items():
        path = tmp_path / name
        assert cli("results", "report", *words, "--proof", "-o", str(path)).code == 0
        ran = cli("results", "verify", str(path))
        assert ran.code == 0 and "the proof holds" in ran.out, ran
    assert "results #3 against #2" in ran.out, ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1",), "something that was compared"),
        (("--experiment", "1", "--format", "md"), "cannot be written as md"),
        (("--sweep", "1"), "a sweep compares nothing"),
        (("--experiment", "9"), "there is no experiment 9"),
    ],
)
def test_what_proves_nothing_has_no_proof(
    cli: Cli, words: tuple[str, ...], said: str, clean_environment: None
) -> None:
    store_experiment()
    ran = cli("results", "report", *words, "--proof")
    assert ran.code == 2 and said in ran.err, ran


UNREAD = TextReport(load=SetFeatures(answers=8))
NOT_PROBED = TextReport(probe=ProbeOutcome(skipped="the server has no chat endpoint"))


@pytest.mark.parametrize("text", [None, UNREAD, NOT_PROBED])
def test_a_result_whose_text_was_not_checked_is_refused(
    cli: Cli, proof: Path, text: TextReport | None
) -> None:
    """A probe that was skipped counted as a check, and `results verify` took any text."""
    store_experiment(text=text)
    ran = cli("results", "report", "--experiment", "1", "--proof")
    assert ran.code == 2 and "text of result #2 was not checked" in ran.err, ran
    stored = to_json(text) if text is not None else None

    def take_out(document: dict[str, Any]) -> None:
        document["results"][0]["summary"]["text"] = stored

    said = cli("results", "verify", str(changed(proof, take_out)))
    assert said.code == 1 and "nobody checked this text" in said.out, said


def test_an_unfinished_or_invalid_experiment_is_refused(cli: Cli) -> None:
    stored = store_experiment()
    db, results = ExperimentsDb(paths.results_db()), ResultsDb(paths.results_db())
    db.save(replace(stored, state=SeriesState.STOPPED))
    ran = cli("results", "report", "--experiment", "1", "--proof")
    assert ran.code == 2 and "workbench experiment resume 1" in ran.err, ran
    db.save(stored)
    results.delete(2)  # the first one was discarded
    ran = cli("results", "report", "--experiment", "1", "--proof")
    assert ran.code == 2 and "#2" in ran.err and "deleted" in ran.err, ran


def nan(document: dict[str, Any]) -> None:
    document["results"][0]["summary"]["output_tok_s"] = float("nan")


def huge(document: dict[str, Any]) -> None:
    document["results"][0]["summary"]["output_tok_s"] = 1e300


def tiny(document: dict[str, Any]) -> None:
    for number, one in enumerate(document["results"]):
        one["summary"]["output_tok_s"] = 9e15 if number % 2 else 5e-324


def unknown_metric(document: dict[str, Any]) -> None:
    document["experiment"]["spec"]["metric"] = "beauty"


def far_pair(document: dict[str, Any]) -> None:
    document["experiment"]["runs"][1]["pair"] = 2**60


def no_results(document: dict[str, Any]) -> None:
    document["results"] = []


def words_for_runs(document: dict[str, Any]) -> None:
    document["experiment"]["runs"] = "all"


def twice(document: dict[str, Any]) -> None:
    document["results"].append(document["results"][0])


def evil(document: dict[str, Any]) -> None:
    document["experiment"]["host"] = EVIL
    document["experiment"]["comparison"] = EVIL


def newer(document: dict[str, Any]) -> None:
    document["workbench_proof"] = 2


@pytest.mark.parametrize(
    "change",
    [nan, huge, tiny, unknown_metric, far_pair, no_results, words_for_runs, twice, evil, newer],
)
def test_a_hostile_proof_has_a_file_and_a_reason(
    cli: Cli, proof: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    document = json.loads(proof.read_text())
    change(document)
    proof.write_text(json.dumps(document))
    ran = cli("results", "verify", str(proof))
    assert ran.code in (1, 2) and "\x1b" not in ran.out + ran.err, ran
    if ran.code == 2:
        assert str(proof) in ran.err, ran


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'"workbench_proof"',
        b'{"workbench_proof": 1}',
        b'{"workbench_proof": ' + b"[" * 100_000,
        b'{"workbench_proof": ' + b"1" * 100_000 + b"}",
        b"<!doctype html><title>x</title>",
        b'<!doctype html><details><summary>The proof as data</summary><pre id="workbench-proof">',
        b"\xff\xfe\x00",
        b'{"workbench_proof": 1, "results": [1], "experiment": 1}',
        b'{"workbench_proof": 1, "results": [{}], "groups": [[1], [2]]}',
    ],
)
def test_any_other_file_is_named_with_the_reason(cli: Cli, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.html"
    path.write_bytes(content)
    ran = cli("results", "verify", str(path))
    assert ran.code == 2 and str(path) in ran.err, ran


def test_a_truncated_proof_is_named(cli: Cli, page: Path, proof: Path) -> None:
    for path in (page, proof):
        whole = path.read_bytes()
        for share in (0.1, 0.5, 0.9, 0.99):
            path.write_bytes(whole[: int(share * len(whole))])
            ran = cli("results", "verify", str(path))
            assert ran.code in (1, 2), (share, ran)
            if ran.code == 2:
                assert str(path) in ran.err
        path.write_bytes(whole)


def test_a_file_larger_than_any_proof_is_not_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_document, "MOST_BYTES", 1_000)
    path = tmp_path / "large.json"
    path.write_text(" " * 1_001)
    ran = cli("results", "verify", str(path))
    assert ran.code == 2 and "is larger than" in ran.err, ran


def test_a_difference_without_another_value_says_only_what_it_is() -> None:
    assert proofs.ProofDifference("checksum", "wrong").description == "checksum: wrong"
