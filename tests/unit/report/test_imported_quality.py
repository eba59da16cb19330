"""A comparison of answers from the file of another person: what cannot be is refused by file and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_results as made

from workbench.model.errors import InputError
from workbench.model.json_records import to_json
from workbench.model.quality import QualityResult
from workbench.quality.own_measure import (
    ItemScores,
    add_user_measure_to_result,
    compare_item_scores,
)
from workbench.report.formats.json_data import answers_json
from workbench.report.imports import read_results

A = ItemScores("acc", {"q1": 1.0, "q2": 1.0, "q3": 0.0})
B = ItemScores("acc", {"q1": 0.0, "q2": 1.0, "q4": 1.0})
COMPARED = add_user_measure_to_result(made.quality(), compare_item_scores(A, B))


def written(path: Path, compared: QualityResult, *place: str | int, value: Any = None) -> Path:
    """Write an exported result with a comparison, in which one value is another."""
    document = json.loads(json.dumps(to_json(made.result())))
    document["quality_comparisons"] = json.loads(json.dumps(answers_json([("B", compared)])))
    if place:
        inner = document["quality_comparisons"][0]
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
    path.write_text(json.dumps(document))
    return path


def test_what_workbench_exports_is_imported(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path / "whole.json", COMPARED))
    (found,) = result.quality
    assert replace(found, imported="") == COMPARED


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("positions",), -8192, "positions: it is an impossible number (-8192)"),
        (("forks", "forks"), -1, "forks.forks: it is an impossible number (-1)"),
        (("verdict",), "same", "verdict: it is same, and one of its measures differs"),
        (("answer_scores", "answers"), 1.5, "answer_scores.answers: not a comparison of answers"),
        (("answer_scores", "b"), 0.1, "answer_scores.b: it is an impossible number (0.1)"),
        (("answer_scores", "tokens"), -1, "answer_scores.tokens: it is an impossible number (-1)"),
        (("forks", "answers"), 2, "forks: more answers part than there are"),
        (("forks", "per_1000", "low"), 2.0, "forks.per_1000: its value lies outside of its inter"),
        (("forks", "per_1000", "high"), None, "forks.per_1000: its interval has one end only"),
        (("own", "p"), 7, "own.p: it is an impossible number (7)"),
        (("own", "p"), float("nan"), "own.p: it is not a number (NaN)"),
        (("own", "mean_b"), 1.5, "own.mean_b: it is an impossible number (1.5), where each item is"),
        (("own", "pairs"), 40, "own.pairs: 2 of its items have two scores"),
        (("own", "verdict"), "same", "own.verdict: it is none of differs, not decided"),
        (("texts", 0, "same_top"), 93.0, "texts[0].same_top: it is an impossible number (93)"),
        (("texts", 0, "kl"), -0.1, "texts[0].kl: it is an impossible number (-0.1)"),
        (("measures", 0, "value", "value"), -1.0, "measures[0].value.value: it is an impossible"),
        (("measures", 0, "floor", "value"), 1e308, "measures.floor.value: it is an impo"),
        (("measures", 0, "verdict"), "fine", "measures[0].verdict: it is none of same, differs"),
        (("proofs", 0, "noise"), -1.0, "proofs[0].noise: it is an impossible number (-1)"),
        (("took_s",), -5.0, "took_s: it is an impossible number (-5)"),
        (("worst", "name"), "x" * 1000, "worst.name: it is longer than 300 characters"),
        (("notes",), ["n"] * 1001, "notes: it has more than 1,000 entries"),
        (("summary",), "s" * 9000, "summary: it is longer than 8,192 characters"),
        (("conditions_b",), {"flag x": "y" * 200_000}, "conditions_b: it is longer than 100,000"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_file_and_field(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, said: str
) -> None:
    path = written(tmp_path / "forged.json", COMPARED, *place, value=value)
    with pytest.raises(InputError) as raised:
        read_results(path)
    assert raised.value.message.startswith(f"{path}: quality_comparisons[0].{said}")
    assert raised.value.next_step == "no result of this file was imported"


def test_a_result_with_thousands_of_comparisons_is_refused(tmp_path: Path) -> None:
    """Each was looked for among 200 stored ones: a large file took minutes."""
    path = written(tmp_path / "many.json", COMPARED)
    document = json.loads(path.read_text())
    document["quality_comparisons"] *= 201
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as raised:
        read_results(path)
    said = "quality_comparisons: it has more than 200 comparisons of answers"
    assert raised.value.message == f"{path}: {said}"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "note",
            "n" * 66_000,
            "note: the field must be text of at most 65,536 characters, found 'nnn",
        ),
        ("tags", ["t" * 66_000], "tags: a tag must have at most 65,536 characters, found ['ttt"),
    ],
)
def test_a_text_that_is_too_long_is_refused(
    tmp_path: Path, field: str, value: Any, said: str
) -> None:
    path = written(tmp_path / "long.json", COMPARED)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(InputError) as raised:
        read_results(path)
    assert said in raised.value.message
