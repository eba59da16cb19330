"""The user's own measure: files of evaluation programs, and the paired tests."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_results as made

from workbench.model.errors import InputError
from workbench.model.quality import BROKEN, DIFFERS, NOT_DECIDED, NOT_MEASURED, SAME
from workbench.quality.own_measure import (
    ItemScores,
    add_user_measure_to_result,
    compare_item_scores,
    mcnemar_p,
    newcombe_interval,
    read_item_scores,
)

LM_EVAL = {  # as lm-evaluation-harness 0.4 writes it; long fields left out
    "doc_id": 0,
    "doc": {"question": "…"},
    "target": "18",
    "resps": [["18"]],
    "filtered_resps": ["18"],
    "filter": "strict-match",
    "metrics": ["exact_match"],
    "doc_hash": "aa",
    "exact_match": 1.0,
}
VERIFIERS = {"example_id": 3, "prompt": [], "completion": [], "task": "math", "reward": 0.25}


def written(directory: Path, name: str, *lines: Mapping[str, Any] | str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return directory


def test_the_samples_of_lm_eval_are_named_by_task_document_and_filter(tmp_path: Path) -> None:
    other = {**LM_EVAL, "filter": "flexible-extract", "exact_match": 0.0}
    stamp = "2026-07-03T14-50-12.123456"
    written(tmp_path, f"org__model/samples_gsm8k_{stamp}.jsonl", LM_EVAL, other)
    written(tmp_path, f"org__model/samples_mmlu_law_{stamp}.jsonl", {**LM_EVAL, "filter": "none"})
    scores = read_item_scores(tmp_path)
    assert scores.field == "exact_match"
    assert scores.by_item == {"gsm8k:0:strict-match": 1.0, "mmlu_law:0": 1.0}


def test_a_document_under_two_filters_counts_once(tmp_path: Path) -> None:
    """Two scores of one answer are no two observations: the test would find what is not there."""
    lines = [
        {**LM_EVAL, "doc_id": number, "filter": name, "exact_match": score}
        for name, score in (("strict-match", 0.0), ("flexible-extract", 1.0))
        for number in range(3)
    ]
    written(tmp_path, "samples_gsm8k.jsonl", *lines)
    first = read_item_scores(tmp_path)
    assert first.by_item == {f"gsm8k:{number}:strict-match": 0.0 for number in range(3)}
    other = read_item_scores(tmp_path, "exact_match,flexible-extract")
    assert other.by_item == {f"gsm8k:{number}:flexible-extract": 1.0 for number in range(3)}
    with pytest.raises(InputError, match="wrote no scores"):
        read_item_scores(tmp_path, "exact_match,no-such-filter")


def test_older_samples_without_a_list_of_metrics_are_read(tmp_path: Path) -> None:
    older = {"doc_id": 7, "target": 1, "acc": 0.0, "acc_norm": 1.0}
    written(tmp_path, "samples_arc.jsonl", older)
    assert read_item_scores(tmp_path) == ItemScores("acc_norm", {"arc:7": 1.0})
    assert read_item_scores(tmp_path, "acc") == ItemScores("acc", {"arc:7": 0.0})


def test_a_metric_of_the_whole_set_is_no_score_of_an_item(tmp_path: Path) -> None:
    """A sample of a task with a corpus F1 has what is aggregated: the target and the answer."""
    sample = {**LM_EVAL, "metrics": ["f1", "acc"], "f1": ["DATE: kawuononi", [""]], "acc": 1.0}
    written(tmp_path, "samples_ner.jsonl", sample)
    assert read_item_scores(tmp_path).field == "acc"
    with pytest.raises(InputError, match="line 1: the score 'f1' is"):
        read_item_scores(tmp_path, "f1")


def test_the_rollouts_of_an_example_are_averaged(tmp_path: Path) -> None:
    written(tmp_path, "results.jsonl", VERIFIERS, {**VERIFIERS, "reward": 0.75})
    assert read_item_scores(tmp_path) == ItemScores("reward", {"math:3": 0.5})


def test_results_of_older_verifiers_are_read(tmp_path: Path) -> None:
    """Of 30 files in the history of the project itself, 24 have "id" and no "example_id"."""
    older = {"id": 0, "prompt": [], "completion": [], "task": "default", "reward": 1.0}
    written(tmp_path, "results.jsonl", older, {**older, "reward": 0.0}, {**older, "id": 1})
    assert read_item_scores(tmp_path) == ItemScores("reward", {"default:0": 0.5, "default:1": 1.0})


def test_own_lines_have_an_item_and_a_score(tmp_path: Path) -> None:
    lines = (
        {"item": "a", "score": True},
        "",
        {"item": 2, "score": 0},
        {"item": "\x1b[31mc", "score": 1.5},
    )
    written(tmp_path, "mine.jsonl", *lines)
    names = read_item_scores(tmp_path).by_item
    assert list(names.values()) == [1.0, 0.0, 1.5]
    assert [name.partition(" ")[0] for name in names] == ["a", "2", "c"]


def test_two_items_never_share_a_name(tmp_path: Path) -> None:
    """1 and "1" were one item with the mean of both scores."""
    items = [1, "1", '"1"', -1, "-1", "c", "\x1b[31mc", "c ", " c", "x" * 400, "x" * 401]
    lines = [{"item": one, "score": place} for place, one in enumerate(items)]
    written(tmp_path, "mine.jsonl", *lines)
    assert list(read_item_scores(tmp_path).by_item.values()) == [
        float(n) for n in range(len(items))
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "mine.jsonl, line 2: not JSON"),
        ("[1]", "mine.jsonl, line 2: not a JSON object"),
        ("[" * 100_000, "mine.jsonl, line 2: not JSON"),
        ({"score": 1}, "mine.jsonl, line 2: the item has no name"),
        ({"item": "b"}, "mine.jsonl, line 2: there is no score among the fields item"),
        ({"item": "b", "score": "high"}, "line 2: the score 'score' is \"high\", not a number"),
        ('{"item": "b", "score": NaN}', "line 2: the score 'score' is NaN, not a number"),
        ({"item": "b", "score": None}, "line 2: the score 'score' is null, not a number"),
        ({**LM_EVAL, "metrics": []}, "line 2: there is no score among the fields"),
        (LM_EVAL, "line 2: the score is in the field 'exact_match', and before in 'score'"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_reason(
    tmp_path: Path, line: Mapping[str, Any] | str, said: str
) -> None:
    written(tmp_path, "mine.jsonl", {"item": "a", "score": 1}, line)
    with pytest.raises(InputError) as raised:
        read_item_scores(tmp_path)
    assert said in raised.value.message


def test_a_directory_without_scores_says_what_to_do(tmp_path: Path) -> None:
    written(tmp_path, "empty.jsonl")
    written(tmp_path, "results.json", {"item": "a", "score": 1})
    with pytest.raises(InputError, match="wrote no scores") as raised:
        read_item_scores(tmp_path)
    assert "--output_path {items} --log_samples" in (raised.value.next_step or "")


# Exact two-sided binomial tests with a share of 1/2, by hand: 2 * sum(C(n, i), i <= k) / 2^n.
@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 0, 1.0),
        (6, 0, 2 / 64),
        (0, 6, 2 / 64),
        (9, 1, 2 * (1 + 10) / 1024),
        (2, 12, 2 * (1 + 14 + 91) / 2**14),
        (150, 86, 3.7e-05),
    ],
)
def test_the_exact_mcnemar_test(lost: int, gained: int, p: float) -> None:
    n, k = lost + gained, min(lost, gained)
    exact = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)
    assert mcnemar_p(lost, gained) == pytest.approx(exact, rel=1e-9)
    assert mcnemar_p(lost, gained) == pytest.approx(p, rel=0.02)


def test_mcnemar_of_a_large_set_is_finite() -> None:
    assert mcnemar_p(60_000, 40_000) == pytest.approx(0.0, abs=1e-300)
    assert 0.9 < mcnemar_p(50_000, 50_010) <= 1.0


def test_newcombes_interval_is_that_of_his_paper() -> None:
    """Table II, method 10, of 36, 12, 2 and 0 pairs: 0.0569 to 0.3404."""
    found = newcombe_interval(36, 2, 12, 0)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (
        pytest.approx(0.0569, abs=5e-5),
        pytest.approx(0.3404, abs=5e-5),
    )
    mirrored = newcombe_interval(36, 12, 2, 0)
    assert mirrored.low == pytest.approx(-0.3404, abs=5e-5)


def scores(*values: float, field: str = "acc") -> ItemScores:
    return ItemScores(field, {f"q{i}": value for i, value in enumerate(values)})


def test_right_and_wrong_are_paired_by_item() -> None:
    own = compare_item_scores(scores(*[1] * 20, 0, 0, 0), scores(*[1] * 10, *[0] * 10, 1, 0))
    assert own.right_wrong and (own.lost, own.gained) == (10, 1)
    assert own.pairs == 22 and (own.only_a, own.only_b) == (1, 0)
    assert own.p == pytest.approx(2 * (1 + 11) / 2**11)
    assert own.verdict == DIFFERS
    assert own.difference.value == pytest.approx(-9 / 22)
    assert len(own.items) == 23 and own.items[-1].b is None


def test_other_scores_have_a_paired_t_test() -> None:
    """Student's sleep data (1908): t = 4.0621 with 9 degrees of freedom, p = 0.002833."""
    first = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
    second = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)
    own = compare_item_scores(scores(*first), scores(*second))
    assert not own.right_wrong and own.verdict == DIFFERS
    assert own.p == pytest.approx(0.002833, abs=5e-7)
    assert own.difference.value == pytest.approx(1.58)
    assert own.difference.low == pytest.approx(0.7001142, abs=1e-6)
    assert own.difference.high == pytest.approx(2.4598858, abs=1e-6)


@pytest.mark.parametrize(("items", "p"), [(1, 1.0), (2, 0.5), (6, 1 / 32)])
def test_few_equal_differences_are_not_sure(items: int, p: float) -> None:
    a = ItemScores("score", {str(n): 0.5 for n in range(items)})
    b = ItemScores("score", {str(n): 0.7 for n in range(items)})
    assert compare_item_scores(a, b).p == pytest.approx(p)


def test_sets_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(InputError, match="no item of A is among those of B"):
        compare_item_scores(scores(1, 0), ItemScores("acc", {"other": 1.0}))
    with pytest.raises(InputError, match="the scores of A are in the field 'acc'"):
        compare_item_scores(scores(1), scores(1, field="acc_norm"))


WORSE = compare_item_scores(scores(*[1] * 30), scores(*[1] * 20, *[0] * 10))
EQUAL = compare_item_scores(scores(1, 0, 1), scores(1, 0, 1, 1))


@pytest.mark.parametrize(
    ("before", "own", "after"),
    [
        (SAME, WORSE, DIFFERS),
        (NOT_DECIDED, WORSE, DIFFERS),
        (NOT_MEASURED, WORSE, DIFFERS),
        (BROKEN, WORSE, BROKEN),
        (SAME, EQUAL, SAME),
        (DIFFERS, EQUAL, DIFFERS),
        (NOT_MEASURED, EQUAL, NOT_DECIDED),
    ],
)
def test_answers_differ_if_the_users_own_measure_does(before: str, own: Any, after: str) -> None:
    result = add_user_measure_to_result(replace(made.quality(), verdict=before), own)
    assert result.verdict == after
    assert "your measure" in result.summary
    lacking = [note for note in result.notes if "left out 1 item of B that A lacks: q3" in note]
    assert bool(lacking) == (own is EQUAL)


def test_long_names_with_the_same_beginning_are_different_items(tmp_path: Path) -> None:
    """An item may be named by its whole question. Its end must not be lost."""
    question = "Read this text. " * 40
    lines = [{"item": f"{question}{number}", "score": number} for number in (0, 1)]
    written(tmp_path, "scores.jsonl", *lines)
    assert sorted(read_item_scores(tmp_path).by_item.values()) == [0.0, 1.0]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "scores.jsonl")
    with pytest.raises(InputError, match=r"scores\.jsonl is not a regular file"):
        read_item_scores(tmp_path)


def test_a_device_is_refused_and_not_read_without_end(tmp_path: Path) -> None:
    (tmp_path / "scores.jsonl").symlink_to(os.devnull)
    with pytest.raises(InputError, match=r"scores\.jsonl is not a regular file"):
        read_item_scores(tmp_path)
