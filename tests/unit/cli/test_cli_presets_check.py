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
