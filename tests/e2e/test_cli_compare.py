"""compare and results report: two results, two groups, two tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_runs import result_of

from workbench.cli.results import parse_result_ids
from workbench.model.errors import InputError
from workbench.store import paths
from workbench.store.results_db import ResultsDb

Cli = Callable[..., Any]


@pytest.fixture
def stored(cli: Cli) -> None:
    """Store results 1 to 3 of one address, 4 to 6 of another that is 10 % faster, and 7, which is
    not simulated."""
    db = ResultsDb(paths.results_db())
    for number in range(1, 8):
        made = result_of(number, "A", (1.0 if number < 4 else 1.1) + number / 1000)
        conditions = replace(
            made.conditions, host="local", address=f"http://127.0.0.1:{27001 + (number > 3)}"
        )
        if number == 7:
            conditions = replace(conditions, simulated=False)
        tags = ["before" if number < 4 else "after"] if number < 7 else []
        db.add(made.spec, conditions, made.summary, [], tags=tags)


@pytest.mark.parametrize(
    "words",
    [
        ("1-3", "4-6"),
        ("1,2,3", "4,5-6"),
        ("--tag", "before", "--tag", "after"),
        ("1-3", "--tag", "after"),
    ],
)
def test_two_groups_have_an_interval(cli: Cli, stored: None, words: tuple[str, ...]) -> None:
    found = cli("compare", *words, "--json").document
    assert (found["ids_a"], found["ids_b"], found["runs_a"], found["runs_b"]) == (
        [1, 2, 3],
        [4, 5, 6],
        3,
        3,
    )
    first = found["metrics"][0]
    assert (
        first["metric"] == "output_tok_s"
        and first["verdict"] == "better"
        and first["interval_pct"] > 0
    )
    said = cli("compare", *words).out
    assert said.startswith("A #1 #2 #3  SIMULATED  vs  B #4 #5 #6  SIMULATED")
    assert "  server  address  http://127.0.0.1:27001  http://127.0.0.1:27002" in said.splitlines()
    assert "the configurations are the same" not in said


def test_compare_says_which_side_is_simulated_before_the_metrics(cli: Cli, stored: None) -> None:
    said = cli("compare", "1", "7").out
    assert said.splitlines()[0] == "A #1  SIMULATED  vs  B #7"
    assert said.index(
        "Not like for like\n  one result is simulated and the other is real"
    ) < said.index("Effect")


def test_groups_in_a_report(cli: Cli, stored: None) -> None:
    found = cli("results", "report", "1-3", "4-6", "--json", "--format", "json").document
    assert (found["comparison"]["runs_a"], found["comparison"]["runs_b"]) == (3, 3)
    text = cli("results", "report", "1-3", "4-6").out
    assert (
        text.startswith("# B (3 runs) against A (3 runs)")
        and ("What differs between A and B") in text
    )
    assert "What differs" not in cli("results", "report", "1-3").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("1",), "`compare` takes two results or two groups, not 1"),
        (("1", "2", "3"), "not 3"),
        (("1-3", "3-5"), "#3 would be in both groups"),
        (("--tag", "none", "--tag", "after"), "no result has the tag 'none'"),
        (("3-1", "5"), "is not a range of result ids"),
        (("1-99999", "5"), "is not a range of result ids"),
        (("1", "9" * 30), "is not a list of result ids"),
        (("1", "99"), "there is no result 99"),
    ],
)
def test_invalid_comparisons_are_rejected(
    cli: Cli, stored: None, words: tuple[str, ...], said: str
) -> None:
    ran = cli("compare", *words, "--json")
    assert ran.code == 2 and said in ran.document["error"], ran


@given(st.text(alphabet="0123456789,- x", max_size=12))
def test_any_text_is_parsed_as_result_ids_or_rejected(text: str) -> None:
    try:
        ids = parse_result_ids(text)
    except InputError:
        return
    assert ids and len(set(ids)) == len(ids) <= 13_000
