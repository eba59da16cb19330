"""Fuzzy search: exact matches come first and leave out what has only the letters."""

from __future__ import annotations

from workbench.model.fuzzy import best_matches

ACTIONS = ("Models    the models of this host", "Launch: engine    the program", "Theme dark")
FLAGS = ("max-num-seqs", "max-model-len", "enforce-eager", "tensor-parallel-size")


def found(query: str, items: tuple[str, ...]) -> list[str]:
    return best_matches(query, items, lambda item: item)


def test_a_word_leaves_out_what_has_only_its_letters() -> None:
    assert found("theme", ACTIONS) == ["Theme dark"]
    # without a word that matches, the letters count
    assert found("mds", ACTIONS)[0] == ACTIONS[0]


def test_initials_and_starts_of_words_find_flags() -> None:
    assert found("mns", FLAGS)[0] == "max-num-seqs"
    assert found("eag", FLAGS) == ["enforce-eager"]
    assert found("", FLAGS) == list(FLAGS)
