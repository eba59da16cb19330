"""The texts whose log probabilities are compared."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from workbench.model.errors import InputError
from workbench.quality import texts

_HASH_OF_VERSION = {"1": "981f7eee62c99146"}


def test_the_package_has_32_short_texts_of_all_kinds_and_two_long_ones() -> None:
    found = texts.shipped_text_set().texts
    kinds = Counter(text.kind for text in found)
    assert sum(not text.is_long for text in found) >= 32
    assert kinds.keys() == {"prose", "code", "json", "cjk", "arabic", "math", "chat", "long"}
    assert kinds["long"] == 2
    assert len({text.name for text in found}) == len(found)


def test_short_texts_are_about_256_to_512_tokens_long() -> None:
    for text in texts.shipped_text_set().texts:
        # 4.5 characters a token in Latin letters; about one in ideographs and Hangul
        least, most = (300, 600) if text.kind == "cjk" else (750, 1800)
        assert least <= len(text.content) <= most, text.name


def test_code_is_in_four_languages() -> None:
    code = [
        text.name.split("-")[1] for text in texts.shipped_text_set().texts if text.kind == "code"
    ]
    assert len(set(code)) >= 4


def test_json_texts_are_json() -> None:
    for text in texts.shipped_text_set().texts:
        if text.kind == "json":
            json.loads(text.content)


def test_a_chat_has_two_turns() -> None:
    for text in texts.shipped_text_set().texts:
        if text.kind == "chat":
            assert text.content.count("User:") == text.content.count("Assistant:") == 2


def test_a_long_text_has_8k_tokens_before_its_end_and_does_not_contain_it() -> None:
    for text in texts.shipped_text_set().texts:
        if text.is_long:
            assert len(text.before) > 4 * texts.LONG_TOKENS
            assert text.content not in text.before


def test_a_changed_text_needs_a_new_version() -> None:
    import hashlib

    said = "".join(f"{t.name}\0{t.before}{t.content}\0" for t in texts.shipped_text_set().texts)
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    assert _HASH_OF_VERSION[texts.VERSION] == digest


def test_own_texts_have_the_hash_of_the_file_as_version(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "one two", "name": "a", "kind": "sql"}\n\n{"text": "three"}\n')
    found = texts.read_own_texts(file)
    assert [(t.name, t.kind, t.content) for t in found.texts] == [
        ("a", "sql", "one two"),
        ("text-3", "own", "three"),
    ]
    before = found.version
    file.write_text('{"text": "one two", "name": "a", "kind": "sql"}\n{"text": "four"}\n')
    assert texts.read_own_texts(file).version != before
    assert found.name == "mine.jsonl"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "contains no text"),
        ("hello\n", ":1: not JSON"),
        ('{"text": "a"}\n{"prompt": "b"}\n', ':2: there is no "text"'),
        ('{"text": "  "}\n', ':1: there is no "text"'),
        ('{"text": "\\ud800"}\n', "lone surrogate"),
        ('{"text": "a", "name": 1}\n', "must be strings"),
        ('{"text": "a", "name": "x"}\n{"text": "b", "name": "x"}\n', "given twice"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_without_usable_texts_says_which_line(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        texts.read_own_texts(file)
    assert said in error.value.message


def test_a_file_that_does_not_exist_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        texts.read_own_texts(tmp_path / "none.jsonl")


def test_a_pipe_and_a_directory_are_no_files_of_texts(tmp_path: Path) -> None:
    """A pipe was waited for without end."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", tmp_path):
        with pytest.raises(InputError, match="is not a regular file"):
            texts.read_own_texts(path)
