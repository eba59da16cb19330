"""Options of several commands."""

from __future__ import annotations

import argparse

import pytest

from workbench.cli.shared_options import CHANGES, _complete_assignment_from_environment


def test_a_variable_without_a_value_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret=1")
    parser = argparse.ArgumentParser()
    for each in CHANGES:
        each.add_to(parser)
    arguments = parser.parse_args(["--env", "HF_TOKEN", "--env", "A=b", "--env", "C="])
    assert arguments.envs == ["HF_TOKEN=hf_secret=1", "A=b", "C="]


def test_a_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(argparse.ArgumentTypeError, match="HF_TOKEN is not set here"):
        _complete_assignment_from_environment("HF_TOKEN")
    assert _complete_assignment_from_environment("no name=x") == "no name=x"
