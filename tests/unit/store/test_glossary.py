"""Tests of the glossary: finding words by their spellings, and in the text of a screen."""

from __future__ import annotations

import re

import pytest

from workbench.model.distribution import PERCENTILES
from workbench.model.metrics import METRICS, narrow_table_title
from workbench.store import glossary

PERCENTILES_TERM = ", ".join(each.title for each in PERCENTILES.values())


@pytest.mark.parametrize(
    ("word", "term"),
    [
        ("ttft", "TTFT"),
        ("  TTFT ", "TTFT"),
        ("lock", "clock lock"),
        ("limit", "ceiling, speed limit"),
        ("vram", "GPU memory"),
        ("p99", PERCENTILES_TERM),
        ("claim", "claim (in the register)"),
    ],
)
def test_a_word_is_found_by_each_of_its_spellings(word: str, term: str) -> None:
    assert term in [found.term for found in glossary.find_terms(word)]


def test_a_word_with_two_meanings_has_both() -> None:
    assert [t.term for t in glossary.find_terms("run")] == [
        "run (of a benchmark)",
        "run (of a server)",
    ]


@pytest.mark.parametrize("word", ["", "frobnicate", "*", "a" * 10_000])
def test_an_unknown_word_has_no_explanation(word: str) -> None:
    assert glossary.find_terms(word) == ()


def test_words_of_a_screen_come_in_their_order() -> None:
    found = [
        t.term
        for t in glossary.terms_in_text("  # change    tok/s  TTFT50/90 ms   W  tok/J   ▓▓ n/a")
    ]
    assert found == [
        "change",
        "tok/s",
        PERCENTILES_TERM,
        "TTFT",
        "power",
        "tok/J",
        "absent, n/a",
    ]


def test_a_part_of_a_word_or_of_a_name_is_not_a_word() -> None:
    assert glossary.terms_in_text("/srv/lock/ replanning vllm-host-x") == ()


def test_every_reference_leads_to_a_term() -> None:
    for term in glossary.read_all_terms():
        named = re.findall(r"\*(.+?)\*", term.means)
        assert all(glossary.find_terms(name) for name in named), term


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.short or m.group == "latency"])
def test_the_titles_of_metrics_in_tables_are_explained(name: str) -> None:
    if name not in ("request_s", "queue_ms"):  # plain words: "requests/s", "wait for a stream"
        assert glossary.terms_in_text(narrow_table_title(name)), narrow_table_title(name)
