"""The command `explain`."""

from __future__ import annotations

import argparse
import json

import pytest

from workbench.cli.explain import explain_term_or_flag
from workbench.model.errors import InputError


def run(*word: str, as_json: bool = False) -> int:
    return explain_term_or_flag(argparse.Namespace(word=list(word), json=as_json))


def test_a_word_and_a_flag_of_several_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tp") == 0
    said = capsys.readouterr().out
    assert "tensor parallel, TP: " in said and "--tensor-parallel-size (vllm " in said


def test_words_are_one_term_and_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("like", "for", "like", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["terms"][0]["term"] == "like for like"
    assert run("quantization", as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert {flag["engine"] for flag in found["flags"]} >= {"vllm", "sglang"}


def test_an_unknown_word_is_an_error_with_similar_words() -> None:
    with pytest.raises(InputError) as caught:
        run("calusterr")
    assert "workbench flags ENGINE --search TEXT" in (caught.value.next_step or "")
    with pytest.raises(InputError) as caught:
        run("govenor")
    assert "did you mean governor?" in (caught.value.next_step or "")
