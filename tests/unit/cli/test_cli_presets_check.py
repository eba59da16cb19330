"""`presets check` says of each file whether it is valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.cli.run import run

VALID = """
schema = 1
id = "{name}"
title = "A title"
summary = "A summary."
[hardware]
count = 1
[engine]
name = "vllm"
[model]
id = "a/b"
[provenance]
document = "none"
status = "untested"
"""


@pytest.mark.parametrize(
    ("text", "word", "code"),
    [
        (VALID.format(name="mine"), "ok", 0),
        (VALID.format(name="another-name"), "ok", 0),  # a warning
        ("title = 3\n", "not valid", 2),
    ],
)
def test_each_file_gets_a_word(
    text: str, word: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file with a warning it said the name and nothing else."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert run(["presets", "check", str(path)]) == code
    assert capsys.readouterr().out == f"{path}: {word}\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("port = [1, 2]", "mine.toml:16: port accepts one value, not a list of 2"),
        ("port = 8000\nmax-num-seqs = -1", "mine.toml:17: max-num-seqs is -1, expected at least 1"),
        ('max-num-seqs = "${streams}"', "mine.toml:16: max-num-seqs is 'none', expected"),
    ],
)
def test_a_wrong_value_of_a_flag_is_named_with_its_line(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check called the file valid, and only `plan` named the value."""
    path = tmp_path / "mine.toml"
    variable = '\n[variables.streams]\ndescription = "streams"\nkind = "text"\ndefault = "none"\n'
    path.write_text(VALID.format(name="mine") + f"[flags]\n{flags}\n" + variable)
    assert run(["presets", "check", str(path)]) == 2
    printed = capsys.readouterr()
    assert f"{path}: not valid" in printed.out
    assert said in printed.err
